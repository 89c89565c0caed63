"""Whatever cannot be used is refused: status 2, one message naming file, key and value, no file left behind."""

import copy
import itertools
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import SHARED, Run

from skippipe.application.arguments import settings_first
from skippipe.cluster import load_cluster
from skippipe.config import ClusterConfig, PlanJob
from skippipe.errors import InputError
from skippipe.validate import validate

Refused = Callable[..., str]
Write = Callable[[str, Any], Path]

COMMAND_LINES = [
    (["schedule.skip_ration=0.5"], ["schedule.skip_ration", "did you mean schedule.skip_ratio"]),
    (["nonsense=1"], ["nonsense: unknown key"]),
    (["+nonsense=1"], ["nonsense: unknown key"]),
    (["++schedule.nonsense=1"], ["schedule.nonsense: unknown key"]),
    (["~schedule.cc1"], ["schedule.cc1"]),
    (["allocate.objective=best"], ["allocate.objective: expected one of surrogate, simulated, got best"]),
    (["allocate.layers=some"], ["allocate.layers: expected one of equal, auto, got some"]),
    (
        ["allocate.layers=auto", "allocate.objective=surrogate"],
        ["allocate.objective: expected simulated, as allocate.layers is auto, got surrogate"],
    ),
    (
        ["allocate.layers=auto", "schedule.microbatches_per_source=[6,6,6,6,6]"],
        ["schedule.microbatches_per_source: expected one number"],
    ),
    (
        ["allocate.layers=auto", "allocate.decoder_layers=5"],
        ["allocate.decoder_layers: expected at least the number of stages, 6, got 5"],
    ),
    (
        ["allocate.layers=auto", "allocate.stages=x.json"],
        ["allocate.layers: expected equal, as allocate.stages is set"],
    ),
    (["allocate.decoder_layers=0"], ["allocate.decoder_layers: expected an integer of at least 1, got 0"]),
    (
        ["allocate.max_replica_transfer_s=-1"],
        ["allocate.max_replica_transfer_s: expected a finite number of at least 0, got -1"],
    ),
    (
        ["cluster=local4", "allocate.max_replica_transfer_s=1e-5"],
        ["no plan exists: max_replica_transfer_s cannot hold"],
    ),
    (["allocate.sources=[3,-1]"], ["allocate.sources[1]: expected an integer of at least 0, got -1"]),
    (["allocate.sources=[3,20]"], ["allocate.sources[1]: expected different numbers below 20, got 20"]),
    (["allocate.sources=[3,4,3]"], ["allocate.sources[2]: expected different numbers below 20, got 3"]),
    (["allocate.sources=[]"], ["allocate.sources: expected at least one node, got []"]),
    (["allocate.sources=[1,2]", "allocate.sizes=[10,10]"], ["allocate.sources: expected as many", "10, got [1, 2]"]),
    (
        ["allocate.sources=[0,1,2]", "cluster=local4", "schedule.stages=3"],
        ["nodes for 2 other stages (1 of 4 are left), got [0, 1, 2]"],
    ),
    (
        ["allocate.sources=[1,2]", "allocate.stages=x.json"],
        ["allocate.sources: expected null, as allocate.stages is set"],
    ),
    (["planner.method=astar"], ["planner.method: expected one of auto, cbs, got astar"]),
    (["planner.suboptimality=0.9"], ["planner.suboptimality: expected a finite number of at least 1, got 0.9"]),
    (["cluster=geo20", "cluster.sites=2"], ["cluster.sites", "no choice made here has it"]),
    (["cluster=mars"], ["cluster: expected one of ", "geo20", "synthetic", "got mars"]),
    (["schedule=mars"], ["schedule: expected one of ", "reference, skippipe", "got mars"]),
    (["a=["], ["expected key=value", "got a=["]),
    (["word"], ["expected key=value", "got word"]),
    (["planner.time_limit_s=soon"], ["planner.time_limit_s: expected a number, got soon"]),
    (["planner.time_limit_s=-1"], ["planner.time_limit_s: expected a finite number of at least 0, got -1"]),
    (["planner.work_limit=0"], ["planner.work_limit: expected an integer of at least 1, got 0"]),
    (["planner.threads=1.5"], ["planner.threads: expected an integer, got 1.5"]),
    (["schedule.cc1=perhaps"], ["schedule.cc1: expected true or false, got perhaps"]),
    (["schedule.strategy=magic"], ["schedule.strategy: expected one of full, ", "random-skip", ", got magic"]),
    (["schedule.skip_ratio=nan"], ["schedule.skip_ratio: expected a finite number", ", got nan"]),
    (
        ["schedule.skip_ratio=0.9", "cluster=local4"],
        ["schedule.skip_ratio: expected a number from 0 to 0.666667", "got 0.9"],
    ),
    (["schedule.skip_ratio=null"], ["schedule.skip_ratio: expected a value, got null"]),
    (["schedule.stages=21"], ["schedule.stages: expected at most the number of nodes, 20, got 21"]),
    (
        ["schedule.microbatches_per_source=-1"],
        ["schedule.microbatches_per_source: expected an integer of at least 0, got -1"],
    ),
    (
        ["schedule.microbatches_per_source=0"],
        ["schedule.microbatches_per_source: expected at least one microbatch, got 0"],
    ),
    (
        ["schedule.microbatches_per_source=many"],
        ["schedule.microbatches_per_source: expected an integer", "got 'many'"],
    ),
    (["schedule.microbatches_per_source=2.5"], ["schedule.microbatches_per_source: expected an integer", "got 2.5"]),
    (
        ["schedule.microbatches_per_source=[1,2]"],
        ["schedule.microbatches_per_source: expected", "list of 5", "got [1, 2]"],
    ),
    (
        ["schedule.microbatches_per_source=[1,2,3,4,x]"],
        ["schedule.microbatches_per_source[4]: expected an integer", "got 'x'"],
    ),
    (
        ["schedule.microbatches_per_source={a:1}"],
        ["schedule.microbatches_per_source: expected an integer", "got {'a': 1}"],
    ),
    (["allocate.sizes=3"], ["allocate.sizes: expected a list"]),
    (["allocate.sizes=[a]"], ["allocate.sizes[0]: expected an integer, got a"]),
    (["allocate.sizes=[1,2]"], ["allocate.sizes: expected a list that adds up to the 20 nodes, got [1, 2]"]),
    (
        ["allocate.sizes=[10,10]", "schedule.stages=3"],
        ["allocate.sizes: expected as many as schedule.stages, 3, got a list of 2"],
    ),
    (
        ["allocate.sizes=[10,10]", "allocate.stages=x.json"],
        ["allocate.sizes: expected null, as allocate.stages is set"],
    ),
    (["allocate.stages=missing.json"], ["missing.json", "No such file"]),
    (["compare=[full,magic]"], ["compare[1]: expected one of full, ", ", got magic"]),
    (["compare=full"], ["compare: expected a list"]),
    (["cluster.file=missing.json"], ["missing.json", "No such file"]),
    (["cluster.file=."], [".: cannot be read", "directory"]),
    (["cluster.node.memory=0"], ["cluster.node.memory: expected an integer of at least 1, got 0"]),
    (["cluster.node.forward_s=-1"], ["cluster.node.forward_s: expected a finite number of at least 0, got -1"]),
    (["cluster.overhead_s=nan"], ["cluster.overhead_s: expected a finite number of at least 0, got nan"]),
    (["cluster.regions=[Atlantis]"], ["cluster.regions[0]: expected one of ", "Singapore", "got Atlantis"]),
    (["cluster.regions=[]"], ["cluster.regions: expected one region per node, got []"]),
    (["cluster=synthetic", "cluster.nodes=0"], ["cluster.nodes: expected an integer of at least 1", ", got 0"]),
    (["cluster=synthetic", "cluster.nodes=100000000"], ["cluster.nodes: expected", "at most 100000, got 100000000"]),
    (["cluster=five_clusters", "cluster.nodes_per_site=50000"], ["cluster.sites times", "at most 100000, got 250000"]),
    (
        ["cluster=synthetic", "cluster.asymmetry=0.5"],
        ["cluster.asymmetry: expected a finite number of at least 1, got 0.5"],
    ),
    (
        ["cluster=synthetic", "cluster.inside.bandwidth=0"],
        ["cluster.inside.bandwidth: expected a finite number of more than 0, got 0.0"],
    ),
    (["output=missing/plan.json"], ["output: ", "missing does not exist"]),
    (["output=."], ["is a folder"]),
    (["output=/dev/null"], ["no regular file"]),
    (["output=/proc/plan.json"], ["output: /proc/plan.json cannot be written"]),
    (["output=${nothing}"], ["nothing"]),
    (["--run", "-m"], ["Only one of"]),
    (["--config-dir=missing"], ["missing"]),
]


@pytest.mark.parametrize(("arguments", "said"), COMMAND_LINES, ids=lambda x: " ".join(x) if len(x) < 3 else None)
def test_command_line(arguments: list[str], said: list[str], refused: Refused) -> None:
    message = refused("plan", *arguments)
    assert message.startswith("skippipe plan: ")
    assert message.count("\n") == 1, message
    for part in said:
        assert part in message


RANGES: list[tuple[str, str, Any, str]] = [
    ("planner", "time_limit_s", float("nan"), "planner.time_limit_s: expected a finite number of at least 0, got nan"),
    ("planner", "time_limit_s", float("inf"), "planner.time_limit_s: expected a finite number of at least 0, got inf"),
    ("planner", "threads", 0, "planner.threads: expected an integer of at least 1 and at most 1024, got 0"),
    ("planner", "seed", -1, "planner.seed: expected an integer of at least 0 and at most 9223372036854775807, got -1"),
    (
        "planner",
        "seed",
        10**23,
        "planner.seed: expected an integer of at least 0 and at most 9223372036854775807, got 1000000",
    ),
    ("planner", "work_limit", 2**63, "at most 9223372036854775807, got 9223372036854775808"),
    ("schedule", "tc1", "some", "schedule.tc1: expected one of held, routes, off, got some"),
    ("schedule", "waves", 0, "schedule.waves: expected an integer of at least 1, got 0"),
    ("schedule", "max_swaps", -1, "schedule.max_swaps: expected an integer of at least 0, got -1"),
    ("schedule", "max_stage_jump", 0, "schedule.max_stage_jump: expected an integer of at least 1, got 0"),
    (
        "schedule",
        "skip_ratio",
        -0.1,
        "schedule.skip_ratio: expected a finite number of at least 0 and at most 1, got -0.1",
    ),
    (
        "schedule",
        "skip_ratio",
        1.5,
        "schedule.skip_ratio: expected a finite number of at least 0 and at most 1, got 1.5",
    ),
    ("schedule", "stages", 0, "schedule.stages: expected an integer of at least 1, got 0"),
    ("allocate", "sizes", [20, 0], "allocate.sizes[1]: expected an integer of at least 1, got 0"),
]


@pytest.mark.parametrize(("group", "key", "value", "said"), RANGES)
def test_ranges(group: str, key: str, value: Any, said: str) -> None:
    job = PlanJob(cluster=ClusterConfig())
    validate(job)
    setattr(getattr(job, group), key, value)
    with pytest.raises(InputError) as caught:
        validate(job)
    assert said in str(caught.value)


def broken(cluster: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A copy of the cluster with one entry replaced."""
    changed = copy.deepcopy(cluster)
    place: Any = changed
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    return changed


CLUSTER_FAULTS: list[tuple[tuple[Any, ...], Any, list[str]]] = [
    (("nodes", 3, "memory"), 0, ["nodes[3].memory", "0"]),
    (("nodes", 1, "memory"), 1.5, ["nodes[1].memory", "1.5"]),
    (("nodes", 1, "forward_s"), -0.1, ["nodes[1].forward_s", "-0.1"]),
    (("nodes", 1, "backward_s"), "fast", ["nodes[1].backward_s"]),
    (("nodes", 1, "loss_s"), None, ["nodes[1].loss_s"]),
    (("nodes", 1, "name"), "n0", ["n0"]),
    (("nodes", 1), 7, ["nodes[1]"]),
    (("nodes",), [], ["nodes"]),
    (("format",), "skippipe.cluster/2", ["format", "skippipe.cluster/2", "skippipe.cluster/1"]),
    (("latency_s", 0, 1), -1.0, ["latency_s[0][1]", "-1"]),
    (("latency_s",), [[0.0] * 4] * 3, ["latency_s"]),
    (("bandwidth", 2), [1e9] * 5, ["bandwidth"]),
    (("bandwidth", 2, 1), 0, ["bandwidth[2][1]", "0"]),
    (("overhead_s",), -1, ["overhead_s", "-1"]),
    (("activation_bytes",), -5, ["activation_bytes", "-5"]),
    (("gradient_bytes",), [1.0, -2.0], ["gradient_bytes[1]"]),
    (("step_s",), [1.0], ["step_s"]),
    (("norm_s",), "x", ["norm_s"]),
    (("region_of",), [0, 0, 0, 9], ["region_of"]),
    (("region_of",), [0, 0], ["region_of"]),
]


@pytest.mark.parametrize(("path", "value", "said"), CLUSTER_FAULTS, ids=lambda x: str(x)[:40])
def test_cluster_file(
    path: tuple[Any, ...], value: Any, said: list[str], write: Write, small_cluster: dict[str, Any]
) -> None:
    file = write("mine.json", broken(small_cluster, *path, value=value))
    with pytest.raises(InputError) as caught:
        load_cluster(str(file))
    assert str(caught.value).startswith(f"{file}:")
    for part in said:
        assert part in str(caught.value)


def test_cluster_file_on_the_command_line(refused: Refused, write: Write, small_cluster: dict[str, Any]) -> None:
    write("mine.json", broken(small_cluster, "nodes", 3, "memory", value=0))
    message = refused("plan", "cluster.file=mine.json", "output=plan.json")
    assert message.startswith("skippipe plan: mine.json: nodes[3].memory: expected ")


@pytest.mark.parametrize("key", ["format", "nodes", "latency_s", "bandwidth", "activation_bytes"])
def test_cluster_file_with_a_missing_key(
    key: str, refused: Refused, write: Write, small_cluster: dict[str, Any]
) -> None:
    del small_cluster[key]
    write("mine.json", small_cluster)
    message = refused("plan", "cluster.file=mine.json")
    assert "mine.json" in message
    assert key in message


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_none(number: str, refused: Refused, write: Write, small_cluster: dict[str, Any]) -> None:
    text = json.dumps(small_cluster).replace("1000000000.0", number, 1)
    assert number in text
    write("mine.json", text)
    assert "mine.json" in refused("plan", "cluster.file=mine.json")


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '"x"', "[" * 200_000, '{"nodes": ' * 50_000, "\x00", '{"format": "skippipe.cluster/1"}'],
    ids=["empty", "open", "array", "null", "string", "deep-array", "deep-object", "zero", "bare"],
)
def test_files_that_are_no_cluster(text: str, refused: Refused, write: Write) -> None:
    write("mine.json", text)
    message = refused("plan", "cluster.file=mine.json", "output=plan.json")
    assert "mine.json" in message
    assert len(message) < 1000


def test_a_file_that_is_no_text(refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_bytes(b'{"format": "\xff"}')
    assert "mine.json: expected UTF-8 text, got byte 0xff at 12" in refused("plan", "cluster.file=mine.json")


def test_a_file_without_end(refused: Refused) -> None:
    assert "/dev/zero: expected at most" in refused("plan", "cluster.file=/dev/zero")


def test_no_permission(refused: Refused, write: Write, small_cluster: dict[str, Any], tmp_path: Path) -> None:
    locked = write("mine.json", small_cluster)
    locked.chmod(0)
    if os.access(locked, os.R_OK):
        pytest.skip("this user may read and write everything")
    assert "mine.json: cannot be read: Permission denied" in refused("plan", "cluster.file=mine.json")
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o500)
    assert "locked/plan.json cannot be written" in refused("plan", "cluster=local4", "output=locked/plan.json")
    write("old.json", "{}").chmod(0o400)
    assert "old.json cannot be written" in refused("plan", "cluster=local4", "output=old.json")


ALLOCATION_FAULTS: list[tuple[Any, list[str]]] = [
    ({"stages": [[0, 1], [2]]}, []),
    ({"stages": [[0, 1], [2], [3, 3]]}, ["3"]),
    ({"stages": [[0, 1], [2], [4]]}, ["4"]),
    ({"stages": [[0, 1], [2, 3], []]}, []),
    ({"stages": []}, ["stages"]),
    ({"stages": [[], [0, 1, 2, 3]]}, ["stages[0]"]),
    ({"stages": [[0, 1], [2], [3]], "absent_stages": [2]}, []),
    ({"stages": [[0, 1], [2, 3], []], "absent_stages": [7]}, ["7"]),
    ({"stages": [[0, 1], "x"]}, ["stages[1]"]),
    ({}, ["stages: expected a list of lists of node numbers, got nothing"]),
    ({"stages": [[0, 1], [2], [3]], "layers": [2, 2]}, ["layers"]),
]


@pytest.mark.parametrize(("content", "said"), ALLOCATION_FAULTS, ids=lambda x: str(x)[:50])
def test_allocation_file(content: Any, said: list[str], refused: Refused, write: Write) -> None:
    write("groups.json", content)
    message = refused("plan", "cluster=local4", "allocate.stages=groups.json")
    assert "groups.json" in message
    for part in said:
        assert part in message


def test_allocation_file_against_other_settings(refused: Refused, write: Write) -> None:
    write("groups.json", {"stages": [[0, 1], [2], [3]], "layers": [2, 1, 1]})
    arguments = ("plan", "cluster=local4", "allocate.stages=groups.json")
    message = refused(*arguments, "allocate.max_replica_transfer_s=0.0001")
    assert (
        "groups.json: stages[0]: expected messages of at most allocate.max_replica_transfer_s, 0.0001 s, got "
        in message
    )
    assert message.endswith(" s from local-0 to local-1\n")
    message = refused(*arguments, "allocate.decoder_layers=5")
    assert "groups.json: layers: expected allocate.decoder_layers, 5, in all, got [2, 1, 1]" in message


def test_impossible_problems_name_the_rule(refused: Refused) -> None:
    message = refused("plan", "cluster=local4", "schedule.tc1=routes", "schedule.microbatches_per_source=9")
    assert "TC1" in message


@pytest.fixture
def plan_file(run: Run, tmp_path: Path) -> dict[str, Any]:
    """A small valid plan, also in the file plan.json."""
    assert run("plan", "cluster=local4", "planner.time_limit_s=0.2", "output=plan.json").status == 0
    content: dict[str, Any] = json.loads((tmp_path / "plan.json").read_text())
    return content


def test_plans_that_cannot_be_used(plan_file: dict[str, Any], refused: Refused, write: Write, tmp_path: Path) -> None:
    text = (tmp_path / "plan.json").read_text()
    faults: list[tuple[Any, list[str]]] = [
        (text[: len(text) // 2], []),
        ("[" * 100_000, []),
        (broken(plan_file, "format", value="skippipe.plan/2"), ["format", "skippipe.plan/2"]),
        (broken(plan_file, "tasks", 0, "start_s", value=-1.0), ["tasks[0].start_s"]),
        (broken(plan_file, "tasks", 0, "kind", value="X"), ["tasks[0].kind"]),
        (broken(plan_file, "skip_ratio", value=2.0), ["skip_ratio"]),
        (broken(plan_file, "constraints", "waves", value=0), ["waves"]),
        (broken(plan_file, "cluster", "nodes", 0, "memory", value=0), ["nodes[0].memory"]),
        (broken(plan_file, "stages", value=[[0], [1], [2]]), []),
        (broken(plan_file, "microbatches", value=[]), ["microbatches"]),
    ]
    for key in ("cluster", "tasks", "predicted", "constraints"):
        faults.append(({k: v for k, v in plan_file.items() if k != key}, [key]))
    for content, said in faults:
        write("bad.json", content)
        message = refused("simulate", "plan=bad.json", "output=out.json")
        assert message.startswith("skippipe simulate: bad.json:")
        for part in said:
            assert part in message


def test_the_version_is_looked_at_before_anything_else(
    plan_file: dict[str, Any], refused: Refused, write: Write
) -> None:
    """Another format has other keys: what is missing from it is of no interest."""
    write("cluster.json", plan_file["cluster"])
    message = refused("simulate", "plan=cluster.json")
    assert "cluster.json: format: expected" in message
    assert "skippipe.plan/1" in message
    write("later.json", {"format": "skippipe.cluster/2", "machines": []})
    assert "later.json: format: expected" in refused("plan", "cluster.file=later.json")


def test_plans_edited_into_a_breach(plan_file: dict[str, Any], refused: Refused, write: Write) -> None:
    early = copy.deepcopy(plan_file)
    task = early["tasks"][-1]
    task["start_s"] -= 0.001
    task["end_s"] -= 0.001
    breaches = [
        early,
        broken(plan_file, "predicted", "iteration_s", value=0.001),
        broken(plan_file, "tasks", value=plan_file["tasks"][1:]),
        broken(plan_file, "microbatches", 0, "nodes", value=[0, 2, 3]),
        broken(plan_file, "cluster", "nodes", 2, "memory", value=1),
        broken(plan_file, "cluster", "nodes", 0, "forward_s", value=1.0),
        broken(plan_file, "skip_ratio", value=0.0),
        broken(plan_file, "constraints", "max_swaps", value=0) if uses_swap(plan_file) else early,
    ]
    for content in breaches:
        write("bad.json", content)
        message = refused("simulate", "plan=bad.json", "output=out.json")
        assert "bad.json" in message
        assert "Traceback" not in message


def uses_swap(plan: dict[str, Any]) -> bool:
    return any(x["stages"] != sorted(x["stages"]) for x in plan["microbatches"])


def without_times(plan: dict[str, Any]) -> dict[str, Any]:
    """The same routes on nodes and links that take no time, in an order that can be executed."""
    still = copy.deepcopy(plan)
    cluster, tasks, predicted = still["cluster"], still["tasks"], still["predicted"]
    tasks.sort(key=lambda task: task["start_s"])
    for node in cluster["nodes"]:
        node.update(forward_s=0.0, backward_s=0.0, loss_s=0.0)
    for key in ("latency_s", "bandwidth", "gradient_bytes"):
        cluster.pop(key, None)
    cluster["transfer_s"] = [[0.0]] if "region_of" in cluster else [[0.0] * 4] * 4
    for task in tasks:
        task.update(start_s=0.0, end_s=0.0)
    predicted.update(iteration_s=0.0, pipeline_s=0.0, allreduce_s=[0.0] * 3, lower_bound_s=0.0, gap=0.0)
    cluster["overhead_s"] = 0.0
    for node in cluster["nodes"]:
        node["memory"] = 99
    return still


def test_orders_that_cannot_be_executed(plan_file: dict[str, Any], run: Run, refused: Refused, write: Write) -> None:
    """Where nothing takes any time, no time tells: two tasks of one node wait for each other all the same."""
    still = without_times(plan_file)
    write("still.json", still)
    assert run("simulate", "plan=still.json").status == 0
    tasks = still["tasks"]
    first = next(i for i, task in enumerate(tasks) if task["kind"] == "F" and task["hop"] == 0)
    batch, node = tasks[first]["microbatch"], tasks[first]["node"]
    loss = next(i for i, task in enumerate(tasks) if task["kind"] == "L" and task["microbatch"] == batch)
    tasks[first], tasks[loss] = tasks[loss], tasks[first]
    write("circle.json", still)
    for command in (["simulate"], ["simulate", "order=dispatch"], ["report", "output=null"]):
        message = refused(*command, "plan=circle.json")
        assert f"circle.json: tasks: expected an order that can be executed, got {batch}" in message
        assert f"{batch}L0@{node} waits for " in message
        assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("place", "key", "said"),
    [
        ([], "colour", ": colour: unknown key"),
        (["cluster"], "bandwith", ": cluster.bandwith: unknown key"),
        (["cluster", "nodes", 1], "forwards_s", "nodes[1].forwards_s: unknown key"),
        (["constraints"], "max_swap", "did you mean max_swaps?"),
        (["tasks", 3], "begin_s", ": tasks[3].begin_s: unknown key"),
        (["microbatches", 0], "waves", "did you mean wave?"),
        (["predicted"], "iteration", "did you mean iteration_s?"),
    ],
)
def test_unknown_keys_of_plans(
    place: list[Any], key: str, said: str, plan_file: dict[str, Any], refused: Refused, write: Write
) -> None:
    write("bad.json", broken(plan_file, *place, key, value=1))
    assert said in refused("simulate", "plan=bad.json")


def test_what_a_plan_may_hold_besides(plan_file: dict[str, Any], run: Run, write: Write, tmp_path: Path) -> None:
    """Anything in `solver`, however large; rules that are not used; what a reader on Windows puts first."""
    plan_file["solver"] |= {"mine": {"x": [None, {"y": "\u202e"}]}, "long": [0] * 1_500_000}
    plan_file["constraints"] |= {"profile": None, "classes": None}
    write("more.json", "\ufeff" + json.dumps(plan_file))
    assert run("simulate", "plan=more.json", "output=again.json").status == 0
    solver = json.loads((tmp_path / "again.json").read_text())["solver"]
    assert solver["mine"] == plan_file["solver"]["mine"]
    assert "long" not in solver
    plan_file["constraints"]["profile"] = [1, 1]
    write("more.json", plan_file)
    result = run("simulate", "plan=more.json")
    assert result.status == 2
    assert "constraints.profile: invalid type: list, expected null" in result.err


LAUGHS = "a: &a 1\n" + "".join(f"{b}: &{b} [{', '.join([f'*{a}'] * 9)}]\n" for a, b in itertools.pairwise("abcdefghi"))
"""A few lines whose aliases stand for 9 ** 8 values."""


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("name:\n\t- x\n", "own.yaml:2: invalid YAML: found character '\\t'"),
        ("name: [a\nsites: 1\n", "own.yaml:"),
        ("defaults: [sites_schema]\nname: a\nname: b\n", "own.yaml:3: invalid YAML: found duplicate key name"),
        ("- a\n- b\n", "own.yaml:1: expected key: value, got a list"),
        ("words\n", "own.yaml:1: expected key: value, got 'words'"),
        ("defaults:\n  - sites_schema\n  - mars\n", "own.yaml:3: "),
        ("defaults: sites_schema\n", "own.yaml:1: defaults: expected a list, got 'sites_schema'"),
        (
            "defaults: [sites_schema]\nname: x\nsite: 2\n",
            "own.yaml:3: cluster.site: unknown key; did you mean",
        ),
        (
            "defaults: [sites_schema]\nnode:\n  memory: much\n",
            "own.yaml:3: cluster.node.memory: expected an integer, got much",
        ),
        ("defaults: [sites_schema]\nname: ${mars.moon}\n", "own.yaml:2: cluster.name: Interpolation key 'mars.moon'"),
        ("file: c.json\noverhead_s: 3\n", "own.yaml:2: cluster.overhead_s: expected nothing of a preset"),
        ("a: &x {b: *x}\n", "own.yaml:1: nested too deeply"),
        (LAUGHS, "own.yaml:1: expected at most 100000 values, got more"),
        ("a: " + "[" * 3000, "own.yaml:1: nested too deeply"),
        ("a: !!python/name:os.system\n", "own.yaml:1: invalid YAML"),
        (
            "# @package _global_\nhydra:\n  callbacks:\n    x: &x {_target_: os.system}\n    y: *x\n",
            "own.yaml:4: _target_: expected a launcher, sweeper or callback of Hydra, got 'os.system'",
        ),
        ("a: [{_target_: '${oc.env:HOME}'}]\n", "own.yaml:1: _target_: expected a launcher"),
        ("a: 1\n---\nb: 2\n", "own.yaml:2: invalid YAML"),
        ('a: "\x01"\n', "own.yaml:1: invalid YAML: character 0x0001"),
        (b"name: x\nname2: \xff\n", "own.yaml:2: expected UTF-8 text, got byte 0xff"),
    ],
    ids=lambda x: None if len(x) < 200 else "long",
)
def test_yaml_of_ones_own(content: str | bytes, said: str, refused: Refused, tmp_path: Path) -> None:
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    path = tmp_path / "mine" / "cluster" / "own.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    message = refused("plan", "--config-dir", "mine", "cluster=own")
    assert f"mine/cluster/{said}" in message
    assert message.count("\n") == 1


def test_a_published_file_with_a_tab(refused: Refused) -> None:
    folder = SHARED / "field" / "12" / "conf"
    if not folder.is_dir():
        pytest.skip("needs ../shared/field/12 beside the checkout, which is not there")
    message = refused("plan", "--config-dir", folder, "cluster=tab")
    assert "tab.yaml:5: invalid YAML: found character '\\t' that cannot start any token" in message
    assert message.count("\n") == 1


def test_yaml_with_a_byte_order_mark(run: Run, tmp_path: Path) -> None:
    """It hides neither the settings nor what stands in the first line for Hydra."""
    (tmp_path / "mine" / "experiment").mkdir(parents=True)
    path = tmp_path / "mine" / "experiment" / "own.yaml"
    path.write_text("\ufeff# @package _global_\nplanner: {seed: 77}\n", encoding="utf-8")
    result = run("train", "--cfg", "job", "--config-dir", "mine", "experiment=own")
    assert result.status == 0, result.err
    assert "seed: 77" in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["plan", "cluster=synthetic"], "cluster: expected nothing of a preset next to cluster.file, got synthetic"),
        (["plan", "cluster.stage_sizes=[2,2]"], "cluster.stage_sizes: expected nothing of a preset"),
        (["plan", "++cluster.overhead_s=3"], "cluster.overhead_s: expected nothing of a preset"),
        (["train", "--dry-run", "cluster.nodes_per_site=2"], "cluster.nodes_per_site: expected nothing of a preset"),
    ],
)
def test_a_cluster_file_stands_alone(
    arguments: list[str], said: str, refused: Refused, write: Write, small_cluster: dict[str, Any]
) -> None:
    write("mine.json", small_cluster)
    assert said in refused(*arguments, "cluster.file=mine.json")
    assert said in refused(arguments[0], "cluster.file=mine.json", *arguments[1:])


def test_a_cluster_file_of_a_benchmark_stands_alone(
    refused: Refused, write: Write, small_cluster: dict[str, Any]
) -> None:
    write("mine.json", small_cluster)
    file = "instances.local4.file=mine.json"
    message = refused("bench", "planner", file, "instances.local4.sites=2", "strategies=[full]")
    assert f"instances.local4.sites: expected nothing of a preset next to {file.partition('=')[0]}, got 2" in message


def test_names_of_files_are_shown_escaped(refused: Refused) -> None:
    message = refused("plan", "cluster.file='no\x1b[31m\u202e such'")
    assert "no\\x1b[31m\\u202e such: cannot be read" in message
    assert message.count("\n") == 1


def test_simulate_needs_a_plan(refused: Refused) -> None:
    assert "plan: expected plan=..., got nothing" in refused("simulate")
    assert "order: expected one of plan, dispatch, got x" in refused("simulate", "plan=p.json", "order=x")
    assert "p.json: cannot be read" in refused("simulate", "plan=p.json")


@pytest.mark.parametrize(
    ("arguments", "asked"),
    [([], "no command given"), (["tarin"], "'tarin'"), (["bench"], "'bench'"), (["bench", "all"], "'bench all'")],
)
def test_unknown_commands(arguments: list[str], asked: str, refused: Refused) -> None:
    message = refused(*arguments)
    assert asked in message
    assert "; choose one of plan, simulate, report, train, evaluate, study, data prepare, " in message


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--bogus"], "--bogus: unknown flag"),
        (["cluster=local4", "-x", "planner.seed=1"], "-x: unknown flag"),
        (["cluster=local4", "--cfg", "nonsense"], "invalid choice: 'nonsense'"),
        (["cluster=local4", "--config-dir"], "--config-dir/-cd: expected one argument"),
        (["--", "-m"], "expected key=value, got -m"),
    ],
)
def test_wrong_flags(arguments: list[str], said: str, refused: Refused) -> None:
    message = refused("plan", *arguments)
    assert said in message
    assert message.count("\n") == 1


SHUFFLED = [
    ["--cfg", "job", "cluster=local4", "schedule.max_swaps=-1"],
    ["cluster=local4", "--cfg", "job", "schedule.max_swaps=-1"],
    ["cluster=local4", "-c", "job", "schedule.max_swaps=-1", "--cfg=job"],
    ["cluster=local4", "--cfg=job", "--", "schedule.max_swaps=-1"],
    ["--config-dir", "own", "cluster=local4", "--cfg", "job", "schedule.max_swaps=-1"],
    ["cluster=local4", "--config-dir=own", "schedule.max_swaps=-1", "--cfg", "job", "--resolve"],
]


@pytest.mark.parametrize("command", ["plan", "train"])
def test_flags_and_settings_in_any_order(command: str, run: Run, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    results = [run(command, *arguments) for arguments in SHUFFLED]
    assert results[0].status == 0, results[0].err
    assert "max_swaps: -1" in results[0].out
    resolved = results.pop()
    assert resolved.status == 0, resolved.err
    assert len(set(results)) == 1


@pytest.mark.parametrize(
    ("given", "ordered"),
    [
        (["--info", "cluster=local4"], ["cluster=local4", "--info=all"]),
        (["-i", "config", "cluster=local4", "-m"], ["cluster=local4", "--multirun", "--info=config"]),
        (
            ["-m", "a=1,2", "-cd", "x=y", "b=-1", "--", "c=2"],
            ["a=1,2", "b=-1", "c=2", "--multirun", "--config-dir=x=y"],
        ),
    ],
)
def test_settings_before_flags(given: list[str], ordered: list[str]) -> None:
    assert settings_first(given) == ordered


@pytest.mark.parametrize("what", ["simulator", "planner"])
def test_bench_data(what: str, refused: Refused, tmp_path: Path) -> None:
    assert "data: expected a folder with" in refused("bench", what, "data=missing")
    (tmp_path / "empty").mkdir()
    assert "data: expected NAME.cluster.json and NAME.json, got " in refused("bench", what, "data=empty")
    (tmp_path / "empty" / "a.cluster.json").write_text("{}")
    assert "empty/a.json: cannot be read" in refused("bench", what, "data=empty")


def test_sizes_for_stages_do_not_fit_the_stages_of_the_file(
    refused: Refused, write: Write, small_cluster: dict[str, Any]
) -> None:
    write("mine.json", small_cluster | {"gradient_bytes": [1e6, 1e6]})
    message = refused("plan", "cluster.file=mine.json", "allocate.sizes=[2,1,1]")
    assert "mine.json: cluster.gradient_bytes: expected one size for each of the 3 stages" in message
