"""The scale of the loss that keeps float16 gradients in range, one for all stages.

As torch's `GradScaler`, but without exchanges of its own: the norm of the full model's gradient, which all ranks have,
says whether any gradient anywhere overflowed. (Micikevicius et al., Mixed Precision Training, arXiv 1710.03740.)
"""

from dataclasses import dataclass

INITIAL, LARGEST = 2.0**16, 2.0**24
GROWTH_ITERATIONS = 2000
"""Iterations without overflow after which the scale doubles."""


@dataclass(frozen=True)
class LossScale:
    """The scale of an iteration."""

    factor: float = INITIAL
    """on the loss, and so on all gradients"""
    iterations: int = 0
    """without overflow since the factor last changed"""

    def after(self, *, overflow: bool) -> "LossScale":
        """Scale of the next iteration."""
        if overflow:
            return LossScale(self.factor / 2)
        if self.iterations + 1 == GROWTH_ITERATIONS:
            return LossScale(min(2 * self.factor, LARGEST))
        return LossScale(self.factor, self.iterations + 1)
