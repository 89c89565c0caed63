"""A study's page."""

import math

import pytest
from study.entries import make_entry, make_row

from skippipe.study.comparison import loss_differences, t_interval
from skippipe.study.markdown import arm_cells, study_page
from skippipe.study.plots import draw_figures
from skippipe.study.run_history import Point

# Quantiles 0.975 of Student's t from printed tables, by the number of values.
T = {2: 12.7062, 3: 4.3027, 4: 3.1824, 6: 2.5706, 11: 2.2281, 31: 2.0423}


@pytest.mark.parametrize("count", T)
def test_interval_over_seeds(count: int) -> None:
    values = [0.01 * (i % 3) for i in range(count)]
    mean = sum(values) / count
    deviation = math.sqrt(sum((value - mean) ** 2 for value in values) / (count - 1))
    interval = t_interval(values)
    half = T[count] * deviation / math.sqrt(count)
    assert interval.value == pytest.approx(mean)
    assert interval.high - mean == pytest.approx(half, rel=4e-3)
    assert mean - interval.low == pytest.approx(half, rel=4e-3)
    alone = t_interval([0.5])
    assert (alone.value, alone.low, alone.high) == (0.5, -math.inf, math.inf)


def curve(*losses: float) -> list[Point]:
    return [Point(100_000_000 * number, loss, None) for number, loss in enumerate(losses)]


def test_arms_are_compared_at_the_same_tokens_and_seed() -> None:
    entries = [
        make_entry("whole", 0, curve=curve(9, 4.0, 3.5, 3.0)),
        make_entry("whole", 1, curve=curve(9, 4.1, 3.6, 3.1)),
        make_entry("whole", 2, curve=curve(9, 4.1)),
        make_entry("part", 0, curve=curve(9, 4.2, 3.6, 3.02)),
        make_entry("part", 1, curve=curve(9, 4.3, 3.65), tokens_done=200_000_000, finished=False),
        make_entry("part", 2, curve=curve(9), tokens_done=0, finished=False),
        make_entry("part", 3, curve=curve(9, 4.2)),
    ]
    found = loss_differences(entries, "part", "whole")
    assert [(d.seed, d.tokens, d.complete) for d in found] == [(0, 300_000_000, True), (1, 200_000_000, False)]
    assert [d.value for d in found] == pytest.approx([0.02, 0.05])
    assert loss_differences([*entries[:3], make_entry("part", 0, text="c" * 64)], "part", "whole") == []


def test_a_row_of_the_table() -> None:
    entry = make_entry(
        "part", 1, skip_ratio=1 / 3, skip_changes=[(0.8, 0.0)], rules={"cc1": False, "cc2": True, "cc3": True},
        tokens_done=120_000_000, finished=False,
    )  # fmt: skip
    assert arm_cells(entry) == [
        "part", "1", "33.3%, 0.0% from 80.0% on", "CC1", "120.0", "180.0", "1.50", "3.0000", "2.9500", "+0.0500",
        "500,000", "31.2%", "NVIDIA H100", "2026-01-31",
    ]  # fmt: skip
    empty = make_entry(
        tokens_done=0, finished=False, curve=[], text_tokens=None, tokens_per_s=None, mfu=None, device=None, date=None
    )
    assert arm_cells(empty)[4:] == ["0", "300.0", *["-"] * 8]


def test_the_page() -> None:
    losses = {0: (3.0, 3.02), 1: (3.1, 3.11)}
    entries = [
        make_entry(name, seed, curve=curve(9, 4, loss + 0.5, loss), evaluation=[make_row("none"), make_row()])
        for seed, pair in losses.items()
        for name, loss in zip(("whole", "part"), pair, strict=True)
    ]
    page = study_page("mine", [*entries, make_entry("late", 0, curve=[], note="train: no disk")], "whole", ["curves"])
    mean, half = 0.015, T[2] * 0.005
    row = next(line for line in page.splitlines() if line.startswith("| **part** |"))
    assert "| n = 2 |" in row
    assert f"| **{mean:+.4f}** | {mean - half:+.4f} to {mean + half:+.4f} |" in row
    assert "| part | 1 | 300.0 | 3.1100 | 3.1000 | +0.0100 | - | +1.01% |" in page
    assert "- late, seed 0 failed: train: no disk" in page
    assert "| random:0.25 | part, seed 1 | 2 of 8 |" in page
    assert "![validation loss over tokens](mine_curves.png)" in page
    assert "mine_omitted.png" not in page
    one_seed = study_page("mine", entries[:2], "whole", [])
    assert "none (one seed)" in one_seed
    assert "No arm is comparable yet." in study_page("mine", entries[:1], "whole", [])


def test_plots_are_small_and_reproducible() -> None:
    entries = [make_entry(name, seed) for name in ("whole", "part") for seed in (0, 1)]
    entries[0] = make_entry(evaluation=[make_row("none"), make_row()])
    figures = draw_figures(entries)
    assert list(figures) == ["curves", "omitted"]
    for content in figures.values():
        assert content.startswith(b"\x89PNG")
        assert len(content) < 100_000
    assert draw_figures(entries)["curves"] == figures["curves"]
    assert draw_figures([make_entry(curve=[])]) == {}
