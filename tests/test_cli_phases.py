"""`skippipe plan phases=...`: one plan per phase on one allocation, and a table."""

import re
from pathlib import Path

import pytest
from conftest import Run
from reference.independent import verdict

from skippipe import Constraints, simulate
from skippipe.allocation import Allocation
from skippipe.config import PhaseConfig, PhasesConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError
from skippipe.phases import RunLength, allocating_phase, layers_in_use, resolve_phases, stages_text
from skippipe.plan_file import load_plan
from skippipe.rules import bent_rules

WORK = "planner.work_limit=20000"
TEN_THOUSAND = RunLength(iterations=10, iteration_tokens=1000)


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
    assert all(f"{time / sum(times):.1%}" in row for time, row in zip(times, rows, strict=True))
    assert [row[-1] for row in rows] == ["2-5", "4-5", "none"]


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


def test_a_phase_may_state_tokens_and_a_planner(run: Run, tmp_path: Path) -> None:
    first = "{tokens: 3e6, skip_ratio: 0, planner: {work_limit: 3000, seed: 4}}"
    result = run("plan", "cluster=local4", WORK, f"phases.list=[{first}, {{tokens: 1e6}}]", "output=plan.json")
    assert result.status == 0, result.err
    plans = [load_plan(str(tmp_path / name)) for name in ("plan.json", "plan_phase2.json")]
    assert [plan.solver.seed for plan in plans] == [4, 0]
    (average,) = [line for line in result.out.splitlines() if line.startswith("average over the run")]
    expected = 0.75 * plans[0].predicted.iteration_s + 0.25 * plans[1].predicted.iteration_s
    assert f"iteration time {expected:.3f} s" in average


def test_moves_between_nodes_take_time(run: Run) -> None:
    second = "{tokens: 6e5, skip_ratio: 0, stages: 2, allocation: anew}"
    phases = f"phases.list=[{{tokens: 6e5, skip_ratio: 0}}, {second}]"
    result = run("plan", "cluster=local4", WORK, phases)
    assert result.status == 0, result.err
    (changes,) = [line for line in result.out.splitlines() if line.startswith("changes of phases")]
    taken = re.fullmatch(r"changes of phases: (\S+) s in all; .* them, over (\d+) iterations, (\S+) s", changes)
    (average,) = re.findall(r"average over the run: iteration time (\S+) s", result.out)
    assert taken is not None, changes
    assert float(taken[1]) > 0
    assert float(taken[3]) == pytest.approx(float(average) + float(taken[1]) / int(taken[2]), abs=2e-3)
    assert "weights and moments on a node: at most" in result.out
    unknown = run("plan", "cluster=local4", "cluster.gradient_bytes=0", WORK, phases)
    assert "changes of phases: unknown in all" in unknown.out


def test_copies_take_time_and_layers_drawn_anew_take_none(run: Run) -> None:
    """Nodes keep their stages, so nothing moves."""
    growth = "phases.list=[{share: 0.5, skip_ratio: 0, stages: 0.5}, {skip_ratio: 0}]"
    arguments = ("plan", "cluster=local4", "schedule.stages=4", WORK, growth)
    assert "changes of phases" not in run(*arguments).out
    copied = run(*arguments, "new_layers=copy")
    (taken,) = re.findall(r"changes of phases: (\S+) s in all", copied.out)
    assert float(taken) > 0


def test_growth_inside_of_stages(run: Run, tmp_path: Path) -> None:
    result = run(
        "plan", "cluster=five_clusters", "allocate.decoder_layers=24", "phases=grow_inside", WORK, "output=plan.json"
    )
    assert result.status == 0, result.err
    half, whole = (load_plan(str(tmp_path / name)) for name in ("plan.json", "plan_phase2.json"))
    assert half.stages == whole.stages
    assert half.layers == whole.layers == [4] * 6
    served = [node for nodes in whole.stages for node in nodes]
    assert half.cluster.forward_s[served] == pytest.approx(whole.cluster.forward_s[served] / 2)
    assert half.cluster.backward_s[served] == pytest.approx(whole.cluster.backward_s[served] / 2)
    assert half.cluster.gradient_bytes == [size / 2 for size in whole.cluster.gradient_bytes]
    assert list(half.cluster.loss_s) == list(whole.cluster.loss_s)
    assert half.predicted.lower_bound_s <= half.predicted.iteration_s < whole.predicted.iteration_s
    again = simulate(whole.with_cluster(half.cluster))
    assert half.predicted.iteration_s <= again.predicted.iteration_s, "no worse than the other phase's routes"
    assert half.predicted.lower_bound_s < whole.predicted.lower_bound_s
    assert half.problem().lower_bound_s() <= half.predicted.lower_bound_s * (1 + 1e-9)
    assert "12 of 24 layers" in result.out
    assert "changes of phases" not in result.out, "nothing moves"
    assert verdict((tmp_path / "plan.json").read_text()) == []


def test_layers_in_use_are_spread_evenly() -> None:
    assert layers_in_use(None, range(4, 7)) == [4, 5, 6]
    assert layers_in_use(0.5, range(4, 8)) == [4, 6]
    assert layers_in_use(0.5, range(4, 7)) == [4, 5]
    assert layers_in_use(0.01, range(4, 7)) == [4]
    assert layers_in_use(2, range(6)) == [0, 3]
    assert layers_in_use(5, range(3)) == [0, 1, 2]


def test_tokens_of_phases_within_a_run() -> None:
    def shares(*phases: PhaseConfig, length: RunLength | None = TEN_THOUSAND) -> list[float]:
        allocation = Allocation([[0], [1]])
        found = resolve_phases(PhasesConfig([*phases]), ScheduleConfig(), PlannerConfig(), allocation, length)
        return [phase.share for phase in found]

    assert shares(PhaseConfig(tokens=2500.0), PhaseConfig()) == [0.25, 0.75]
    assert shares(PhaseConfig(tokens=2500.0), PhaseConfig(share=0.5), PhaseConfig()) == [0.25, 0.5, 0.25]
    # A run has whole iterations; the last phase may miss one.
    assert shares(PhaseConfig(tokens=2500.0), PhaseConfig(tokens=8000.0)) == [0.25, 0.75]
    with pytest.raises(InputError, match=r"phases.list\[1\].tokens: expected null or 7500: the last phase takes"):
        shares(PhaseConfig(tokens=2500.0), PhaseConfig(tokens=9000.0))
    with pytest.raises(InputError, match=r"phases.list\[0\].tokens: expected a number below 10000: a later phase"):
        shares(PhaseConfig(tokens=1e6), PhaseConfig())
    with pytest.raises(InputError, match=r"phases.list\[0\].share: expected null, as tokens is set"):
        shares(PhaseConfig(share=0.5, tokens=2500.0), PhaseConfig())
    with pytest.raises(InputError, match=r"phases.list\[0\].tokens: expected null, or tokens in every phase"):
        shares(PhaseConfig(tokens=2500.0), PhaseConfig(), length=None)


def test_which_rules_are_bent(run: Run) -> None:
    assert bent_rules(Constraints()) == []
    bent = Constraints(cc1=False, max_swaps=2, tc1="routes", tc2=False, profile=[1.0, 2.0])
    assert bent_rules(bent, [3, 2]) == [
        "CC1 off", "CC2 with 2 swaps", "CC3 by profile", "TC1 by routes", "TC2 off", "without stages 2-3",
    ]  # fmt: skip
    assert bent_rules(Constraints(cc2=False, cc3=False, tc1="off")) == ["CC2 off", "CC3 off", "TC1 off"]
    result = run("plan", "cluster=local4", WORK, "schedule.cc3=false", "output=plan.json")
    assert "rules bent: CC3 off" in result.out
    assert "bent: CC3 off" in run("report", "plan=plan.json", "output=null").out


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
        (
            "phases.list=[{share: 0.5, layers: 1.5}, {}]",
            "phases.list[0].layers: expected a fraction below 1",
        ),
        (
            "phases.list=[{share: 0.5, layers: 0.5, allocation: anew}, {}]",
            "phases.list[0].allocation: expected kept, as layers is set",
        ),
        (
            "phases=mars",
            "phases: expected one of grow, grow_doubling, grow_inside, grow_steps, published, robust, tail, ",
        ),
    ],
)
def test_phases_that_cannot_be(settings: str, message: str, run: Run) -> None:
    result = run("plan", "cluster=local4", WORK, settings)
    assert result.status == 2
    assert message in result.err


def test_stages_are_relative_to_their_number() -> None:
    def absent(config: PhaseConfig, stages: int, lost: tuple[int, ...] = ()) -> tuple[int, ...]:
        allocation = Allocation([[] if stage in lost else [stage] for stage in range(stages)], lost)
        (phase,) = resolve_phases(PhasesConfig([config]), ScheduleConfig(), PlannerConfig(), allocation)
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
