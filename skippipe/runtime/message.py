"""Messages between stages: a hidden state or its gradient, in the number type of the wire.

The wire's type is independent of the type in which stages compute. Types of one byte are scaled token by token to the
largest magnitude of the token's numbers; the float32 scale follows the numbers in the same buffer, so that a message
remains one transfer.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from skippipe.devices import SCALE_BYTES, wire_bytes
from skippipe.errors import unexpected

LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
"""Largest magnitude of the scaled types."""


@dataclass(frozen=True)
class MessageSpec:
    """What every message holds, and how it travels."""

    microbatch_size: int
    """sequences per microbatch, b"""
    sequence: int
    """tokens per sequence, s"""
    hidden: int
    """width of the model"""
    dtype: torch.dtype = torch.float32
    """of hidden states, before and after the transfer"""
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    """of hidden states"""
    wire_dtype: torch.dtype | None = None
    """on the wire; None: `dtype`"""

    @property
    def shape(self) -> tuple[int, int, int]:
        """Of a hidden state: (b, s, hidden)."""
        return (self.microbatch_size, self.sequence, self.hidden)

    @property
    def payload_bytes(self) -> int:
        """Of one message."""
        name = str(self._wire).removeprefix("torch.")
        return self.microbatch_size * self.sequence * wire_bytes(name, self.hidden)

    @property
    def _wire(self) -> torch.dtype:
        return self.wire_dtype or self.dtype

    def empty_payload(self) -> Tensor:
        """Make a buffer for a message to be received."""
        wire = self._wire
        if wire in LARGEST:
            shape = (self.microbatch_size, self.sequence, self.hidden + SCALE_BYTES)
            return torch.empty(shape, dtype=torch.uint8, device=self.device)
        return torch.empty(self.shape, dtype=wire, device=self.device)

    def encode(self, hidden: Tensor, out: Tensor) -> None:
        """Encode a hidden state, (b, s, hidden), into a buffer that `empty_payload` has made."""
        if hidden.shape != self.shape:
            raise ValueError(str(unexpected("result", tuple(hidden.shape), f"shape {self.shape}")))
        wire = self._wire
        if wire not in LARGEST:
            out.copy_(hidden.detach())
            return
        numbers = hidden.detach().float()
        scale = numbers.abs().amax(-1, keepdim=True) / LARGEST[wire]
        scaled = numbers / scale.clamp_min(torch.finfo(torch.float32).tiny)
        packed = (scaled.round() if wire == torch.int8 else scaled).to(wire)
        out[..., : self.hidden].copy_(packed.view(torch.uint8))
        out[..., self.hidden :].copy_(scale.view(torch.uint8))

    def decode(self, payload: Tensor) -> Tensor:
        """Decode a payload: (b, s, hidden), of the hidden states' type, in memory of its own."""
        wire = self._wire
        if wire not in LARGEST:
            return payload.to(self.dtype, copy=True)
        numbers = payload[..., : self.hidden].contiguous().view(wire).float()
        scale = payload[..., self.hidden :].contiguous().view(torch.float32)
        return (numbers * scale).to(self.dtype)


class MessageBuffers:
    """Buffers for messages, reused: as many as are in use at one time, over all programs of a rank."""

    def __init__(self, message_spec: MessageSpec) -> None:
        """Take what the messages hold; buffers are made as they are needed."""
        self.message_spec = message_spec
        self._free: list[Tensor] = []

    def take(self) -> Tensor:
        """Take a buffer that is not in use."""
        return self._free.pop() if self._free else self.message_spec.empty_payload()

    def give_back(self, buffer: Tensor) -> None:
        """Give a buffer back, once nothing but the current stream of the device may still use it."""
        self._free.append(buffer)
