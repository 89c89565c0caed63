"""The scheduler's checker against independent ones, on sound and on damaged plans."""

import copy
import json
from collections import Counter
from random import Random
from typing import Any

import pytest
from effort import cases
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from reference import mutations
from reference.checker import findings
from reference.independent import opinions
from reference.instances import Json
from reference.plans import random_plan

from skippipe import Plan
from skippipe.errors import InputError


def ours(text: str) -> list[str]:
    """What the scheduler's own reader and checker find."""
    try:
        plan = Plan.from_json(text)
    except InputError as error:
        return [f"input: {error}"]
    return plan.check()


def starts_with(path: tuple[Any, ...], *pattern: Any) -> bool:
    """Whether a path begins like the pattern; None stands for any entry."""
    return len(path) >= len(pattern) and all(p is None or p == x for p, x in zip(pattern, path, strict=False))


ENOUGH = cases(60, 25)
"""damaged plans of each kind"""
ONLY_OURS = [
    ("microbatches_per_source",),
    ("layers",),
    ("model",),
    ("absent_nodes",),
    ("absent_stages",),
    ("stages", None),
    ("cluster", "nodes", None, "name"),
    ("cluster", "activation_bytes"),
    ("cluster", "step_s"),
    ("solver", "optimal"),
]


def only_ours_looks(path: tuple[Any, ...] | None, text: str) -> bool:
    """Where the format says more than independent checkers read, so that ours alone may refuse."""
    if path is None:
        return False
    if any(starts_with(path, *pattern) for pattern in ONLY_OURS) or path[-1] == "unknown":
        return True
    if path[:2] in {("cluster", "transfer_s"), ("cluster", "latency_s"), ("cluster", "bandwidth")}:
        both_forms = len(path) == 2
        diagonal = len(path) == 4 and path[2] == path[3]
        if both_forms or diagonal:
            return True
    value = json.loads(text)
    for key in path:
        if isinstance(value, dict) and key not in value:
            return False
        value = value[key]
    return isinstance(value, int | float) and abs(value) >= 2**31


def damaged(rng: Random, plan: Json, kind: str) -> tuple[str, tuple[Any, ...] | None] | None:
    """The damaged plan as text with the path of the damage; None if the mutation does not apply."""
    other = copy.deepcopy(plan)
    try:
        {**mutations.RULES, **mutations.FORMAT}[kind](rng, other)
    except mutations.NothingToChangeError:
        return None
    path = other.pop("_path", None)
    return json.dumps(other), path


def agree(text: str, kind: str, path: tuple[Any, ...] | None = None) -> str:
    """Compares the verdicts; gives the common one."""
    there, here = opinions(text), ours(text)
    if any(there) and not here:
        pytest.fail(f"{kind} at {path}: we accept what breaks {there}\n{text[:6000]}")
    if here and not any(there):
        assert only_ours_looks(path, text), f"{kind} at {path}: we refuse a sound plan: {here[:3]}\n{text[:6000]}"
        return "only ours"
    return "refused" if here else "accepted"


@pytest.mark.parametrize("block", range(4))
def test_sound_plans_are_accepted_by_all(block: int) -> None:
    for seed in range(block * 300, block * 300 + cases(300, 120)):
        text = json.dumps(random_plan(Random(seed), "middle" if seed % 50 == 0 else "small"))
        assert not any(opinions(text)), seed
        assert ours(text) == [], text


def test_sound_plans_survive_writing_and_reading() -> None:
    for seed in range(200):
        plan = random_plan(Random(seed))
        again = json.loads(Plan.from_json(json.dumps(plan)).to_json())
        plan["constraints"] |= {"profile": None, "classes": None}  # written where they are not used
        for key in plan.keys() - {"cluster", "solver"}:
            assert again[key] == plan[key], key
        for key, value in plan["cluster"].items():
            assert again["cluster"][key] == value, key


@pytest.mark.parametrize("kind", sorted(mutations.RULES))
def test_broken_rules_are_seen_by_all(kind: str) -> None:
    verdicts: Counter[str] = Counter()
    for seed in range(2000):
        rng = Random(f"{kind} {seed}")
        found = damaged(rng, random_plan(rng), kind)
        if found is not None:
            verdicts[agree(found[0], kind, found[1])] += 1
        if verdicts.total() >= ENOUGH:
            break
    assert verdicts.total() >= ENOUGH, verdicts


# These break a rule on every plan to which they apply, so they need no second opinion.
ALWAYS = [
    "dropped_task",
    "doubled_task",
    "no_tasks",
    "wrong_hop",
    "wrong_kind",
    "other_microbatch",
    "task_elsewhere",
    "empty_route",
    "node_outside",
    "stages_shorter",
    "stage_twice",
    "visit_less",
    "visit_more",
    "other_source",
    "repeated_id",
    "doubled_microbatch",
    "no_microbatches",
    "allocation_twice",
    "allocation_twice_in_one",
    "stage_emptied",
    "bound_too_high",
    "longer_step",
    "wave_on_other_route",
    "shared_between_sources",
]


@pytest.mark.parametrize("kind", ALWAYS)
def test_certain_breaches_are_always_seen(kind: str) -> None:
    tried = 0
    for seed in range(1000):
        rng = Random(f"{kind} {seed}")
        found = damaged(rng, random_plan(rng), kind)
        if found is None:
            continue
        tried += 1
        assert ours(found[0]) != [], found[0][:6000]
        if tried == 25:
            break
    assert tried == 25


def test_sound_plans_are_accepted() -> None:
    for seed in range(5000, 5000 + cases(300, 120)):
        text = json.dumps(random_plan(Random(seed)))
        assert ours(text) == [], text


def test_shared_processors_are_known_to_both() -> None:
    """Sound plans are accepted; where more nodes share a processor, tasks that overlap there are seen."""
    verdicts: Counter[str] = Counter()
    tried = cases(300, 120)
    for seed in range(tried):
        plan = random_plan(Random(f"shared {seed}"), shared=True)
        text = json.dumps(plan)
        assert (ours(text), findings(text)) == ([], []), text
        for node in plan["cluster"]["nodes"]:
            node["processor"] = 0
        text = json.dumps(plan)
        assert bool(ours(text)) == bool(findings(text)), (ours(text), findings(text), text)
        verdicts["refused" if findings(text) else "accepted"] += 1
    assert verdicts["refused"] > tried / 2


@pytest.mark.parametrize("kind", sorted(mutations.FORMAT))
def test_broken_forms_are_seen_by_all(kind: str) -> None:
    verdicts: Counter[str] = Counter()
    many = kind in ("replaced_value", "removed_entry", "doubled_entry")
    for seed in range(4000):
        rng = Random(f"{kind} {seed}")
        plan = random_plan(rng)
        for _ in range(6 if many else 1):
            found = damaged(rng, plan, kind)
            if found is not None:
                verdicts[agree(found[0], kind, found[1])] += 1
        if verdicts.total() >= (25 * ENOUGH if many else ENOUGH):
            break
    assert verdicts.total() >= ENOUGH, verdicts


def test_several_mutations_at_once() -> None:
    verdicts: Counter[str] = Counter()
    kinds, tried = sorted(mutations.RULES), cases(400, 160)

    @settings(
        derandomize=True, database=None, max_examples=tried, deadline=None, suppress_health_check=list(HealthCheck)
    )
    @given(st.randoms(use_true_random=False), st.lists(st.sampled_from(kinds), min_size=1, max_size=3))
    def agrees(rng: Random, chosen: list[str]) -> None:
        plan = random_plan(rng)
        for kind in chosen:
            try:
                mutations.RULES[kind](rng, plan)
            except (mutations.NothingToChangeError, LookupError, ValueError):
                return
        verdicts[agree(json.dumps(plan), " + ".join(chosen))] += 1

    agrees()
    assert verdicts["refused"] > tried / 8
    assert verdicts["accepted"] > tried / 40
