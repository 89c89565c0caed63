"""One rank of a run, from the rendezvous to the end: connect, prepare, loop; rank 0 reports.

The same for a worker of a local run and a rank under torchrun.
"""

import contextlib
import signal
from pathlib import Path
from typing import Any

import torch

from skippipe.data.prepare import corpus_folder
from skippipe.devices import open_device
from skippipe.model.folder import weights_sha256
from skippipe.model.settings import model_config
from skippipe.plan_file import plan_sha256
from skippipe.ranks import assign_ranks
from skippipe.train.connect.authentication import authenticate
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.connect.rendezvous import join
from skippipe.train.connect.shared import with_version_and_model
from skippipe.train.membership.members import watched
from skippipe.train.observe.events import Report
from skippipe.train.observe.run_log import Reporting
from skippipe.train.prepare.prepare import is_source, prepare_rank
from skippipe.train.prepare.resume import find_resume_point
from skippipe.train.prepare.search import with_searched_allocation
from skippipe.train.prepare.stages import check_groups, message_spec_of
from skippipe.train.recovery import train_to_the_end
from skippipe.train.resolve.spec import RunSpec


def train_rank(
    spec: RunSpec, rank_spec: RankSpec, folder: Path, report: Report, text: Path | None = None
) -> signal.Signals | None:
    """Be one rank of a run from the beginning to the end.

    Args:
        spec: the run, the same on all ranks but for `launch` and the paths of files.
        rank_spec: which rank, which nodes, and where the others are.
        folder: of the run; rank 0 writes there.
        report: takes the events of rank 0; on other ranks none.
        text: folder of the prepared text; None: it is prepared here, if this rank reads it.

    Returns:
        None if all iterations are done; else the signal that asked the run to stop.

    Raises:
        InputError: settings, files or names that cannot be used, or that differ between ranks.
        SchedulerError: a rank did not join, a message did not arrive, training diverged.

    """
    torch.set_num_threads(spec.launch.threads)
    config = model_config(spec.model.settings)
    check_groups(spec, config)
    device = open_device(
        spec.device.device, "runtime.device", rank_spec.local_rank, deterministic=spec.device.deterministic
    )
    with (
        join(rank_spec, spec.communication, spec.layout.cluster.names) as joined,
        contextlib.ExitStack() as stack,
    ):
        authenticate(joined, spec.checkpoints.key)
        joined.check_equal("settings", shared_settings(spec, config))
        members = stack.enter_context(watched(joined, spec.communication)) if joined.world > 1 else None
        rendezvous = joined if members is None else members.rendezvous
        resume = find_resume_point(spec.checkpoints, folder, rendezvous)
        rank_of = assign_ranks(spec.layout.cluster.names, rendezvous.names_by_rank, spec.layout.unused)
        message_spec = message_spec_of(config, spec.data.microbatch_size, spec.data.sequence, spec.precision, device)
        links = open_links(spec.communication, spec.layout.cluster, rendezvous, message_spec, rank_of, stack)
        spec = with_searched_allocation(spec, config, rendezvous, links, message_spec, rank_of, resume)
        if text is None and is_source(spec, rendezvous):
            text = stack.enter_context(corpus_folder(spec.data.text))
        reporting = stack.enter_context(contextlib.closing(Reporting(resume.directory.folder.parent, report)))
        reporting.begin(rendezvous.rank, resume.progress.iteration)
        loop = prepare_rank(spec, config, message_spec, rendezvous, resume, rank_of, links, text, reporting)
        recover = rank_spec.launcher.lets_survivors_live and spec.communication.recover
        return train_to_the_end(loop, members, reporting, resume.directory, recover=recover)


def shared_settings(spec: RunSpec, config: Any) -> dict[str, str]:
    """What has to be equal on all ranks, by name."""
    plan, folder = spec.layout.plan, spec.model.folder
    stated = {
        "plan": "null" if plan is None else f"a file with the hash {plan_sha256(plan)[:12]}",
        "weights of model.folder": "null" if folder is None else weights_sha256(folder),
        **spec.shared_settings,
    }
    return with_version_and_model(stated, config)
