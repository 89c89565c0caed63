"""A worker that is killed at the start, in the middle or at the end: its node is named, and nobody is left."""

import json
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from train.running import Running, signal_to

WITHIN_S = 15.0
LONG = ["data.validation_blocks=700", "train.validate_every=null", "train.iterations=6"]


@pytest.mark.parametrize(
    ("moment", "sign"),
    [
        ("start", None),
        ("middle", lambda line: line.startswith("iteration    2")),
        ("end", lambda line: line.startswith("iteration    6")),
    ],
)
def test_killed(moment: str, sign: Callable[[str], bool] | None, tmp_path: Path) -> None:
    running = Running(tmp_path, *LONG)
    try:
        running.started()
        if sign is not None:
            running.until(sign)
        signal_to(running.workers[2], signal.SIGKILL)
        status, err = running.end(WITHIN_S)
    finally:
        running.close()
    assert status == 1
    assert err.startswith("skippipe train: node local-2 (rank 2): process ")
    assert f"process {running.workers[2]} was killed by signal 9 (SIGKILL), likely by the kernel because memory " in err
    assert "--dry-run estimates what each process needs); the others were ended" in err
    assert err.count("skippipe train") == 1
    assert "Traceback" not in err
    run = tmp_path / "run"
    if moment == "start":
        assert list(tmp_path.iterdir()) == []
    else:
        assert (run / "metrics.jsonl").read_bytes().endswith(b"}\n")
        end = json.loads((run / "metrics.jsonl").read_text().splitlines()[-1])
        assert (end["event"], end["outcome"], end["attempt"]) == ("run_ended", "failed", 1)
        assert end["message"] in err
        assert not list(run.rglob("*.tmp"))
