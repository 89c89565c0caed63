"""The model that is evaluated: from a checkpoint, or from a folder of transformers."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skippipe._scheduler import Plan
from skippipe.checkpoint import Checkpoint, open_checkpoint
from skippipe.checkpoint.reading import TOKENIZER
from skippipe.data.belonging import check_tokenizer, own_encoder
from skippipe.data.corpus import Corpus
from skippipe.errors import InputError
from skippipe.evaluate.config import EvaluateJob
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.folder import CONFIG, own_tokenizer, weights_sha256
from skippipe.model.settings import config_sha256, model_config
from skippipe.model.stage_module import StageModule

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Load = Callable[[torch.dtype, torch.device], StageModule]


@dataclass(frozen=True)
class Source:
    """A model that is known and not yet read."""

    title: str
    """what it is called in tables"""
    sha256: str
    """equal where the weights are"""
    config: "PretrainedConfig"
    sizes: tuple[int, ...]
    """layers of each stage"""
    load: Load
    """builds all of it, in one part"""
    tokenizer: str | None
    """its own tokenizer, as `data.tokenizer` names one; None: not known"""
    stage_of_node: Mapping[str, int] = field(default_factory=dict)
    """by names of nodes, where a plan has them"""
    sequence: int | None = None
    """tokens of the sequences that it was trained with; None: not known"""
    passed_over: tuple[str, ...] = ()
    """what is wrong with newer checkpoints of the same run"""


def open_source(job: EvaluateJob) -> Source:
    """Open the model that a job names.

    Raises:
        InputError: none or two are named, or it cannot be used.

    """
    if (job.checkpoint is None) == (job.model_folder is None):
        what = "both" if job.checkpoint else "neither"
        raise InputError(f"{what} of checkpoint and model is set, one of the two is expected")
    if job.checkpoint is not None:
        return _of_checkpoint(open_checkpoint(Path(job.checkpoint), job.key), job)
    assert job.model_folder is not None
    return _of_folder(Path(job.model_folder), job)


def check_text(source: Source, corpus: Corpus, sequence: int) -> None:
    """Raise `InputError` where a model cannot read a text, or reads other words in it than are there."""
    config = source.config
    if source.tokenizer is not None:
        check_tokenizer(corpus, own_encoder(source.tokenizer).json, source.title)
    if sequence > config.max_position_embeddings:
        raise InputError(
            f"data.sequence is {sequence}, at most the {config.max_position_embeddings} positions of {source.title} "
            "are expected"
        )
    if corpus.vocabulary > config.vocab_size:
        raise InputError(
            f"{corpus.folder}: its tokenizer has {corpus.vocabulary} entries, {source.title} knows {config.vocab_size}:"
            " a text prepared with the model's tokenizer is expected"
        )


def _of_checkpoint(checkpoint: Checkpoint, job: EvaluateJob) -> Source:
    config, plan = model_config(checkpoint.state.model), checkpoint.plan

    def load(dtype: torch.dtype, device: torch.device) -> StageModule:
        part = _drawn(config, dtype, device)
        checkpoint.load(part.state_dict())
        return part

    has_tokenizer = checkpoint.tokenizer_json is not None
    return Source(
        title=str(checkpoint.path),
        sha256=checkpoint.manifest.sha256,
        config=config,
        sizes=_sizes(job.layers or plan.layers, config),
        load=load,
        tokenizer=str(checkpoint.path / TOKENIZER) if has_tokenizer else None,
        stage_of_node=_stage_of_node(plan),
        sequence=_trained_sequence(plan),
        passed_over=checkpoint.passed_over,
    )


def _of_folder(folder: Path, job: EvaluateJob) -> Source:
    if not (folder / CONFIG).is_file():
        raise InputError(f"model is {folder}: a folder with {CONFIG} and safetensors files is expected")
    config = model_config({"folder": str(folder)})

    def load(dtype: torch.dtype, device: torch.device) -> StageModule:
        return build_stage_module(
            config, stage=0, layers=_all(config), first=True, seed=0, dtype=dtype, device=device, weights=folder
        )

    return Source(
        title=str(folder),
        sha256=f"{weights_sha256(folder)}-{config_sha256(config)}",
        config=config,
        sizes=_sizes(job.layers or [], config),
        load=load,
        tokenizer=own_tokenizer(folder),
    )


def _drawn(config: "PretrainedConfig", dtype: torch.dtype, device: torch.device) -> StageModule:
    return build_stage_module(config, stage=0, layers=_all(config), first=True, seed=0, dtype=dtype, device=device)


def _all(config: "PretrainedConfig") -> range:
    return range(int(config.num_hidden_layers))


def _sizes(stated: list[int], config: "PretrainedConfig") -> tuple[int, ...]:
    sizes = list(stated) or [1] * int(config.num_hidden_layers)
    stage_layers(sizes, config)
    return tuple(sizes)


def _stage_of_node(plan: Plan) -> dict[str, int]:
    names = plan.cluster.names
    return {names[node]: stage for stage, nodes in enumerate(plan.stages) for node in nodes}


def _trained_sequence(plan: Plan) -> int | None:
    noted = json.loads(plan.model) if plan.model is not None else {}
    sequence = noted.get("sequence") if isinstance(noted, dict) else None
    return sequence if isinstance(sequence, int) else None
