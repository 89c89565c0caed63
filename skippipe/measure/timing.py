"""Repeated timings, summarized so that outliers do not matter."""

import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from skippipe.devices import synchronize


class Timing(NamedTuple):
    """Summary of repeated timings; seconds."""

    median_s: float
    spread_s: float
    """difference of the quartiles; 0 where there are fewer than two"""
    samples: int


def summarize(seconds: Sequence[float]) -> Timing:
    """Median and spread of at least one timing."""
    spread_s = 0.0
    if len(seconds) > 1:
        low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
        spread_s = high - low
    return Timing(statistics.median(seconds), spread_s, len(seconds))


def seconds_of(run: Callable[[], object], device: torch.device) -> float:
    """Seconds until `run` has returned and the device has finished its work."""
    begin = time.perf_counter()
    run()
    synchronize(device)
    return time.perf_counter() - begin
