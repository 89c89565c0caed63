"""Cluster, allocation and plan files that cannot be used: status 2, one message naming file, key and value."""

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from skippipe.cluster import load_cluster
from skippipe.errors import InputError

Refused = Callable[..., str]
Write = Callable[[str, Any], Path]


def broken(cluster: dict[str, Any], *path: Any, value: Any) -> dict[str, Any]:
    """A copy of a cluster or plan with one entry replaced."""
    changed = copy.deepcopy(cluster)
    parent: Any = changed
    for key in path[:-1]:
        parent = parent[key]
    parent[path[-1]] = value
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
    """Without durations, times cannot show it: two tasks of one node wait for each other."""
    still = without_times(plan_file)
    write("still.json", still)
    assert run("simulate", "plan=still.json").status == 0
    tasks = still["tasks"]
    first = next(i for i, task in enumerate(tasks) if task["kind"] == "F" and task["hop"] == 0)
    microbatch, node = tasks[first]["microbatch"], tasks[first]["node"]
    loss = next(i for i, task in enumerate(tasks) if task["kind"] == "L" and task["microbatch"] == microbatch)
    tasks[first], tasks[loss] = tasks[loss], tasks[first]
    write("circle.json", still)
    for command in (["simulate"], ["simulate", "order=dispatch"], ["report", "output=null"]):
        message = refused(*command, "plan=circle.json")
        assert f"circle.json: tasks: expected an order that can be executed, got {microbatch}" in message
        assert f"{microbatch}L0@{node} waits for " in message
        assert message.count("\n") == 1


@pytest.mark.parametrize(
    ("path", "key", "said"),
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
    path: list[Any], key: str, said: str, plan_file: dict[str, Any], refused: Refused, write: Write
) -> None:
    write("bad.json", broken(plan_file, *path, key, value=1))
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
    plan_file["constraints"]["profile"] = [1] * len(plan_file["stages"])
    write("more.json", plan_file)
    result = run("simulate", "plan=more.json")
    assert result.status == 2
    assert "constraints.profile: expected one weight for each of the" in result.err


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


def test_sizes_for_stages_do_not_fit_the_stages_of_the_file(
    refused: Refused, write: Write, small_cluster: dict[str, Any]
) -> None:
    write("mine.json", small_cluster | {"gradient_bytes": [1e6, 1e6]})
    message = refused("plan", "cluster.file=mine.json", "allocate.sizes=[2,1,1]")
    assert "mine.json: cluster.gradient_bytes: expected one size for each of the 3 stages" in message
