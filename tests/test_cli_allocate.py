"""`skippipe plan allocate.*=...`: which allocation a plan has, and what is said about it."""

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Result, Run
from reference.independent import verdict

from skippipe import Plan, score_allocation
from skippipe.application import compose
from skippipe.plan_file import load_plan
from skippipe.report.stages import cost, members, moved, slowest_inside, stage_table
from skippipe.train.resolve.layout import resolve_layout

Write = Callable[[str, Any], Path]
WORK = "planner.work_limit=20000"
FREE_SUMS = "cluster.gradient_bytes=0"
"""Replicas cost nothing, so that all nodes serve."""
UNEQUAL = ("cluster=synthetic", "cluster.nodes=10", "cluster.speed_spread=4", "cluster.memory_spread=4")


@pytest.fixture
def planned(run: Run, tmp_path: Path) -> Callable[..., Plan]:
    """Plan with the arguments of a command line, and a limit on the work."""

    def call(*arguments: str) -> Plan:
        result = run("plan", *arguments, WORK, "output=plan.json")
        assert result.status == 0, result.err
        return load_plan(str(tmp_path / "plan.json"))

    return call


def partition(stages: list[list[int]]) -> Counter[frozenset[int]]:
    return Counter(map(frozenset, stages))


def test_sources_that_are_given(planned: Callable[..., Plan]) -> None:
    """They are stage 0, and microbatches given source by source are theirs."""
    counts = "schedule.microbatches_per_source=[7,2,3]"
    for strategy in ("skippipe", "random-skip"):
        settings = ("schedule.stages=4", "allocate.sources=[9,4,0]", counts, FREE_SUMS)
        plan = planned(*settings, f"schedule.strategy={strategy}")
        assert sorted(plan.stages[0]) == [0, 4, 9]
        assert plan.microbatches_per_source == {9: 7, 4: 2, 0: 3}
        assert sorted(len(stage) for stage in plan.stages) == [3, 5, 6, 6]


@pytest.mark.parametrize("strategy", ["skippipe", "skippipe-no-tc2"])
def test_no_slow_link_within_a_stage(strategy: str, planned: Callable[..., Plan]) -> None:
    free = planned(f"schedule.strategy={strategy}", FREE_SUMS)
    limit = 0.9 * max(filter(None, slowest_inside(free)))
    near = planned(f"schedule.strategy={strategy}", FREE_SUMS, f"allocate.max_replica_transfer_s={limit}")
    transfer_s = near.cluster.transfer_matrix()
    assert all(transfer_s[i, j] <= limit for stage in near.stages for i in stage for j in stage)
    assert sorted(map(len, near.stages)) == sorted(map(len, free.stages))


def test_surrogate_alone_or_the_iteration_too(planned: Callable[..., Plan]) -> None:
    alone = planned("allocate.objective=surrogate")
    assert alone.solver.allocation is None
    surrogate = alone.solver.surrogate
    assert surrogate is not None
    assert partition(alone.stages) == partition(surrogate.best.stages)
    assert surrogate.lower_bound_s <= surrogate.best.score_s == cost(alone).score_s
    assert surrogate.runner_up is not None
    assert surrogate.runner_up.score_s >= surrogate.best.score_s
    assert partition(surrogate.runner_up.stages) != partition(alone.stages)
    joint = planned()
    assert joint.solver.surrogate == surrogate
    found = joint.solver.allocation
    assert found is not None
    assert found.start_s is not None
    assert found.lower_bound_s <= joint.predicted.iteration_s <= found.start_s


@pytest.mark.parametrize("strategy", ["full", "random-skip", "skippipe-no-tc2"])
def test_other_strategies_have_allocations_of_their_own(strategy: str, planned: Callable[..., Plan]) -> None:
    plan = planned(f"schedule.strategy={strategy}")
    assert plan.solver.allocation is not None
    assert plan.solver.allocation.start_s is not None
    alone = planned(f"schedule.strategy={strategy}", "allocate.objective=surrogate")
    assert plan.solver.surrogate is not None
    assert alone.stages == plan.solver.surrogate.best.stages
    assert alone.solver.allocation is None


def test_the_same_allocation_whatever_the_threads(planned: Callable[..., Plan]) -> None:
    one, three = planned("planner.threads=1"), planned("planner.threads=3")
    assert one.stages == three.stages
    assert one.solver.surrogate == three.solver.surrogate


def test_every_rank_of_a_training_allocates_alike() -> None:
    """Whatever its threads, and however little time its planner has."""
    arguments = ("cluster=geo20", "allocate.max_replica_transfer_s=3.9")
    one, other = (
        resolve_layout(compose("train", [*arguments, *more]))
        for more in ([], ["planner.threads=3", "planner.time_limit_s=0.01"])
    )
    assert one.stages == other.stages
    assert sorted(map(len, one.stages)) == [3, 3, 3, 3, 3, 5]


def test_layers_of_the_model_stand_in_the_plan(planned: Callable[..., Plan], write: Write) -> None:
    assert planned().layers == []
    assert planned("allocate.decoder_layers=26").layers == [5, 5, 4, 4, 4, 4]
    write("groups.json", {"stages": [[3, 1], [0], [2]]})
    given = ("cluster=local4", "allocate.stages=groups.json")
    assert planned(*given, "allocate.decoder_layers=7").layers == [3, 2, 2]


def test_layers_that_suit_unequal_nodes(planned: Callable[..., Plan]) -> None:
    """The plan's cluster is that of its layers; as many microbatches as the equal cut has."""
    stages = ("schedule.stages=3", "schedule.microbatches_per_source=4")
    equal = planned(*UNEQUAL, *stages, "allocate.decoder_layers=24")
    auto = planned(*UNEQUAL, *stages, "allocate.decoder_layers=24", "allocate.layers=auto")
    assert sum(auto.layers) == sum(equal.layers) == 24
    assert min(auto.layers) >= 1
    assert len(auto.microbatches) == len(equal.microbatches)
    assert [len(nodes) for nodes in auto.stages] == [len(nodes) for nodes in equal.stages] == [4, 3, 3]
    for stage, nodes in enumerate(auto.stages):
        share = auto.layers[stage] / 8
        for node in nodes:
            assert auto.cluster.forward_s[node] == pytest.approx(share * equal.cluster.forward_s[node], rel=1e-9)
            assert auto.cluster.memory[node] == int(equal.cluster.memory[node] / share + 1e-9)
    assert auto.solver.allocation is not None
    assert auto.solver.allocation.start_s is not None
    assert auto.predicted.iteration_s <= auto.solver.allocation.start_s
    assert verdict(auto.to_json()) == []


def test_layers_that_no_memory_holds(planned: Callable[..., Plan], write: Write, refused: Callable[..., str]) -> None:
    """The message names the file that the memory is from, though it is the search that finds out."""
    cluster = json.loads(planned("cluster=local4").cluster.to_json())
    for node in cluster["nodes"]:
        node["memory"] = 1
    path = write("small.json", cluster)
    message = refused("plan", f"cluster.file={path}", "allocate.layers=auto", "allocate.decoder_layers=7", WORK)
    assert message.startswith(f"skippipe plan: {path}: cluster.nodes[")
    assert "memory: expected room for a microbatch of" in message


def test_layers_alone_where_the_sizes_are_given(planned: Callable[..., Plan]) -> None:
    plan = planned(*UNEQUAL, "allocate.sizes=[5,3,2]", "allocate.layers=auto")
    assert len(plan.stages[0]) == 5
    assert sorted(map(len, plan.stages[1:])) == [2, 3]
    assert sum(plan.layers) == 12


def test_what_is_said_about_an_allocation(run: Run, tmp_path: Path) -> None:
    result = run("plan", WORK, FREE_SUMS, "allocate.decoder_layers=24", "output=plan.json")
    plan, solver = load_plan(str(tmp_path / "plan.json")), json.loads((tmp_path / "plan.json").read_text())["solver"]
    scored = score_allocation(plan.cluster, plan.stages)
    assert f"Surrogate cost: {scored.score_s:.3f} s = {scored.replica_s:.3f} s within stages + " in result.out
    assert f"{scored.tour_s:.3f} s tour over stages + {scored.compute_s:.3f} s compute." in result.out
    best, joint = solver["surrogate"], solver["allocation"]
    assert f"Best surrogate cost: {best['score_s']:.3f} s, lower bound {best['lower_bound_s']:.3f} s" in result.out
    assert (
        f"Search by the iteration: began at {joint['start_s']:.3f} s with that allocation, "
        f"lower bound {joint['lower_bound_s']:.3f} s" in result.out
    )
    rows = stage_table(plan).rows
    assert [row[-3] for row in rows] == ["4"] * 6
    inside = slowest_inside(plan)
    for row, nodes, slowest in zip(rows, plan.stages, inside, strict=True):
        assert row[-2] == f"{slowest:.3f} s"
        assert row[-1] == members([plan.cluster.names[node] for node in nodes])
        assert re.search(rf"^{row[0]} .*{re.escape(row[-1])}", result.out, re.MULTILINE)
    assert max(map(len, result.out.splitlines())) <= 110


@pytest.mark.parametrize(
    ("names", "brief"),
    [
        (["Iowa-0"], "Iowa-0"),
        (["Iowa-0", "Paris-3", "Iowa-12"], "Iowa-0,12 Paris-3"),
        (["alpha", "beta"], "alpha beta"),
        ([f"region1-{i}" for i in range(40)], "region1 x40"),
        ([f"r{i}-0" for i in range(3)] + [f"x{i}" for i in range(50)], "x x50, r0, r1, r2"),
        ([f"long name of site {i}a" for i in range(9)], "long name of site 0a and 8 more sites"),
        ([], ""),
    ],
)
def test_names_of_nodes_briefly(names: list[str], brief: str) -> None:
    assert members(names) == brief


def test_nodes_that_two_partitions_have_elsewhere() -> None:
    assert moved([[0, 1], [2, 3], [4]], [[4], [3, 2], [1, 0]]) == 0
    assert moved([[0, 1], [2, 3], [4]], [[0, 2], [1, 3], [4]]) == 2
    assert moved([[0, 1, 2], [3]], [[0, 1], [2, 3]]) == 1


TWO_SITES = Path(__file__).parent.parent / "benchmarks" / "two_sites.cluster.json"


def test_nodes_that_only_cost_are_left_out(run: Run, write: Write, tmp_path: Path) -> None:
    """In three stages the six machines would average over the slow link between the sites."""
    cluster = json.loads(TWO_SITES.read_text(encoding="utf-8"))
    cluster["gradient_bytes"] = cluster["gradient_bytes"][:3]
    write("sites.json", cluster)
    asked = ("cluster.file=sites.json", "schedule.stages=3", "planner.work_limit=2000000", "output=plan.json")

    def planned_with(setting: str) -> tuple[Plan, Result]:
        result = run("plan", *asked, f"allocate.unused={setting}")
        assert result.status == 0, result.err
        plan = load_plan(str(tmp_path / "plan.json"))
        assert verdict(plan.to_json()) == []
        assert bool(plan.absent_nodes) == (setting == "allow")
        assert "Lower bound for this allocation" in result.out
        assert "for all allocations" in result.out
        assert re.search(r"^ \d  .*[.<]==", result.out, re.MULTILINE), "all-reduce in the Gantt chart"
        return plan, result

    whole, _ = planned_with("forbid")
    plan, result = planned_with("allow")
    assert plan.predicted.iteration_s < 0.8 * whole.predicted.iteration_s
    assert re.search(r"^Unused: .*-\d \(in stage \d, with unchanged routes, the all-reduce", result.out, re.MULTILINE)
    assert len([line for line in result.out.splitlines() if re.match(r" [012]  ", line)]) == 6 - len(plan.absent_nodes)
    for command in ("simulate", "report"):
        again = run(command, "plan=plan.json", *(["output=null"] if command == "report" else []))
        assert again.status == 0, again.err
        assert "Unused: " in again.out


def test_a_search_that_ends_early_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only where nobody has said how long it is to be, and where it is not done."""
    monkeypatch.setattr("skippipe.scheduler.DEFAULT_SEARCH_LIMIT_S", 0.5)
    hint = "more time may find a shorter iteration (planner.time_limit_s=5)"
    early = run("plan", f"cluster.file={TWO_SITES}", "schedule.skip_ratio=0", "allocate.unused=forbid")
    assert early.status == 0, early.err
    assert hint in early.out
    assert hint not in run("plan", f"cluster.file={TWO_SITES}", "planner.time_limit_s=0.2").out
    assert hint not in run("plan", "cluster=local4", "schedule.skip_ratio=0.3333").out
