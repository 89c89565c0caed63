"""How well a device is used: operations that a plan executes, what the device could do, and where the time goes."""

import statistics
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.autograd.profiler_util import DeviceType  # type: ignore[attr-defined]  # where its own modules take it from
from torch.profiler import ProfilerActivity, profile

from skippipe._scheduler import Plan
from skippipe.errors import InputError
from skippipe.model.build import stage_layers
from skippipe.model.flops import BACKWARD, head_flops, layer_flops
from skippipe.train.config import RuntimeConfig

if TYPE_CHECKING:
    from transformers import PretrainedConfig

PEAK_FLOPS = {
    "H200 NVL": 835e12,
    "H200": 989.4e12,
    "H100 80GB HBM3": 989.4e12,
    "H100 SXM": 989.4e12,
    "H100 NVL": 835e12,
    "H100 PCIe": 756e12,
    "A100": 312e12,
    "L40S": 362e12,
    "RTX 4090": 165.2e12,
}
"""Operations a second of dense products in bfloat16, by the first part that a GPU's name contains; from data sheets."""
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


def find_device(name: str, key: str = "runtime.device") -> torch.device:
    """The device that a setting, `key`, asks for.

    Raises:
        InputError: it is unknown or not there.

    """
    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise InputError(f"{key} is {name!r}, auto, cpu, cuda or cuda:NUMBER is expected") from None
    if device.type not in {"cpu", "cuda"}:
        raise InputError(f"{key} is {name!r}, auto, cpu, cuda or cuda:NUMBER is expected")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise InputError(f"{key} is {name!r}, this machine has {torch.cuda.device_count()} GPUs")
    return torch.device("cuda", device.index or 0) if device.type == "cuda" else device


def device_name(device: torch.device) -> str:
    """What the device calls itself."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def peak_flops(name: str) -> float | None:
    """Operations a second that a device of this name can do at most; None where that is not known."""
    if "MIG" in name:  # a slice of the device that it is named after
        return None
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)


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
    """Takes a few iterations apart."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if device.type == "cuda" else [])]
        self._profile = profile(activities=activities, acc_events=True)

    def start(self) -> None:
        """Begin, between two iterations."""
        self._profile.start()

    def stop(self, iterations: int, seconds: float, trace: Path | None) -> Breakdown:
        """End after so many iterations that took so many seconds each; writes a trace for Perfetto."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        self._profile.stop()
        if trace is not None:
            self._profile.export_chrome_trace(str(trace))
        taken: dict[str, float] = defaultdict(float)
        for event in self._profile.key_averages():
            found: Any = event
            if self._device.type == "cuda":
                if found.device_type == DeviceType.CUDA and not found.is_user_annotation:
                    taken[found.key] += found.self_device_time_total / 1e6
            else:
                taken[found.key] += found.self_cpu_time_total / 1e6
        return break_down(taken, iterations, seconds)


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
        self._trace = trace
        self._first = iteration + SETTLED
        self._last = self._first + config.profile
        self._profiler = Profiler(device) if config.profile else None
        self._breakdown: Breakdown | None = None
        self._mfus: list[float] = []
        self._laps: list[float] = []
        self._began_at = 0.0

    def begin(self) -> None:
        """Begin to measure: what was done until now was no training."""
        self._began_at = time.perf_counter()

    def lap(self, flops: float) -> float | None:
        """End an iteration that took so many operations; gives the share of what the device could have done."""
        now = time.perf_counter()
        seconds, self._began_at = now - self._began_at, now
        self._laps.append(seconds)
        if self._peak is None:
            return None
        self._mfus.append(flops / seconds / self._peak)
        return self._mfus[-1]

    def profile(self, iteration: int) -> None:
        """Begin or end to take iterations apart, where it is time for it after this one."""
        if self._profiler is None or iteration not in (self._first, self._last):
            return
        if iteration == self._first:
            self._profiler.start()
        else:
            count = self._last - self._first
            laps = self._laps[-count:]
            self._breakdown = self._profiler.stop(count, sum(laps) / count, self._trace)
            self._profiler = None
        self.begin()

    def summary(self) -> dict[str, Any]:
        """What is known at the end."""
        known: dict[str, Any] = {"device": self._name}
        if self._mfus:
            known["mfu"] = statistics.median(self._mfus)
        if self._breakdown is not None:
            known["breakdown"] = asdict(self._breakdown)
        return known
