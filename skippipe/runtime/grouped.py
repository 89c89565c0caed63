"""Runs an iteration of a plan in one process: routes as planned, several microbatches in one pass through a stage.

The order of a plan, and who serves which node, play no part: there are no messages. Sums over microbatches add up in
another order than across processes, so results agree to rounding; `skippipe.runtime.executor` with one rank agrees to
the last bit, one microbatch at a time.
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


class GroupedExecutor:
    """All stages of one process, iteration after iteration."""

    def __init__(
        self, routes: Mapping[int, Sequence[int]], stages: Mapping[int, StageCompute], most: int, *, train: bool = True
    ) -> None:
        """Prepare.

        Args:
            routes: stages of each microbatch in the order of its route, by its number.
            stages: all of them, by number; a stage's parameters are there once, whatever its replicas.
            most: microbatches in one pass.
            train: whether to run backward and step as well.

        """
        self._stages, self._train = stages, train
        self._first = stages[min(stages)]
        self._heads = even_parts(list(routes), most)
        self._passes = group_passes(routes, most)

    def run(self, batches: Batches, step: Callable[[float], None], timeout_s: float) -> Timings:
        """Run one iteration; arguments and result are those of `Executor.run`, but that nothing is waited for.

        Raises:
            ActionError: something failed.

        """
        del timeout_s
        began_at = time.perf_counter()
        try:
            self._run(batches, step)
        except Exception as error:
            said = f"{error}" if isinstance(error, OSError | RuntimeError) else f"{type(error).__name__}: {error}"
            raise ActionError(said) from error
        return Timings((Step(),), (0.0,), (time.perf_counter() - began_at,), began_at)

    def _run(self, batches: Batches, step: Callable[[float], None]) -> None:
        waiting: dict[int, Tensor] = {}
        labels: dict[int, Tensor] = {}
        for group in self._heads:
            texts = [batches(number) for number in group]
            labels[group[0]] = torch.cat([theirs for _, theirs in texts])
            _deal(self._first.embed(group[0], torch.cat([tokens for tokens, _ in texts])), group, waiting)
        for part in self._passes:
            hidden = _collect(part.microbatches, waiting)
            _deal(self._stages[part.stage].forward(part.microbatches[0], hidden), part.microbatches, waiting)
        for group in self._heads:
            gradient = self._first.loss(group[0], _collect(group, waiting), labels.pop(group[0]))
            if self._train:
                _deal(gradient, group, waiting)
        if self._train:
            self._backward(waiting)
            step(self._norm())

    def _backward(self, waiting: dict[int, Tensor]) -> None:
        for part in reversed(self._passes):
            gradient = _collect(part.microbatches, waiting)
            _deal(self._stages[part.stage].backward(part.microbatches[0], gradient), part.microbatches, waiting)
        for group in reversed(self._heads):
            self._first.embed_backward(group[0], _collect(group, waiting))

    def _norm(self) -> float:
        """Norm of the whole model's gradient; waits for the device."""
        gradients = [gradient for stage in self._stages.values() for gradient in stage.gradients()]
        norms = torch.stack(torch._foreach_norm(gradients))  # noqa: SLF001 - as torch's own clipping has it
        return math.sqrt(norms.double().square().sum().item())


def _collect(group: Sequence[int], waiting: dict[int, Tensor]) -> Tensor:
    """Take what waits for the microbatches of a group, one after the other: (b * group, s, hidden)."""
    return torch.cat([waiting.pop(number) for number in group])


def _deal(output: Tensor, group: Sequence[int], waiting: dict[int, Tensor]) -> None:
    """Give each microbatch of a group its part."""
    waiting.update(zip(group, output.chunk(len(group)), strict=True))
