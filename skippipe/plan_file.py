"""Plans: read with all constraints checked, written atomically."""

import hashlib
from pathlib import Path

from skippipe._scheduler import Plan
from skippipe.errors import InputError, SchedulerError, in_file, unexpected
from skippipe.files import read_text, write_text

__all__ = ["Plan", "load_plan", "plan_sha256", "save_plan"]

MAX_SHOWN = 10


def load_plan(path: str | Path) -> Plan:
    """Read a `skippipe.plan/1` file and check it.

    Raises:
        InputError: the file cannot be read, is no plan, its plan breaks a rule, or its order cannot be executed;
            the message names the file and what is wrong with it.

    """
    text = read_text(str(path))
    try:
        plan = Plan.from_json(text)
    except InputError as error:
        raise in_file(error, path) from None
    broken = plan.check()
    if broken:
        raise InputError(f"the plan breaks its own rules: {_listed(broken)}", file=path)
    cycle = plan.find_deadlock()
    if cycle is not None:
        raise unexpected("tasks", cycle, "an order that can be executed", path)
    return plan


def save_plan(plan: Plan, path: str | Path) -> None:
    """Write a `skippipe.plan/1` file, whole or not at all, of a plan that keeps every rule.

    Raises:
        SchedulerError: the plan breaks a rule; nothing is written.
        OSError: the file cannot be written; an older one is unchanged.

    """
    broken = plan.check()
    if broken:
        raise SchedulerError(f"a plan that breaks its own rules is not written: {_listed(broken)}")
    write_text(Path(path), plan.to_json())


def plan_sha256(plan: Plan) -> str:
    """Hash of a plan but for how it was found."""
    return hashlib.sha256(plan.without_report().to_json().encode()).hexdigest()


def _listed(broken: list[str]) -> str:
    shown = "\n  ".join(broken[:MAX_SHOWN])
    more = f"\n  and {len(broken) - MAX_SHOWN} more" if len(broken) > MAX_SHOWN else ""
    return f"\n  {shown}{more}"
