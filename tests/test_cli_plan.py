"""`skippipe plan` and `skippipe simulate`: what they print, write, and leave alone."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import PUBLISHED, Run

import skippipe
from skippipe.application import compose
from skippipe.bench import preset_cases
from skippipe.config import STRATEGIES, BenchPlannerJob, PlannerConfig
from skippipe.plan_file import load_plan
from skippipe.planning import PlanningJob, make_plan, may_gain
from skippipe.report.plan_metrics import gantt_rows, node_utilization, visits_per_stage

Write = Callable[[str, Any], Path]
PRESETS = ("geo20", "local4", "five_clusters", "single_cluster", "synthetic")
QUICK = "planner.time_limit_s=0.15"


def rows(text: str) -> dict[str, list[str]]:
    """The rows of the table of strategies, by their first word; columns stand three blanks apart."""
    split = (re.split(r" {3,}", line.strip()) for line in text.splitlines())
    return {row[0]: row[1:] for row in split if row[0] in STRATEGIES}


def of_one_iteration(path: Path) -> float:
    return float(json.loads(path.read_text())["predicted"]["iteration_s"])


@pytest.fixture(scope="module")
def instances() -> dict[str, PlanningJob]:
    """Every preset as `skippipe bench planner` composes it."""
    job = compose("bench planner", [])
    assert isinstance(job, BenchPlannerJob)
    assert set(job.instances) == set(PRESETS)
    return {name: PlanningJob(case.problem) for name, case in preset_cases(job.instances).items()}


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("strategy", STRATEGIES)
def test_every_strategy_on_every_preset(preset: str, strategy: str, instances: dict[str, PlanningJob]) -> None:
    plan = make_plan(instances[preset], strategy, PlannerConfig(time_limit_s=None, work_limit=100_000))
    assert plan.check() == []
    assert plan.strategy == strategy
    assert plan.predicted.iteration_s >= plan.predicted.lower_bound_s > 0


@pytest.mark.parametrize("preset", [x for x in PRESETS if x != "synthetic"])
def test_skipping_pays_on_the_presets(preset: str, instances: dict[str, PlanningJob]) -> None:
    """The presets are made so that later stages are the bottleneck."""
    planner = PlannerConfig(time_limit_s=None, work_limit=800_000)
    full, routed, skipping = (
        make_plan(instances[preset], strategy, planner).predicted.iteration_s
        for strategy in ("full", "full-routed", "skippipe")
    )
    assert skipping < 0.85 * full
    assert skipping < 0.95 * routed


def test_what_plan_prints(run: Run, tmp_path: Path) -> None:
    result = run("plan", "cluster=local4", QUICK, "output=plan.json")
    plan = load_plan(str(tmp_path / "plan.json"))
    assert "4 nodes, 3 stages, 12 microbatches on 12 routes, skip ratio 0.3333" in result.out
    assert "plan written to plan.json" in result.out
    lines = result.out.splitlines()
    heading = next(i for i, line in enumerate(lines) if line.startswith("stage "))
    shown = [line.split()[:3] for line in lines[heading + 1 : heading + 4]]
    visits = visits_per_stage(plan)
    assert shown == [[str(stage), str(len(plan.stages[stage])), str(visits[stage])] for stage in range(3)]
    chart = [line for line in lines if re.match(r" \d+  local-\d", line)]
    assert len(chart) == 4
    utilization = node_utilization(plan)
    for line, node in zip(chart, (n for stage in plan.stages for n in stage), strict=True):
        assert f"local-{node} " in line
        assert f"{utilization[node]:.0%}" in line
        assert set(line.split("%")[1].strip()) <= set("><L.")
    assert max(map(len, lines)) <= 110


def test_what_a_plan_assumes_is_said_and_written(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    said = run("plan", "cluster=local4", "cluster.processors=[0,0,1,1]", QUICK, f"output={file}")
    assert said.status == 0, said.err
    assert "Times assume processors that nodes share, no message that waits for another, " in said.out
    assert "\nOne processor for local-0,1.\nOne processor for local-2,3.\n" in said.out
    plan = load_plan(file)
    assert plan.assumptions.processors == [[0, 1], [2, 3]]
    assert run("simulate", f"plan={file}").out.count("One processor for local-0,1.") == 1
    refused = run("plan", "cluster=local4", "cluster.processors=[0,0]", QUICK)
    assert refused.status == 2
    assert "cluster.processors: expected a list of 4" in refused.err
    apart = run("plan", "cluster=local4", QUICK)
    assert "Times assume a processor per node, " in apart.out


def test_gantt_cells_are_what_the_tasks_say(run: Run, tmp_path: Path) -> None:
    run("plan", "cluster=local4", QUICK, "output=plan.json")
    plan = load_plan(str(tmp_path / "plan.json"))
    width = 200
    step = plan.predicted.iteration_s / width
    ends = [[t.end_s for t in plan.tasks if t.kind == "B" and t.node in nodes] for nodes in plan.stages]
    last = [max(own, default=0.0) for own in ends]
    for row in gantt_rows(plan, width, most=99):
        assert len(row.cells) == width
        tasks = [task for task in plan.tasks if task.node == row.node]
        for cell, kind in enumerate(row.cells):
            begin, end = cell * step, (cell + 1) * step
            spent = dict.fromkeys("FLBR", 0.0)
            for task in tasks:
                spent[task.kind] += max(0.0, min(end, task.end_s) - max(begin, task.start_s))
            if plan.predicted.allreduce_s[row.stage]:
                reduced = last[row.stage] + plan.predicted.allreduce_s[row.stage]
                spent["R"] = max(0.0, min(end, reduced) - max(begin, last[row.stage]))
            spent[" "] = step - sum(spent.values())
            assert spent[kind] == pytest.approx(max(spent.values()), abs=1e-9)


def test_many_nodes_show_the_busiest(run: Run, tmp_path: Path) -> None:
    arguments = (
        "cluster=synthetic",
        "cluster.nodes=120",
        "schedule.microbatches_per_source=1",
        "planner.time_limit_s=0",
    )
    result = run("plan", *arguments, "output=plan.json")
    assert result.status == 0, result.err
    assert "(the 40 busiest of 120 nodes)" in result.out
    utilization = node_utilization(load_plan(str(tmp_path / "plan.json")))
    shown = [int(x) for x in re.findall(r"^ ?\d+  region\d+-\d+ +(\d+)%", result.out, re.MULTILINE)]
    assert len(shown) == 40
    assert min(shown) >= int(100 * sorted(utilization)[-40] + 0.5) - 1


@pytest.mark.parametrize("columns", ["40", "250"])
def test_width_is_kept(columns: str, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    result = run("plan", "cluster=geo20", "cluster.gradient_bytes=0", QUICK)
    chart = [line for line in result.out.splitlines() if re.match(r" \d+  \w+-\d ", line)]
    assert len(chart) == 20
    assert max(map(len, chart)) <= int(columns)


def test_compare_prints_savings_against_both(run: Run, tmp_path: Path) -> None:
    others = ",".join(name for name in STRATEGIES if name not in ("full-routed", "skippipe"))
    result = run("plan", "cluster=local4", QUICK, f"compare=[{others}]", "output=plan.json")
    assert result.status == 0, result.err
    table = rows(result.out)
    assert list(table) == list(STRATEGIES)
    assert "random-skip: median of 20 seeds" in result.out
    times = {name: float(row[0].split()[0]) for name, row in table.items()}
    shown = [float(x.rstrip("%")) / 100 for x in table["skippipe"] if x.endswith("%")][-2:]
    expected = [1 - times["skippipe"] / times[name] for name in ("full", "full-routed")]
    assert shown == pytest.approx(expected, abs=2e-3)
    saved = re.search(r"Routing alone saves (-?[\d.]+)%", result.out)
    assert saved is not None
    assert float(saved[1]) / 100 == pytest.approx(1 - times["full-routed"] / times["full"], abs=2e-3)
    assert of_one_iteration(tmp_path / "plan.json") == pytest.approx(times["skippipe"], abs=1e-3)


def test_stage_0_is_named_where_skipping_cannot_help(run: Run) -> None:
    """One source beside three later nodes is busy all the time: even without any later visit nothing is gained."""
    search = "planner.work_limit=20000"
    arguments = ("plan", "cluster=local4", "allocate.sizes=[1,2,1]", "schedule.microbatches_per_source=6", search)
    times = []
    for skip_ratio in (0.33, 0.66):
        result = run(*arguments, f"schedule.skip_ratio={skip_ratio}")
        assert "Stage 0 is the bottleneck: local-" in result.out
        times.append(float(rows(result.out)["skippipe"][0].split()[0]))
    assert times[1] >= times[0] * 0.995
    roomy = run("plan", "cluster=local4", "allocate.sizes=[2,1,1]", "schedule.skip_ratio=0", search)
    assert "Stage 0 is the bottleneck" not in roomy.out


def test_no_longer_search_is_suggested_once_only_rounding_is_left() -> None:
    """Times of whole milliseconds over links whose times are no whole nanoseconds: bound and plan round apart."""
    latency_s = [[0, 0.0003, 0.005], [0.0003, 0, 0.005], [0.005, 0.005, 0]]
    bandwidth = [[1, 1.25e9, 1.25e8], [1.25e9, 1, 1.25e8], [1.2e8, 1.2e8, 1]]
    times = ([0.041, 0.041, 0.055], [0.082, 0.082, 0.11], [0.027, 0.027, 0.036])
    cluster = skippipe.Cluster(
        ["a", "b", "c"],
        *times,
        [12, 12, 10],
        latency_s=latency_s,
        bandwidth=bandwidth,
        activation_bytes=2**23,
        gradient_bytes=[736e6, 604e6],
    )
    plan = skippipe.plan(skippipe.Problem(cluster, sizes=[2, 1], microbatches=6, skip_ratio=1 / 3))
    assert plan.solver.allocation is not None
    assert 1e-9 < plan.predicted.iteration_s / plan.solver.allocation.lower_bound_s - 1 < 1e-7
    assert not may_gain(plan, PlannerConfig())


def test_impossible_strategies_are_shown_with_their_rule(run: Run, small_cluster: dict[str, Any], write: Write) -> None:
    """With TC1 `routes`, all twelve routes of k = 0 would lead over a node that carries eight."""
    for node in small_cluster["nodes"]:
        node["memory"] = 8
    write("mine.json", small_cluster)
    arguments = ("cluster.file=mine.json", "allocate.sizes=[2,1,1]", "schedule.tc1=routes", "compare=[full-routed]")
    result = run("plan", *arguments, "planner.work_limit=50000")
    assert result.status == 0, result.err
    assert "impossible" in result.out
    assert "TC1" in result.out


def test_cluster_file_takes_the_place_of_the_preset(
    run: Run, small_cluster: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    write("mine.json", small_cluster)
    result = run("plan", "cluster.file=mine.json", QUICK, "output=plan.json")
    assert result.status == 0, result.err
    plan = load_plan(str(tmp_path / "plan.json"))
    assert plan.cluster.names == ["n0", "n1", "n2", "n3"]
    assert [len(stage) for stage in plan.stages] == [2, 1, 1]


def test_allocation_from_a_file(run: Run, write: Write, tmp_path: Path) -> None:
    write("groups.json", {"about": "ignored", "stages": [[3, 1], [0], [2]]})
    result = run("plan", "cluster=local4", "allocate.stages=groups.json", QUICK, "output=plan.json")
    assert result.status == 0, result.err
    assert load_plan(str(tmp_path / "plan.json")).stages == [[3, 1], [0], [2]]


def test_absent_stages(run: Run, write: Write, tmp_path: Path) -> None:
    write("groups.json", {"stages": [[0, 1], [2], [], [3]], "absent_stages": [2]})
    result = run("plan", "cluster=local4", "allocate.stages=groups.json", QUICK, "output=plan.json")
    assert result.status == 0, result.err
    plan = load_plan(str(tmp_path / "plan.json"))
    assert plan.absent_stages == [2]
    assert visits_per_stage(plan)[2] == 0
    assert "absent" in result.out


def test_settings_arrive_in_the_plan(run: Run, tmp_path: Path) -> None:
    arguments = (
        "cluster=local4", "schedule=reference", "schedule.skip_ratio=0.25", "schedule.max_swaps=0", "schedule.waves=3",
        "schedule.microbatches_per_source=[4,7]", "schedule.cc3=false", "planner.seed=5", "cluster.node.memory=9",
    )  # fmt: skip
    result = run("plan", *arguments, QUICK, "output=plan.json")
    assert result.status == 0, result.err
    content = json.loads((tmp_path / "plan.json").read_text())
    expected = {
        "cc1": True,
        "cc2": True,
        "cc3": False,
        "tc1": "routes",
        "max_swaps": 0,
        "waves": 3,
        "max_stage_jump": 4,
    }
    assert expected.items() <= content["constraints"].items()
    assert content["skip_ratio"] == 0.25
    assert sorted(content["microbatches_per_source"].values()) == [4, 7]
    assert content["solver"]["seed"] == 5
    assert {node["memory"] for node in content["cluster"]["nodes"]} == {9}


def test_work_limit_gives_the_same_plan_again(run: Run, tmp_path: Path) -> None:
    plans = []
    for threads in (1, 2, 1):
        arguments = ("cluster=geo20", "planner.work_limit=2000", f"planner.threads={threads}", "output=plan.json")
        assert run("plan", *arguments).status == 0
        plans.append({k: v for k, v in json.loads((tmp_path / "plan.json").read_text()).items() if k != "solver"})
    assert plans[0] == plans[1] == plans[2]


def test_nothing_is_left_but_the_output(run: Run, tmp_path: Path) -> None:
    assert run("plan", "cluster=local4", QUICK).status == 0
    assert list(tmp_path.iterdir()) == []
    assert run("plan", "cluster=local4", QUICK, "output=plan.json").status == 0
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_output_through_a_link_and_over_an_old_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    target = tmp_path / "folder" / "real.json"
    target.write_text("old")
    (tmp_path / "link.json").symlink_to(target)
    assert run("plan", "cluster=local4", QUICK, "output=link.json").status == 0
    assert (tmp_path / "link.json").is_symlink()
    assert of_one_iteration(target) > 0
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["real.json"]


def test_failed_planning_leaves_the_old_file(run: Run, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text("old")
    assert run("plan", "cluster=local4", "schedule.skip_ratio=0.9", "output=plan.json").status == 2
    assert (tmp_path / "plan.json").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["plan.json"]


def test_simulate_keeps_or_changes_the_order(run: Run, tmp_path: Path) -> None:
    run("plan", "cluster=geo20", QUICK, "output=plan.json")
    planned = of_one_iteration(tmp_path / "plan.json")
    result = run("simulate", "plan=plan.json", "output=same.json")
    assert result.status == 0, result.err
    assert f"the plan says {planned:.3f} s" in result.out
    assert of_one_iteration(tmp_path / "same.json") <= planned + 1e-9
    result = run("simulate", "plan=plan.json", "order=dispatch", "output=other.json")
    assert result.status in (0, 1), result.err
    if result.status == 0:
        assert load_plan(str(tmp_path / "other.json")).check() == []
        assert f"{of_one_iteration(tmp_path / 'other.json'):.3f} s" in result.out
    else:
        assert "skippipe simulate: plan.json: " in result.err
        assert not (tmp_path / "other.json").exists()


def test_help_names_every_key_and_an_example(run: Run) -> None:
    text = run("plan", "--help").out
    for key in ("cluster.file", "allocate.sizes", "schedule.skip_ratio", "planner.work_limit", "compare", "output"):
        assert re.search(rf"^  {re.escape(key)}  +\w", text, re.MULTILINE), key
    assert "skippipe plan -m schedule.skip_ratio=0,0.25,0.5" in text
    assert "Exit status" in text
    for words in (["simulate"], ["bench", "simulator"], ["bench", "planner"]):
        result = run(*words, "--help")
        assert result.status == 0
        assert result.out.startswith(f"skippipe {' '.join(words)}: ")


def test_top_help_and_version(run: Run) -> None:
    assert "skippipe bench planner" in run("--help").out
    for arguments in (["--version"], ["plan", "--version"]):
        assert run(*arguments).out == f"skippipe {skippipe.__version__}\n"


def test_cfg_job_shows_the_settings(run: Run, tmp_path: Path) -> None:
    result = run("plan", "cluster=synthetic", "cluster.nodes=7", "--cfg", "job")
    assert result.status == 0
    assert "nodes: 7" in result.out
    assert "speed_spread: 2.0" in result.out
    assert list(tmp_path.iterdir()) == []


def test_presets_of_the_users_own(run: Run, tmp_path: Path) -> None:
    (tmp_path / "mine" / "cluster").mkdir(parents=True)
    text = "defaults: [local4, _self_]\nname: lab\nnodes_per_site: 6\nstage_sizes: [2, 2, 2]\n"
    (tmp_path / "mine" / "cluster" / "lab.yaml").write_text(text)
    result = run("plan", "--config-dir", "mine", "cluster=lab", QUICK)
    assert result.status == 0, result.err
    assert "lab-5" in result.out


def test_published_instance_with_the_reference_rules(run: Run, tmp_path: Path) -> None:
    result = run(
        "plan", f"cluster.file={PUBLISHED / 'published20.cluster.json'}",
        f"allocate.stages={PUBLISHED / 'published20.json'}", "schedule=reference", "schedule.stages=6",
        "schedule.microbatches_per_source=6", "planner.time_limit_s=5", "output=plan.json",
    )  # fmt: skip
    assert result.status == 0, result.err
    assert 32.48 < of_one_iteration(tmp_path / "plan.json") <= 36.0


def test_as_many_stages_as_the_cluster_file_says(
    run: Run, small_cluster: dict[str, Any], write: Write, tmp_path: Path
) -> None:
    write("mine.json", small_cluster | {"gradient_bytes": [1e6, 1e6, 1e6, 1e6]})
    assert run("plan", "cluster.file=mine.json", QUICK, "output=plan.json").status == 0
    assert len(load_plan(str(tmp_path / "plan.json")).stages) == 4
