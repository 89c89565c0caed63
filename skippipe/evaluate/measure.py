"""Losses and times of a model along a way through its layers, on one device."""

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from skippipe import devices
from skippipe.data.blocks import Tokens
from skippipe.evaluate.intervals import Losses
from skippipe.model.layers import compiled_for_any_batch
from skippipe.model.stage_module import StageModule

TIMED_PASSES, TIMED_S = 5, 0.25
"""A time is the median of at least so many passes, which take at least so many seconds together."""


class Evaluator:
    """Runs a whole model, in one part, over a text that lies on its device.

    Args:
        part: of all layers.
        blocks: tokens of the sequences, shape (sequences, sequence + 1).
        batch: sequences at a time.
        device: where the part is.
        autocast: what torch's autocast computes in; None: no autocast.
        compiled: whether layers and loss are compiled.

    """

    def __init__(  # noqa: PLR0913 - what an evaluation is made of
        self,
        part: StageModule,
        blocks: Tokens,
        *,
        batch: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        self._part, self._device, self._autocast = part.eval(), device, autocast
        self._whole = tuple(part.layers)
        self._losses: Callable[[Tensor, Tensor], Tensor] = self._block_losses
        if autocast is not None:
            part.enable_autocast(autocast)
        if compiled:
            part.enable_compile()
            self._losses = compiled_for_any_batch(self._block_losses)
        tokens = torch.from_numpy(np.asarray(blocks).astype(np.int64)).to(device)
        self._batches = [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in torch.split(tokens, batch)]

    def losses(self, way: Sequence[int]) -> Losses:
        """Sum of the token losses of every sequence in nats, shape (sequences,), when only these layers are run."""
        with torch.no_grad():
            found = [self._run(way, *batch) for batch in self._batches]
        return torch.cat(found).cpu().numpy()  # waits for the device, once

    def time_ratio(self, way: Sequence[int]) -> float:
        """Time of a forward pass, embedding, head and loss included, over that of the whole model; both in turn."""
        ratios: list[float] = []
        passed = 0.0
        while len(ratios) < TIMED_PASSES or passed < TIMED_S:
            own, whole = self._seconds(way), self._seconds(self._whole)
            ratios.append(own / whole)
            passed += own + whole
        return statistics.median(ratios)

    def _seconds(self, way: Sequence[int]) -> float:
        """Time of one batch."""
        self._wait()
        began = time.perf_counter()
        with torch.no_grad():
            self._run(way, *self._batches[0])
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        devices.synchronize(self._device)

    def _run(self, way: Sequence[int], tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self._part.run_layers(self._part.embed(tokens), way)
        with devices.autocast(self._device, self._autocast):
            return self._losses(hidden, labels)

    def _block_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sum of the token losses of each sequence: (b, s, hidden) and (b, s) int64 to (b,) float64."""
        logits = self._part.logits(hidden).flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        losses = functional.cross_entropy(logits.to(wide), labels.flatten(), reduction="none")
        return losses.view(labels.shape).double().sum(1)
