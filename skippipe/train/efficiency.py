"""How well a device is used: operations that a plan executes, what the device could do, and where the time goes."""

import contextlib
import statistics
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]  # where its own modules take it from
from torch.profiler import ProfilerActivity, profile

from skippipe._scheduler import Plan
from skippipe.devices import device_name, peak_flops, synchronize
from skippipe.model.build import stage_layers
from skippipe.model.flops import BACKWARD, head_flops, layer_flops
from skippipe.train.config import RuntimeConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

KINDS = (
    ("optimizer", ("adam", "multi_tensor")),
    ("attention", ("flash", "fmha", "sdpa", "attention")),
    ("products", ("gemm", "nvjet", "cutlass", "cublas", "xmma", "splitk", "gemv", "addmm", "aten::mm", "aten::bmm")),
    ("loss", ("softmax", "nll", "cross_entropy")),
    ("copies", ("memcpy", "memset", "catarray", "aten::cat", "aten::copy_")),
)
"""Kinds of kernels by what their names contain; the first that fits. Others are norms, activations and the like."""
OTHER, IDLE = "elementwise", "idle"
SETTLED = 8
"""iterations before those that are taken apart: the first ones compile"""


def iteration_flops(plan: Plan, config: "PretrainedConfig", layers: Sequence[int], tokens: int, sequence: int) -> float:
    """Operations that one iteration of a plan takes, forward and backward, over the stages that are visited.

    Args:
        plan: whose routes count.
        config: the model's.
        layers: decoder layers of each stage.
        tokens: of one microbatch.
        sequence: tokens of a sequence.

    """
    of_stage = [
        sum(layer_flops(config, layer, sequence) for layer in numbers) for numbers in stage_layers(layers, config)
    ]
    visited = sum(of_stage[stage] for microbatch in plan.microbatches for stage in microbatch.stages)
    return (1 + BACKWARD) * tokens * (visited + head_flops(config) * len(plan.microbatches))


@dataclass(frozen=True)
class Breakdown:
    """Where the time of some iterations went, on the device."""

    iterations: int
    seconds: float
    """of one, by the clock"""
    shares: dict[str, float]
    """of that time by kind of work, `idle` where the device waited; the largest first"""
    slowest: list[tuple[str, float]]
    """kernels that took most, and their shares"""


class Profiler:
    """Adds up what kernels take in stretches between `start` and `stop`; the trace is of the first one."""

    def __init__(self, device: torch.device, trace: Path | None) -> None:
        self.taken: dict[str, float] = defaultdict(float)
        """seconds by kernel"""
        self._device, self._trace = device, trace
        self._profile: profile | None = None

    @property
    def running(self) -> bool:
        """Whether a stretch has begun."""
        return self._profile is not None

    def start(self) -> None:
        """Begin a stretch, between two iterations."""
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if self._device.type == "cuda" else [])]
        self._profile = profile(activities=activities, acc_events=True)
        self._profile.start()

    def stop(self) -> None:
        """End a stretch; the first one leaves a trace for Perfetto."""
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
                    self.taken[found.key] += found.self_device_time_total / 1e6
            else:
                self.taken[found.key] += found.self_cpu_time_total / 1e6


def break_down(taken: dict[str, float], iterations: int, seconds: float) -> Breakdown:
    """Sort the seconds that kernels took in all iterations by kind, as shares of the time by the clock."""
    whole = iterations * seconds
    shares: dict[str, float] = defaultdict(float)
    for name, spent in taken.items():
        shares[kind_of(name)] += spent / whole
    shares[IDLE] = max(0.0, 1.0 - sum(shares.values()))
    slowest = sorted(((name[:80], spent / whole) for name, spent in taken.items()), key=lambda pair: -pair[1])
    return Breakdown(iterations, seconds, dict(sorted(shares.items(), key=lambda pair: -pair[1])), slowest[:12])


def kind_of(kernel: str) -> str:
    """Which kind of work a kernel of this name does."""
    lower = kernel.lower()
    return next((kind for kind, parts in KINDS if any(part in lower for part in parts)), OTHER)


class Gauge:
    """Measures over a run how well its device is used; where what the device could do is not known, it says nothing."""

    def __init__(self, device: torch.device, config: RuntimeConfig, trace: Path | None, iteration: int) -> None:
        """Prepare to measure a run that goes on after `iteration`."""
        self._device, self._name = device, device_name(device)
        self._peak = peak_flops(self._name)
        self._first = iteration + SETTLED
        self._last = self._first + config.profile
        self._profiler = Profiler(device, trace) if config.profile else None
        self._profiled: list[float] = []
        """seconds of the iterations that were taken apart"""
        self._mfus: list[float] = []
        self._began_at = 0.0

    def begin(self) -> None:
        """Begin to measure: what was done until now was no training."""
        self._began_at = time.perf_counter()

    def lap(self, flops: float) -> tuple[float, float | None]:
        """End an iteration that took so many operations.

        Returns:
            The seconds from the end of the one before, and the share of what the device could have done in them.

        """
        now = time.perf_counter()
        seconds, self._began_at = now - self._began_at, now
        if self._profiler is not None and self._profiler.running:
            self._profiled.append(seconds)
        if self._peak is None:
            return seconds, None
        self._mfus.append(flops / seconds / self._peak)
        return seconds, self._mfus[-1]

    def profile(self, iteration: int) -> None:
        """Begin or end to take iterations apart, where it is time for it after this one."""
        if self._profiler is None or iteration not in (self._first, self._last):
            return
        if iteration == self._first:
            self._profiler.start()
        elif self._profiler.running:
            self._profiler.stop()
        self.begin()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Within: what is done is no training, and nothing of it is measured."""
        profiler = self._profiler if self._profiler is not None and self._profiler.running else None
        if profiler is not None:
            profiler.stop()
        yield
        if profiler is not None:
            profiler.start()
        self.begin()

    def summary(self) -> dict[str, Any]:
        """What is known at the end."""
        if self._profiler is not None and self._profiler.running:
            self._profiler.stop()
        known: dict[str, Any] = {"device": self._name}
        if self._mfus:
            known["mfu"] = statistics.median(self._mfus)
        if self._profiler is not None and self._profiled:
            count = len(self._profiled)
            known["breakdown"] = asdict(break_down(self._profiler.taken, count, sum(self._profiled) / count))
        return known
