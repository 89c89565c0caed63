"""`skippipe train` and `skippipe node` from their settings to a finished run, or only checked.

A run that is asked to stop, by Ctrl-C, SIGTERM, SIGHUP or SIGUSR1, ends after its iteration with a checkpoint: by
`KeyboardInterrupt` after Ctrl-C, by `SystemExit` without an error after the others. One that has not trained yet ends
at once, by `KeyboardInterrupt` or by `SystemExit` with the status that a shell gives to the signal.
"""

import os
import signal
from pathlib import Path

from skippipe.checkpoint.key import load_key
from skippipe.console.output import Console
from skippipe.console.streams import report_error
from skippipe.context import Context
from skippipe.data.prepare import check_input
from skippipe.errors import SIGNALLED, SchedulerError, from_origin, unexpected
from skippipe.ranks import node_title
from skippipe.train.config import NodeJob, TrainJob
from skippipe.train.connect.rank_spec import (
    assign_nodes,
    check_node,
    check_single_process,
    torchrun_rank,
    under_torchrun,
)
from skippipe.train.launch.ending import ending_in_order, restarting, stopped
from skippipe.train.launch.node import train_node
from skippipe.train.launch.run_folder import check_checkpoints, run_folder
from skippipe.train.launch.supervisor import train_locally
from skippipe.train.observe.display import Display
from skippipe.train.observe.events import Report, without_supervisor
from skippipe.train.observe.run_log import logged_end
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import RunSpec
from skippipe.train.signals import end_torchrun, outlasting_terminal


def launch(job: TrainJob, context: Context) -> float:
    """Train as the settings and the environment ask for; returns the validation loss at the end.

    Raises:
        InputError: settings, files or an environment that cannot be used.
        SchedulerError: training failed; the message names the node.

    """
    if job.checkpoint.key is not None:
        load_key(job.checkpoint.key)
    spec = resolve(job)
    if job.dry_run:
        from skippipe.train.launch.dry_run import dry_run  # noqa: PLC0415 - imports torch, unlike the supervisor

        dry_run(spec, Console())
        return 0.0
    check_input(spec.data.text)
    with ending_in_order():
        if isinstance(job, NodeJob):
            return train_node(spec, job.rendezvous, context)
        return _one_rank(spec, context) if under_torchrun() else _alone(spec, context)


def _alone(spec: RunSpec, context: Context) -> float:
    """Train with our own processes on this machine."""
    if spec.launch.node is not None:
        expected, hint = "null where no torchrun has set RANK and WORLD_SIZE", "skippipe node is one machine of several"
        raise unexpected("runtime.node", spec.launch.node, expected, hint=hint)
    names_by_rank = assign_nodes(spec.layout.used, spec.launch.processes)
    check_single_process(spec, len(names_by_rank))
    with run_folder(spec, context) as folder, Display(Console(), context.shown(folder)) as display:

        def attempt(report: Report) -> signal.Signals | None:
            verified = check_checkpoints(folder, context.shown(folder), spec.checkpoints.key)
            return train_locally(spec, names_by_rank, folder, report, verified)

        stopped_by = restarting(attempt, spec.launch.restarts, folder, outlasting_terminal(display))
        if stopped_by is None:
            return display.final_loss
    raise stopped(stopped_by)


def _one_rank(spec: RunSpec, context: Context) -> float:
    """Be one rank of a job that torchrun has started; rank 0 shows and logs."""
    # Torch would log where in its sources a call failed; the message comes with the error.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")
    # These import torch, unlike the supervisor.
    from skippipe.train.connect.attempt import PeerStoppedError  # noqa: PLC0415
    from skippipe.train.rank import train_rank  # noqa: PLC0415

    check_node(spec.launch.node, spec.layout.cluster.names)
    rank_spec = torchrun_rank(spec.launch.node)
    check_single_process(spec, rank_spec.world)
    title, loss = node_title(rank_spec.names, rank_spec.rank), 0.0
    try:
        if rank_spec.rank:
            stopped_by = train_rank(spec, rank_spec, Path(), lambda _: None)
        else:
            with (
                run_folder(spec, context) as folder,
                Display(Console(), context.shown(folder)) as display,
                logged_end(folder, outlasting_terminal(display)) as log,
            ):
                log.stopped_by = stopped_by = train_rank(spec, rank_spec, folder, without_supervisor(log.report))
                loss = display.final_loss if stopped_by is None else 0.0
    except PeerStoppedError as error:
        report_error("train", error, f"{title}:")
        end_torchrun()
        raise SystemExit(SIGNALLED + signal.SIGTERM) from None
    except SchedulerError as error:
        raise from_origin(error, title) from error
    if stopped_by is not None:
        end_torchrun()
        raise stopped(stopped_by)
    return loss
