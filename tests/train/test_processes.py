"""Real processes: a run to its end, a worker that hangs."""

import json
import signal
from pathlib import Path

from train.running import Running, signal_to
from train.test_kill import LAST


def test_a_run_to_its_end(tmp_path: Path) -> None:
    running = Running(tmp_path, "train.iterations=8", "train.validate_every=4", "train.learning_rate=1e-2")
    try:
        running.started()
        status, err = running.end(120)
    finally:
        running.close()
    assert (status, err) == (0, "")
    out = "".join(running.lines)
    assert "iteration    8  loss" in out
    assert "predicted iteration time" in out
    assert "full pipelines on this allocation: full " in out
    run = tmp_path / "run"
    assert {path.name for path in run.iterdir()} == {
        "config.yaml", "plan.json", "profile.json", "cluster.json", "metrics.jsonl", "tensorboard", "log",
        "checkpoints",
    }  # fmt: skip
    assert "hidden_size: 32" in (run / "config.yaml").read_text()
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    summary, end = events[-2:]
    assert (summary["event"], end["event"], end["outcome"]) == ("summary", "run_ended", "finished")
    assert summary["loss_after"] < summary["loss_before"]
    assert "measured by skippipe train" in json.loads((run / "cluster.json").read_text())["source"]
    assert [path.read_bytes() for path in (run / "log").iterdir()] == [b""] * 5


def test_a_worker_that_hangs(tmp_path: Path) -> None:
    running = Running(tmp_path, "train.iterations=100000", "runtime.timeout_s=2", *LAST)
    try:
        running.started()
        running.until(lambda line: line.startswith("iteration    2"))
        signal_to(running.workers[3], signal.SIGSTOP)
        status, err = running.end(20)
    finally:
        running.close()
    assert status == 1
    assert err.startswith("skippipe train: node local-3 (rank 3) reported nothing while others failed; ")
    assert "Traceback" not in err
