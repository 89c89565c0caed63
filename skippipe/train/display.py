"""What a training run shows while it runs: a live view on a terminal, one line for each event elsewhere."""

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.text import Text

from skippipe.ranks import shown_names
from skippipe.report.format import percent, seconds
from skippipe.report.terminal import plain_table
from skippipe.train.events import Event

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60


class Display:
    """Shows the events of a run; a context manager, since a live view has to be ended."""

    def __init__(self, console: Console, folder: str) -> None:
        """Show on `console`; `folder` is how to call the folder of the run."""
        self.console, self.folder = console, folder
        self.losses: list[float] = []
        self.latest: dict[str, Event] = {}
        self.validations: list[Event] = []
        self.progress = Progress(
            TextColumn("iteration"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console
        )
        self.task = self.progress.add_task("", total=None)
        self.live = Live(console=console, refresh_per_second=4) if console.is_terminal else None

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self.live is not None:
            self.live.stop()

    def __call__(self, event: Event) -> None:
        """Show one event."""
        kind = event["event"]
        self.latest[kind] = event
        if kind == "iteration":
            self.losses.append(event["loss"])
        if kind == "validation":
            self.validations.append(event)
        if self.live is None:
            self._print(self._lines(event))
            return
        if kind == "plan":
            self.progress.update(self.task, total=event["iterations"])
        if kind in ("iteration", "resumed"):
            self.progress.update(self.task, completed=event["iteration"])
        if kind != "iteration":
            self._print(self._lines(event))
        self.live.update(self._view())

    @property
    def final_loss(self) -> float:
        """Validation loss at the end of the run."""
        return float(self.latest["summary"]["loss_after"])

    def _print(self, lines: list[str]) -> None:
        for line in lines:
            self.console.print(line, markup=False, soft_wrap=True)

    def _lines(self, event: Event) -> list[str]:
        if event["event"] == "starting":
            return [f"{event['processes']} processes start; what they write goes to {self.folder}"]
        lines = LINES.get(event["event"])
        return [] if lines is None else lines(event)

    def _view(self) -> Group:
        """The live part: how far, how fast, how well."""
        table = plain_table()
        for heading in ("loss", "tokens/s", "measured", "predicted", "full pipeline", "validation loss"):
            table.add_column(heading, justify="right")
        iteration, plan = self.latest.get("iteration"), self.latest.get("plan")
        row: list[Any] = ["-"] * 6
        if iteration is not None:
            row[:3] = [
                f"{iteration['loss']:.4f}",
                f"{iteration['tokens_per_s']:,.0f}",
                seconds(iteration["iteration_s"]),
            ]
        if plan is not None:
            row[3:5] = [seconds(plan["predicted_s"]), seconds(plan["full"].get("full"))]
        if self.validations:
            row[5] = f"{self.validations[-1]['loss']:.4f}"
        table.add_row(*row)
        curve = [Text(f"loss {sparkline(self.losses, SPARK_WIDTH)}")] if len(self.losses) > 1 else []
        return Group(self.progress, table, *curve)


def plan_lines(event: Event) -> list[str]:
    """What is about to be trained, and how long an iteration should take."""
    beside = ", ".join(f"{name} {seconds(time)}" for name, time in event["full"].items())
    layers = ", ".join(str(count) for count in event["layers"])
    model = (
        f"{event['model']} of {event['parameters']:,} parameters in {event['stages']} stages of {layers} layers, "
        f"{event['nodes']} nodes, {event['processes']} processes"
    )
    work = (
        f"{event['strategy']}, skip ratio {event['skip_ratio']:.4g}: {event['microbatches']} microbatches of "
        f"{event['microbatch_size']} x {event['sequence']} tokens, {event['training_tokens']:,} tokens of text"
    )
    note = event["prediction_note"]
    if event["predicted_s"] is None:
        return [model, work, f"predicted iteration time: unknown ({note})"]
    predicted = (
        f"predicted iteration time {seconds(event['predicted_s'])} (full pipelines on this allocation: {beside})"
    )
    return [model, work, predicted, *([f"unverified prediction: {note}"] if note else [])]


def started_lines(event: Event) -> list[str]:
    """Which process serves which nodes."""
    return [f"node {shown_names(event['names'])}: rank {event['rank']}, process {event['process']}"]


def validation_lines(event: Event) -> list[str]:
    """One validation."""
    over = f"(whole model, {event['tokens']:,} tokens)"
    trained_on = f", {event['training_loss']:.4f} on training text" if "training_loss" in event else ""
    return [f"validation loss {event['loss']:.4f}{trained_on} after {event['iteration']} iterations {over}"]


def iteration_lines(event: Event) -> list[str]:
    """One iteration."""
    routers = f"routers {event['router_loss']:.4f}  " if "router_loss" in event else ""
    against = f"predicted {seconds(event['predicted_s'])}  " if "predicted_s" in event else ""
    against += f"MFU {percent(event['mfu'])}  " if "mfu" in event else ""
    line = (
        f"iteration {event['iteration']:>4}  loss {event['loss']:.4f}  {routers}"
        f"{event['tokens_per_s']:>8,.0f} tokens/s  "
        f"measured {seconds(event['iteration_s'])}  {against}"
        f"norm {event['norm']:.3g}  rate {event['learning_rate']:.3g}"
    )
    return [line]


def resumed_lines(event: Event) -> list[str]:
    """Where a run goes on, and what was passed over."""
    plan = "the same plan" if event["plan_kept"] else "another plan"
    passed_over = [f"passed over: {reason}" for reason in event["damaged"]]
    return [*passed_over, f"goes on after iteration {event['iteration']} from {event['path']}, by {plan}"]


def checkpoint_lines(event: Event) -> list[str]:
    """One checkpoint that stands."""
    size, took, stood = event["bytes"] / 1e6, seconds(event["seconds"]), seconds(event["blocked_s"])
    return [
        f"checkpoint after iteration {event['iteration']}: {size:,.1f} MB in {took}, training stood still for {stood}"
    ]


def failed_checkpoint_lines(event: Event) -> list[str]:
    """One checkpoint that could not be saved."""
    return [f"no checkpoint after iteration {event['iteration']}: {event['message']}"]


def unrecorded_lines(event: Event) -> list[str]:
    """What is not written down any more."""
    return [f"{event['message']}; training goes on"]


def stopped_lines(event: Event) -> list[str]:
    """The end of a run that was asked to stop."""
    saved = "the same command goes on from there" if event["saved"] else "nothing was saved (checkpoint.enabled=false)"
    return [f"asked to stop, ended after iteration {event['iteration']}; {saved}"]


def summary_lines(event: Event) -> list[str]:
    """What came of the run, and how good the prediction was."""
    loss = (
        f"validation loss {event['loss_before']:.4f} before, {event['loss_after']:.4f} after "
        f"{event['iterations']} iterations"
    )
    predicted_s, measured_s = event["predicted_s"], event["measured_s"]
    if measured_s is None:
        return [loss, *event["reasons"]]
    if predicted_s is None:
        return [loss, f"iteration time {seconds(measured_s)} (median) on {event['device']}", *efficiency_lines(event)]
    off = percent(measured_s / predicted_s - 1.0) if predicted_s else "-"
    times = f"iteration time: predicted {seconds(predicted_s)}, measured {seconds(measured_s)} (median; off by {off})"
    return [loss, times, *(f"  {reason}" for reason in event["reasons"])]


def efficiency_lines(event: Event) -> list[str]:
    """How well the device was used, and where its time went."""
    lines = []
    if "mfu" in event:
        lines.append(f"MFU {percent(event['mfu'])} over executed operations (median)")
    if "breakdown" in event:
        shares = ", ".join(f"{kind} {percent(share)}" for kind, share in event["breakdown"]["shares"].items())
        lines.append(f"where the time went in {event['breakdown']['iterations']} iterations: {shares}")
    return lines


def changed_lines(event: Event) -> list[str]:
    """Another plan from an iteration on."""
    return [f"from iteration {event['iteration']} on skip ratio {event['skip_ratio']:.4g}, by a plan of its own"]


LINES: dict[str, Callable[[Event], list[str]]] = {
    "started": started_lines,
    "plan": plan_lines,
    "resumed": resumed_lines,
    "plan_changed": changed_lines,
    "iteration": iteration_lines,
    "validation": validation_lines,
    "checkpoint": checkpoint_lines,
    "checkpoint_failed": failed_checkpoint_lines,
    "unrecorded": unrecorded_lines,
    "stopped": stopped_lines,
    "summary": summary_lines,
}
"""What an event is in words, by its kind."""


def sparkline(values: list[float], width: int) -> str:
    """Draw values as a row of bars, the latest last; at most `width`, each the mean of its share."""
    count = min(width, len(values))
    means = []
    for i in range(count):
        part = values[i * len(values) // count : (i + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * scale)] for mean in means)
