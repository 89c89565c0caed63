"""Events of a run, one JSON object a line; the only place that writes and reads them. No torch.

Rank 0 reports how training proceeds, and `metrics.jsonl` keeps what it reports; `docs/files.md` lists the fields of the
file. The supervisor of a local run adds events about its processes, and any worker may report its failure.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, ClassVar

from skippipe.errors import unexpected
from skippipe.phases import PhaseSummary

NON_FINITE = "not_finite"
"""Key of an event for its non-finite numbers, by their dotted keys."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """What all events have. Fields whose default is None are omitted from the JSON while they are None."""

    kind: ClassVar[str]
    """value of the key `event`"""
    attempt: int | None = None
    """number of the attempt, from 1; set by the run log"""


Report = Callable[[Event], None]


@dataclass(frozen=True, kw_only=True)
class AttemptStarted(Event):
    """A start in the folder of a run; it voids what earlier attempts reported of later iterations."""

    kind = "attempt"
    iteration: int
    """the attempt continues after this one"""
    time: str
    """ISO 8601, UTC"""


@dataclass(frozen=True)
class RunFiles:
    """Files of the run's folder that hold for an attempt."""

    plans: dict[str, str]
    """by the iterations before each plan"""
    cluster: str
    settings: str


@dataclass(frozen=True, kw_only=True)
class PlanReady(Event):
    """What is about to be trained, and by which plan."""

    kind = "plan"
    strategy: str
    skip_ratio: float
    stages: int
    nodes: int
    """nodes that serve a stage"""
    microbatches: int
    """per iteration"""
    microbatch_size: int
    """sequences"""
    sequence: int
    """tokens"""
    predicted_s: float | None
    """predicted iteration time; None: the plan's times do not hold for this run"""
    lower_bound_s: float | None
    prediction_note: str
    """why there is no prediction, or what is unverified about it; may be empty"""
    full: dict[str, float | None]
    """predicted iteration time of full pipelines on the same allocation, by strategy"""
    model: str
    """model_type"""
    parameters: int
    layers: list[int]
    """decoder layers per stage"""
    processes: int
    training_tokens: int
    """tokens of the training text"""
    iterations: int
    recv_buffers: int
    transport: str = ""
    """how messages travel between processes; empty: there is only one, or they do not run yet"""
    device: str
    files: RunFiles | None = None
    phases: Sequence[PhaseSummary] = ()


@dataclass(frozen=True, kw_only=True)
class RunResumed(Event):
    """Training continues from a checkpoint."""

    kind = "resumed"
    iteration: int
    path: str
    damaged: list[str]
    """why newer checkpoints were skipped"""
    plan_kept: bool


@dataclass(frozen=True, kw_only=True)
class PlanChanged(Event):
    """The next phase of the run begins with this iteration, or another plan within a phase."""

    kind = "plan_changed"
    iteration: int
    skip_ratio: float
    strategy: str
    predicted_s: float | None
    stages: list[int]
    """in use"""
    stages_in_all: int
    moved_stages: list[int]
    """stages that other ranks serve than before"""
    new_layers: list[int]
    """decoder layers that join"""
    bent_rules: list[str]
    """the rules CC1 to TC2 that the phase bends, and the stages that it goes without"""
    copied: bool
    """whether these are copies of layers in use"""
    seconds: float
    """that the change has taken"""
    predicted_change_s: float | None
    """predicted for moves and copies; None: the plan's times do not hold for this run"""
    plan_file: str | None = None
    previous_s: float | None = None
    """within a phase: what an iteration of the plan before was to take by then; None: a phase begins"""


@dataclass(frozen=True, kw_only=True)
class PlanSearched(Event):
    """Another plan was searched for nodes and links as measured."""

    kind = "plan_searched"
    iteration: int
    """iterations done"""
    current_s: float
    """iteration time of the plan in use, on the cluster as measured"""
    found_s: float | None
    """of the plan that was found; None: none was"""
    change_s: float | None
    """predicted for the change to it"""
    taken: bool
    refused: str | None = None
    """why a plan that was found could not be used: it may deadlock"""


@dataclass(frozen=True, kw_only=True)
class IterationDone(Event):
    """One iteration."""

    kind = "iteration"
    iteration: int
    loss: float
    """mean over tokens, nats, without router losses"""
    tokens: int
    tokens_per_s: float
    """over the time since the iteration before has ended"""
    iteration_s: float
    """from the start to the end of the last rank's step"""
    norm: float | None
    """of the gradient of the full model, before clipping; None: it overflowed, and no step was taken"""
    learning_rate: float
    router_loss: float | None = None
    predicted_s: float | None = None
    iteration_ratio: float | None = None
    """measured over predicted time"""
    task_ratio: float | None = None
    """the same, summed over the tasks of all nodes"""
    message_ratio: float | None = None
    """the same, summed over the messages that were seen to arrive"""
    mfu: float | None = None
    """model FLOPs utilization"""
    loss_scale: float | None = None
    """None: losses are not scaled"""


@dataclass(frozen=True, kw_only=True)
class ValidationDone(Event):
    """Losses of the full model, or of its stages in use."""

    kind = "validation"
    iteration: int
    """iterations before"""
    loss: float
    """mean over tokens of the validation text, nats"""
    tokens: int
    training_loss: float | None = None
    """the same on as much of the training text"""
    stages: list[int] | None = None
    """in use; None: all of them"""
    layers: list[int] | None = None
    """decoder layers in use, where a phase leaves some of its stages' layers out; None: all of the stages in use"""


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint is complete."""

    kind = "checkpoint"
    iteration: int
    path: str
    blocked_s: float
    """how long training was blocked for it"""
    seconds: float
    """time to write it, in the background"""
    bytes: int


@dataclass(frozen=True, kw_only=True)
class CheckpointFailed(Event):
    """A checkpoint could not be written."""

    kind = "checkpoint_failed"
    iteration: int
    path: str
    message: str


@dataclass(frozen=True, kw_only=True)
class LogFailed(Event):
    """A file of the run can no longer be written."""

    kind = "unrecorded"
    message: str


@dataclass(frozen=True, kw_only=True)
class RunStopped(Event):
    """The run was asked to stop and ended after this iteration."""

    kind = "stopped"
    iteration: int
    saved: bool
    signal: str
    """that asked some rank"""


@dataclass(frozen=True)
class TimeBreakdown:
    """Where the time of some iterations went, on the device."""

    iterations: int
    seconds: float
    """wall time of one"""
    shares: dict[str, float]
    """of that time by kind of work, `idle` where the device waited; the largest first"""
    slowest: list[tuple[str, float]]
    """slowest kernels and their shares"""


@dataclass(frozen=True, kw_only=True)
class RunSummary(Event):
    """A run that has completed all its iterations."""

    kind = "summary"
    iterations: int
    loss_before: float
    """of the attempt's first validation"""
    loss_after: float
    predicted_s: float | None
    """of the last phase"""
    measured_s: float | None
    """median iteration time of the last phase; None: no iteration was left to train"""
    reasons: list[str]
    """why the two differ"""
    device: str
    peak_memory: list[int] = field(default_factory=list)
    """bytes allocated on each rank's GPU; empty: some ranks have none"""
    mfu: float | None = None
    """median"""
    breakdown: TimeBreakdown | None = None


@dataclass(frozen=True, kw_only=True)
class RunEnded(Event):
    """How an attempt ended; written by the process that started it."""

    kind = "run_ended"
    iteration: int | None
    """the latest one reported"""
    outcome: str
    """finished, stopped or failed"""
    signal: str | None = None
    error: str | None = None
    message: str | None = None


@dataclass(frozen=True, kw_only=True)
class WorkersStarting(Event):
    """The supervisor of a local run starts its processes."""

    kind = "starting"
    processes: int


@dataclass(frozen=True, kw_only=True)
class WorkerStarted(Event):
    """A process of a local run exists."""

    kind = "started"
    rank: int
    process: int
    names: list[str] | None = None
    """nodes that it serves; set by the supervisor"""


@dataclass(frozen=True, kw_only=True)
class WorkerEnded(Event):
    """A process of a local run has ended."""

    kind = "ended"
    rank: int
    status: int
    """exit status, negative for a signal"""
    names: list[str] | None = None


@dataclass(frozen=True, kw_only=True)
class WorkerFailed(Event):
    """A process of a local run cannot continue."""

    kind = "failed"
    status: int
    """exit status that fits the error"""
    message: str
    cause: str
    """class of the error behind it"""
    input: dict[str, Any] | None = None
    """fields of an `InputError`"""
    withdrawn: bool = False
    """whether it had not trained yet with others, who go on without it"""
    names: list[str] | None = None
    """nodes that it serves; set by the supervisor"""


@dataclass(frozen=True, kw_only=True)
class WorkerRestarting(Event):
    """A process of a local run that was lost is about to be started again, and will ask the others to admit it."""

    kind = "worker_restarting"
    rank: int
    names: list[str]
    """nodes that it serves"""
    pause_s: float
    """until then"""


@dataclass(frozen=True, kw_only=True)
class WorkerStaysLost(Event):
    """A process of a local run is not started again: that has come to nothing too often."""

    kind = "worker_stays_lost"
    rank: int
    names: list[str]
    """nodes that it served"""
    retries: int
    """starts in a row after which it has not trained"""


@dataclass(frozen=True, kw_only=True)
class WorkerInterrupted(Event):
    """A process of a local run could not go on for the loss of another one."""

    kind = "interrupted"
    rank: int
    """at the start of the run"""
    message: str
    """what failed, with the last actions"""
    stack: str
    """of its main thread, when it learnt of the loss"""


@dataclass(frozen=True, kw_only=True)
class RankTraining(Event):
    """A rank trains from here on: at the start, and again whenever the ranks have regrouped without lost ones."""

    kind = "training"
    rank: int
    """at the start of the run"""
    reporter: int
    """the rank that reports from here on, by the same numbering"""
    reporter_names: list[str]
    """nodes that it serves"""
    predicted_s: float | None
    """predicted iteration time"""
    lost: list[int] = field(default_factory=list)
    """ranks without which the others go on, by the same numbering"""
    lost_names: list[str] = field(default_factory=list)
    """nodes that they served"""
    joined_names: list[str] = field(default_factory=list)
    """nodes that have joined"""


@dataclass(frozen=True, kw_only=True)
class RankWaiting(Event):
    """A process asks those that train to admit it."""

    kind = "rank_waiting"
    rank: int
    """as its own supervisor knows it"""
    names: list[str]
    """nodes that it serves"""


@dataclass(frozen=True, kw_only=True)
class RankStopped(Event):
    """A rank was asked to stop, itself or through another one, and ends in order."""

    kind = "rank_stopped"
    rank: int
    """at the start of the run"""


@dataclass(frozen=True, kw_only=True)
class RunRestarting(Event):
    """A local run has lost a process, and starts again from its latest checkpoint."""

    kind = "restarting"
    message: str
    """why the attempt failed"""
    left: int
    """restarts that are left after this one"""


@dataclass(frozen=True, kw_only=True)
class RunRecovered(Event):
    """The run goes on without some of its processes; the first event after `attempt`."""

    kind = "recovered"
    iteration: int
    """iterations done, on all ranks; the next one is redone if it had begun"""
    lost: list[int]
    """ranks at the start of the run"""
    lost_names: list[str]
    """the nodes that they served"""
    reason: str
    """why, as the rank that reports has learnt it first"""
    restored: list[int] = field(default_factory=list)
    """stages that were lost with them, and restored"""
    restored_by: list[str] = field(default_factory=list)
    """what each of them comes from: `copy`, `checkpoint` or `average`, a mean of the stages beside it"""
    restored_from: list[int | None] = field(default_factory=list)
    """iterations before that copy or checkpoint; None for a mean"""
    skipped: list[int] = field(default_factory=list)
    """stages that all routes skip, as all of their nodes were lost, now or before"""
    bent_rules: list[str] = field(default_factory=list)
    """the rules CC1 to TC2 that the new plan bends, and the stages that it goes without"""
    processes: int
    """that are left"""
    predicted_s: float | None
    """iteration time of the new plan; None: its times do not hold for this run"""
    planning_s: float
    """that the new plan has taken"""
    moving_s: float = 0.0
    """that weights and optimizer state have taken to where the new plan needs them"""
    seconds: float
    """from the first rank's notice of the loss to the first action of the next iteration"""
    plan_files: dict[str, str]
    """by the iterations before each plan"""


@dataclass(frozen=True, kw_only=True)
class RunJoined(Event):
    """Other processes take part in the run from here on; after `attempt`, or after `recovered`."""

    kind = "joined"
    iteration: int
    """iterations done; none is redone"""
    joined: list[int]
    """numbers of the processes, which follow on the ranks at the start of the run"""
    joined_names: list[str]
    """the nodes that they serve"""
    stages: list[int | None]
    """of these nodes, in the last phase that has work for a node; None: there is none"""
    restored: list[int] = field(default_factory=list)
    """stages that all routes have skipped, and that they serve again"""
    restored_by: list[str] = field(default_factory=list)
    """what each of them comes from: `copy`, `checkpoint` or `average`, a mean of the stages beside it"""
    restored_from: list[int | None] = field(default_factory=list)
    """iterations before that copy or checkpoint; None for a mean"""
    processes: int
    """that take part now"""
    predicted_s: float | None
    """iteration time of the new plan; None: its times do not hold for this run"""
    planning_s: float
    """that the new plan has taken"""
    moving_s: float
    """that weights and optimizer state have taken to where the new plan needs them"""
    seconds: float
    """from the end of the iteration to the first action of the next one"""
    plan_files: dict[str, str]
    """by the iterations before each plan"""


@dataclass(frozen=True, kw_only=True)
class MeasuringProgress(Event):
    """How far `skippipe measure` is; in no file."""

    kind = "measuring"
    done: int
    """steps"""
    total: int
    what: str
    """that is being measured"""


@dataclass(frozen=True, kw_only=True)
class ClusterMeasured(Event):
    """What `skippipe measure` has found; in no file."""

    kind = "measured"
    cluster: str
    """as JSON text"""


OF_RANKS = (RankTraining, RankWaiting, RankStopped, WorkerFailed, WorkerInterrupted)
"""What every rank tells its own supervisor, beside what the one that reports tells of the run."""


def without_supervisor(report: Report) -> Report:
    """The same report without what is for supervisors alone."""

    def reporting(event: Event) -> None:
        if not isinstance(event, OF_RANKS):
            report(event)

    return reporting


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}
"""By their kinds."""
_NESTED: dict[str, type[Any]] = {"files": RunFiles, "breakdown": TimeBreakdown}


def to_json(event: Event) -> str:
    """One line of JSON, without its end; a number that is not finite becomes null, and `not_finite` says which."""
    values = asdict(event)
    omitted = {item.name for item in fields(event) if item.default is None and values[item.name] is None}
    attempt = values.pop("attempt")
    content = {"event": event.kind} | {name: value for name, value in values.items() if name not in omitted}
    if attempt is not None:
        content["attempt"] = attempt
    odd: dict[str, str] = {}
    plain: dict[str, Any] = _without_non_finite(content, "", odd)
    return json.dumps(plain | {NON_FINITE: odd} if odd else plain, allow_nan=False)


def _without_non_finite(value: Any, path: str, odd: dict[str, str]) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        odd[path] = "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
        return None
    if isinstance(value, dict):
        return {
            key: _without_non_finite(item, f"{path}.{key}" if path else str(key), odd) for key, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_without_non_finite(item, f"{path}.{number}", odd) for number, item in enumerate(value)]
    return value


def from_json(line: str | bytes) -> Event | None:
    """Read one line; unknown fields are ignored. None: the line is torn, or its kind is unknown.

    Raises:
        InputError: the event lacks a field.

    """
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return None
    kind = content.get("event") if isinstance(content, dict) else None
    event = EVENTS.get(kind) if isinstance(kind, str) else None
    if event is None:
        return None
    for path, number in content.get(NON_FINITE, {}).items():
        _put(content, path.split("."), float(number))
    values = {name: _nested(name, value) for name, value in _known(event, content).items()}
    for item in fields(event):
        if item.default is MISSING and item.name not in values:
            raise unexpected(f"event {kind}", "none", f"a field {item.name!r}")
    return event(**values)


def _put(content: Any, path: list[str], number: float) -> None:
    """Put a number where `to_json` has put null."""
    *parents, last = path
    for key in parents:
        content = content[int(key) if isinstance(content, list) else key]
    content[int(last) if isinstance(content, list) else last] = number


def _known(event: type[Any], content: Mapping[str, Any]) -> dict[str, Any]:
    return {item.name: content[item.name] for item in fields(event) if item.name in content}


def _nested(name: str, value: Any) -> Any:
    if name == "phases":
        return tuple(PhaseSummary(**_known(PhaseSummary, phase)) for phase in value)
    return _NESTED[name](**_known(_NESTED[name], value)) if name in _NESTED and value is not None else value


def read_events(lines: Iterable[str]) -> list[Event]:
    """Read the lines of a `metrics.jsonl`; torn ones are skipped. Raises `InputError` where an event lacks a field."""
    return [event for event in map(from_json, lines) if event is not None]


class EventWriter:
    """Writes events to a pipe, each in one piece."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def __call__(self, event: Event) -> None:
        """Write one event; a missing reader is no error here: the process notices it otherwise."""
        line = memoryview((to_json(event) + "\n").encode())
        try:
            while line:
                line = line[os.write(self.descriptor, line) :]
        except BrokenPipeError:
            pass


class EventReader:
    """Assembles events from the chunks that a pipe delivers."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[Event]:
        """Take bytes, give the events that are complete."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [event for event in map(from_json, lines) if event is not None]
