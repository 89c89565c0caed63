"""Processes that join a run between two iterations: as if they had been there from that state on."""

import dataclasses
import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from pool import Pool
from train.alone import EventDict, of_kind, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster
from train.mortal import Comer, Fate, Gate, live
from train.test_recovery import FOUR, FULL, explained, iterations, job

from skippipe.train.config import TrainJob

ITERATIONS, GATE = 6, 3
PATIENT = {"runtime__timeout_s": 200.0, "runtime__start_timeout_s": 200.0, "train__iterations": ITERATIONS}
THREE = [FOUR[0], FOUR[2], FOUR[3]]


def allocated(path: Path, stages: list[list[int]], absent: list[int]) -> dict[str, Any]:
    """Settings of an allocation."""
    path.write_text(json.dumps({"stages": stages, "absent_nodes": absent}))
    return {"allocate__stages": str(path)}


def stops(iteration: int, event: EventDict) -> bool:
    """Whether a run is to stop with the iteration that follows one."""
    return event["event"] == "iteration" and event["iteration"] == iteration


def test_a_node_that_the_plan_left_out(pool: Pool, prepared: Path, folder: Folder) -> None:
    """Bit for bit in float32, with skips and swaps: as the larger cluster from the same state, by the same plan."""
    path, whole, larger = folder("run"), folder("whole"), folder("larger")
    asked = job(prepared, **PATIENT, **allocated(path / "stages.json", [[0], [2, 3]], [1]))
    lives = live(asked, THREE, path, {}, [Comer(3, FOUR[1])], Gate(GATE))
    assert lives.statuses == [0, 0, 0, 0], explained(lives, path)
    (joined,) = of_kind(lives.events, "joined")
    assert (joined["iteration"], joined["joined"], joined["joined_names"]) == (GATE, [3], ["local-1"])
    assert joined["processes"] == 4
    assert not of_kind(lives.events, "recovered")
    assert sorted({event["rank"] for event in of_kind(lives.events, "training")}) == [0, 1, 2, 3]
    done = iterations(lives.events)
    assert list(done) == [*range(1, ITERATIONS + 1)]
    # A run of the three that stops where the fourth joins, resumed by the plan that all four then had.
    train_in_pool(pool, asked, THREE, whole, until=partial(stops, GATE - 1))
    plan = path / "run" / joined["plan_files"]["0"]
    again = job(prepared, **PATIENT, plan=str(plan), checkpoint__resume=str(whole))
    reported = train_in_pool(pool, again, [*THREE, FOUR[1]], larger)
    theirs = iterations(reported)
    assert sorted(theirs) == [*range(GATE + 1, ITERATIONS + 1)]
    for number, event in theirs.items():
        assert [done[number][key] for key in ("loss", "norm")] == [event[key] for key in ("loss", "norm")]
    assert of_kind(lives.events, "validation")[-1]["loss"] == of_kind(reported, "validation")[-1]["loss"]
