"""The tokenizer of a training: that of `model.folder`, where the model is from one. No torch."""

from skippipe.data.config import DataConfig
from skippipe.data.corpus import Corpus
from skippipe.data.model_tokenizer import check_tokenizer, own_encoder, with_tokenizer_of
from skippipe.model.folder import own_tokenizer
from skippipe.model.settings import weights_folder
from skippipe.train.config import TrainJob


def data_settings(job: TrainJob) -> DataConfig:
    """Settings of the text, with the model's own tokenizer where none is named; raises `InputError` for another one."""
    folder = weights_folder(job.model)
    return job.data if folder is None else with_tokenizer_of(job.data, own_tokenizer(folder), f"model.folder={folder}")


def check_text(job: TrainJob, corpus: Corpus) -> None:
    """Raise `InputError` where a text was prepared with another tokenizer than that of `model.folder`."""
    folder = weights_folder(job.model)
    own = None if folder is None else own_tokenizer(folder)
    if own is not None:
        check_tokenizer(corpus, own_encoder(own).json, f"model.folder={folder}")
