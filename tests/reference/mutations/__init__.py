"""Named ways to damage a plan. Each takes (rng, plan) and changes the plan in place.

Some changes are harmless on some plans (a swap of equal entries, a longer memory): the tests ask the
independent checker. `RULES` keep the plan readable, `FORMAT` attack its form.
"""

from . import allocation, form, microbatches, predictions, problem, routes, tasks
from .registry import FORMAT, RULES, NothingToChangeError

__all__ = [
    "FORMAT",
    "RULES",
    "NothingToChangeError",
    "allocation",
    "form",
    "microbatches",
    "predictions",
    "problem",
    "routes",
    "tasks",
]
