"""Compute devices: which one a setting names, what it can do, and the number types in which it computes.

Training, evaluation and studies all use this module. Settings are declared and studies are summarised without torch,
so torch is imported only by the functions that need it.
"""
# ruff: noqa: PLC0415 - see above

import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING

from skippipe.errors import unexpected

if TYPE_CHECKING:
    import torch

DTYPES = {"float32": 4, "float64": 8, "bfloat16": 2}
"""Number types by torch's names, and the bytes of each."""
AUTOCASTS = ("bfloat16", "float16")
WIRE_DTYPES = {**DTYPES, "float16": 2, "float8_e4m3fn": 1, "int8": 1}
"""Number types of messages, and the bytes of each; those of one byte are scaled token by token."""
SCALE_BYTES = 4
"""Of the scale that goes with each token in types of one byte."""
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
"""Dense bfloat16 FLOP/s from data sheets, by the first key that a GPU's name contains."""


@dataclass(frozen=True)
class Precision:
    """Number types of a model."""

    dtype: str = "float32"
    """type of weights and gradients; one of `DTYPES`"""
    autocast: str | None = None
    """type in which torch's autocast computes; None: no autocast"""
    wire: str | None = None
    """type of messages, one of `WIRE_DTYPES`; None: that of hidden states"""

    @property
    def hidden_dtype(self) -> str:
        """Type of hidden states between layers."""
        return self.autocast or self.dtype

    @property
    def wire_dtype(self) -> str:
        """Type of messages."""
        return self.wire or self.hidden_dtype

    @property
    def torch_dtype(self) -> "torch.dtype":
        """`dtype` as torch has it."""
        return _torch_dtype(self.dtype)

    @property
    def torch_hidden_dtype(self) -> "torch.dtype":
        """`hidden_dtype` as torch has it."""
        return _torch_dtype(self.hidden_dtype)

    @property
    def torch_wire_dtype(self) -> "torch.dtype":
        """`wire_dtype` as torch has it."""
        return _torch_dtype(self.wire_dtype)

    @property
    def torch_autocast(self) -> "torch.dtype | None":
        """`autocast` as torch has it."""
        return None if self.autocast is None else _torch_dtype(self.autocast)


def _torch_dtype(name: str) -> "torch.dtype":
    import torch

    found: torch.dtype = getattr(torch, name)
    return found


def wire_bytes(dtype: str, hidden: int) -> int:
    """Bytes of one token's hidden state, `hidden` numbers, in a message of type `dtype`."""
    size = WIRE_DTYPES[dtype]
    return hidden * size + (SCALE_BYTES if size == 1 else 0)


def find_device(name: str, key: str, process: int = 0) -> "torch.device":
    """The device that a setting names.

    Args:
        name: `cpu`; `cuda:NUMBER`; `cuda`, the GPU whose turn it is; or `auto` for that or, without one, the CPU.
        key: of the setting, for messages.
        process: number of the process on its machine; GPUs take turns.

    Raises:
        InputError: the device is unknown or absent.

    """
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
    except RuntimeError:
        device = None
    if device is None or device.type not in {"cpu", "cuda"}:
        raise unexpected(key, name, "auto, cpu, cuda or cuda:NUMBER")
    if device.type == "cpu":
        return device
    gpus, index = torch.cuda.device_count(), None if name == "cuda" else device.index
    if (index or 0) >= gpus:
        raise unexpected(key, name, f"one of the {gpus} GPUs of this machine")
    return torch.device("cuda", process % gpus if index is None else index)


def find_devices(names: Sequence[str] | None) -> list[str]:
    """Names of the devices to use: those asked for by `devices`, else all GPUs, else the CPU.

    Raises:
        InputError: the list is empty, or a device is unknown or absent.

    """
    import torch

    if names is None:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    if not names:
        raise unexpected("devices", [], "at least one device")
    for number, name in enumerate(names):
        find_device(name, f"devices[{number}]")
    return list(names)


def device_identity(device: "torch.device") -> str | None:
    """What two processes have in common only if they compute on the same GPU; None: on the CPU."""
    import torch

    return None if device.type == "cpu" else str(torch.cuda.get_device_properties(device).uuid)


_earlier_peaks: dict["torch.device", int] = {}
"""Of GPUs, before `restart_peak`."""


def peak_memory(device: "torch.device", uncounted: int = 0) -> int | None:
    """Most bytes that this process has taken on a GPU at one time; None: on the CPU.

    Args:
        device: of the process.
        uncounted: bytes in use, since the latest `restart_peak`, that torch does not count.

    """
    import torch

    if device.type != "cuda":
        return None
    return max(_earlier_peaks.get(device, 0), torch.cuda.max_memory_allocated(device) + uncounted)


def restart_peak(device: "torch.device", uncounted: int = 0) -> None:
    """Keep the peak of a GPU's memory up to now: what torch does not count changes; arguments as for `peak_memory`."""
    import torch

    _earlier_peaks[device] = peak_memory(device, uncounted) or 0
    torch.cuda.reset_peak_memory_stats(device)


def device_name(device: "torch.device") -> str:
    """Model name of a GPU; `cpu` otherwise."""
    import torch

    return torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"


def open_device(name: str, key: str, process: int, *, deterministic: bool) -> "torch.device":
    """Find the device that a setting names, and have this process compute on it; before the first work on a GPU.

    Args:
        name: as for `find_device`.
        key: the same.
        process: the same.
        deterministic: whether only deterministic kernels are used from now on.

    Raises:
        InputError: the device is unknown or absent.

    """
    import torch

    device = find_device(name, key, process)
    if device.type == "cuda":
        # Streams that share a hardware queue wait for each other, and each link has a stream.
        os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
        torch.cuda.set_device(device)
    if deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS needs a workspace of fixed size for it
        torch.use_deterministic_algorithms(mode=True)
    return device


def on_device(
    batch: "tuple[torch.Tensor, torch.Tensor]", device: "torch.device"
) -> "tuple[torch.Tensor, torch.Tensor]":
    """A batch on a device; the host does not wait for a GPU, as other ranks may wait for it meanwhile."""
    if device.type == "cpu":
        return batch
    tokens, labels = (tensor.pin_memory().to(device, non_blocking=True) for tensor in batch)
    return tokens, labels


def synchronize(device: "torch.device") -> None:
    """Wait until a GPU has finished all work; a CPU always has."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def await_stream(device: "torch.device") -> None:
    """Wait until a GPU has done what was issued on its current stream; other streams may still wait for other ranks."""
    import torch

    if device.type == "cuda":
        torch.cuda.current_stream(device).synchronize()


def autocast(device: "torch.device", dtype: "torch.dtype | None") -> AbstractContextManager[object]:
    """Within: torch's autocast to `dtype`; None: nothing."""
    import torch

    return nullcontext() if dtype is None else torch.autocast(device.type, dtype)


def peak_flops(name: str) -> float | None:
    """Dense bfloat16 FLOP/s of the device of this name; None: not known."""
    if "MIG" in name:  # a slice of the device that it is named after
        return None
    return next((peak for part, peak in PEAK_FLOPS.items() if part in name), None)
