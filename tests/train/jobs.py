"""A job that trains a tiny model, as dataclasses and on the command line."""

import dataclasses
import fcntl
import functools
import tempfile
from pathlib import Path
from typing import Any

from skippipe.config import LinkProfile, NodeProfile, PlannerConfig, ScheduleConfig, SitesConfig
from skippipe.data.config import DataConfig
from skippipe.data.prepare import prepare
from skippipe.train.config import RuntimeConfig, TrainConfig, TrainJob

TINY_MODEL = {
    "model_type": "llama",
    "vocab_size": 1024,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "bos_token_id": 0,
    "eos_token_id": 0,
}
TINY = [
    "model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=4", "model.num_attention_heads=2",
    "model.num_key_value_heads=2", "model.max_position_embeddings=64", "data.sequence=32", "data.validation_blocks=16",
    "train.microbatch_size=2", "schedule.microbatches_per_source=3", "planner.work_limit=200",
]  # fmt: skip
"""The same on the command line."""


def make_cluster(nodes: int = 4, sizes: list[int] | None = None) -> SitesConfig:
    """A cluster of nodes `local-0` ... whose figures nobody has measured."""
    link = LinkProfile(5e-5, 1e9)
    return SitesConfig(
        stage_sizes=sizes or [2, 1, 1],
        name="local",
        nodes_per_site=nodes,
        activation_bytes=8192,
        node=NodeProfile(0.004, 0.008, 0.001, 4),
        inside=link,
        between=link,
    )


@functools.cache
def prepared_text() -> Path:
    """The text that ships, tokenised once for all trainings of a test session, in whatever process."""
    folder = Path(tempfile.gettempdir()) / "skippipe-text"
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (folder / "corpus.json").exists():
            prepare(DataConfig(), folder)
    return folder


def make_job(**changes: Any) -> TrainJob:
    """A job of some seconds; `part__key=value` changes a setting of a part."""
    job = TrainJob(
        cluster=make_cluster(),
        schedule=ScheduleConfig(microbatches_per_source=3),
        planner=PlannerConfig(work_limit=200),
        model=dict(TINY_MODEL),
        data=DataConfig(sequence=32, validation_blocks=16, prepared=str(prepared_text())),
        runtime=RuntimeConfig(calibrate=False, timeout_s=20.0, start_timeout_s=20.0),
        train=TrainConfig(microbatch_size=2, iterations=4),
    )
    for name, value in changes.items():
        part, _, key = name.partition("__")
        if key:
            setattr(job, part, dataclasses.replace(getattr(job, part), **{key: value}))
        else:
            setattr(job, part, value)
    return job
