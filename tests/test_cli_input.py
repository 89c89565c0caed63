"""Command lines that cannot be used: status 2, one message naming key and value, no file left behind."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Run

from skippipe.application.arguments import settings_first
from skippipe.commands import COMMANDS
from skippipe.config import ClusterConfig, PlanJob
from skippipe.errors import InputError
from skippipe.validate import validate

Refused = Callable[..., str]

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
    assert f"; choose one of {', '.join(command.name for command in COMMANDS)} (see skippipe --help)" in message


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
