"""`skippipe plan phases=...`: one plan per phase on one allocation, and a table."""

from pathlib import Path

import pytest
from conftest import Run
from reference.independent import verdict

from skippipe.allocation import Allocation
from skippipe.config import PhaseConfig, PhasesConfig, ScheduleConfig
from skippipe.phases import allocating_phase, resolve_phases, stages_text
from skippipe.plan_file import load_plan

WORK = "planner.work_limit=20000"


def test_a_plan_for_each_phase(run: Run, tmp_path: Path) -> None:
    result = run("plan", "cluster=five_clusters", "phases=grow_steps", WORK, "output=plan.json")
    assert result.status == 0, result.err
    paths = [tmp_path / name for name in ("plan.json", "plan_phase2.json", "plan_phase3.json")]
    first, second, third = (load_plan(str(path)) for path in paths)
    assert (first.absent_stages, second.absent_stages, third.absent_stages) == ([2, 3, 4, 5], [4, 5], [])
    assert (first.stages[:2], second.stages[:4]) == (third.stages[:2], third.stages[:4])
    assert first.microbatches_per_source == second.microbatches_per_source == third.microbatches_per_source
    absent = {node for stage in third.stages[2:] for node in stage} | {*third.absent_nodes}
    assert {*first.absent_nodes} == absent
    for path in paths:
        assert verdict(path.read_text()) == []
    times = [plan.predicted.iteration_s for plan in (first, second, third)]
    assert sorted(times) == times
    (average,) = [line for line in result.out.splitlines() if line.startswith("average over the run")]
    assert f"iteration time {sum(times) / 3:.3f} s, layer executions left out 33.3%" in average
    rows = [line.split() for line in result.out.splitlines() if " of 6 " in line or "all 6" in line][-3:]
    assert [row[2] for row in rows] == ["0-1", "0-3", "all"]
    assert [row[-1] for row in rows] == [f"{time / sum(times):.1%}" for time in times]


def test_classes_and_profiles_of_phases(run: Run, tmp_path: Path) -> None:
    """And growth with the allocation anew, where stages have other numbers while it is searched."""
    own = "{share: 0.4, stages: 0.5, allocation: anew, classes: [{depth: 1, share: 0.5}, {stages: [0,1], share: 0.5}]}"
    phases = f"phases.list=[{own}, {{share: 0.3, profile: [5,4,3,2,1]}}, {{skip_ratio: 0}}]"
    for arguments, lengths in ((["phases=two_classes"], [{6, 3}, {6}]), ([phases], [{3, 2}, {4}, {6}])):
        result = run("plan", "cluster=five_clusters", WORK, "output=plan.json", *arguments)
        assert result.status == 0, result.err
        for number, expected in enumerate(lengths, 1):
            path = tmp_path / ("plan.json" if number == 1 else f"plan_phase{number}.json")
            assert {len(microbatch.stages) for microbatch in load_plan(str(path)).microbatches} == expected
            assert verdict(path.read_text()) == []
    visits = [sum(s in m.stages for m in load_plan(str(tmp_path / "plan_phase2.json")).microbatches) for s in range(6)]
    assert visits[1:] == sorted(visits[1:], reverse=True)
    assert visits[1] > visits[5] > 0


def test_one_phase_has_no_table(run: Run) -> None:
    result = run("plan", "cluster=local4", WORK)
    assert "average over the run" not in result.out


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("phases.list=[{share: 0.5, stages: 9}, {}]", "phases.list[0].stages: expected a fraction below 1, or a whole"),
        ("phases.list=[{share: 1.5}, {}]", "phases.list[0].share: expected a finite number of more than 0"),
        ("phases.list=[{share: 0.5}, {skip_ratio: 0.9}]", "phases.list[1].skip_ratio: expected"),
        ("phases.list=[{classes: [{stages: [0,7], share: 1}]}]", "phases.list[0].classes[0].stages"),
        (
            "phases.list=[{classes: [{stages: [0], depth: 0.5, share: 1}]}]",
            "phases.list[0].classes[0].depth: expected null",
        ),
        ("phases=mars", "phases: expected one of grow, grow_steps, published, robust, tail, two_classes"),
    ],
)
def test_phases_that_cannot_be(settings: str, message: str, run: Run) -> None:
    result = run("plan", "cluster=local4", WORK, settings)
    assert result.status == 2
    assert message in result.err


def test_stages_are_relative_to_their_number() -> None:
    def absent(config: PhaseConfig, stages: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        allocation = Allocation([[] if stage in lost else [stage] for stage in range(stages)], lost)
        (phase,) = resolve_phases(PhasesConfig([config]), ScheduleConfig(), allocation)
        return tuple(stage for stage in phase.allocation.absent_stages if stage not in lost)

    assert absent(PhaseConfig(stages=0.5), 8) == (4, 5, 6, 7)
    assert absent(PhaseConfig(stages=0.5), 3) == (2,)
    assert absent(PhaseConfig(stages=0.01), 3) == (1, 2)
    assert absent(PhaseConfig(stages=2), 3) == (2,)
    assert absent(PhaseConfig(stages=0.5), 5, lost=(1,)) == (3, 4)
    assert absent(PhaseConfig(absent_stages=[3, 1]), 5) == (1, 3)
    assert absent(PhaseConfig(), 5) == ()


def test_the_allocation_is_that_of_the_longest_complete_phase() -> None:
    half = PhaseConfig(0.5, stages=0.5)
    assert allocating_phase(PhasesConfig([half, PhaseConfig(0.2), PhaseConfig()])) == 2
    assert allocating_phase(PhasesConfig([PhaseConfig(0.8), PhaseConfig(skip_ratio=0.0)])) == 0
    assert allocating_phase(PhasesConfig([half, PhaseConfig(stages=2)])) is None


def test_how_stages_are_named() -> None:
    assert stages_text([0, 1, 2], 3) == "all 3"
    assert stages_text([0, 1, 2], 6) == "0-2 of 6"
    assert stages_text([0, 1, 4], 6) == "0,1,4 of 6"
    assert stages_text([0], 6) == "0 of 6"
