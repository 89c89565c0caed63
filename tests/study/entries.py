"""Records for tests."""

from typing import Any

from skippipe.evaluate.intervals import Interval
from skippipe.evaluate.summary import Row
from skippipe.study.records import ArmRecord
from skippipe.study.run_history import Point


def make_row(omission: str = "random:0.25", perplexity: float = 20.0) -> Row:
    """A row of an evaluation."""
    return Row(
        omission=omission,
        omitted_layers=2.0,
        layers=8,
        saved=0.25,
        draws=2,
        complete=False,
        perplexity=Interval(perplexity, perplexity - 1, perplexity + 1),
        increase=None if omission == "none" else Interval(0.25, 0.2, 0.3),
        time_ratio=0.75,
        each=(((0, 2, 3, 4, 5, 6), 19.5), ((0, 1, 2, 3, 4, 5), 20.5)),
    )


def make_entry(experiment: str = "whole", seed: int = 0, **changes: Any) -> ArmRecord:
    """The record of a finished arm, with changed fields."""
    return ArmRecord(
        **{
            "experiment": experiment,
            "seed": seed,
            "settings": "a" * 64,
            "tokens": 300_000_000,
            "strategy": "skippipe",
            "skip_ratio": 0.0,
            "rules": {"cc1": True, "cc2": True, "cc3": True, "max_swaps": 1},
            "text": "b" * 64,
            "text_tokens": 80_000_000,
            "model": "llama",
            "parameters": 29_893_120,
            "tokens_done": 300_000_000,
            "finished": True,
            "seconds": 600.0,
            "tokens_per_s": 500_000.0,
            "mfu": 0.312,
            "device": "NVIDIA H100",
            "date": "2026-01-31",
            "versions": {"skippipe": "0.1.0"},
            "curve": [Point(0, 9.0, 9.0), Point(150_000_000, 3.5, 3.4), Point(300_000_000, 3.0, 2.95)],
            **changes,
        }
    )
