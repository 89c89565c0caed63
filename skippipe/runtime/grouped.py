"""Runs an iteration of a plan in one process: planned routes, several microbatches per pass through a stage.

The plan's task order and allocation are not used; there are no messages. Sums over microbatches are taken in another
order than across processes, so results agree up to rounding; `skippipe.runtime.executor` on one rank is bit-identical,
one microbatch at a time.

The device's work is the same in every iteration, on other tokens, so that it can be recorded as a CUDA graph.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from skippipe.devices import on_device
from skippipe.errors import ActionError
from skippipe.runtime.actions import Step
from skippipe.runtime.cuda_graph import GraphedIteration
from skippipe.runtime.executor import Batches, Timings
from skippipe.runtime.grouping import even_parts, group_passes
from skippipe.runtime.norm import squared_norm
from skippipe.runtime.stage import Stage


class GroupedExecutor:
    """Runs all stages in one process."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        routes: Mapping[int, Sequence[int]],
        stages: Mapping[int, Stage],
        most: int,
        device: torch.device,
        *,
        train: bool = True,
        graph: bool = False,
    ) -> None:
        """Group the passes.

        Args:
            routes: the stages of each microbatch's route in order, by its number.
            stages: all stages, by number; one copy of each, whatever its replicas.
            most: limit on microbatches per pass.
            device: of the stages.
            train: whether to run backward and step too.
            graph: whether the device's work is launched as one CUDA graph; losses must not be scaled.

        """
        self._stages, self._device, self._train = stages, device, train
        self._first = stages[min(stages)]
        self._heads = even_parts(list(routes), most)
        self._passes = group_passes(routes, most)
        self._graphed = GraphedIteration(self._compute, stages.values(), device) if graph else None

    def run(self, batches: Batches, step: Callable[[float], None], timeout_s: float) -> Timings:
        """Run one iteration; arguments and result as for `Executor.run`; there is nothing to time out.

        Batches may be in the host's memory.

        Raises:
            ActionError: something failed.

        """
        del timeout_s
        began_at = time.perf_counter()
        try:
            compute = self._compute if self._graphed is None else self._graphed
            norm = compute(self._tokens(batches))
            if self._train:
                step(math.sqrt(norm.item()))
        except Exception as error:
            message = f"{error}" if isinstance(error, OSError | RuntimeError) else f"{type(error).__name__}: {error}"
            raise ActionError(message) from error
        return Timings((Step(),), (0.0,), (time.perf_counter() - began_at,), began_at)

    def release(self) -> None:
        """Free the memory that a CUDA graph holds; the executor can go on."""
        if self._graphed is not None:
            self._graphed.release()

    def _tokens(self, batches: Batches) -> list[tuple[Tensor, Tensor]]:
        """Tokens and labels of each group of microbatches that embedding and head take at once, on the device."""
        groups = ([batches(number) for number in group] for group in self._heads)
        return [
            on_device(
                (torch.cat([tokens for tokens, _ in group]), torch.cat([labels for _, labels in group])), self._device
            )
            for group in groups
        ]

    def _compute(self, texts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Run forward, loss and backward on the tokens of each group; gives the square of the gradient's norm."""
        pending: dict[int, Tensor] = {}
        for group, (tokens, _) in zip(self._heads, texts, strict=True):
            _scatter(self._first.embed(group[0], tokens), group, pending)
        for joint_pass in self._passes:
            hidden = _gather(joint_pass.microbatches, pending)
            _scatter(
                self._stages[joint_pass.stage].forward(joint_pass.microbatches[0], hidden),
                joint_pass.microbatches,
                pending,
            )
        for group, (_, labels) in zip(self._heads, texts, strict=True):
            gradient = self._first.loss(group[0], _gather(group, pending), labels)
            if self._train:
                _scatter(gradient, group, pending)
        if not self._train:
            return squared_norm([])
        self._backward(pending)
        return squared_norm([gradient for stage in self._stages.values() for gradient in stage.gradients()])

    def _backward(self, pending: dict[int, Tensor]) -> None:
        for joint_pass in reversed(self._passes):
            gradient = _gather(joint_pass.microbatches, pending)
            _scatter(
                self._stages[joint_pass.stage].backward(joint_pass.microbatches[0], gradient),
                joint_pass.microbatches,
                pending,
            )
        for group in reversed(self._heads):
            self._first.embed_backward(group[0], _gather(group, pending))


def _gather(group: Sequence[int], pending: dict[int, Tensor]) -> Tensor:
    """Concatenate the pending tensors of a group's microbatches: (b * group, s, hidden)."""
    return torch.cat([pending.pop(number) for number in group])


def _scatter(output: Tensor, group: Sequence[int], pending: dict[int, Tensor]) -> None:
    """Split a group's output over its microbatches."""
    pending.update(zip(group, output.chunk(len(group)), strict=True))
