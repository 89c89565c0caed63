"""How well a device is utilized: model FLOPs utilization, and where the time goes by kind of kernel."""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]  # where its own modules take it from
from torch.profiler import ProfilerActivity, profile

from skippipe.devices import device_name, peak_flops, synchronize
from skippipe.train.observe.events import TimeBreakdown

KINDS = (
    ("optimizer", ("adam", "multi_tensor")),
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("products", ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk", "gemv", "addmm", "aten::mm", "aten::bmm")),
    ("loss", ("softmax", "nll", "cross_entropy")),
    ("copies", ("memcpy", "memset", "catarray", "aten::cat", "aten::copy_")),
)
"""Kinds of kernels by parts of their names; the first match counts. All others are norms, activations and the like."""
OTHER, IDLE = "elementwise", "idle"
WARM_UP = 8
"""Iterations before the profiled ones: the first ones compile."""


class Profiler:
    """Adds up kernel times in intervals between `start` and `stop`; the trace is of the first one."""

    def __init__(self, device: torch.device, trace: Path | None) -> None:
        self.kernel_s: dict[str, float] = defaultdict(float)
        """by kernel"""
        self._device, self._trace = device, trace
        self._profile: profile | None = None

    @property
    def running(self) -> bool:
        """Whether an interval has begun."""
        return self._profile is not None

    def start(self) -> None:
        """Begin an interval, between two iterations."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.start()

    def stop(self) -> None:
        """End an interval; the first one leaves a trace for Perfetto."""
        assert self._profile is not None, "it was started"
        synchronize(self._device)
        ended, self._profile = self._profile, None
        ended.stop()
        if self._trace is not None:
            ended.export_chrome_trace(str(self._trace))
            self._trace = None
        for event in ended.key_averages():
            found: Any = event
            if self._device.type == "cuda":
                if found.device_type == DeviceType.CUDA and not found.is_user_annotation:
                    self.kernel_s[found.key] += found.self_device_time_total / 1e6
            else:
                self.kernel_s[found.key] += found.self_cpu_time_total / 1e6


def break_down(kernel_s: dict[str, float], iterations: int, seconds: float) -> TimeBreakdown:
    """Sort kernel times by kind of work, as shares of wall time.

    Args:
        kernel_s: seconds by kernel, over all iterations.
        iterations: how many there were.
        seconds: wall time of one.

    """
    total_s = iterations * seconds
    shares: dict[str, float] = defaultdict(float)
    for name, spent in kernel_s.items():
        shares[kind_of(name)] += spent / total_s
    shares[IDLE] = max(0.0, 1.0 - sum(shares.values()))
    slowest = sorted(((name[:80], spent / total_s) for name, spent in kernel_s.items()), key=lambda pair: -pair[1])
    return TimeBreakdown(iterations, seconds, dict(sorted(shares.items(), key=lambda pair: -pair[1])), slowest[:12])


def kind_of(kernel: str) -> str:
    """Kind of work of the kernel of this name."""
    lower = kernel.lower()
    return next((kind for kind, parts in KINDS if any(part in lower for part in parts)), OTHER)


class UtilizationMeter:
    """Measures over a run how well its device is utilized; MFU is None where the device's peak is not known."""

    def __init__(self, device: torch.device, ranks: int, profiled: int, trace: Path | None, iteration: int) -> None:
        """Prepare to measure.

        Args:
            device: on which the stages of this rank compute.
            ranks: of the run; MFU takes all of them to have such a device.
            profiled: how many iterations to profile.
            trace: file for a trace of them; None: none is written.
            iteration: the run continues after this one.

        """
        self.device = device_name(device)
        peak = peak_flops(self.device)
        self._peak = None if peak is None else peak * ranks
        self._first = iteration + WARM_UP
        self._last = self._first + profiled
        self._profiler = Profiler(device, trace) if profiled else None
        self._profiled_s: list[float] = []
        """of each profiled iteration"""
        self._mfus: list[float] = []
        self._began_at = 0.0

    def restart(self) -> None:
        """Measure from now on: what was done before was no training."""
        self._began_at = time.perf_counter()

    def record(self, flops: float) -> tuple[float, float | None]:
        """Record the end of an iteration of so many FLOPs, over all ranks.

        Returns:
            Seconds since the end of the one before, and model FLOPs utilization in them.

        """
        now = time.perf_counter()
        seconds, self._began_at = now - self._began_at, now
        if self._profiler is not None and self._profiler.running:
            self._profiled_s.append(seconds)
        if self._peak is None:
            return seconds, None
        self._mfus.append(flops / seconds / self._peak)
        return seconds, self._mfus[-1]

    def profile(self, iteration: int) -> None:
        """Begin or end profiling if it is due after this iteration."""
        if self._profiler is None or iteration not in (self._first, self._last):
            return
        if iteration == self._first:
            self._profiler.start()
        elif self._profiler.running:
            self._profiler.stop()
        self.restart()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Within: nothing is measured, since it is no training."""
        profiler = self._profiler if self._profiler is not None and self._profiler.running else None
        if profiler is not None:
            profiler.stop()
        yield
        if profiler is not None:
            profiler.start()
        self.restart()

    def summary(self) -> tuple[float | None, TimeBreakdown | None]:
        """Median MFU, and where the time of the profiled iterations went; None where that was not measured."""
        if self._profiler is not None and self._profiler.running:
            self._profiler.stop()
        breakdown = None
        if self._profiler is not None and self._profiled_s:
            count = len(self._profiled_s)
            breakdown = break_down(self._profiler.kernel_s, count, sum(self._profiled_s) / count)
        return statistics.median(self._mfus) if self._mfus else None, breakdown
