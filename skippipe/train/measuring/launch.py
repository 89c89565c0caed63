"""`skippipe measure` from its settings to a cluster file: alone, or as a rank under torchrun."""

import dataclasses
import json
import os
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

from skippipe._scheduler import Cluster
from skippipe.console.output import Console
from skippipe.console.progress import ProgressDisplay
from skippipe.context import Context
from skippipe.errors import SchedulerError, from_origin, unexpected
from skippipe.files import check_writable, write_text
from skippipe.presets import configured_cluster
from skippipe.ranks import node_title
from skippipe.report.cluster import show_cluster
from skippipe.train.connect.rank_spec import assign_nodes, torchrun_rank, under_torchrun
from skippipe.train.launch.ending import ending_in_order
from skippipe.train.launch.supervisor import local_machine, run_workers
from skippipe.train.launch.workers import Work
from skippipe.train.measuring.config import MeasureJob
from skippipe.train.measuring.spec import MeasureSpec, ProfileSpec
from skippipe.train.observe.events import ClusterMeasured, Event, MeasuringProgress
from skippipe.train.resolve.resolve import communication_of, precision_of, select
from skippipe.train.resolve.spec import DeviceSpec, LaunchSpec


def launch(job: MeasureJob, context: Context) -> float:
    """Measure as settings and environment ask for; returns the longest time of forward and backward, in seconds.

    On ranks other than 0 it is 0.

    Raises:
        InputError: settings or an environment that cannot be used.
        SchedulerError: measuring failed; the message names the node.

    """
    spec = resolve(job)
    output = context.output(job.output)
    with ending_in_order():
        if under_torchrun():
            return _one_rank(spec, output, context)
        if spec.launch.node is not None:
            raise unexpected("runtime.node", spec.launch.node, "null where no torchrun has set RANK and WORLD_SIZE")
        names_by_rank = assign_nodes(spec.network.names, spec.launch.processes)
        with (
            tempfile.TemporaryDirectory(prefix="skippipe-measure-") as folder,
            Outcome(output, context) as outcome,
            local_machine(names_by_rank, spec.launch.port) as machine,
        ):
            work = Work("skippipe.train.measuring.rank:measure_rank", spec, spec.model)
            run_workers(work, machine, Path(folder), outcome)
        return outcome.show()


def resolve(job: MeasureJob) -> MeasureSpec:
    """Resolve the settings of a measurement.

    Raises:
        InputError: settings or files that cannot be used.

    """
    runtime = job.runtime
    network = configured_cluster(job.cluster)
    # Launch and memory may differ between ranks.
    own = {"node", "processes", "port", "threads", "memory_bytes", "restarts", "rejoin", "start_retries"}
    compared = {
        "data": dataclasses.asdict(job.data),
        "train": dataclasses.asdict(job.train),
        "runtime": {name: value for name, value in dataclasses.asdict(runtime).items() if name not in own},
        "stages": job.stages,
        "cluster": network.to_json(),
    }
    return MeasureSpec(
        profile=ProfileSpec(
            microbatch_size=job.train.microbatch_size,
            sequence=job.data.sequence,
            precision=precision_of(job.train.dtype, runtime),
            device=select(DeviceSpec, runtime),
            communication=communication_of(runtime),
            memory_bytes=runtime.memory_bytes,
            stages=job.stages,
        ),
        model=job.model,
        network=network,
        launch=LaunchSpec(runtime.node, runtime.processes, runtime.port, runtime.threads, folder=None),
        settings={name: json.dumps(value, sort_keys=True) for name, value in compared.items()},
    )


def _one_rank(spec: MeasureSpec, output: Path | None, context: Context) -> float:
    """Be one rank of a job that torchrun has started; rank 0 shows and writes."""
    # Torch would log where in its sources a call failed; the message comes with the error.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    from skippipe.train.measuring.rank import measure_rank  # noqa: PLC0415 - imports torch, unlike the supervisor

    rank_spec = torchrun_rank(spec.launch.node)
    try:
        if rank_spec.rank:
            measure_rank(spec, rank_spec, lambda _: None)
            return 0.0
        with Outcome(output, context) as outcome:
            measure_rank(spec, rank_spec, outcome)
    except SchedulerError as error:
        raise from_origin(error, node_title(rank_spec.names, rank_spec.rank)) from error
    return outcome.show()


class Outcome:
    """Shows the progress of a measurement, and writes and shows its result; a context manager, as its bar is."""

    def __init__(self, output: Path | None, context: Context) -> None:
        """Write to `output`, if any; raises `InputError` if that is not possible."""
        if output is not None:
            check_writable(output)
        self._output = output
        self._shown = "" if output is None else context.shown(output)
        self._progress = ProgressDisplay(Console(stderr=True))
        self._cluster: Cluster | None = None

    def __enter__(self) -> Self:
        self._progress.__enter__()
        self._progress.begin("measuring")
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._progress.__exit__(kind, error, at)

    def __call__(self, event: Event) -> None:
        """Take an event of rank 0."""
        match event:
            case MeasuringProgress():
                self._progress.update(event.done, f"{event.done}/{event.total}: {event.what}", total=event.total)
            case ClusterMeasured():
                self._cluster = Cluster.from_json(event.cluster)

    def show(self) -> float:
        """Write and show the cluster; returns the longest time of forward and backward, in seconds."""
        assert self._cluster is not None, "all ranks are done"
        if self._output is not None:
            write_text(self._output, self._cluster.to_json())
        console = Console()
        show_cluster(self._cluster, console)
        if self._output is not None:
            console.write_line(f"written to {self._shown}")
        return float(max(self._cluster.forward_s + self._cluster.backward_s))
