"""Processes that join a run between two iterations: as if they had been there from that state on."""

import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from effort import cases
from pool import Pool
from train.alone import EventDict, of_kind, train_in_pool
from train.conftest import Folder
from train.jobs import TINY_MODEL, make_cluster
from train.mortal import FAULT, Comer, Fate, Gate, Lives, live
from train.test_recovery import FOUR, FULL, explained, iterations, job

from skippipe.checkpoint import open_checkpoint
from skippipe.config import AllocateConfig, ClusterConfig, PhaseConfig, PhasesConfig, PlannerConfig
from skippipe.train.resolve.resolve import resolve

ITERATIONS, JOINED = 6, 3
PATIENT = {"runtime__timeout_s": 200.0, "runtime__start_timeout_s": 200.0}
FIVE = [*FOUR, ("local-4",)]
THREE = [FOUR[0], FOUR[2], FOUR[3]]


def allocated(path: Path, stages: list[list[int]], absent: list[int]) -> dict[str, Any]:
    """Settings of an allocation."""
    path.write_text(json.dumps({"stages": stages, "absent_nodes": absent}))
    return {"allocate__stages": str(path)}


def stops(iteration: int, event: EventDict) -> bool:
    """Whether a run is to stop with the iteration that follows one."""
    return (event["event"], event.get("iteration")) == ("iteration", iteration)


@pytest.fixture(scope="module")
def unbroken(pool: Pool, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, EventDict]:
    """Iterations of a run with all nodes from the beginning to the end."""
    return iterations(train_in_pool(pool, job(prepared, **FULL), FOUR, tmp_path_factory.mktemp("unbroken")))


def check_learnt_the_same(lives: Lives, unbroken: dict[int, EventDict]) -> None:
    """No iteration is lost, and no token is counted twice."""
    done = iterations(lives.events)
    assert list(done) == list(unbroken)
    for number, event in unbroken.items():
        assert done[number]["loss"] == pytest.approx(event["loss"], rel=1e-10)
        assert done[number]["norm"] == pytest.approx(event["norm"], rel=1e-10)
        assert done[number]["tokens"] == event["tokens"]


def test_a_node_that_the_plan_left_out(pool: Pool, prepared: Path, folder: Folder) -> None:
    """Bit for bit in float32, with skips and swaps: as the larger cluster from the same state, by the same plan."""
    path, whole, larger = folder("run"), folder("whole"), folder("larger")
    asked = job(prepared, **PATIENT, **allocated(path / "stages.json", [[0], [2, 3]], [1]))
    lives = live(asked, THREE, path, {}, [Comer(3, FOUR[1])], Gate(JOINED, JOINED))
    assert lives.statuses == [0, 0, 0, 0], explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    assert (joined["iteration"], joined["joined"], joined["joined_names"]) == (JOINED, [3], ["local-1"])
    assert joined["processes"] == 4
    assert not of_kind(lives.events, "recovered")
    assert sorted({event["rank"] for event in of_kind(lives.events, "training")}) == [0, 1, 2, 3]
    done = iterations(lives.events)
    assert list(done) == [*range(1, ITERATIONS + 1)]
    # A run of the three that stops where the fourth joins, resumed by the plan that all four then had.
    train_in_pool(pool, asked, THREE, whole, until=partial(stops, JOINED - 1))
    plan = path / "run" / joined["plan_files"]["0"]
    again = job(prepared, **PATIENT, plan=str(plan), checkpoint__resume=str(whole))
    reported = train_in_pool(pool, again, [*THREE, FOUR[1]], larger)
    theirs = iterations(reported)
    assert sorted(theirs) == [*range(JOINED + 1, ITERATIONS + 1)]
    for number, event in theirs.items():
        assert [done[number][key] for key in ("loss", "norm")] == [event[key] for key in ("loss", "norm")]
    assert of_kind(lives.events, "validation")[-1]["loss"] == of_kind(reported, "validation")[-1]["loss"]


def test_a_node_that_comes_back(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """Under its own name, to its stage; before it one with other settings, which ends and says so."""
    path, asked = folder("run"), job(prepared, **FULL, **PATIENT)
    other = job(prepared, **FULL, **PATIENT, train__learning_rate=0.5)
    comers = [
        Comer(1, FOUR[1], after='"recovered"', job=other),
        Comer(1, FOUR[1], after="train.learning_rate"),
    ]
    lives = live(asked, FOUR, path, {1: Fate("backward", 2)}, comers, Gate(4, 4))
    assert [bool(status) for status in lives.statuses] == [False, True, False, False, True, False], explained(
        lives, path
    )
    assert (
        "train.learning_rate: expected 0.003 as on node local-0 (rank 0), got 0.5 on node local-1 (rank 1)"
        in (path / "error-4").read_text()
    )
    (recovered,) = of_kind(lives.events, "recovered")
    (joined,) = of_kind(lives.events, "joined")
    assert recovered["lost"] == [1]
    assert (joined["iteration"], joined["joined_names"], joined["processes"]) == (4, ["local-1"], 4)
    check_learnt_the_same(lives, unbroken)


def test_two_at_once(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """Both are admitted after the same iteration, each with times that it has measured; one has the text."""
    path = folder("run")
    settings = allocated(path / "stages.json", [[0], [2]], [1, 3])
    asked = job(prepared, **FULL, **PATIENT, **settings, schedule__microbatches_per_source=6, runtime__calibrate=True)
    comers = [Comer(2, FOUR[1]), Comer(3, FOUR[3])]
    lives = live(asked, [FOUR[0], FOUR[2]], path, {}, comers, Gate(JOINED, JOINED, count=2))
    assert lives.statuses == [0, 0, 0, 0], explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    assert sorted(joined["joined_names"]) == ["local-1", "local-3"]
    assert (joined["iteration"], joined["joined"], joined["processes"]) == (JOINED, [2, 3], 4)
    assert all(joined[key] >= 0 for key in ("seconds", "planning_s", "moving_s"))
    plan = json.loads((path / "run" / joined["plan_files"]["0"]).read_text())
    assert sorted(map(len, plan["stages"])) == [2, 2]
    check_learnt_the_same(lives, unbroken)


@pytest.mark.parametrize("moment", cases(["connecting", "preparing"], ["connecting"]))
def test_a_newcomer_that_dies_while_it_is_admitted(
    moment: str, prepared: Path, folder: Folder, unbroken: dict[int, EventDict]
) -> None:
    """The others go on after the same iteration, and admit the next one."""
    path = folder("run")
    asked = job(prepared, **FULL, **PATIENT, runtime__heartbeat_s=3.0)
    comers = [
        Comer(1, FOUR[1], after='"recovered"', fate=Fate(moment, JOINED)),
        Comer(1, FOUR[1], after="node local-1 (rank 4) has died"),
    ]
    lives = live(asked, FOUR, path, {1: Fate("backward", 2)}, comers, Gate(JOINED, JOINED + 1))
    assert lives.statuses == [0, -signal.SIGKILL, 0, 0, -signal.SIGKILL, 0], explained(lives, path)
    first, second = of_kind(lives.events, "recovered")
    assert (first["lost"], second["lost"], second["iteration"]) == ([1], [], JOINED)
    assert "node local-1 (rank 4) has died" in second["reason"]
    (joined,) = of_kind(lives.events, "joined")
    assert (joined["joined"], joined["processes"]) == ([5], 4)
    check_learnt_the_same(lives, unbroken)


@pytest.mark.parametrize("moment", cases(["waiting", "connecting", "preparing", "forward"], ["preparing", "forward"]))
def test_a_newcomer_that_fails_by_an_error_of_its_own(
    moment: str, prepared: Path, folder: Folder, unbroken: dict[int, EventDict]
) -> None:
    """Until it has trained with the others they go on without it, know why, and admit the next one."""
    path = folder("run")
    asked = job(prepared, **FULL, **PATIENT, runtime__heartbeat_s=3.0)
    iteration = JOINED + 1 if moment == "forward" else JOINED
    fate = Fate(moment, iteration, fails=True)
    comers = [Comer(1, FOUR[1], after='"recovered"', fate=fate), Comer(1, FOUR[1], after=FAULT)]
    gate = Gate(JOINED, JOINED if moment == "waiting" else JOINED + 1)
    lives = live(asked, FOUR, path, {1: Fate("backward", 2)}, comers, gate)
    assert lives.statuses == [0, -signal.SIGKILL, 0, 0, 1, 0], explained(lives, path)
    if moment != "waiting":  # else the others may not have noticed
        _, second = of_kind(lives.events, "recovered")
        assert (second["lost"], second["iteration"]) == ([4] if moment == "forward" else [], JOINED)
        assert second["reason"].startswith("node local-1 (rank 4) has failed: ")
        assert f"AssertionError: {FAULT}" in second["reason"]
    (joined,) = of_kind(lives.events, "joined")[-1:]
    assert (joined["joined"], joined["processes"]) == ([5], 4)
    check_learnt_the_same(lives, unbroken)


def test_a_rank_that_dies_while_others_admit_a_newcomer(
    prepared: Path, folder: Folder, unbroken: dict[int, EventDict]
) -> None:
    """Those left regroup; the newcomer, which was not ready, asks again."""
    path, asked = folder("run"), job(prepared, **FULL, **PATIENT, runtime__heartbeat_s=3.0)
    asked.cluster = make_cluster(5, [2, 3])
    fates = {2: Fate("backward", 2), 3: Fate("preparing", JOINED)}
    lives = live(asked, FIVE, path, fates, [Comer(2, FIVE[2], after='"recovered"')], Gate(JOINED, JOINED + 1))
    assert lives.statuses == [0, 0, -signal.SIGKILL, -signal.SIGKILL, 0, 0], explained(lives, path)
    recovered = of_kind(lives.events, "recovered")
    assert sorted(rank for event in recovered for rank in event["lost"]) == [2, 3]
    joined = of_kind(lives.events, "joined")[-1]
    assert (joined["joined_names"], joined["processes"]) == (["local-2"], 4)
    check_learnt_the_same(lives, unbroken)


def test_one_asks_while_another_is_lost(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """The loss comes first: the iteration is redone, and the newcomer admitted after it."""
    path, asked = folder("run"), job(prepared, **FULL, **PATIENT)
    fates = {1: Fate("backward", 2), 3: Fate("backward", 4)}
    lives = live(asked, FOUR, path, fates, [Comer(1, FOUR[1], after='"recovered"')], Gate(4, 4))
    assert lives.statuses == [0, -signal.SIGKILL, 0, -signal.SIGKILL, 0], explained(lives, path)
    assert [event["lost"] for event in of_kind(lives.events, "recovered")] == [[1], [3]]
    (joined,) = of_kind(lives.events, "joined")
    assert (joined["iteration"], joined["joined_names"], joined["processes"]) == (4, ["local-1"], 3)
    check_learnt_the_same(lives, unbroken)


@pytest.mark.parametrize(
    ("source", "iteration", "every", "after"),
    cases(
        [("copy", 2, 1, 1), ("average", 2, 1, None), ("checkpoint", 3, 2, 2)],
        [("copy", 2, 1, 1), ("average", 2, 1, None)],
    ),
)
def test_a_stage_that_was_skipped_is_served_again(
    source: str, iteration: int, every: int, after: int | None, prepared: Path, folder: Folder
) -> None:
    """By the node that comes back, from a copy that another one has kept, else from a checkpoint, else as a mean of the
    stages beside it: a checkpoint that was written meanwhile does not have the stage.
    """
    path = folder("run")
    settings: dict[str, Any] = {
        **FULL, **PATIENT, "cluster": make_cluster(4, [2, 1, 1]), "runtime__lost_stage": "skip",
        "checkpoint__every": every, "train__redundancy": int(source == "copy"), "train__redundancy_every": 1,
    }  # fmt: skip
    asked = job(prepared, **settings)
    (victim,) = resolve(asked).layout.stages[1]
    fates = {victim: Fate("backward", iteration, after_s=1.5)}
    lives = live(asked, FOUR, path, fates, [Comer(victim, FOUR[victim], after='"recovered"')], Gate(4, 4))
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(5)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    (joined,) = of_kind(lives.events, "joined")
    assert (recovered["skipped"], recovered["restored"]) == ([1], [])
    assert (joined["iteration"], joined["stages"], joined["restored"]) == (4, [1], [1])
    assert (joined["restored_by"], joined["restored_from"]) == ([source], [after])
    stages = [event.get("stages") for event in of_kind(lives.events, "validation")]
    assert stages[-1] is None, "of the full model"
    assert list(iterations(lives.events)) == [*range(1, ITERATIONS + 1)]
    assert open_checkpoint(path / "run").state.layers == [0, 1, 2, 3]


@pytest.mark.parametrize("back", [False, True])
def test_before_a_phase_with_more_stages(*, back: bool, pool: Pool, prepared: Path, folder: Folder) -> None:
    """A node that the plan has left out serves the only stage of the phase; one that comes back without the text has
    nothing to do until the phase that has its stage.
    """
    growing = PhasesConfig([PhaseConfig(0.5, stages=0.5), PhaseConfig()])
    path = folder("run")
    settings = {**FULL, **PATIENT, "phases": growing, "train__new_layers": "copy"}
    if back:
        asked, names = job(prepared, **settings), FOUR
        node = resolve(asked).layout.stages[1][0]
        fates, comer = {node: Fate("norm", 1)}, Comer(node, FOUR[node], after='"recovered"')
    else:
        alone = allocated(path / "stages.json", [[0], [2, 3]], [1])
        asked, names = job(prepared, **settings, **alone, schedule__microbatches_per_source=6), THREE
        fates, comer = dict[int, Fate](), Comer(3, FOUR[1])
    lives = live(asked, names, path, fates, [comer], Gate(2, 2))
    assert [status for status in lives.statuses if status != -signal.SIGKILL] == [0, 0, 0, 0], explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    plans = [json.loads((path / "run" / joined["plan_files"][after]).read_text())["stages"] for after in ("0", "3")]
    newcomer = int(comer.names[0].removeprefix("local-"))
    assert [[newcomer in nodes for nodes in plan] for plan in plans] == (
        [[False, False], [False, True]] if back else [[True, False], [True, False]]
    )
    whole = iterations(train_in_pool(pool, job(prepared, **settings), FOUR, folder("whole")))
    done = iterations(lives.events)
    assert list(done) == list(whole)
    for number, event in whole.items():
        assert done[number]["loss"] == pytest.approx(event["loss"], rel=1e-10)


def test_where_layers_are_searched(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """A node comes back to stages whose layers were searched for measured times; its own are measured again."""
    path = folder("run")
    asked = job(
        prepared, **FULL, **PATIENT, allocate=AllocateConfig(layers="auto"), runtime__calibrate=True,
        schedule__microbatches_per_source=3, planner=PlannerConfig(work_limit=5000),
    )  # fmt: skip
    lives = live(asked, FOUR, path, {3: Fate("norm", 2)}, [Comer(3, FOUR[3], after='"recovered"')], Gate(4, 4))
    assert lives.statuses == [0, 0, 0, -signal.SIGKILL, 0], explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    before, after = (json.loads((path / "run" / name).read_text()) for name in ("plan.json", joined["plan_files"]["0"]))
    assert sum(before["layers"]) == TINY_MODEL["num_hidden_layers"]
    assert after["layers"] == before["layers"]
    assert any(3 in nodes for nodes in after["stages"])
    check_learnt_the_same(lives, unbroken)


def test_nodes_change_places_where_one_joins(pool: Pool, prepared: Path, folder: Folder) -> None:
    """The one that joins is as slow as the only node of a stage: one of two fast ones comes to its aid, and moves."""
    path = folder("run")
    content = json.loads(resolve(job(prepared, cluster=make_cluster(5, [1, 2, 2]))).layout.cluster.to_json())
    for node, factor in enumerate([1, 50, 1, 1, 50]):
        for key in ("forward_s", "backward_s"):
            content["nodes"][node][key] *= factor
    (path / "cluster.json").write_text(json.dumps(content))
    cluster = ClusterConfig(file=str(path / "cluster.json"))
    five = [(f"local-{node}",) for node in range(5)]
    settings: dict[str, Any] = {**FULL, **PATIENT, "cluster": cluster, "train__layers": [2, 1, 1]}
    asked = job(prepared, **settings, **allocated(path / "stages.json", [[0], [1], [2, 3]], [4]))
    asked.schedule.microbatches_per_source, asked.planner = 6, PlannerConfig(work_limit=20000)
    lives = live(asked, five[:4], path, {}, [Comer(4, five[4])], Gate(2, 2))
    assert lives.statuses == [0] * 5, explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    assert joined["moving_s"] > 0
    stages = json.loads((path / "run" / joined["plan_files"]["0"]).read_text())["stages"]
    assert sorted(node in {2, 3} for nodes in stages[1:] for node in nodes) == [False, False, True, True]
    assert [len({2, 3}.intersection(nodes)) for nodes in stages[1:]] == [1, 1]
    whole = iterations(train_in_pool(pool, asked, five[:4], folder("whole")))
    check_learnt_the_same(lives, whole)
