"""The page of a report in a real browser: drawing, mouse, keys and address."""

import io
import itertools
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from report.browser import Browser
from report.conftest import HOSTILE

from skippipe import explain
from skippipe.plan_file import Plan, load_plan

CHART = "skippipe.charts[0]"
VIEW = "({...skippipe.view})"


def analysis(pages: Path, name: str = "plan.json") -> Any:
    return explain(load_plan(str(pages / name)))


def name_of(plan: Plan, task: Any) -> str:
    return f"{task.microbatch}{task.kind}{task.hop}"


def bar_position(browser: Browser, name: str, chart: int = 0) -> tuple[float, float]:
    """Position of the middle of a task's bar, scrolled into view."""
    browser.run(f"skippipe.charts[{chart}].canvas.scrollIntoView({{block: 'nearest'}})")
    found = browser.run(f"(c => c.barPosition(c.plan.named.get({json.dumps(name)})))(skippipe.charts[{chart}])")
    return found["x"], found["y"]


def pixels(browser: Browser) -> NDArray[np.int64]:
    """The window as an array of shape (height, width, 3)."""
    from matplotlib.image import imread

    shares = np.asarray(imread(io.BytesIO(browser.screenshot()), format="png"))[:, :, :3]
    levels: NDArray[np.int64] = np.rint(shares * 255).astype(np.int64)
    return levels


def colour(browser: Browser, name: str) -> list[int]:
    """A colour of the style sheet."""
    text = browser.run(f"getComputedStyle(document.documentElement).getPropertyValue('--{name}').trim()")
    return [int(text[i : i + 2], 16) for i in (1, 3, 5)]


def shows(picture: NDArray[np.int64], around: tuple[float, float], wanted: list[int], reach: int = 3) -> bool:
    """Whether a pixel near a position has about that colour."""
    x, y = round(around[0]), round(around[1])
    part = picture[y - reach : y + reach + 1, x - reach : x + reach + 1]
    return bool((np.abs(part - np.array(wanted)).max(axis=2) <= 24).any())


def test_the_page_is_self_contained(browser: Browser, pages: Path) -> None:
    for name in ("plan", "compare", "hostile", "large"):
        browser.open(pages / f"{name}.html")
        assert browser.run("skippipe.charts.every(chart => chart.drawn > 0)")
        assert browser.requests == [(pages / f"{name}.html").as_uri()]
        assert browser.failures == []


def test_every_task_is_a_bar_at_its_time(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    browser.open(pages / "plan.html")
    assert browser.run(f"{CHART}.drawn") == len(explained.plan.tasks)
    width = browser.run(f"{CHART}.width - GUTTER")
    whole = explained.plan.predicted.iteration_s * 1.01
    left = browser.run(f"{CHART}.canvas.getBoundingClientRect().left") + 1 + browser.run("GUTTER")
    kinds = {"F": "forward", "L": "loss", "B": "backward"}
    colours, picture = {kind: colour(browser, name) for kind, name in kinds.items()}, pixels(browser)
    for task in explained.plan.tasks[::5]:
        where = bar_position(browser, name_of(explained.plan, task))
        assert where[0] - left == pytest.approx((task.start_s + task.end_s) / 2 / whole * width, abs=0.1)
        assert shows(picture, where, colours[task.kind])


def test_kinds_differ_in_lightness_and_pattern(browser: Browser, pages: Path) -> None:
    for dark in (False, True):
        browser.open(pages / "plan.html", dark=dark)
        paint = browser.run("(p => ['F', 'L', 'B'].map(k => [p.fill[k], p.pattern[k] !== null]))(new Paint(1))")
        light = [sum(w * int(c[i : i + 2], 16) for i, w in ((1, 0.21), (3, 0.72), (5, 0.07))) for c, _ in paint]
        assert min(abs(a - b) for a, b in ((light[0], light[1]), (light[1], light[2]), (light[0], light[2]))) > 25
        assert [pattern for _, pattern in paint] == [False, True, True]


def test_the_wheel_zooms_at_the_pointer(browser: Browser, pages: Path) -> None:
    browser.open(pages / "plan.html")
    before, point = browser.run(VIEW), (900, 400)
    left = browser.run(f"{CHART}.canvas.getBoundingClientRect().left") + 1
    under = browser.run(f"{CHART}.time({point[0]} - {left})")
    browser.mouse("mouseWheel", *point, deltaX=0, deltaY=-500)
    after = browser.run(VIEW)
    assert after["to"] - after["from"] == pytest.approx((before["to"] - before["from"]) * np.exp(-1.0))
    assert browser.run(f"{CHART}.time({point[0]} - {left})") == pytest.approx(under)
    assert browser.run(f"{CHART}.drawn") < len(analysis(pages).plan.tasks)
    browser.mouse("mouseWheel", *point, deltaX=0, deltaY=5000)
    assert browser.run(VIEW) == before


def test_buttons_and_keys(browser: Browser, pages: Path) -> None:
    browser.open(pages / "plan.html")
    before = browser.run(VIEW)
    browser.run("document.getElementById('zoom-in').click()")
    near = browser.run(VIEW)
    assert near["to"] - near["from"] == pytest.approx((before["to"] - before["from"]) / 1.5)
    browser.run("document.getElementById('charts').focus()")
    for key, changed in (
        ("ArrowRight", lambda a, b: a["from"] > b["from"] and a["to"] > b["to"]),
        ("-", lambda a, b: a["to"] - a["from"] > b["to"] - b["from"]),
        ("+", lambda a, b: a["to"] - a["from"] < b["to"] - b["from"]),
        ("]", lambda a, b: a["rowHeight"] > b["rowHeight"]),
        ("[", lambda a, b: a["rowHeight"] < b["rowHeight"]),
        ("c", lambda a, b: a["critical"] != b["critical"]),
        ("Escape", lambda a, b: a["critical"] is False),
    ):
        earlier = browser.run(VIEW)
        browser.key(key)
        assert changed(browser.run(VIEW), earlier), key
    browser.key("0")
    after = browser.run(VIEW)
    assert (after["from"], after["to"]) == (before["from"], before["to"])


def test_dragging_moves_and_does_not_select(browser: Browser, pages: Path) -> None:
    browser.open(pages / "plan.html", "#from=10&to=20")
    x, y = 700.0, 400.0
    browser.drag(x, y, -115, 0)
    after = browser.run(VIEW)
    shift = 115 / browser.run(f"{CHART}.width - GUTTER") * 10
    assert (after["from"], after["to"]) == (pytest.approx(10 + shift), pytest.approx(20 + shift))
    assert after["task"] == ""


def test_tooltip_explains_waiting(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    tasks = explained.plan.tasks
    browser.open(pages / "plan.html")
    words = {"busy": "node finished", "memory": "memory was full until", "input": "its input arrived"}
    for reason, phrase in words.items():
        number = explained.reasons.index(reason)
        task, name = tasks[number], name_of(explained.plan, tasks[number])
        assert browser.run(f"skippipe.find({json.dumps(name)})")
        browser.run("1")
        browser.mouse("mouseMoved", *bar_position(browser, name))
        text = browser.run("document.getElementById('tip').hidden ? '' : document.getElementById('tip').textContent")
        stage = next(s for s, nodes in enumerate(explained.plan.stages) if task.node in nodes)
        assert text.startswith(f"{name}: ")
        assert f"microbatch {task.microbatch}\n" in text
        assert f"stage {stage} on {explained.plan.cluster.names[task.node]}" in text
        assert f"{task.start_s:.3f} s to {task.end_s:.3f} s" in text
        assert phrase in text
        assert name_of(explained.plan, tasks[explained.blockers[number]]) in text
        waited = task.start_s - explained.arrival_s[number]
        assert (f"waited {waited:.3f} s" in text) == (reason != "input")
        assert (f"slack {explained.slack_s[number]:.3f} s" in text) == (explained.slack_s[number] > 0)
    browser.mouse("mouseMoved", 5, 5)
    assert browser.run("document.getElementById('tip').hidden")


def test_a_click_shows_the_route_of_a_microbatch(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    microbatch = explained.plan.microbatches[3]
    browser.open(pages / "plan.html")
    browser.click(*bar_position(browser, f"{microbatch.id}F0"))
    marked = browser.run(f"(c => [...c.plan.named].filter(e => c.marked(e[1])).map(e => e[0]))({CHART})")
    assert set(marked) == {name_of(explained.plan, t) for t in explained.plan.tasks if t.microbatch == microbatch.id}
    hops = browser.run(f"{CHART}.plan.transfers(3)")
    cycle = [
        microbatch.source,
        *microbatch.nodes[1:],
        microbatch.source,
        *reversed(microbatch.nodes[1:]),
        microbatch.source,
    ]
    assert [(hop["from"], hop["to"]) for hop in hops] == list(itertools.pairwise(cycle))
    # The line between two rows is there, half-way between its ends.
    first = bar_position(browser, f"{microbatch.id}F0"), bar_position(browser, f"{microbatch.id}F1")
    edges = browser.run(f"[{CHART}.x({hops[0]['leave']}), {CHART}.x({hops[0]['arrive']})]")
    left = browser.run(f"{CHART}.canvas.getBoundingClientRect().left") + 1
    middle = (left + sum(edges) / 2, (first[0][1] + first[1][1]) / 2)
    assert shows(pixels(browser), middle, colour(browser, "ink"), reach=2)
    assert f"microbatch {microbatch.id}" in browser.run("document.getElementById('selected').textContent")
    # Beside it: nothing is selected, and the line is gone.
    browser.click(edges[0] + left + 1, browser.run(f"{CHART}.canvas.getBoundingClientRect().top") + 8)
    assert browser.run("skippipe.view.batchId") is None
    assert not shows(pixels(browser), middle, colour(browser, "ink"), reach=2)


def test_the_critical_path_is_outlined(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    on_path = {name_of(explained.plan, explained.plan.tasks[s.task]) for s in explained.critical if s.task is not None}
    browser.open(pages / "plan.html")
    assert not (pixels(browser) == np.array(colour(browser, "accent"))).all(axis=2).any()
    browser.run("document.getElementById('critical').click()")
    marked = browser.run(f"(c => [...c.plan.named].filter(e => c.marked(e[1])).map(e => e[0]))({CHART})")
    assert set(marked) == on_path
    picture, accent = pixels(browser), colour(browser, "accent")
    for name in sorted(on_path):
        left = browser.run(f"{CHART}.x({CHART}.plan.start[{CHART}.plan.named.get('{name}')])")
        x = browser.run(f"{CHART}.canvas.getBoundingClientRect().left") + 1 + left
        assert shows(picture, (x + 1, bar_position(browser, name)[1]), accent)


def test_rows_can_be_filtered(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    names, stages = explained.plan.cluster.names, explained.plan.stages
    browser.open(pages / "plan.html")
    on_path = {explained.plan.tasks[s.task].node for s in explained.critical if s.task is not None}
    for text, wanted in (
        ("iowa", {n for n, name in enumerate(names) if "Iowa" in name}),
        ("stage 2", set(stages[2])),
        ("path", on_path),
        ("nobody", set()),
        ("", set(range(len(names)))),
    ):
        script = "(f => { f.value = %s; f.dispatchEvent(new Event('input')); })(document.getElementById('filter'))"
        browser.run(script % json.dumps(text))
        rows = browser.run(f"{CHART}.rows.filter(row => row.node >= 0).map(row => row.node)")
        assert set(rows) == wanted
        assert len(rows) == len(wanted)


def test_two_plans_share_the_time_axis(browser: Browser, pages: Path) -> None:
    browser.open(pages / "compare.html")
    longest = max(load_plan(str(pages / name)).predicted.iteration_s for name in ("plan.json", "full.json"))
    assert browser.run("skippipe.charts.length") == 2
    assert browser.run(VIEW)["to"] == pytest.approx(1.01 * longest)
    x, y = bar_position(browser, "0F0", chart=1)
    browser.mouse("mouseWheel", x, y, deltaX=0, deltaY=-400)
    axes = browser.run("skippipe.charts.map(chart => [chart.x(0), chart.x(10), chart.width])")
    assert axes[0] == axes[1]
    assert browser.run("skippipe.view.to - skippipe.view.from") < 0.5 * longest
    browser.click(*bar_position(browser, "0F0", chart=1))
    for chart in (0, 1):
        count = browser.run(f"(c => c.plan.chains[0].every(task => c.marked(task)))(skippipe.charts[{chart}])")
        assert count is True


def test_the_address_stores_the_view(browser: Browser, pages: Path) -> None:
    browser.open(pages / "plan.html")
    browser.run("document.getElementById('zoom-in').click()")
    browser.run("skippipe.find('2F1')")
    browser.run("document.getElementById('critical').click()")
    view, address = browser.run(VIEW), browser.run("location.hash")
    browser.open(pages / "plan.html", address)
    again = browser.run(VIEW)
    for key, value in view.items():
        assert again[key] == (pytest.approx(value, abs=1e-5) if isinstance(value, float) else value), key
    browser.open(pages / "plan.html", "#from=x&to=-5&rows=1e9&top=-1&task=99999F0&critical=maybe")
    assert browser.failures == []
    assert browser.run(f"{CHART}.drawn") > 0


def test_names_are_escaped(browser: Browser, pages: Path) -> None:
    browser.open(pages / "hostile.html")
    assert browser.run("window.hacked === undefined")
    assert browser.run(f"{CHART}.plan.nodes[3]") == f"3{HOSTILE}"
    assert browser.run("document.querySelectorAll('img').length") == 0
    browser.mouse("mouseMoved", *bar_position(browser, "0F0"))
    assert HOSTILE in browser.run("document.getElementById('tip').textContent")
    assert browser.run("document.querySelectorAll('script').length") == 2
    assert HOSTILE[:20] in browser.run("document.querySelector('section:last-of-type').textContent")


def test_light_and_dark(browser: Browser, pages: Path) -> None:
    grounds, box = [], [0.0, 0.0]
    for dark in (False, True):
        browser.open(pages / "plan.html", dark=dark)
        corner = pixels(browser)[2, 2]
        box = browser.run(f"(b => [b.right, b.bottom])({CHART}.canvas.getBoundingClientRect())")
        assert (pixels(browser)[round(box[1]) - 4, round(box[0]) - 10] == corner).all()
        grounds.append(corner.mean())
    assert grounds[0] > 240
    assert grounds[1] < 40
    browser.prefer("light")
    assert pixels(browser)[round(box[1]) - 4, round(box[0]) - 10].mean() > 240


def test_memory_held_over_time(browser: Browser, pages: Path) -> None:
    explained = analysis(pages)
    browser.open(pages / "plan.html")
    held = browser.run(f"{CHART}.plan.held")
    for node, room in enumerate(explained.plan.cluster.memory):
        own = [t for t in explained.plan.tasks if t.node == node]
        assert max((count for _, count in held[node]), default=0) <= room
        for time, count in held[node]:
            started = sum(t.kind == "F" and t.start_s <= time for t in own)
            assert count == started - sum(t.kind == "B" and t.end_s <= time for t in own)


def test_a_thousand_nodes_draw_only_what_is_in_view(browser: Browser, pages: Path) -> None:
    browser.open(pages / "large.html")
    tasks = browser.run(f"{CHART}.plan.count")
    assert tasks > 12_000
    rows = browser.run(f"{CHART}.visibleRows().filter(row => row.node >= 0).map(row => row.node)")
    assert 10 < len(rows) < 100
    here = sum(browser.run(f"{CHART}.plan.lanes.map(lane => lane.length)")[node] for node in rows)
    assert 0 < browser.run(f"{CHART}.drawn") <= here < tasks / 5
    browser.mouse("mouseWheel", 700, 400, deltaX=0, deltaY=4000, modifiers=8)
    later = browser.run(f"{CHART}.visibleRows().filter(row => row.node >= 0).map(row => row.node)")
    assert set(later).isdisjoint(rows)
    last = browser.run(f"{CHART}.plan.name({CHART}.plan.lanes[{CHART}.rows.at(-1).node].at(-1))")
    assert browser.run(f"skippipe.find({json.dumps(last)})")
    x, y = bar_position(browser, last)
    assert 0 < y < 900
    assert 0 < x < 1300


def test_search_history_is_plotted(browser: Browser, pages: Path) -> None:
    browser.open(pages / "plan.html")
    assert browser.run("document.querySelectorAll('svg.curve').length") == 2
    text = browser.run("document.body.textContent")
    assert "Search statistics" in text
    assert "1,234,567" in text
    browser.open(pages / "hostile.html")
    assert "Search statistics" not in browser.run("document.body.textContent")
