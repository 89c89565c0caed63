"""An evaluation from the settings to its table: what is measured, in which order, and what is written."""

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from skippipe.data.belonging import with_tokenizer_of
from skippipe.data.blocks import Blocks
from skippipe.data.config import DataConfig
from skippipe.data.corpus import Corpus, open_corpus
from skippipe.data.prepare import corpus_folder
from skippipe.devices import Precision, device_name, find_device
from skippipe.errors import InputError, SchedulerError
from skippipe.evaluate.compare import read_tables
from skippipe.evaluate.config import EvaluateJob
from skippipe.evaluate.measure import Evaluator
from skippipe.evaluate.omission import Cut, Draws, draw
from skippipe.evaluate.page import Rows, markdown
from skippipe.evaluate.picture import draw_picture
from skippipe.evaluate.results import (
    FORMAT,
    PAGE,
    PICTURE,
    TABLE,
    Result,
    Results,
    check_comparison_folder,
    check_folder,
    make_folder,
)
from skippipe.evaluate.source import Source, check_text, open_source
from skippipe.evaluate.summary import NONE, Row, summarise, table_json
from skippipe.files import locked, write_bytes, write_text
from skippipe.model.flops import layer_flops

TIMED_DRAWS = 3
"""of a word: times do not depend much on which layers are left out"""


class Report(Protocol):
    """Who is told how far it has come."""

    def __call__(self, word: str, done: int, total: int) -> None:
        """Take what is worked on, and how many draws are done of how many."""

    def say(self, line: str) -> None:
        """Take a line for the user."""


@dataclass(frozen=True)
class Text:
    """What is evaluated on."""

    corpus: Corpus
    blocks: Blocks

    @property
    def sha256(self) -> str:
        """Equal where the tokens are."""
        facts = [self.corpus.tokenizer_sha256, self.corpus.parts["validation"].sha256]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def evaluate(job: EvaluateJob, output: Path, report: Report) -> list[Row]:
    """Evaluate a model, or go on with an evaluation; writes everything to `output`.

    Raises:
        InputError: model, text, words or folder cannot be used.

    """
    source = open_source(job)
    for reason in source.passed_over:
        report.say(f"passed over: {reason}")
    device = find_device(job.device, "device")
    cut = Cut(source.sizes, job.unit, job.keep_first, source.stage_of_node)
    # The whole model comes first: the others are held against it.
    words = {word: draw(word, cut, job.draws, job.seed) for word in dict.fromkeys([NONE, *job.omit])}
    check_folder(output)
    with corpus_folder(with_tokenizer_of(job.data, source.tokenizer, source.title), say=report.say) as folder:
        text = _open_text(job, source, folder)
        settings = _settings(job, source, text, device)
        make_folder(output)
        with locked(output, f"output={output}: another process writes to it"):
            with Results(output, settings, len(text.blocks)) as results:
                _measure_all(job, source, text, words, results, device, report)
                flops = [layer_flops(source.config, layer, text.blocks.sequence) for layer in range(cut.layers)]
                rows = summarise(words, results.known, flops, text.blocks.sequence, job.seed)
            about = {
                "format": FORMAT, "model": source.title, "settings": settings, "stages": list(source.sizes),
                "unit": job.unit, "keep_first": job.keep_first, "seed": job.seed, "device": device_name(device),
            }  # fmt: skip
            write_report(output, {source.title: rows}, about, _notes(job, source, text, device))
    return rows


def compare(job: EvaluateJob, output: Path) -> dict[str, list[Row]]:
    """Put finished evaluations together; writes table and picture to `output`, and gives the rows by short names.

    Raises:
        InputError: a model is named as well, or an evaluation or `output` cannot be used.

    """
    if job.checkpoint is not None or job.model_folder is not None:
        raise InputError(
            "compare is set beside checkpoint or model: folders of finished evaluations alone are expected"
        )
    tables = read_tables(job.compare)
    check_comparison_folder(output)
    make_folder(output)
    write_report(output, tables, None, [f"{name}: {folder}" for name, folder in zip(tables, job.compare, strict=True)])
    return tables


def write_report(output: Path, rows: Rows, about: Mapping[str, Any] | None, notes: Sequence[str]) -> None:
    """Write table and picture; the one for programs, if it is asked for, last: where it is there, all is."""
    write_text(output / PAGE, markdown(rows, notes))
    write_bytes(output / PICTURE, draw_picture(rows))
    if about is not None:
        (own,) = rows.values()
        write_text(output / TABLE, table_json(about, own))


def _measure_all(  # noqa: PLR0913, PLR0917 - what an evaluation is made of
    job: EvaluateJob,
    source: Source,
    text: Text,
    words: Mapping[str, Draws],
    results: Results,
    device: torch.device,
    report: Report,
) -> None:
    """Measure every way that is not known yet; where all are, the model is not even read."""
    total = sum(len(draws.ways) for draws in words.values())
    evaluator: Evaluator | None = None
    done = 0
    for word, draws in words.items():
        for number, way in enumerate(draws.ways):
            report(word, done, total)
            if way not in results.known:
                evaluator = evaluator or _evaluator(job, source, text, device)
                began = time.perf_counter()
                losses = evaluator.losses(way)
                seconds = time.perf_counter() - began
                if not np.isfinite(losses).all():
                    raise SchedulerError(
                        f"{word}: the model gives a loss that is not finite on {int((~np.isfinite(losses)).sum())} of "
                        f"{len(losses)} sequences, by the layers {list(way)}; dtype=float32 has the widest range"
                    )
                ratio = evaluator.time_ratio(way) if word != NONE and number < TIMED_DRAWS else None
                results.add(Result(way, losses, seconds, 1.0 if word == NONE else ratio))
            done += 1
    report(word, done, total)


def _evaluator(job: EvaluateJob, source: Source, text: Text, device: torch.device) -> Evaluator:
    precision = Precision(job.dtype, job.autocast)
    part = source.load(precision.torch_dtype, device)
    return Evaluator(
        part, text.blocks.tokens, batch=job.batch, device=device, autocast=precision.torch_autocast,
        compiled=job.compile,
    )  # fmt: skip


def _open_text(job: EvaluateJob, source: Source, folder: Path) -> Text:
    sequence = job.data.sequence
    if source.sequence is not None and sequence == DataConfig().sequence:
        sequence = source.sequence
    corpus = open_corpus(folder)
    check_text(source, corpus, sequence)
    corpus.verify(whole=job.data.verify == "whole")
    blocks = corpus.validation(sequence, job.data.validation_blocks)
    corpus.check_tokens(blocks.tokens, folder / "validation.tokens")
    return Text(corpus, blocks)


def _settings(job: EvaluateJob, source: Source, text: Text, device: torch.device) -> dict[str, Any]:
    """All that decides about a loss, but for the way."""
    return {
        "model_sha256": source.sha256,
        "text_sha256": text.sha256,
        "sequence": text.blocks.sequence,
        "sequences": len(text.blocks),
        "dtype": job.dtype,
        "autocast": job.autocast,
        "device": device.type,
    }


def _notes(job: EvaluateJob, source: Source, text: Text, device: torch.device) -> list[str]:
    files = [Path(str(file["name"])).name for file in text.corpus.parts["validation"].files]
    shown = ", ".join(files[:3]) + (f" and {len(files) - 3} more files" if len(files) > 3 else "")
    first = "stage 0 left alone by random, every and swaps" if job.keep_first else "stage 0 like any other"
    numbers = job.dtype if job.autocast is None else f"{job.dtype}, autocast to {job.autocast}"
    return [
        f"Model: {source.title}; layers of its stages: {', '.join(map(str, source.sizes))}.",
        f"Counted: {job.unit}; {first}.",
        f"Text: {len(text.blocks):,} sequences of {text.blocks.sequence} tokens, of {shown}.",
        f"Computed on {device_name(device)} in {numbers}.",
        "Intervals are over texts and, where not all of them were taken, over draws; a rise is over the same text.",
    ]
