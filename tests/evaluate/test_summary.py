"""From results to rows, tables and plots."""

import json
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as some

from skippipe.evaluate.compare import short_names
from skippipe.evaluate.intervals import Interval
from skippipe.evaluate.omission import Draws, LayerPath
from skippipe.evaluate.plot import draw_plot
from skippipe.evaluate.results import Result
from skippipe.evaluate.summary import Row, row_from_json, row_json, summarise, table_json
from skippipe.evaluate.table import markdown

TOKENS = 4
FLOPS = [1.0, 1.0, 2.0]


def rows() -> dict[str, Row]:
    """Three omissions over 50 sequences; each skipped layer costs 0.1 or 0.3 nats per token, whatever the text."""
    text = np.random.Generator(np.random.PCG64(4)).exponential(size=50) + 1

    def result(path: LayerPath, more: float, ratio: float | None) -> Result:
        return Result(path, TOKENS * (text + more), 1.0, ratio)

    known = {
        result.path: result
        for result in (result((0, 1, 2), 0.0, 1.0), result((0, 2), 0.1, 0.8), result((0, 1), 0.3, 0.6))
    }
    omissions = {
        "none": Draws(((0, 1, 2),), complete=True),
        "layers:1": Draws(((0, 2),), complete=True),
        "random:0.3": Draws(((0, 2), (0, 1)), complete=False),
    }
    return {row.omission: row for row in summarise(omissions, known, FLOPS, TOKENS, 0)}


def test_values_of_rows() -> None:
    none, one, two = rows().values()
    assert none.increase is None
    assert (none.saved, none.omitted_layers, none.time_ratio) == (0.0, 0.0, 1.0)
    assert none.perplexity.low < none.perplexity.value < none.perplexity.high
    assert one.increase is not None
    assert one.increase.value == pytest.approx(math.exp(0.1) - 1)
    assert one.increase.high - one.increase.low == pytest.approx(0.0, abs=1e-9), "it is paired: the text plays no part"
    assert one.perplexity.value == pytest.approx(none.perplexity.value * math.exp(0.1))
    assert (one.saved, one.omitted_layers, one.layers) == (0.25, 1.0, 3)
    assert two.increase is not None
    assert two.increase.value == pytest.approx(math.exp(0.2) - 1)
    assert two.increase.low < two.increase.value < two.increase.high
    assert two.saved == pytest.approx((0.25 + 0.5) / 2)
    assert two.time_ratio == pytest.approx(0.7)
    assert [value for _, value in two.each] == pytest.approx([none.perplexity.value * math.exp(x) for x in (0.1, 0.3)])
    assert [path for path, _ in two.each] == [(0, 2), (0, 1)]


def test_rows_round_trip() -> None:
    made = list(rows().values())
    read = json.loads(table_json({"format": "x"}, made))
    assert [row_from_json(row) for row in read["rows"]] == made
    unknown = Row("last:1", 1.0, 3, 0.5, 1, True, Interval(2.0, -math.inf, math.inf), None, None, (((0,), math.inf),))
    assert row_from_json(json.loads(json.dumps(row_json(unknown), allow_nan=False))) == unknown


def test_tables_of_one_and_several_models() -> None:
    own = list(rows().values())
    one = markdown({"a": own}, ["a note"]).splitlines()
    assert one[0].count("|") == one[1].count("|") == one[2].count("|") == 10
    assert one[2].startswith("| none | 0 of 3 | 1 | ")
    assert "| layers:1 | 1 of 3 | 1 | " in one[3]
    assert "| +10.5% | +10.5% to +10.5% | 25.0% | 20.0% |" in one[3]
    assert one[-1] == "- a note"
    two = markdown({"a": own, "b": own[:2]}, []).splitlines()
    assert [line.split(" | ")[:2] for line in two[2:7]] == [
        ["| none", "a"], ["| none", "b"], ["| layers:1", "a"], ["| layers:1", "b"], ["| random:0.3", "a"],
    ]  # fmt: skip


def test_plots_with_unknown_values() -> None:
    own = list(rows().values())
    odd = Row("last:1", 1.0, 3, 0.5, 1, True, Interval(math.inf, 0.0, math.inf), None, None, (((0,), math.inf),))
    single = Row("swaps:1", 0.0, 3, 0.0, 1, False, Interval(9.0, 0.0, math.inf), Interval(0.1, -1.0, math.inf), 1.0, ())
    plot = draw_plot({"a": own, "b": [*own, odd, single]})
    assert plot.startswith(b"\x89PNG")
    assert plot != draw_plot({"a": own})


@given(some.floats(1.01, 1e300), some.integers(1, 3))
@settings(max_examples=12, deadline=None)
@example(142.60166098780388, 2)  # where matplotlib's own limits are one and the same number
def test_plots_with_equal_values(perplexity: float, models: int) -> None:
    row = Row("none", 0.0, 3, 0.0, 1, True, Interval(perplexity, 1.0, math.inf), None, 1.0, (((0, 1, 2), perplexity),))
    assert draw_plot({str(number): [row] for number in range(models)}).startswith(b"\x89PNG")


def test_short_names() -> None:
    assert short_names(["runs/a/seed0/ev", "runs/b/seed0/ev"]) == ["a", "b"]
    assert short_names(["runs/a/seed0/ev", "runs/a/seed1/ev"]) == ["seed0", "seed1"]
    assert short_names(["a", "b"]) == ["a", "b"]
    assert short_names(["/x/a/ev", "/x/ev"]) == ["a/ev", "ev"]
