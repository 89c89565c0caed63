"""Runs an iteration of a plan in one process: planned routes, several microbatches per pass through a stage.

The plan's task order and allocation are not used; there are no messages. Sums over microbatches are taken in another
order than across processes, so results agree up to rounding; `skippipe.runtime.executor` on one rank is bit-identical,
one microbatch at a time.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from skippipe.errors import ActionError
from skippipe.runtime.actions import Step
from skippipe.runtime.executor import Batches, StageCompute, Timings
from skippipe.runtime.grouping import even_parts, group_passes
from skippipe.runtime.norm import squared_norm


class GroupedExecutor:
    """Runs all stages in one process."""

    def __init__(
        self, routes: Mapping[int, Sequence[int]], stages: Mapping[int, StageCompute], most: int, *, train: bool = True
    ) -> None:
        """Group the passes.

        Args:
            routes: the stages of each microbatch's route in order, by its number.
            stages: all stages, by number; one copy of each, whatever its replicas.
            most: limit on microbatches per pass.
            train: whether to run backward and step too.

        """
        self._stages, self._train = stages, train
        self._first = stages[min(stages)]
        self._heads = even_parts(list(routes), most)
        self._passes = group_passes(routes, most)

    def run(self, batches: Batches, step: Callable[[float], None], timeout_s: float) -> Timings:
        """Run one iteration; arguments and result as for `Executor.run`; there is nothing to time out.

        Raises:
            ActionError: something failed.

        """
        del timeout_s
        began_at = time.perf_counter()
        try:
            self._run(batches, step)
        except Exception as error:
            message = f"{error}" if isinstance(error, OSError | RuntimeError) else f"{type(error).__name__}: {error}"
            raise ActionError(message) from error
        return Timings((Step(),), (0.0,), (time.perf_counter() - began_at,), began_at)

    def _run(self, batches: Batches, step: Callable[[float], None]) -> None:
        pending: dict[int, Tensor] = {}
        labels: dict[int, Tensor] = {}
        for group in self._heads:
            texts = [batches(number) for number in group]
            labels[group[0]] = torch.cat([theirs for _, theirs in texts])
            _scatter(self._first.embed(group[0], torch.cat([tokens for tokens, _ in texts])), group, pending)
        for joint_pass in self._passes:
            hidden = _gather(joint_pass.microbatches, pending)
            _scatter(
                self._stages[joint_pass.stage].forward(joint_pass.microbatches[0], hidden),
                joint_pass.microbatches,
                pending,
            )
        for group in self._heads:
            gradient = self._first.loss(group[0], _gather(group, pending), labels.pop(group[0]))
            if self._train:
                _scatter(gradient, group, pending)
        if self._train:
            self._backward(pending)
            step(self._norm())

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

    def _norm(self) -> float:
        """Norm of the full model's gradient; synchronises the device."""
        gradients = [gradient for stage in self._stages.values() for gradient in stage.gradients()]
        return math.sqrt(squared_norm(gradients).item())


def _gather(group: Sequence[int], pending: dict[int, Tensor]) -> Tensor:
    """Concatenate the pending tensors of a group's microbatches: (b * group, s, hidden)."""
    return torch.cat([pending.pop(number) for number in group])


def _scatter(output: Tensor, group: Sequence[int], pending: dict[int, Tensor]) -> None:
    """Split a group's output over its microbatches."""
    pending.update(zip(group, output.chunk(len(group)), strict=True))
