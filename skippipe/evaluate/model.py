"""The evaluated model: a checkpoint or a transformers folder."""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from skippipe._scheduler import Plan
from skippipe.checkpoint import Checkpoint, open_checkpoint
from skippipe.checkpoint.reading import TOKENIZER
from skippipe.data.corpus import Corpus
from skippipe.data.model_tokenizer import check_tokenizer, own_encoder
from skippipe.errors import InputError, unexpected
from skippipe.evaluate.config import EvaluateJob
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.folder import CONFIG, own_tokenizer, weights_sha256
from skippipe.model.settings import config_sha256, model_config
from skippipe.model.stage_module import StageModule

if TYPE_CHECKING:
    from transformers import PretrainedConfig

Load = Callable[[torch.dtype, torch.device], StageModule]


@dataclass(frozen=True)
class EvaluatedModel:
    """A model whose weights are not loaded yet."""

    title: str
    """name in tables"""
    sha256: str
    """identifies the weights"""
    config: "PretrainedConfig"
    sizes: tuple[int, ...]
    """layers of each stage"""
    load: Load
    """builds the full model as one module"""
    tokenizer: str | None
    """its own tokenizer, in the form of `data.tokenizer`; None: unknown"""
    stage_of_node: Mapping[str, int] = field(default_factory=dict)
    """by node name in the plan"""
    sequence: int | None = None
    """sequence length of its training; None: unknown"""
    skipped: tuple[str, ...] = ()
    """newer checkpoints of the run that were skipped, with reasons"""


def open_model(job: EvaluateJob) -> EvaluatedModel:
    """Open the model of a job.

    Raises:
        InputError: none or two are given, or it is unusable.

    """
    if (job.checkpoint is None) == (job.model_folder is None):
        raise unexpected("checkpoint", "both" if job.checkpoint else "neither", "checkpoint or model")
    if job.checkpoint is not None:
        return _of_checkpoint(open_checkpoint(Path(job.checkpoint), job.key), job)
    assert job.model_folder is not None
    return _of_folder(Path(job.model_folder), job)


def check_corpus(model: EvaluatedModel, corpus: Corpus, sequence: int) -> None:
    """Raise `InputError` if the corpus does not match the model's tokenizer, vocabulary or positions."""
    config = model.config
    if model.tokenizer is not None:
        check_tokenizer(corpus, own_encoder(model.tokenizer).json, model.title)
    if sequence > config.max_position_embeddings:
        expected = f"at most {config.max_position_embeddings}, the positions of {model.title}"
        raise unexpected("data.sequence", sequence, expected)
    if corpus.vocabulary > config.vocab_size:
        expected = f"a corpus prepared with the tokenizer of {model.title}, whose vocabulary is {config.vocab_size}"
        raise InputError(file=corpus.folder, expected=expected, found=f"a vocabulary of {corpus.vocabulary}")


def _of_checkpoint(checkpoint: Checkpoint, job: EvaluateJob) -> EvaluatedModel:
    config, plan = model_config(checkpoint.model), checkpoint.plan
    stages = _joined_stages(plan, checkpoint.state.layers)

    def load(dtype: torch.dtype, device: torch.device) -> StageModule:
        module = _drawn(config, dtype, device)
        checkpoint.load_model(module.state_dict())
        return module

    has_tokenizer = checkpoint.tokenizer_json is not None
    return EvaluatedModel(
        title=str(checkpoint.path),
        sha256=checkpoint.manifest.sha256,
        config=config,
        sizes=_sizes(job.layers or list(stages.values()), config),
        load=load,
        tokenizer=str(checkpoint.path / TOKENIZER) if has_tokenizer else None,
        stage_of_node=_stage_of_node(plan, list(stages)),
        sequence=_trained_sequence(plan),
        skipped=checkpoint.skipped,
    )


def _of_folder(folder: Path, job: EvaluateJob) -> EvaluatedModel:
    if not (folder / CONFIG).is_file():
        raise unexpected("model", folder, f"a folder with {CONFIG} and safetensors files")
    config = model_config({"folder": str(folder)})

    def load(dtype: torch.dtype, device: torch.device) -> StageModule:
        return build_stage_module(
            config, stage=0, layers=_all(config), first=True, seed=0, dtype=dtype, device=device, weights=folder
        )

    return EvaluatedModel(
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


def _joined_stages(plan: Plan, layers: Collection[int]) -> dict[int, int]:
    """Stages of a plan whose layers have joined, with the number of these: the stages of the evaluated model."""
    ranges = (range(begin, end) for begin, end in pairwise(accumulate(plan.layers, initial=0)))
    counts = {stage: sum(layer in layers for layer in own) for stage, own in enumerate(ranges)}
    return {stage: count for stage, count in counts.items() if count}


def _stage_of_node(plan: Plan, stages: Sequence[int]) -> dict[str, int]:
    """Stage of the evaluated model by node name; `stages` has their numbers in the plan."""
    names = plan.cluster.names
    return {names[node]: number for number, stage in enumerate(stages) for node in plan.stages[stage]}


def _trained_sequence(plan: Plan) -> int | None:
    noted = json.loads(plan.model) if plan.model is not None else {}
    sequence = noted.get("sequence") if isinstance(noted, dict) else None
    return sequence if isinstance(sequence, int) else None
