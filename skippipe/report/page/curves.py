"""Search history as SVG for the page."""

import html
import math
from collections.abc import Callable, Sequence

from skippipe._scheduler import SearchEvent

WIDTH, HEIGHT = 460, 240
LEFT, RIGHT, TOP, BOTTOM = 62, 14, 14, 38


def curves(events: Sequence[SearchEvent]) -> str:
    """Both bounds over time and over work; empty without a search history."""
    if not any(event.upper_s is not None for event in events):
        return ""
    over_time = _curve("planning time, seconds", [event.elapsed_s for event in events], events)
    over_work = _curve("work", [event.work for event in events], events)
    note = (
        "Solid: best iteration so far. Dashed: best lower bound. Iterations above three times the final one are cut "
        "off."
    )
    return f'<h2>Search history</h2><div class="columns">{over_time}{over_work}</div><p>{note}</p>'


def _curve(label: str, positions: Sequence[float], events: Sequence[SearchEvent]) -> str:
    uppers = [event.upper_s for event in events if event.upper_s is not None]
    lowers = [event.lower_s for event in events if event.lower_s is not None]
    high = min(max(uppers), 3 * uppers[-1]) * 1.02 or 1.0
    low = min([*lowers, uppers[-1]]) * 0.98
    span = (high - low) or 1.0
    end = positions[-1] or 1.0

    def x(position: float) -> float:
        return LEFT + position / end * (WIDTH - LEFT - RIGHT)

    def y(value: float) -> float:
        return TOP + (high - min(value, high)) / span * (HEIGHT - TOP - BOTTOM)

    grid = [f'<path class="grid" d="M{LEFT} {y(tick):.1f}H{WIDTH - RIGHT}"/>' for tick in _ticks(low, high)]
    grid += [_text(LEFT - 6, y(tick) + 4, f"{tick:g} s", "end") for tick in _ticks(low, high)]
    grid += [_text(x(tick), HEIGHT - BOTTOM + 16, _short(tick), "middle") for tick in _ticks(0.0, end)]
    axis = f'<path class="axis" d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>'
    lines = [
        f'<path class="{name}" d="{_steps(positions, values, x, y)}"/>'
        for name, values in (("upper", [e.upper_s for e in events]), ("lower", [e.lower_s for e in events]))
    ]
    title = _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - 4, label, "middle")
    return (
        f'<svg class="curve" width="{WIDTH}" height="{HEIGHT}" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="best iteration and lower bound over {html.escape(label)}">{"".join(grid)}{axis}{"".join(lines)}'
        f"{title}</svg>"
    )


def _steps(
    positions: Sequence[float], values: Sequence[float | None], x: Callable[[float], float], y: Callable[[float], float]
) -> str:
    """A step line: each value holds until the next."""
    drawn: list[str] = []
    for position, value in zip(positions, values, strict=True):
        if value is not None:
            drawn.append(f"H{x(position):.1f}V{y(value):.1f}" if drawn else f"M{x(position):.1f} {y(value):.1f}")
    return "".join(drawn) + (f"H{x(positions[-1]):.1f}" if drawn else "")


def _ticks(low: float, high: float) -> list[float]:
    """Four or five round numbers in a range."""
    rough = (high - low) / 5
    if rough <= 0:
        return [low]
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough)
    first = math.ceil(low / step)
    return [round(number * step, 12) for number in range(first, math.floor(high / step) + 1)]


def _short(value: float) -> str:
    return f"{value:g}" if value < 1e5 else f"{value / 1e6:g} M"


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(text)}</text>'
