"""Main threads that hang outside of a message: their processes end, whoever waits for them."""

from pathlib import Path
from typing import Any

from train.alone import of_kind
from train.conftest import Folder
from train.mortal import Fate, live
from train.test_recovery import FOUR, FULL, ITERATIONS, explained, iterations, job

from skippipe.train.loop.hang_guard import LOOK_PAUSE_S, Position, Standstill

HASTY: dict[str, Any] = {**FULL, "runtime__timeout_s": 1.0}


def test_how_long_it_has_been_at_one_position() -> None:
    """Looks count: while the process was stopped there were none. Between iterations nothing hangs."""
    here, there, later = Position(1, 5, "1F0", 60.0), Position(1, 6, "2F0", 60.0), Position(2, 5, "1F0", 60.0)
    standstill = Standstill()
    seen = [here, here, here, there, there, None, None, None, here, later, later]
    assert [standstill.observe(position) / LOOK_PAUSE_S for position in seen] == [0, 1, 2, 0, 1, 0, 0, 0, 0, 0, 1]


def test_all_hang(prepared: Path, folder: Folder) -> None:
    """Nobody waits for a message, so no timeout ends anybody, and all show signs of life."""
    path = folder("run")
    lives = live(job(prepared, **HASTY), FOUR, path, dict.fromkeys(range(4), Fate("step", 3, number=None)))
    assert lives.statuses == [1, 1, 1, 1], explained(lives, path)
    assert not [*path.glob("error-*")], "no exception ended them"
    failed = of_kind(lives.events, "failed")
    assert len(failed) == 4
    for event in failed:
        assert " of iteration 3 hangs: it has taken more than " in event["message"]


def test_one_hangs(prepared: Path, folder: Folder) -> None:
    """The others go on without it, once a message has not come in time; it ends by itself."""
    path = folder("run")
    lives = live(job(prepared, **HASTY), FOUR, path, {2: Fate("backward", 3, number=None)})
    assert lives.statuses == [0, 0, 1, 0], explained(lives, path)
    (recovered,) = of_kind(lives.events, "recovered")
    assert (recovered["lost"], recovered["iteration"]) == ([2], 2)
    assert list(iterations(lives.events)) == [*range(1, ITERATIONS + 1)]
