"""What `composing.py` remembers is what Hydra makes."""

import json
from pathlib import Path

import pytest
from composing import compose_as_hydra_does
from conftest import Run

LINES = (
    ("plan",),
    ("plan", "cluster=geo20", "schedule.skip_ratio=0.25"),
    ("plan", "cluster=local4", "+cluster@other=geo20"),
    ("plan", "~cluster"),
    ("plan", "cluster=unheard_of"),
    ("plan", "hydra/output=other"),
    ("plan", "+planner.unknown=1"),
    ("train", "model=mixtral_tiny", "runtime=gloo", "model.hidden_size=48", "+model.attention_dropout=0.5"),
    ("train", "model.unknown=1"),
    ("study", "arms=[{experiment: llama30m_skip}]"),
    ("plan", "-m", "planner=default,default", "schedule.skip_ratio=0.0,0.25"),
)


@pytest.mark.parametrize("line", LINES, ids=" ".join)
def test_as_hydra_composes(line: tuple[str, ...], run: Run) -> None:
    shown = [*line, "--cfg", "all"]
    with pytest.MonkeyPatch.context() as patch:
        compose_as_hydra_does(patch)
        expected = run(*shown)
    assert [run(*shown), run(*shown)] == [expected, expected]


def test_files_of_a_user_may_change(run: Run, tmp_path: Path) -> None:
    own = tmp_path / "own" / "cluster" / "mine.yaml"
    own.parent.mkdir(parents=True)
    for latency in (0.25, 0.5):
        own.write_text(json.dumps({"defaults": ["local4", "_self_"], "inside": {"latency_s": latency}}))
        shown = run("plan", "cluster=mine", "--config-dir", own.parent.parent, "--cfg", "job")
        assert f"latency_s: {latency}" in shown.out, shown.err
