"""The study of what each method is worth: what it leaves out, and how its table compares."""

from pathlib import Path

import pytest
from needed import skip_without
from scripts import load_script

from skippipe._scheduler import PlanRequest, Problem
from skippipe.application import compose
from skippipe.errors import InputError
from skippipe.planning import planning_job

skip_without("matplotlib", "the dependency group bench")


def test_a_part_left_out_is_one_that_there_is() -> None:
    settings = compose("plan", [])
    first: Problem = planning_job(settings.cluster, settings.allocate, settings.schedule).first
    with pytest.raises(InputError, match=r'without: expected one of .*proof.*, got "proofs"'):
        PlanRequest(first, without="proofs")


def test_study_of_one_instance(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    study = load_script("leave_one_out")
    monkeypatch.setattr(study, "OUT", tmp_path)
    assert study.main(["--seeds", "2", "--questions", "small/held-3s-06n-06m-b", "--without", "proof"]) == 0
    header, *lines = (tmp_path / "leave_one_out.csv").read_text().splitlines()
    assert header.startswith("question,without,seed,iteration_s,proved,work")
    assert [line.split(",")[1:3] for line in lines] == [[part, seed] for seed in "01" for part in ("nothing", "proof")]
    # Without conflict-based search nobody proves this one.
    assert [line.split(",")[4] for line in lines] == ["True", "False"] * 2
    assert "| proof | 1 |" in (tmp_path / "leave_one_out.md").read_text()


def test_table_tells_differences_from_noise() -> None:
    study = load_script("leave_one_out")

    def rows(question: str, without: str, times: list[float | None]) -> list[dict[str, object]]:
        return [
            {"question": question, "without": without, "iteration_s": time, "proved": time == 1.0, "work": 10}
            for time in times
        ]

    (line,) = study.summary([
        *rows("clear", study.NOTHING, [1.0, 1.0, 1.0]), *rows("clear", "order", [1.1, 1.1, 1.1]),
        *rows("noisy", study.NOTHING, [1.0, 3.0, 2.0]), *rows("noisy", "order", [2.0, 3.0, 1.5]),
        *rows("lost", study.NOTHING, [2.0, 2.0, 2.0]), *rows("lost", "order", [None, None, None]),
    ])  # fmt: skip
    assert (line["without"], line["questions"], line["worse"], line["better"]) == ("order", 3, 1, 0)
    assert (line["proofs lost"], line["plans lost"]) == (4, 3)
    assert line["worst ratio"] == "1.1000 (clear)"
