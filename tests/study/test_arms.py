"""Arms: bundled settings, plans that keep or break the rules they are named after, and the next step."""

import dataclasses
from itertools import pairwise
from pathlib import Path

import pytest
from conftest import ROOT
from hydra.core.override_parser.overrides_parser import OverridesParser
from hypothesis import given
from hypothesis import strategies as st
from study.entries import make_entry, make_row

import skippipe.conf
from skippipe import Plan
from skippipe.application import compose
from skippipe.errors import InputError
from skippipe.overrides import quoted
from skippipe.planning import PlanningJob, make_plan, planning_job
from skippipe.study.arms import Arm, StudyStep, compose_arms, next_step, plain_settings_sha256, settings_sha256
from skippipe.study.collect import read_arm
from skippipe.study.config import ArmConfig, StudyJob
from skippipe.study.records import load_records, merged
from skippipe.train.config import TrainJob
from skippipe.train.resolve.layout import resolve_layout
from skippipe.train.resolve.resolve import plan_phases

EXPERIMENTS = sorted(path.stem for path in (Path(skippipe.conf.__file__).parent / "experiment").glob("llama30m_*.yaml"))
NO_CC = [f"llama30m_33_no_cc{number}" for number in (1, 2, 3)]


def train_job(*overrides: str) -> TrainJob:
    job: TrainJob = compose("train", overrides)
    return job


def plan_of(job: TrainJob) -> Plan:
    return make_plan(
        PlanningJob(planning_job(job.cluster, job.allocate, job.schedule).first), job.schedule.strategy, job.planner
    )


def routes_of(plan: Plan) -> list[list[int]]:
    return [list(microbatch.stages) for microbatch in plan.microbatches]


def visits_of(routes: list[list[int]]) -> list[int]:
    return [sum(stage in route for route in routes) for stage in range(8)]


def is_swapped_once_at_most(route: list[int]) -> bool:
    """CC2 by its definition: increasing but for one swap of neighbours whose numbers differ by one."""
    falls = [hop for hop, (one, other) in enumerate(pairwise(route)) if other < one]
    if not falls:
        return True
    (hop, *more) = falls
    route = list(route)
    route[hop : hop + 2] = reversed(route[hop : hop + 2])
    return not more and route == sorted(route) and route[hop + 1] - route[hop] == 1


@pytest.fixture(scope="module")
def study() -> StudyJob:
    """The bundled study."""
    job: StudyJob = compose("study", [])
    return job


@pytest.fixture(scope="module")
def arms(study: StudyJob) -> list[Arm]:
    """Its arms."""
    return compose_arms(study.arms, study.prepared, [], lambda overrides: train_job(*overrides))


def test_bundled_arms(study: StudyJob, arms: list[Arm]) -> None:
    assert {arm.experiment for arm in arms} == set(EXPERIMENTS)
    assert [(arm.experiment, arm.seed) for arm in arms[:2]] == [("llama30m_0", 0), ("llama30m_33", 0)]
    assert study.baseline == "llama30m_0"
    assert {arm.tokens for arm in arms} == {3052 * 98_304}
    assert len({arm.settings for arm in arms}) == len(arms)
    for arm in arms:
        assert arm.job.train.seed == arm.seed
        assert arm.job.model["vocab_size"] == 8192
        assert arm.job.runtime.calibrate is False
        assert arm.job.planner.work_limit is not None
        assert arm.job.planner.time_limit_s is None


def test_bundled_arms_have_the_settings_of_their_records(study: StudyJob, arms: list[Arm], tmp_path: Path) -> None:
    """`skippipe study minutes=0` still reads the records of the repository, and changes nothing in them."""
    records = load_records(ROOT / study.records)
    assert {arm.key: arm.settings for arm in arms} == {key: entry.settings for key, entry in records.items()}
    for arm in arms:
        assert merged(records[arm.key], read_arm(arm, tmp_path, None)) == records[arm.key]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_plans_match_the_arm(name: str) -> None:
    job = train_job(f"experiment={name}")
    plan = plan_of(job)
    assert plan.check() == []
    routes = routes_of(plan)
    assert routes_of(plan_of(job)) == routes, "every machine has to make the same plan"
    visits = visits_of(routes)
    assert len(routes) == 24
    share = {"0": 0, "25": 1 / 4, "33": 1 / 3, "50": 1 / 2}[name.split("_")[1]]
    assert sum(visits) == round(24 * 8 * (1 - share))
    first = all(route[0] == 0 for route in routes)
    ordered = all(is_swapped_once_at_most(route) for route in routes)
    equal = max(visits[1:]) - min(visits[1:]) <= 1
    if name not in NO_CC:
        assert (first, ordered, equal) == (True, True, True)
        if share:
            assert len({tuple(route) for route in routes}) >= 10
        return
    # A rule that is off and kept all the same would show nothing.
    if name.endswith("cc1"):
        assert sum(0 not in route for route in routes) >= 6
    elif name.endswith("cc2"):
        assert sum(not is_swapped_once_at_most(route) for route in routes) >= 12
        assert (first, equal) == (True, True)
    else:
        assert max(visits[1:]) >= 1.5 * min(visits[1:])
        assert (first, ordered) == (True, True)


def test_schedules_over_training() -> None:
    for name, expected in (
        ("llama30m_33_then_0", {0: 1 / 3, 2442: 0.0}),
        ("llama30m_50_to_0", {0: 0.5, 1221: 0.25, 2442: 0.0}),
    ):
        job = train_job(f"experiment={name}")
        phases = plan_phases(job, resolve_layout(job))
        assert {phase.after: phase.schedule.skip_ratio for phase in phases} == pytest.approx(expected)


def test_what_the_hash_covers() -> None:
    job = train_job("experiment=llama30m_33")
    same = train_job(
        "experiment=llama30m_33", "data.prepared=elsewhere", "runtime.device=cuda:1", "runtime.group=8",
        "train.validate_every=7", "folder=x", "checkpoint.every=3",
    )  # fmt: skip
    assert settings_sha256(same) == settings_sha256(job) == plain_settings_sha256(dataclasses.asdict(job))
    before = dataclasses.asdict(job)
    del before["train"]["epsilon"], before["train"]["new_layers"], before["schedule"]["max_stage_jump"]
    del before["cluster"]["workload"]
    assert plain_settings_sha256(before) == settings_sha256(job), "settings that were added since then"
    for change in ("train.seed=1", "train.iterations=9", "schedule.max_swaps=2", "data.sequence=256",
                   "model.hidden_size=256", "runtime.autocast=null", "train.learning_rate=1e-3", "phases=tail",
                   "phases=grow", "train.new_layers=copy"):  # fmt: skip
        assert settings_sha256(train_job("experiment=llama30m_33", change)) != settings_sha256(job), change


@pytest.mark.parametrize(
    ("arms", "overrides", "message"),
    [
        ([ArmConfig("mars")], [], r"arms\[0\], mars: experiment: expected one of llama124m, llama124m_33, "),
        (
            [ArmConfig("llama30m_0"), ArmConfig("llama30m_0", 0)],
            [],
            r"arms\[1\]: expected different arms, got llama30m_0, seed 0 again",
        ),
        ([ArmConfig("llama30m_0")], ["train.iteration=3"], r"train.iteration: unknown key; did you mean"),
        (
            [ArmConfig("llama30m_0")],
            ["train.iterations=0"],
            r"arms\[0\], llama30m_0: train.iterations: expected an integer",
        ),
        (
            [ArmConfig("llama30m_0")],
            ["allocate.sizes=[3,3]"],
            r"arms\[0\], llama30m_0: allocate.sizes: expected a list that adds up to",
        ),
    ],
)
def test_invalid_arms(arms: list[ArmConfig], overrides: list[str], message: str) -> None:
    with pytest.raises(InputError, match=message):
        compose_arms(arms, "text", overrides, lambda given: train_job(*given))


def make_arm(experiment: str, seed: int = 0) -> Arm:
    return Arm(experiment, seed, TrainJob(), 300_000_000, "a" * 64)


def test_next_step() -> None:
    one, two, three = make_arm("one"), make_arm("two"), make_arm("three")
    arms = [one, two, three]
    done = make_entry("one")
    halfway = make_entry("two", tokens_done=150_000_000, finished=False)
    records = {done.key: done, halfway.key: halfway}
    assert next_step(arms, {}, set()) == StudyStep(one, "train")
    assert next_step(arms, records, set()) == StudyStep(two, "train")
    assert next_step(arms, records, {(two.key, "train")}) == StudyStep(three, "train")
    assert next_step(arms, records, {(two.key, "train"), (three.key, "train")}) is None
    omit = ["none", "random:0.25"]
    assert next_step(arms, records, set(), omit=omit) == StudyStep(two, "train"), "its run is not on this machine"
    assert next_step(arms, records, set(), omit=omit, finished_here={one.key}) == StudyStep(one, "evaluate")
    assert next_step(arms, records, {(one.key, "evaluate")}, omit=omit, finished_here={one.key}) == StudyStep(
        two, "train"
    )
    evaluated = make_entry("one", evaluation=[make_row("none"), make_row()])
    known = records | {done.key: evaluated}
    assert next_step(arms, known, set(), omit=omit, finished_here={one.key}) == StudyStep(two, "train")
    assert next_step(arms, known, set(), omit=[*omit, "last:2"], finished_here={one.key}) == StudyStep(one, "evaluate")


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="$\n\r\x00"), min_size=1))
def test_quoted_values_round_trip(value: str) -> None:
    override = OverridesParser.create().parse_override(f"folder={quoted(value)}")
    assert override.value() == value
