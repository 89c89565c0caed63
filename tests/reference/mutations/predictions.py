"""Mutations of the predicted figures."""

from random import Random

from reference.instances import Json

from .registry import rule


def _bent(rng: Random, value: float) -> float:
    return max(0.0, value + rng.choice([-1.0, -1e-2, -1e-3, 1e-3, 1e-2, 1.0]) * max(1.0, value))


@rule
def iteration_wrong(rng: Random, plan: Json) -> None:
    """The predicted iteration time is not that of the tasks."""
    plan["predicted"]["iteration_s"] = _bent(rng, plan["predicted"]["iteration_s"])


@rule
def pipeline_wrong(rng: Random, plan: Json) -> None:
    """The predicted pipeline end is not that of the tasks."""
    plan["predicted"]["pipeline_s"] = _bent(rng, plan["predicted"]["pipeline_s"])


@rule
def allreduce_wrong(rng: Random, plan: Json) -> None:
    """The predicted all-reduce time of a stage is not that of the formula."""
    values = plan["predicted"]["allreduce_s"]
    i = rng.randrange(len(values))
    values[i] = _bent(rng, values[i])


@rule
def gap_wrong(rng: Random, plan: Json) -> None:
    """The gap does not follow from bound and iteration."""
    plan["predicted"]["gap"] = max(0.0, plan["predicted"]["gap"] + rng.choice([-0.5, 1e-8, 1e-3, 0.5]))


@rule
def bound_too_high(rng: Random, plan: Json) -> None:
    """The lower bound exceeds the iteration; the gap, which cannot be negative, is 0."""
    predicted = plan["predicted"]
    predicted["lower_bound_s"] = predicted["iteration_s"] * rng.choice([1.0001, 1.5]) + 1e-3
    predicted["gap"] = 0.0


@rule
def bound_edited(rng: Random, plan: Json) -> None:
    """The bound changes, and the gap with it or not."""
    predicted = plan["predicted"]
    predicted["lower_bound_s"] *= rng.choice([0.5, 0.999])
    if rng.random() < 0.5 and predicted["lower_bound_s"] > 0:
        predicted["gap"] = (predicted["iteration_s"] - predicted["lower_bound_s"]) / predicted["lower_bound_s"]


@rule
def called_optimal(rng: Random, plan: Json) -> None:
    """The plan is marked optimal, whatever its bound."""
    plan["solver"]["optimal"] = True
