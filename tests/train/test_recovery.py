"""Ranks that die or stop while they train: those that are left go on, and learn what they would have learnt."""

import json
import random
import re
import resource
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from effort import cases
from pool import Pool
from torch import Tensor
from train.alone import EventDict, free_port, of_kind, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import TINY_MODEL, make_cluster, make_job
from train.mortal import MOMENTS, Fate, Lives, live
from train.test_resume import one_rank
from transformers import AutoConfig, AutoModelForCausalLM

from skippipe.checkpoint import open_checkpoint
from skippipe.checkpoint.reading import WEIGHTS
from skippipe.config import PhaseConfig, PhasesConfig
from skippipe.errors import InputError
from skippipe.redundancy import place_copies
from skippipe.remaining import taken_over
from skippipe.train.config import TrainJob
from skippipe.train.loop.loop import OPTIMIZER
from skippipe.train.resolve.resolve import resolve

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]
ITERATIONS, FATAL = 6, 4
USUAL_MOMENTS = ("reduction", "told", "step", "checkpoint")
"""Others are those of other tests here."""


def job(prepared: Path, **changes: Any) -> TrainJob:
    """Two stages of two nodes each, all of them replicas: any one may be lost."""
    settings: dict[str, Any] = {
        "cluster": make_cluster(4, [2, 2]), "train__iterations": ITERATIONS, "train__validate_every": None,
        "checkpoint__every": FATAL, "data__prepared": str(prepared), "runtime__heartbeat_s": 10.0,
        "train__warmup": 0.0, "data__validation_blocks": 4,
    }  # fmt: skip
    return make_job(**settings | changes)


def iterations(events: list[EventDict]) -> dict[int, EventDict]:
    """Events of the iterations by number, as last reported."""
    return {event["iteration"]: event for event in of_kind(events, "iteration")}


def explained(lives: Lives, folder: Path) -> str:
    errors = {path.name: path.read_text()[-2000:] for path in folder.glob("error-*")}
    return f"{lives.statuses} {json.dumps(errors, indent=1)}".replace("\\n", "\n")


FULL = {"schedule__skip_ratio": 0.0, "schedule__max_swaps": 0, "train__dtype": "float64"}
"""Without skips and swaps, losses depend neither on the plan nor on who serves the stages."""


@pytest.fixture(scope="module")
def unbroken(pool: Pool, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, EventDict]:
    """Iterations of a run that loses nobody."""
    return iterations(train_in_pool(pool, job(prepared, **FULL), FOUR, tmp_path_factory.mktemp("unbroken")))


@pytest.fixture(scope="module")
def unbroken_of_three(pool: Pool, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, EventDict]:
    """The same of three stages, of which two have a single node."""
    asked = job(prepared, **FULL, cluster=make_cluster(4, [2, 1, 1]))
    return iterations(train_in_pool(pool, asked, FOUR, tmp_path_factory.mktemp("three")))


GROWING = PhasesConfig([PhaseConfig(0.5, stages=0.5), PhaseConfig()])


@pytest.fixture(scope="module")
def unbroken_growing(pool: Pool, prepared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[int, EventDict]:
    """The same where the second of two stages joins after half of the iterations."""
    asked = job(prepared, **FULL, phases=GROWING, train__new_layers="copy")
    return iterations(train_in_pool(pool, asked, FOUR, tmp_path_factory.mktemp("growing")))


@pytest.mark.parametrize("moment", cases(MOMENTS, USUAL_MOMENTS))
def test_killed_at_any_moment(moment: str, prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """No token is lost and none counted twice: losses and norms are those of a run that loses nobody."""
    victim = 0 if moment == "told" else random.Random(moment).randrange(4)
    path = folder("run")
    lives = live(job(prepared, **FULL), FOUR, path, {victim: Fate(moment, FATAL)})
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["lost"], recovered["lost_names"]) == ([victim], [f"local-{victim}"])
    assert recovered["processes"] == 3
    # Checkpoints are written beside the training, which may be further by then.
    latest = ITERATIONS if moment == "checkpoint" else FATAL + 1
    assert FATAL - 1 <= recovered["iteration"] <= latest
    done = iterations(lives.events)
    for number, event in unbroken.items():
        if number == recovered["iteration"] and number not in done:
            continue  # all have taken its step, but its loss was known to the lost rank alone
        assert done[number]["loss"] == pytest.approx(event["loss"], rel=1e-9)
        assert done[number]["norm"] == pytest.approx(event["norm"], rel=1e-9)
        assert done[number]["tokens"] == event["tokens"]
    assert len(done) >= ITERATIONS - 1
    if moment in {"told", "step"}:
        assert recovered["iteration"] == FATAL, "the others take the step too"
    if moment in {"forward", "backward", "reduction", "norm"}:
        assert recovered["iteration"] == FATAL - 1, "it is redone"


def test_two_at_once(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """One of each stage, the one that reports among them; the second may die before or while the others regroup."""
    path = folder("run")
    fates = {0: Fate("norm", FATAL), 3: Fate("backward", FATAL)}
    lives = live(job(prepared, **FULL, train__validate_every=FATAL - 1), FOUR, path, fates)
    assert lives.statuses == [-signal.SIGKILL, 0, 0, -signal.SIGKILL], explained(lives, path)
    last = of_kind(lives.events, "recovered")[-1]
    assert last["processes"] == 2
    assert sorted(rank for event in of_kind(lives.events, "recovered") for rank in event["lost"]) == [0, 3]
    assert last["iteration"] == FATAL - 1
    # The attempt voids what was reported of the iteration that it begins with, so it reports its validation too.
    again = lives.events[lives.events.index(last) :]
    assert [event["iteration"] for event in of_kind(again, "validation")] == [FATAL - 1, ITERATIONS]
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in unbroken.values()], rel=1e-9
    )


@pytest.mark.parametrize(("moment", "heartbeat_s"), [("connecting", 4.0), ("beside", 4.0), ("connecting beside", 60.0)])
def test_while_the_others_connect(
    moment: str, heartbeat_s: float, prepared: Path, folder: Folder, unbroken: dict[int, EventDict]
) -> None:
    """Those left have agreed on a generation that comes to nothing: ranks are still those of the loop before it.

    Nobody waits until connecting beside the training has taken its time, which is more than two heartbeats.
    """
    path = folder("run")
    asked = job(prepared, **FULL, runtime__heartbeat_s=heartbeat_s)
    first, second = (nodes[0] for nodes in resolve(asked).layout.stages)
    lives = live(asked, FOUR, path, {first: Fate("backward", FATAL), second: Fate(moment, FATAL)})
    assert [bool(status) for status in lives.statuses] == [rank in {first, second} for rank in range(4)], explained(
        lives, path
    )
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["lost"], recovered["processes"]) == (sorted([first, second]), 2)
    if moment == "connecting beside":
        assert recovered["seconds"] < 2 * heartbeat_s, "less than what connecting may take"
    assert iterations(lives.events)[ITERATIONS]["loss"] == pytest.approx(unbroken[ITERATIONS]["loss"], rel=1e-9)


@pytest.mark.parametrize("iteration", [2, 4])
def test_before_a_phase_that_needs_the_node(
    iteration: int, prepared: Path, folder: Folder, unbroken_growing: dict[int, EventDict]
) -> None:
    """Lost in a phase that has no work for it, or in the first iteration of the one that has: the latter's plan does
    without it too.
    """
    asked, path = job(prepared, **FULL, phases=GROWING, train__new_layers="copy"), folder("run")
    victim = resolve(asked).layout.stages[1][0]
    lives = live(asked, FOUR, path, {victim: Fate("norm", iteration)})
    assert sorted(lives.statuses) == [-signal.SIGKILL, 0, 0, 0], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert sorted(recovered["plan_files"]) == (["0", "3"] if iteration <= 3 else ["3"])
    assert recovered["iteration"] == iteration - 1
    changed = of_kind(lives.events, "plan_changed")[-1]
    assert (changed["iteration"], changed["stages"]) == (4, [0, 1])
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in unbroken_growing.values()], rel=1e-9
    )


def test_one_that_stops_is_left_behind(prepared: Path, folder: Folder, unbroken: dict[int, EventDict]) -> None:
    """It is noticed by its silence. When it wakes up, it finds that the others have gone on, and ends."""
    path = folder("run")
    lives = live(
        job(prepared, **FULL, runtime__heartbeat_s=3.0), FOUR, path, {1: Fate("forward", FATAL, signal.SIGSTOP)}
    )
    assert lives.statuses == [0, 1, 0, 0], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert recovered["lost"] == [1]
    waited = {event["rank"]: event for event in of_kind(lives.events, "interrupted")}
    assert {0, 2, 3} <= waited.keys()
    # Whoever notices first was waiting in an action; its connections break, which may end the others' waiting before.
    assert any("executor.py" in waited[rank]["stack"] for rank in (0, 2, 3))
    assert all(waited[rank]["message"] for rank in (0, 2, 3))
    assert iterations(lives.events)[ITERATIONS]["loss"] == pytest.approx(unbroken[ITERATIONS]["loss"], rel=1e-9)


def test_a_stage_without_nodes_ends_the_others(prepared: Path, folder: Folder) -> None:
    path = folder("run")
    asked = job(prepared, cluster=make_cluster(4, [3, 1]))
    single = resolve(asked).layout.stages[1][0]
    lives = live(asked, FOUR, path, {single: Fate("backward", FATAL)})
    assert lives.statuses == [-signal.SIGKILL if rank == single else 1 for rank in range(4)]
    for rank in set(range(4)) - {single}:
        error = (path / f"error-{rank}").read_text()
        assert f"lost node local-{single}, and no other node serves stage 1" in error
    assert not of_kind(lives.events, "recovered")


def test_as_a_run_that_began_with_the_nodes_that_are_left(pool: Pool, prepared: Path, folder: Folder) -> None:
    """Bit for bit in float32, with skips and swaps: from the same state, by the same plan."""
    mortal, whole, fewer = folder("mortal"), folder("whole"), folder("fewer")
    asked = job(prepared)
    lives = live(asked, FOUR, mortal, {0: Fate("backward", FATAL)})
    assert lives.statuses[1:] == [0, 0, 0], explained(lives, mortal)
    (recovered,) = of_kind(lives.events, "recovered")
    after = recovered["iteration"]
    port = free_port()
    pool.run(one_rank, [(resolve(asked), None, whole, port, after - 1) for _ in FOUR], timeout_s=120)
    plan = mortal / "run" / recovered["plan_files"]["0"]
    again = job(
        prepared, plan=str(plan), checkpoint__resume=str(whole), cluster=make_cluster(4, [2, 2]),
        train__iterations=ITERATIONS,
    )  # fmt: skip
    reported = train_in_pool(pool, again, FOUR[1:], fewer)
    ours, theirs = iterations(lives.events), iterations(reported)
    assert sorted(theirs) == list(range(after + 1, ITERATIONS + 1))
    for number, event in theirs.items():
        assert [ours[number][key] for key in ("loss", "norm")] == [event[key] for key in ("loss", "norm")]
    assert of_kind(lives.events, "validation")[-1]["loss"] == of_kind(reported, "validation")[-1]["loss"]


@pytest.mark.parametrize("victim", cases([0, 3], [0]))
def test_one_that_is_slow_is_left_behind(
    victim: int, prepared: Path, folder: Folder, unbroken: dict[int, EventDict]
) -> None:
    """It lives, and may be the one that reports: the others go on from the same iteration, as if it had died."""
    path = folder("run")
    lives = live(job(prepared, **FULL, runtime__max_slowdown=3.0), FOUR, path, {victim: Fate("slow", 2)})
    assert [bool(status) for status in lives.statuses] == [rank == victim for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["lost"], recovered["processes"]) == ([victim], 3)
    assert f"node local-{victim} (rank {victim}) is " in recovered["reason"]
    assert "times slower than planned" in recovered["reason"]
    assert (
        f"the other ranks have gone on without this one: node local-{victim}" in (path / f"error-{victim}").read_text()
    )
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in unbroken.values()], rel=1e-9
    )


def lose_a_stage(policy: str, prepared: Path, path: Path, stage: int, **changes: Any) -> tuple[Lives, int]:
    """Lose the only node of a stage in an iteration; also gives its rank."""
    settings = {**FULL, "cluster": make_cluster(4, [2, 1, 1]), "runtime__lost_stage": policy, **changes}
    asked = job(prepared, **settings)
    (victim,) = resolve(asked).layout.stages[stage]
    fates = {victim: Fate("backward", FATAL, after_s=1.5)}
    return live(asked, FOUR, path, fates, saved_at_once=True), victim


def test_a_lost_stage_comes_from_its_checkpoint(
    prepared: Path, folder: Folder, unbroken_of_three: dict[int, EventDict]
) -> None:
    """With a checkpoint of the iteration before, nothing is lost: moments included, it learns what it would have."""
    path = folder("run")
    lives, victim = lose_a_stage("checkpoint", prepared, path, 2, checkpoint__every=1)
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored"]) == (FATAL - 1, [2])
    assert recovered["restored_by"] == ["checkpoint"]
    assert recovered["restored_from"] == [FATAL - 1], "the latest one is complete by then"
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in unbroken_of_three.values()], rel=1e-9
    )


def test_a_lost_stage_from_an_older_checkpoint(prepared: Path, folder: Folder) -> None:
    """The others stay as they are; so do iterations, tokens and learning rate."""
    path = folder("run")
    lives, _ = lose_a_stage("checkpoint", prepared, path, 1, checkpoint__every=2)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored_from"]) == (FATAL - 1, [2]), explained(lives, path)
    assert list(iterations(lives.events)) == [*range(1, ITERATIONS + 1)]


@pytest.mark.parametrize("stage", cases([1, 2], [2]))
def test_a_lost_stage_comes_from_a_copy(
    stage: int, prepared: Path, folder: Folder, unbroken_of_three: dict[int, EventDict]
) -> None:
    """With a copy of the iteration before, nothing is lost. Nothing is written to disk for that."""
    path = folder("run")
    lives, victim = lose_a_stage(
        "copy", prepared, path, stage, train__redundancy=1, train__redundancy_every=1, checkpoint__enabled=False
    )
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored"]) == (FATAL - 1, [stage])
    assert (recovered["restored_by"], recovered["restored_from"]) == (["copy"], [FATAL - 1])
    done = iterations(lives.events)
    assert list(done) == list(unbroken_of_three)
    for number, event in unbroken_of_three.items():
        assert done[number]["loss"] == pytest.approx(event["loss"], rel=1e-9)
        assert done[number]["norm"] == pytest.approx(event["norm"], rel=1e-9)


def test_a_copy_of_a_stage_that_has_joined(pool: Pool, prepared: Path, folder: Folder) -> None:
    """A stage that a phase has added has a copy after the next renewal, as the others have."""
    growing = PhasesConfig([PhaseConfig(0.5, stages=2), PhaseConfig()])
    settings: dict[str, Any] = {
        **FULL, "cluster": make_cluster(4, [2, 1, 1]), "phases": growing, "train__new_layers": "copy",
    }  # fmt: skip
    whole = iterations(train_in_pool(pool, job(prepared, **settings), FOUR, folder("whole")))
    asked = job(
        prepared, **settings, runtime__lost_stage="copy", train__redundancy=1, train__redundancy_every=1,
        checkpoint__enabled=False,
    )  # fmt: skip
    path, (victim,) = folder("run"), resolve(asked).layout.stages[2]
    lives = live(asked, FOUR, path, {victim: Fate("backward", 6, after_s=1.5)})
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored"]) == (5, [2])
    assert (recovered["restored_by"], recovered["restored_from"]) == (["copy"], [5])
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in whole.values()], rel=1e-9
    )


def test_two_lost_stages_and_a_lost_copy(prepared: Path, folder: Folder) -> None:
    """One of two stages lost at once was the keeper of the other's copy, which comes from a checkpoint then."""
    path, five = folder("run"), [*FOUR, ("local-4",)]
    asked = job(
        prepared, **FULL, cluster=make_cluster(5, [3, 1, 1]), runtime__lost_stage="copy", train__redundancy=1,
        train__redundancy_every=1, checkpoint__every=2,
    )  # fmt: skip
    stages = resolve(asked).layout.stages
    kept = place_copies({stage: frozenset(nodes) for stage, nodes in enumerate(stages)}, ["here"] * 5, 1)
    first, second = sorted((1, 2), key=lambda stage: kept[stage][0] in stages[3 - stage])
    assert kept[second] == stages[first]
    fates = {stages[stage][0]: Fate("norm", FATAL, after_s=1.5) for stage in (1, 2)}
    lives = live(asked, five, path, fates, saved_at_once=True)
    assert sorted(lives.statuses) == [-signal.SIGKILL] * 2 + [0] * 3, explained(lives, path)
    recovered = of_kind(lives.events, "recovered")[-1]
    assert recovered["processes"] == 3
    found = [*zip(*(recovered[key] for key in ("restored", "restored_by", "restored_from")), strict=True)]
    assert found == sorted([(first, "copy", FATAL - 1), (second, "checkpoint", 2)])
    assert list(iterations(lives.events)) == [*range(1, ITERATIONS + 1)]


def test_copies_after_a_loss_are_new_ones(pool: Pool, prepared: Path, folder: Folder) -> None:
    """The node that has taken a stage over is lost as well: a copy has what that node has learnt."""
    path, five = folder("run"), [*FOUR, ("local-4",)]
    settings: dict[str, Any] = {**FULL, "cluster": make_cluster(5, [3, 1, 1])}
    whole = iterations(train_in_pool(pool, job(prepared, **settings), five, folder("whole")))
    asked = job(
        prepared, **settings, runtime__lost_stage="copy", train__redundancy=1, train__redundancy_every=1,
        checkpoint__enabled=False,
    )  # fmt: skip
    stages = resolve(asked).layout.stages
    (first,) = stages[1]
    second = taken_over(stages, [first])[1][0]
    fates = {first: Fate("backward", 2, after_s=1.5), second: Fate("norm", 5, after_s=1.5)}
    lives = live(asked, five, path, fates)
    assert sorted(lives.statuses) == [-signal.SIGKILL] * 2 + [0] * 3, explained(lives, path)
    recovered = of_kind(lives.events, "recovered")
    assert [event["lost"] for event in recovered] == [[first], [second]]
    assert [(event["restored_by"], event["restored_from"]) for event in recovered] == [(["copy"], [1]), (["copy"], [4])]
    done = iterations(lives.events)
    assert [event["loss"] for event in done.values()] == pytest.approx(
        [event["loss"] for event in whole.values()], rel=1e-9
    )


@pytest.mark.parametrize("stage", cases([1, 2], [1]))
def test_a_lost_stage_is_skipped(stage: int, pool: Pool, prepared: Path, folder: Folder) -> None:
    """Bit for bit, with skips and swaps: as a run that goes on without it from the same state, by the same plan.

    Checkpoints have the layers that are left.
    """
    path, whole, without = folder("run"), folder("whole"), folder("without")
    three = make_cluster(4, [2, 1, 1])
    settings: dict[str, Any] = {"cluster": three, "schedule__skip_ratio": 1 / 3, "runtime__lost_stage": "skip"}
    asked = job(prepared, **settings)
    (victim,) = resolve(asked).layout.stages[stage]
    lives = live(asked, FOUR, path, {victim: Fate("backward", FATAL)})
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored"], recovered["skipped"]) == (FATAL - 1, [], [stage])
    assert f"without stages {stage}" in recovered["bent_rules"]
    plan = path / "run" / recovered["plan_files"]["0"]
    assert json.loads(plan.read_text())["absent_stages"] == [stage]
    port = free_port()
    pool.run(one_rank, [(resolve(asked), None, whole, port, FATAL - 2) for _ in FOUR], timeout_s=120)
    again = job(prepared, **settings, plan=str(plan), checkpoint__resume=str(whole))
    reported = train_in_pool(pool, again, [own for own in FOUR if own != FOUR[victim]], without)
    ours, theirs = iterations(lives.events), iterations(reported)
    assert sorted(theirs) == list(range(FATAL, ITERATIONS + 1))
    for number, event in theirs.items():
        assert [ours[number][key] for key in ("loss", "norm")] == [event[key] for key in ("loss", "norm")]
    ends = [of_kind(events, "validation")[-1] for events in (lives.events, reported)]
    assert ends[0]["loss"] == ends[1]["loss"]
    assert ends[0]["stages"] == [other for other in range(3) if other != stage]
    lost = [0, 0, 1, 2].index(stage)
    latest = open_checkpoint(path / "run")
    assert latest.state.layers == [layer for layer in range(4) if layer != lost]
    with pytest.raises(InputError, match=f"layers.{lost}"):
        latest.load({f"model.layers.{lost}.input_layernorm.weight": torch.empty(32)}, WEIGHTS)


def test_a_lost_stage_that_another_node_has_in_a_later_phase(prepared: Path, folder: Folder) -> None:
    """It cannot be skipped, as the other node waits for its weights: those that are left end, and say why."""
    path = folder("run")
    later = PhasesConfig([PhaseConfig(0.5), PhaseConfig(stages=2, allocation="anew")])
    asked = job(
        prepared, **FULL, cluster=make_cluster(4, [2, 1, 1]), phases=later, runtime__lost_stage="skip",
        runtime__heartbeat_s=4.0,
    )  # fmt: skip
    spec = resolve(asked)
    (victim,) = spec.layout.stages[1]
    assert len(spec.phases[1].allocation.stages[1]) == 2
    lives = live(asked, FOUR, path, {victim: Fate("backward", 2)})
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 1 for rank in range(4)]
    assert not of_kind(lives.events, "recovered")
    reasons = [text.read_text() for text in path.glob("error-*")]
    assert any("no rank that is left has the weights of stage 1" in reason for reason in reasons), reasons


def saved(folder: Path, parameters: dict[str, torch.nn.Parameter]) -> dict[str, list[Tensor]]:
    """Weights of a checkpoint and second moments, by name; shapes as those of `parameters`."""
    found = {name: [torch.empty_like(p), torch.empty_like(p)] for name, p in parameters.items()}
    checkpoint = open_checkpoint(folder)
    checkpoint.load({name: weight for name, (weight, _) in found.items()}, WEIGHTS)
    checkpoint.load({f"{name}/exp_avg_sq": moment for name, (_, moment) in found.items()}, OPTIMIZER)
    return found


def test_the_mean_is_the_one_that_it_says(prepared: Path, folder: Folder) -> None:
    """Weights stay as they are at a rate of 0, and second moments are known from a checkpoint."""
    path = folder("run")
    lives, _ = lose_a_stage("average", prepared, path, 1, train__learning_rate=0.0, checkpoint__every=FATAL - 1)
    (recovered,) = of_kind(lives.events, "recovered")
    assert recovered["restored"] == [1], explained(lives, path)
    settings: dict[str, Any] = dict(TINY_MODEL)
    model: Any = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))  # type: ignore[no-untyped-call]
    model = model.double()
    named = dict(model.named_parameters())
    checkpoints = {int(p.name.split("-")[-1]): p for p in (path / "run" / "checkpoints").iterdir()}
    before, after = (saved(checkpoints[iteration], named) for iteration in (FATAL - 1, ITERATIONS))

    def stage_of(name: str) -> int:
        layer = re.search(r"layers\.(\d+)\.", name)
        return 0 if layer is None else [0, 0, 1, 2][int(layer[1])]

    squares = [sum(float(m.sum()) for name, (_, m) in before.items() if stage_of(name) == stage) for stage in range(3)]
    share = squares[0] / (squares[0] + squares[2])
    for name in named:
        if "layers.2." in name:
            first, last = (before[name.replace("layers.2.", f"layers.{layer}.")][0] for layer in (0, 3))
            assert torch.allclose(after[name][0], share * first + (1 - share) * last, rtol=1e-12), name
        else:
            assert torch.equal(after[name][0], before[name][0]), name


@pytest.mark.parametrize("stage", cases([1, 2], [2]))
def test_a_lost_stage_is_a_mean_of_those_beside_it(stage: int, prepared: Path, folder: Folder) -> None:
    path = folder("run")
    lives, victim = lose_a_stage("average", prepared, path, stage, checkpoint__enabled=False)
    assert lives.statuses == [-signal.SIGKILL if rank == victim else 0 for rank in range(4)], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["iteration"], recovered["restored"]) == (FATAL - 1, [stage])
    assert (recovered["restored_by"], recovered["restored_from"]) == (["average"], [None])
    assert list(iterations(lives.events)) == [*range(1, ITERATIONS + 1)]


@pytest.mark.parametrize(("policy", "changes"), [("restart", {}), ("checkpoint", {"checkpoint__enabled": False})])
def test_a_stage_that_cannot_be_restored(policy: str, changes: dict[str, Any], prepared: Path, folder: Folder) -> None:
    """Those that are left end, and say why."""
    path = folder("run")
    lives, _ = lose_a_stage(policy, prepared, path, 1, **changes)
    assert all(lives.statuses)
    assert not of_kind(lives.events, "recovered")
    reasons = [text.read_text() for text in path.glob("error-*")]
    expected = "no other node serves stage 1" if policy == "restart" else "there is no checkpoint for stage 1"
    assert len(reasons) == 3
    assert any(expected in reason for reason in reasons)


def test_a_full_disk_during_a_checkpoint(prepared: Path, folder: Folder) -> None:
    """Training goes on, says that there is no checkpoint, and writes the next one as soon as there is room."""
    path, before = folder("run"), resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(event: EventDict) -> bool:
        if (event["event"], event.get("iteration")) == ("iteration", 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
        if event["event"] == "checkpoint_failed":
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        return False

    try:
        events = train_alone(job(prepared, checkpoint__every=2, data__validation_blocks=2), path, fill)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    (failed,) = of_kind(events, "checkpoint_failed")
    assert failed["iteration"] == 2
    assert "File too large" in failed["message"]
    assert of_kind(events, "checkpoint")[-1]["iteration"] == ITERATIONS
    assert list(iterations(events)) == [*range(1, ITERATIONS + 1)]
    assert open_checkpoint(path).state.iteration == ITERATIONS
