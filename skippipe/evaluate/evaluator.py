"""Losses and times of a model along a layer path, on one device."""

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
"""A time is the median of at least this many passes, taking at least this many seconds in total."""


class Evaluator:
    """Runs a full model over a corpus on its device.

    Args:
        module: the full model as one stage.
        blocks: tokens of the sequences, shape (sequences, sequence + 1).
        batch: sequences per batch.
        device: the module's device.
        autocast: autocast dtype; None: no autocast.
        compiled: whether to compile layers and loss.

    """

    def __init__(  # noqa: PLR0913 - what an evaluation is made of
        self,
        module: StageModule,
        blocks: Tokens,
        *,
        batch: int,
        device: torch.device,
        autocast: torch.dtype | None = None,
        compiled: bool = False,
    ) -> None:
        self._module, self._device, self._autocast = module.eval(), device, autocast
        self._all_layers = tuple(module.layers)
        self._losses: Callable[[Tensor, Tensor], Tensor] = self._block_losses
        if autocast is not None:
            module.enable_autocast(autocast)
        if compiled:
            module.enable_compile()
            self._losses = compiled_for_any_batch(self._block_losses)
        tokens = torch.from_numpy(np.asarray(blocks).astype(np.int64)).to(device)
        self._batches = [(rows[:, :-1].contiguous(), rows[:, 1:].contiguous()) for rows in torch.split(tokens, batch)]

    def losses(self, path: Sequence[int]) -> Losses:
        """Sum of the token losses of every sequence in nats, shape (sequences,), along a layer path."""
        with torch.no_grad():
            found = [self._run(path, *batch) for batch in self._batches]
        return torch.cat(found).cpu().numpy()  # synchronises once

    def time_ratio(self, path: Sequence[int]) -> float:
        """Time of a forward pass with embedding, head and loss, relative to the full model's; measured alternately."""
        ratios: list[float] = []
        passed = 0.0
        while len(ratios) < TIMED_PASSES or passed < TIMED_S:
            own, full = self._seconds(path), self._seconds(self._all_layers)
            ratios.append(own / full)
            passed += own + full
        return statistics.median(ratios)

    def _seconds(self, path: Sequence[int]) -> float:
        """Time of one batch."""
        self._wait()
        began = time.perf_counter()
        with torch.no_grad():
            self._run(path, *self._batches[0])
        self._wait()
        return time.perf_counter() - began

    def _wait(self) -> None:
        devices.synchronize(self._device)

    def _run(self, path: Sequence[int], tokens: Tensor, labels: Tensor) -> Tensor:
        hidden = self._module.run_layers(self._module.embed(tokens), path)
        with devices.autocast(self._device, self._autocast):
            return self._losses(hidden, labels)

    def _block_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sum of the token losses of each sequence: (b, s, hidden) and (b, s) int64 to (b,) float64."""
        logits = self._module.logits(hidden).flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        losses = functional.cross_entropy(logits.to(wide), labels.flatten(), reduction="none")
        return losses.view(labels.shape).double().sum(1)
