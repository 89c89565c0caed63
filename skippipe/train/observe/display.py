"""What a training run shows: a live view on a terminal, one line per event elsewhere."""

import itertools
import math
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

from rich.console import RenderableType
from rich.text import Text

from skippipe.console.output import Console, plain_table
from skippipe.console.progress import ProgressDisplay
from skippipe.phases import stages_text
from skippipe.ranks import shown_names
from skippipe.report.format import percent, seconds
from skippipe.report.phases import phase_lines
from skippipe.train.observe.events import (
    CheckpointFailed,
    CheckpointSaved,
    Event,
    IterationDone,
    LogFailed,
    PlanChanged,
    PlanReady,
    PlanSearched,
    RankTraining,
    RankWaiting,
    RunJoined,
    RunRecovered,
    RunRestarting,
    RunResumed,
    RunStopped,
    RunSummary,
    ValidationDone,
    WorkerFailed,
    WorkerRestarting,
    WorkersStarting,
    WorkerStarted,
    WorkerStaysLost,
)

SPARKS = "▁▂▃▄▅▆▇█"
SPARK_WIDTH = 60
HEADINGS = ("loss", "tokens/s", "measured", "predicted", "full pipeline", "validation loss")
"""Of the live view."""


class Display:
    """Shows the events of a run; a context manager, since a live view has to be closed."""

    def __init__(self, console: Console, folder: str) -> None:
        """Show on `console`; `folder` is the name of the run's folder in messages."""
        self.folder = folder
        self.losses: list[float] = []
        self.plan: PlanReady | None = None
        self.iteration: IterationDone | None = None
        self.done = 0
        """iterations"""
        self.validation: ValidationDone | None = None
        self.summary: RunSummary | None = None
        self.changes: list[RunRecovered | RunJoined] = []
        """of who takes part"""
        self.progress = ProgressDisplay(console, line_every_s=math.inf)  # the events are its lines
        self.progress.begin("iteration")

    def __enter__(self) -> Self:
        self.progress.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.progress.__exit__(kind, error, at)

    def __call__(self, event: Event) -> None:
        """Show one event."""
        match event:
            case PlanReady():
                self.plan = event
            case RunResumed():
                self.done = event.iteration
            case RunRecovered() | RunJoined():
                self.done = event.iteration
                self.changes.append(event)
            case IterationDone():
                self.iteration, self.done = event, event.iteration
                self.losses.append(event.loss)
            case ValidationDone():
                self.validation = event
            case RunSummary():
                self.summary = event
        if not (self.progress.is_live and isinstance(event, IterationDone)):
            for line in self._lines(event):
                self.progress.write_line(line)
        if isinstance(event, PlanReady | RunResumed | IterationDone):
            total = None if self.plan is None else self.plan.iterations
            self.progress.update(self.done, f"{self.done}/{total or '?'}", total=total)
        self.progress.show_below(*self._details())

    @property
    def final_loss(self) -> float:
        """Validation loss at the end of the run."""
        assert self.summary is not None, "the run is complete"
        return self.summary.loss_after

    def _lines(self, event: Event) -> list[str]:
        if isinstance(event, WorkersStarting):
            return [f"starting {event.processes} processes; their logs and results go to {self.folder}"]
        lines = LINES.get(type(event))
        more = changes_lines(self.changes) if isinstance(event, RunSummary) else []
        return more if lines is None else [*lines(event), *more]

    def _details(self) -> list[RenderableType]:
        """Table and loss curve below the bar."""
        row = ["-"] * 6
        if self.iteration is not None:
            done = self.iteration
            row[:3] = [f"{done.loss:.4f}", f"{done.tokens_per_s:,.0f}", seconds(done.iteration_s)]
        if self.plan is not None:
            row[3:5] = [seconds(self.plan.predicted_s), seconds(self.plan.full.get("full"))]
        if self.validation is not None:
            row[5] = f"{self.validation.loss:.4f}"
        table = plain_table(HEADINGS, [row], left=(), gap=3)
        curve = [Text(f"loss {sparkline(self.losses, SPARK_WIDTH)}")] if len(self.losses) > 1 else []
        return [table, *curve]


def plan_lines(event: PlanReady) -> list[str]:
    """What is about to be trained, and how long an iteration should take."""
    layers = ", ".join(map(str, event.layers))
    model = (
        f"{event.model} of {event.parameters:,} parameters in {event.stages} stages of {layers} layers, "
        f"{event.nodes} nodes, {event.processes} processes"
    )
    work = (
        f"{event.strategy}, skip ratio {event.skip_ratio:.4g}: {event.microbatches} microbatches of "
        f"{event.microbatch_size} x {event.sequence} tokens, {event.training_tokens:,} tokens of text"
    )
    phases = phase_lines(event.phases, event.iterations)
    if event.transport:
        work += f"; messages by {event.transport}"
    if event.predicted_s is None:
        return [model, work, f"predicted iteration time: unknown ({event.prediction_note})", *phases]
    full = ", ".join(f"{name} {seconds(time)}" for name, time in event.full.items())
    predicted = f"predicted iteration time {seconds(event.predicted_s)} (full pipelines on this allocation: {full})"
    unverified = [f"unverified prediction: {event.prediction_note}"] if event.prediction_note else []
    return [model, work, predicted, *unverified, *phases]


def started_lines(event: WorkerStarted) -> list[str]:
    """Which process serves which nodes."""
    return [f"node {shown_names(event.names or [])}: rank {event.rank}, process {event.process}"]


def validation_lines(event: ValidationDone) -> list[str]:
    """One validation."""
    training = "" if event.training_loss is None else f", {event.training_loss:.4f} on training text"
    model = "full model" if event.stages is None else f"the model of stages {','.join(map(str, event.stages))}"
    if event.layers is not None:
        model = f"the model of layers {','.join(map(str, event.layers))}"
    over = f"({model}, {event.tokens:,} tokens)"
    return [f"validation loss {event.loss:.4f}{training} after {event.iteration} iterations {over}"]


def iteration_lines(event: IterationDone) -> list[str]:
    """One iteration."""
    routers = "" if event.router_loss is None else f"routers {event.router_loss:.4f}  "
    against = "" if event.predicted_s is None else f"predicted {seconds(event.predicted_s)}{ratios_text(event)}  "
    against += "" if event.mfu is None else f"MFU {percent(event.mfu)}  "
    norm = "overflow, no step" if event.norm is None else f"{event.norm:.3g}"
    line = (
        f"iteration {event.iteration:>4}  loss {event.loss:.4f}  {routers}{event.tokens_per_s:>8,.0f} tokens/s  "
        f"measured {seconds(event.iteration_s)}  {against}norm {norm}  rate {event.learning_rate:.3g}"
    )
    return [line]


def ratios_text(event: IterationDone) -> str:
    """By which factors measured times differ from predicted ones."""
    named = (("", event.iteration_ratio), ("tasks ", event.task_ratio), ("messages ", event.message_ratio))
    found = ", ".join(f"{name}x{ratio:.2f}" for name, ratio in named if ratio is not None)
    return f" ({found})" if found else ""


def resumed_lines(event: RunResumed) -> list[str]:
    """Where a run resumes, and which checkpoints were skipped."""
    plan = "the same plan" if event.plan_kept else "another plan"
    skipped = [f"skipped checkpoint: {reason}" for reason in event.damaged]
    return [*skipped, f"resumed after iteration {event.iteration} from {event.path}, with {plan}"]


def restarting_lines(event: RunRestarting) -> list[str]:
    """Why a run starts again."""
    first, *more = event.message.splitlines()
    return [f"{first}; starting again ({event.left} restarts left)", *more]


def recovered_lines(event: RunRecovered) -> list[str]:
    """Without whom a run goes on."""
    lost = f"lost node {shown_names(event.lost_names)}" if event.lost else "lost connections, but no node"
    predicted = "" if event.predicted_s is None else f", predicted iteration time {seconds(event.predicted_s)}"
    line = (
        f"{lost}: training goes on after iteration {event.iteration} with {event.processes} processes and "
        f"another plan{predicted}; it was interrupted for {seconds(event.seconds)}"
    )
    skipped = [f"all routes skip stage {stage} until a node that joins serves it" for stage in event.skipped]
    bent = [f"rules bent: {', '.join(event.bent_rules)}"] if event.skipped else []
    restored = restored_lines(event.restored, event.restored_by, event.restored_from)
    return [line, event.reason, *restored, *skipped, *bent]


def restored_lines(stages: Sequence[int], sources: Sequence[str], iterations: Sequence[int | None]) -> list[str]:
    """What stages that were lost come from."""
    return [
        f"stage {stage} restored from "
        + ("a mean of those beside it" if iteration is None else f"its {source} after iteration {iteration}")
        for stage, source, iteration in zip(stages, sources, iterations, strict=True)
    ]


def joined_lines(event: RunJoined) -> list[str]:
    """Who takes part in a run from here on."""
    by_stage = sorted(zip(event.stages, event.joined_names, strict=True), key=lambda each: (each[0] is None, each))
    nodes = "; ".join(
        f"node {shown_names([name for _, name in names])} serves {'no stage' if stage is None else f'stage {stage}'}"
        for stage, names in itertools.groupby(by_stage, key=lambda each: each[0])
    )
    predicted = "" if event.predicted_s is None else f", predicted iteration time {seconds(event.predicted_s)}"
    took = f"{seconds(event.planning_s)} for the plan and {seconds(event.moving_s)} for moving stages"
    interrupted = f"training was interrupted for {seconds(event.seconds)}, {took}"
    return [
        f"joined after iteration {event.iteration}: {nodes}",
        f"{event.processes} processes train by another plan{predicted}; {interrupted}",
        *restored_lines(event.restored, event.restored_by, event.restored_from),
    ]


def waiting_lines(event: RankWaiting) -> list[str]:
    """That this machine asks others to admit it."""
    return [f"others train already; node {shown_names(event.names)} asks to join after an iteration"]


def failed_lines(event: WorkerFailed) -> list[str]:
    """Who has failed before it has trained with the others, and why."""
    first, *more = event.message.splitlines()
    return [f"node {shown_names(event.names or [])} has failed, the others go on without it: {first}", *more]


def worker_restarting_lines(event: WorkerRestarting) -> list[str]:
    """Which node is about to come back."""
    return [f"node {shown_names(event.names)} is started again in {event.pause_s:g} s, to join the others"]


def stays_lost_lines(event: WorkerStaysLost) -> list[str]:
    """Which node does not come back, and why."""
    why = f"{event.retries} starts in a row have ended before it had trained an iteration (runtime.start_retries)"
    return [f"node {shown_names(event.names)} stays lost: {why}"]


def training_lines(event: RankTraining) -> list[str]:
    """That this machine trains while another one reports."""
    changes = [f"lost node {shown_names(event.lost_names)}"] if event.lost else []
    changes += [f"node {shown_names(event.joined_names)} joined"] if event.joined_names else []
    lost = f"{', '.join(changes)}: training goes on" if changes else "training"
    return [f"{lost}; node {shown_names(event.reporter_names)} shows how it proceeds"]


def checkpoint_lines(event: CheckpointSaved) -> list[str]:
    """One complete checkpoint."""
    size, took, blocked = event.bytes / 1e6, seconds(event.seconds), seconds(event.blocked_s)
    return [
        f"checkpoint after iteration {event.iteration}: {size:,.1f} MB in {took}, training was blocked for {blocked}"
    ]


def failed_checkpoint_lines(event: CheckpointFailed) -> list[str]:
    """One checkpoint that could not be written."""
    return [f"no checkpoint after iteration {event.iteration}: {event.message}"]


def failed_log_lines(event: LogFailed) -> list[str]:
    """What is no longer logged."""
    return [f"{event.message}; training continues"]


def stopped_lines(event: RunStopped) -> list[str]:
    """The end of a run that was asked to stop."""
    saved = "the same command resumes from there" if event.saved else "nothing was saved (checkpoint.enabled=false)"
    return [f"stopped on request after iteration {event.iteration}; {saved}"]


def summary_lines(event: RunSummary) -> list[str]:
    """Losses of the run, and how good the prediction was."""
    loss = f"validation loss {event.loss_before:.4f} before, {event.loss_after:.4f} after {event.iterations} iterations"
    predicted_s, measured_s = event.predicted_s, event.measured_s
    if measured_s is None:
        return [loss, *event.reasons]
    if predicted_s is None:
        return [loss, f"iteration time {seconds(measured_s)} (median) on {event.device}", *utilization_lines(event)]
    off = percent(measured_s / predicted_s - 1.0) if predicted_s else "-"
    times = f"iteration time: predicted {seconds(predicted_s)}, measured {seconds(measured_s)} (median; off by {off})"
    return [loss, times, *(f"  {reason}" for reason in event.reasons), *utilization_lines(event)]


def changes_lines(changes: Sequence[RunRecovered | RunJoined]) -> list[str]:
    """How many nodes were lost in a run, how many have joined, and for how long it was interrupted."""
    if not changes:
        return []
    lost = sum(len(change.lost_names) for change in changes if isinstance(change, RunRecovered))
    joined = sum(len(change.joined_names) for change in changes if isinstance(change, RunJoined))
    # Where both happen at once they report the same interruption.
    seconds_by_generation = {change.attempt: change.seconds for change in changes}
    interrupted = seconds(sum(seconds_by_generation.values()))
    return [f"nodes lost: {lost}, joined: {joined}; training was interrupted for {interrupted} in all"]


def utilization_lines(event: RunSummary) -> list[str]:
    """How well the device was utilized, and where its time went."""
    lines = []
    if event.mfu is not None:
        lines.append(f"MFU {percent(event.mfu)} over executed operations (median)")
    if event.peak_memory:
        sizes = ", ".join(f"{size / GIBIBYTE:.2f}" for size in event.peak_memory)
        lines.append(f"peak memory of the GPU, by rank: {sizes} GiB")
    if event.breakdown is not None:
        shares = ", ".join(f"{kind} {percent(share)}" for kind, share in event.breakdown.shares.items())
        lines.append(f"time breakdown over {event.breakdown.iterations} iterations: {shares}")
    return lines


def changed_lines(event: PlanChanged) -> list[str]:
    """The next phase of the run."""
    if event.previous_s is not None:
        times = f"{seconds(event.predicted_s)} instead of {seconds(event.previous_s)}"
        moved = f", stages {_numbers(event.moved_stages)} moved to other nodes" if event.moved_stages else ""
        return [f"from iteration {event.iteration} on: another plan, predicted to take {times}{moved}"]
    used = stages_text(event.stages, event.stages_in_all)
    bent = f" ({', '.join(event.bent_rules)})" if event.bent_rules else ""
    line = f"from iteration {event.iteration} on: stages {used}, skip ratio {event.skip_ratio:.4g}, own plan{bent}"
    how = "as copies of layers in use" if event.copied else "with their initial weights"
    done = [f"layers {_numbers(event.new_layers)} joined {how}"] if event.new_layers else []
    done += [f"stages {_numbers(event.moved_stages)} moved to other nodes"] if event.moved_stages else []
    predicted = "" if event.predicted_change_s is None else f" (predicted {seconds(event.predicted_change_s)})"
    blocked = f"training was blocked for {seconds(event.seconds)}{predicted}"
    return [line, f"{', '.join(done)}; {blocked}"] if done else [line]


def searched_lines(event: PlanSearched) -> list[str]:
    """A search that has found nothing worth a change; what is taken is shown when it is used."""
    if event.taken:
        return []
    found = "no plan was found" if event.found_s is None else f"the best plan found takes {seconds(event.found_s)}"
    if event.refused is not None:
        found = f"the plan found cannot be used ({event.refused.splitlines()[0].rstrip(':')})"
    line = f"iteration {event.iteration}: on the nodes and links as measured this plan takes {seconds(event.current_s)}"
    return [f"{line}, {found}; the plan stays"]


def _numbers(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers))


GIBIBYTE = 2**30

LINES: dict[type[Event], Callable[[Any], list[str]]] = {
    WorkerStarted: started_lines,
    WorkerFailed: failed_lines,
    WorkerRestarting: worker_restarting_lines,
    WorkerStaysLost: stays_lost_lines,
    PlanReady: plan_lines,
    RunRestarting: restarting_lines,
    RunRecovered: recovered_lines,
    RunJoined: joined_lines,
    RankTraining: training_lines,
    RankWaiting: waiting_lines,
    RunResumed: resumed_lines,
    PlanChanged: changed_lines,
    PlanSearched: searched_lines,
    IterationDone: iteration_lines,
    ValidationDone: validation_lines,
    CheckpointSaved: checkpoint_lines,
    CheckpointFailed: failed_checkpoint_lines,
    LogFailed: failed_log_lines,
    RunStopped: stopped_lines,
    RunSummary: summary_lines,
}
"""What events show as text; others show nothing."""


def sparkline(values: list[float], width: int) -> str:
    """Draw values as a row of bars, the latest last; at most `width`, each the mean of its bin."""
    count = min(width, len(values))
    means = []
    for i in range(count):
        part = values[i * len(values) // count : (i + 1) * len(values) // count]
        means.append(sum(part) / len(part))
    low, high = min(means), max(means)
    scale = (len(SPARKS) - 1) / (high - low) if high > low else 0.0
    return "".join(SPARKS[round((mean - low) * scale)] for mean in means)
