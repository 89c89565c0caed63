"""An evaluation from its settings to its table."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from skippipe.console.progress import ProgressDisplay
from skippipe.data.blocks import Blocks
from skippipe.data.config import DataConfig
from skippipe.data.corpus import Corpus, open_corpus
from skippipe.data.model_tokenizer import with_tokenizer_of
from skippipe.data.prepare import corpus_folder
from skippipe.devices import Precision, device_name, find_device
from skippipe.errors import SchedulerError, unexpected, unwritable
from skippipe.evaluate.compare import read_tables
from skippipe.evaluate.config import EvaluateJob
from skippipe.evaluate.evaluator import Evaluator
from skippipe.evaluate.model import EvaluatedModel, check_corpus, open_model
from skippipe.evaluate.omission import Draws, Partition, draw
from skippipe.evaluate.plot import draw_plot
from skippipe.evaluate.results import (
    FORMAT,
    MARKDOWN,
    PLOT,
    TABLE,
    Result,
    Results,
    check_comparison_folder,
    check_folder,
    make_folder,
)
from skippipe.evaluate.summary import NONE, Row, summarise, table_json
from skippipe.evaluate.table import Rows, markdown
from skippipe.files import locked, write_bytes, write_text
from skippipe.model.flops import layer_flops
from skippipe.model.stage_module import empty_stage_module

TIMED_DRAWS = 3
"""per omission: times hardly depend on which layers are skipped"""


@dataclass(frozen=True)
class EvaluatedText:
    """The sequences to evaluate on."""

    corpus: Corpus
    blocks: Blocks

    @property
    def sha256(self) -> str:
        """Identifies the tokens."""
        facts = [self.corpus.tokenizer_sha256, self.corpus.splits["validation"].sha256]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def evaluate(job: EvaluateJob, output: Path, display: ProgressDisplay) -> list[Row]:
    """Run or resume an evaluation; writes everything to `output`.

    Raises:
        InputError: unusable model, corpus, omissions or folder.

    """
    model = open_model(job)
    for reason in model.skipped:
        display.write_line(f"skipped: {reason}")
    device = find_device(job.device, "device")
    partition = Partition(model.sizes, job.unit, job.keep_first, model.stage_of_node)
    # The full model comes first: it is the baseline of the others.
    omissions = {
        omission: draw(omission, partition, job.draws, job.seed) for omission in dict.fromkeys([NONE, *job.omit])
    }
    check_folder(output)
    with corpus_folder(with_tokenizer_of(job.data, model.tokenizer, model.title), warn=display.write_line) as folder:
        text = _open_text(job, model, folder)
        settings = _settings(job, model, text, device)
        make_folder(output)
        with locked(output, unwritable(output, "another process writes to it", "output")):
            with Results(output, settings, len(text.blocks)) as results:
                _measure_all(job, model, text, omissions, results, device, display)
                shapes = empty_stage_module(model.config, stage=0, layers=range(partition.layers), first=False)
                flops = layer_flops(shapes, text.blocks.sequence)
                rows = summarise(omissions, results.known, flops, text.blocks.sequence, job.seed)
            about = {
                "format": FORMAT, "model": model.title, "settings": settings, "stages": list(model.sizes),
                "unit": job.unit, "keep_first": job.keep_first, "seed": job.seed, "device": device_name(device),
            }  # fmt: skip
            write_report(output, {model.title: rows}, about, _notes(job, model, text, device))
    return rows


def compare(job: EvaluateJob, output: Path) -> dict[str, list[Row]]:
    """Compare finished evaluations; writes table and plot to `output`, returns the rows by short names.

    Raises:
        InputError: a model is given too, or an evaluation or `output` is unusable.

    """
    if job.checkpoint is not None or job.model_folder is not None:
        raise unexpected("compare", "both", "compare or a model (checkpoint, model)")
    tables = read_tables(job.compare)
    check_comparison_folder(output)
    make_folder(output)
    write_report(output, tables, None, [f"{name}: {folder}" for name, folder in zip(tables, job.compare, strict=True)])
    return tables


def write_report(output: Path, rows: Rows, about: Mapping[str, Any] | None, notes: Sequence[str]) -> None:
    """Write table and plot; the JSON table, if any, comes last: its presence means that all is complete."""
    write_text(output / MARKDOWN, markdown(rows, notes))
    write_bytes(output / PLOT, draw_plot(rows))
    if about is not None:
        (own,) = rows.values()
        write_text(output / TABLE, table_json(about, own))


def _measure_all(  # noqa: PLR0913, PLR0917 - what an evaluation is made of
    job: EvaluateJob,
    model: EvaluatedModel,
    text: EvaluatedText,
    omissions: Mapping[str, Draws],
    results: Results,
    device: torch.device,
    display: ProgressDisplay,
) -> None:
    """Measure every path without a result; loads the model only if there is one."""
    total = sum(len(draws.paths) for draws in omissions.values())
    evaluator: Evaluator | None = None
    done = 0

    def show(omission: str, done: int) -> None:
        display.update(done, f"{done} of {total} draws", total=total, description=omission)

    for omission, draws in omissions.items():
        for number, path in enumerate(draws.paths):
            show(omission, done)
            if path not in results.known:
                evaluator = evaluator or _evaluator(job, model, text, device)
                began = time.perf_counter()
                losses = evaluator.losses(path)
                seconds = time.perf_counter() - began
                if not np.isfinite(losses).all():
                    raise SchedulerError(
                        f"{omission}: non-finite loss on {np.count_nonzero(~np.isfinite(losses))} of {len(losses)} "
                        f"sequences with layers {list(path)}; dtype=float32 has the widest range"
                    )
                ratio = evaluator.time_ratio(path) if omission != NONE and number < TIMED_DRAWS else None
                results.add(Result(path, losses, seconds, 1.0 if omission == NONE else ratio))
            done += 1
    show(omission, done)


def _evaluator(job: EvaluateJob, model: EvaluatedModel, text: EvaluatedText, device: torch.device) -> Evaluator:
    precision = Precision(job.dtype, job.autocast)
    module = model.load(precision.torch_dtype, device)
    return Evaluator(
        module, text.blocks.tokens, batch=job.batch, device=device, autocast=precision.torch_autocast,
        compiled=job.compile,
    )  # fmt: skip


def _open_text(job: EvaluateJob, model: EvaluatedModel, folder: Path) -> EvaluatedText:
    sequence = job.data.sequence
    if model.sequence is not None and sequence == DataConfig().sequence:
        sequence = model.sequence
    corpus = open_corpus(folder)
    check_corpus(model, corpus, sequence)
    corpus.verify(whole=job.data.verify == "whole")
    blocks = corpus.validation(sequence, job.data.validation_blocks)
    corpus.check_tokens(blocks.tokens, folder / "validation.tokens")
    return EvaluatedText(corpus, blocks)


def _settings(job: EvaluateJob, model: EvaluatedModel, text: EvaluatedText, device: torch.device) -> dict[str, Any]:
    """Everything that determines a loss, except the layer path."""
    return {
        "model_sha256": model.sha256,
        "text_sha256": text.sha256,
        "sequence": text.blocks.sequence,
        "sequences": len(text.blocks),
        "dtype": job.dtype,
        "autocast": job.autocast,
        "device": device.type,
    }


def _notes(job: EvaluateJob, model: EvaluatedModel, text: EvaluatedText, device: torch.device) -> list[str]:
    files = [Path(str(file["name"])).name for file in text.corpus.splits["validation"].files]
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")
    first = "stage 0 exempt from random, every and swaps" if job.keep_first else "stage 0 not exempt"
    dtypes = job.dtype if job.autocast is None else f"{job.dtype}, autocast to {job.autocast}"
    return [
        f"Model: {model.title}; layers per stage: {', '.join(map(str, model.sizes))}.",
        f"Unit: {job.unit}; {first}.",
        f"Corpus: {len(text.blocks):,} sequences of {text.blocks.sequence} tokens, of {shown}.",
        f"Computed on {device_name(device)} in {dtypes}.",
        "Intervals: over sequences and, unless all draws were taken, over draws; increase: over the full model.",
    ]
