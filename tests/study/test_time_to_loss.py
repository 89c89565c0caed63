"""Times to the loss of a baseline: predicted times, and what the page makes of them."""

from typing import Any

import pytest
from study.entries import make_entry

from skippipe.application import compose
from skippipe.commands.study_times import predict_times
from skippipe.study.arms import compose_arms
from skippipe.study.config import ArmConfig
from skippipe.study.markdown import study_page
from skippipe.study.plots import draw_figures
from skippipe.study.records import ArmRecord
from skippipe.study.run_history import Point
from skippipe.study.time_to_loss import RunTimes, Times, final_differences, loss_over_time, time_text

GROW = RunTimes("grow", 100, [0.5, 0.5], [1.0, 3.0], [0.0, 20.0])


def test_time_passes_phase_by_phase() -> None:
    assert [GROW.seconds_after(part) for part in (0.0, 0.25, 0.5)] == [0.0, 25.0, 50.0]
    assert GROW.seconds_after(0.75) == 50 + 20 + 75
    assert GROW.run_s == 50 + 20 + 150


def test_losses_over_time_are_of_the_phases() -> None:
    entry = make_entry(
        "grow", curve=[Point(0, 9.0, None), Point(150_000_000, 3.5, None), Point(225_000_000, 3.2, None)]
    )
    assert loss_over_time(entry, GROW) == [(50.0, 3.5), (145.0, 3.2)]


def ended(experiment: str, seed: int, loss: float, **changes: Any) -> ArmRecord:
    return make_entry(experiment, seed, curve=[Point(0, 9.0, None), Point(300_000_000, loss, None)], **changes)


def test_final_losses_are_compared_whatever_the_tokens() -> None:
    entries = [
        ended("whole", 0, 3.0), ended("whole", 1, 3.1), ended("grow", 0, 2.98), ended("grow", 1, 3.09),
        make_entry("longer", 0, tokens=600_000_000, tokens_done=600_000_000, curve=[Point(600_000_000, 2.9, None)]),
        ended("open", 0, 3.5, finished=False), ended("elsewhere", 0, 2.5, text="c" * 64), ended("above", 0, 3.2),
    ]  # fmt: skip
    assert final_differences(entries, "grow", "whole") == pytest.approx([-0.02, -0.01])
    assert final_differences(entries, "longer", "whole") == pytest.approx([-0.1])
    assert final_differences(entries, "open", "whole") == []
    assert final_differences(entries, "elsewhere", "whole") == []
    whole = RunTimes("whole", 100, [1.0], [3.6], [0.0])
    straight = RunTimes("whole", 100, [1.0], [7.2], [0.0], "straight pipelines")
    others = [RunTimes(name, 100, [1.0], [1.8], [0.0]) for name in ("above", "open")]
    times = Times("cluster=geo20", [straight, whole, GROW, *others])
    rows = {line.split("|")[1].strip(): line for line in time_text(entries, "whole", times).splitlines() if "|" in line}
    assert "| 2 | 7.20 | 0.2 | the target, 3.0500 | - | 0.2 | 2.000 |" in rows["whole, straight pipelines"]
    assert "| 1.00, then 3.00 | 0.0611 | -0.0150 (-0.0785 to +0.0485) | yes, within the interval |" in rows["grow"]
    assert "| +0.2000 (one seed) | no, one seed | > 0.05 | > 0.500 |" in rows["above"]
    assert "| unfinished | - | - |" in rows["open"]
    page = study_page("mine", entries, "whole", ["times"], times)
    assert "## Time to the loss of whole" in page
    assert "![validation loss over predicted time](mine_times.png)" in page
    assert "Time to the loss" not in study_page("mine", entries, "whole", [])


def test_losses_over_time_are_drawn() -> None:
    pytest.importorskip("matplotlib")
    figures = draw_figures([make_entry("grow")], Times("cluster=geo20", [GROW]))
    assert figures["times"].startswith(b"\x89PNG")


def test_times_of_the_arms_on_a_cluster() -> None:
    """The same microbatches for all, the phases of each; an arm with fewer layers per stage takes less time."""
    overrides = ["train.iterations=10", "planner.work_limit=3000"]
    asked = [ArmConfig("llama30m_0"), ArmConfig("llama30m_33_then_0"), ArmConfig("llama30m_0", 1)]
    arms = compose_arms(asked, "text", overrides, lambda given: compose("train", given))
    job = compose("plan", ["cluster=five_clusters", "planner.work_limit=3000"])
    straight, full, then_full = predict_times(arms, "llama30m_0", job)
    assert [each.experiment for each in (straight, full, then_full)] == ["llama30m_0"] * 2 + ["llama30m_33_then_0"]
    assert (straight.how, full.how) == ("straight pipelines", "")
    assert full.shares == [1.0]
    assert then_full.iterations == 10
    assert len(then_full.iteration_s) == len(then_full.shares) == 2
    assert then_full.iteration_s[0] < then_full.iteration_s[1]
    deeper = compose_arms(asked[:1], "text", [*overrides, "model.num_hidden_layers=16"], lambda g: compose("train", g))
    renamed = [type(arms[0])("deep", 0, deeper[0].job, deeper[0].tokens, "")]
    *_, deep = predict_times([arms[0], *renamed], "llama30m_0", job)
    assert deep.iteration_s[0] > full.iteration_s[0]
