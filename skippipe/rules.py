"""Which of the rules a plan bends."""

from collections.abc import Collection, Sequence

from skippipe._scheduler import Constraints


def bent_rules(rules: Constraints, absent_stages: Collection[int] = (), layers: str | None = None) -> list[str]:
    """Name the rules CC1 to TC2 that are switched off, weakened or replaced, and the stages that no route visits.

    Of the default rules, with all stages present, none is bent.

    Args:
        rules: of the plan.
        absent_stages: those that no route visits.
        layers: which part of the layers of the other stages is in use; None: all.

    """
    replaced = "by classes" if rules.classes is not None else "by profile" if rules.profile is not None else None
    return [
        *([] if rules.cc1 else ["CC1 off"]),
        *([] if rules.cc2 else ["CC2 off"]),
        *([f"CC2 with {rules.max_swaps} swaps"] if rules.cc2 and rules.max_swaps > 1 else []),
        *([f"CC3 {replaced}"] if replaced else [] if rules.cc3 else ["CC3 off"]),
        *([] if rules.tc1 == "held" else ["TC1 off" if rules.tc1 == "off" else "TC1 by routes"]),
        *([] if rules.tc2 else ["TC2 off"]),
        *([f"without stages {numbers_text(sorted(absent_stages))}"] if absent_stages else []),
        *([layers] if layers else []),
    ]


def numbers_text(numbers: Sequence[int]) -> str:
    """Name numbers in ascending order: `0-2` if they are a run, else `0,1,5`."""
    is_run = len(numbers) > 1 and list(numbers) == list(range(numbers[0], numbers[-1] + 1))
    return f"{numbers[0]}-{numbers[-1]}" if is_run else ",".join(map(str, numbers))
