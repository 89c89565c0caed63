"""One rank of a run, from the rendezvous to the end: connect, prepare, loop; rank 0 reports.

The same for a worker of a local run and a rank under torchrun.
"""

import contextlib
import json
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.data.prepare import corpus_folder
from skippipe.devices import open_device
from skippipe.errors import WithdrawnError
from skippipe.model.folder import weights_sha256
from skippipe.model.settings import model_config
from skippipe.plan_file import plan_sha256
from skippipe.ranks import assign_ranks, node_title
from skippipe.runtime.message import MessageSpec
from skippipe.train.connect.authentication import SETTINGS, authenticate
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import join
from skippipe.train.connect.shared import with_version_and_model
from skippipe.train.connect.store import open_store
from skippipe.train.loop.token_batches import TokenBatches, open_batches
from skippipe.train.membership.members import watched
from skippipe.train.membership.newcomer import JobUnderWay, find_job, getting_ready, joining
from skippipe.train.membership.withdrawing import MissedError, withdrawing
from skippipe.train.observe.events import RankWaiting, Report
from skippipe.train.observe.run_log import Reporting
from skippipe.train.prepare.continuing import Belongings
from skippipe.train.prepare.newcomers import NodeFacts, StatedLayout, facts_of, facts_to_json
from skippipe.train.prepare.prepare import LAYOUT, LAYOUT_STATED, TEXTS, is_source, prepare_rank, stated_text
from skippipe.train.prepare.resume import START, directory_of, find_resume_point
from skippipe.train.prepare.search import with_searched_allocation
from skippipe.train.prepare.stages import check_groups, message_spec_of
from skippipe.train.recovery import join_run, train_to_the_end
from skippipe.train.resolve.spec import CheckpointSpec, RunSpec

MOST_TRIES = 3
"""To join a run whose ranks are lost just then; each of them interrupts the others."""


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
        WithdrawnError: this process fails before it has trained with the others that it joins; from the error.
        SchedulerError: a rank did not join, a message did not arrive, training diverged.

    """
    torch.set_num_threads(spec.launch.threads)
    config = model_config(spec.model.settings)
    check_groups(spec, config)
    device = open_device(
        spec.device.device, "runtime.device", rank_spec.local_rank, deterministic=spec.device.deterministic
    )
    recover = rank_spec.launcher.lets_survivors_live and spec.communication.recover
    if rank_spec.launcher is Launcher.NODE or rank_spec.newcomer:
        newcomer, tries = Newcomer(spec, config, device, rank_spec, report, text), 0
        while True:
            with newcomer.finding_job() as job:
                if job is None:
                    break
                try:
                    return newcomer.train(job)
                except MissedError as error:
                    tries += 1
                    if tries == MOST_TRIES:
                        raise WithdrawnError(str(error)) from error
    with (
        join(rank_spec, spec.communication, spec.layout.cluster.names) as joined,
        contextlib.ExitStack() as stack,
    ):
        authenticate(joined, spec.checkpoints.key)
        joined.check_equal(SETTINGS, shared_settings(spec, config))
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
        return train_to_the_end(loop, members, reporting, resume.directory, recover=recover)


@dataclass(frozen=True)
class Newcomer:
    """A process that may join a run that others train; arguments are those of `train_rank`."""

    spec: RunSpec
    config: Any
    """of the model"""
    device: torch.device
    rank_spec: RankSpec
    report: Report
    text: Path | None

    @contextlib.contextmanager
    def finding_job(self) -> Iterator[JobUnderWay | None]:
        """Within: the store of the rendezvous, with the run that others train; None: nobody does."""
        spec = self.spec.communication
        with contextlib.closing(open_store(self.rank_spec, spec.start_timeout_s)) as client:
            yield find_job(client, self.rank_spec, spec, self.spec.checkpoints.key)

    def train(self, job: JobUnderWay) -> signal.Signals | None:
        """Join a run and train; raises as `train_rank` does."""
        spec, rank_spec = self.spec, self.rank_spec
        self.report(RankWaiting(rank=rank_spec.rank, names=list(rank_spec.names)))
        with contextlib.ExitStack() as stack:
            with withdrawing():
                message_spec = message_spec_of(
                    self.config, spec.data.microbatch_size, spec.data.sequence, spec.precision, self.device
                )
                facts, batches = self._prepare(job, message_spec, stack)
                directory = joined_directory(job, spec.checkpoints)
                reporting = stack.enter_context(contextlib.closing(Reporting(directory.folder.parent, self.report)))
            members = stack.enter_context(joining(job, rank_spec, spec.communication, facts_to_json(facts)))
            with getting_ready(members):
                belongings = Belongings(spec, message_spec, {}, None, batches, {})
                loop = join_run(belongings, members, directory=directory, reporting=reporting, stack=stack)
            with members.taking_part():
                return train_to_the_end(loop, members, reporting, directory, recover=True)

    def _prepare(
        self, job: JobUnderWay, message_spec: MessageSpec, stack: contextlib.ExitStack
    ) -> tuple[dict[str, NodeFacts], TokenBatches | None]:
        """Compare settings with those of a run; gives what the others have to know of its nodes, and the text."""
        spec, rank_spec = self.spec, self.rank_spec
        title = node_title(rank_spec.names, rank_spec.rank)
        job.check_equal(SETTINGS, shared_settings(spec, self.config), title)
        layout = StatedLayout.from_json(json.loads(job.stated(LAYOUT, 0))[LAYOUT_STATED])
        layout.check_names(spec.layout.cluster.names)
        facts = facts_of(spec, layout, rank_spec.names, message_spec)
        if not any(0 in node.stages for node in facts.values()):
            return facts, None
        folder = self.text or stack.enter_context(corpus_folder(spec.data.text))
        batches = open_batches(spec, self.config.vocab_size, self.config.max_position_embeddings, folder)
        job.check_equal(TEXTS, stated_text(batches), title)
        return facts, batches


def joined_directory(job: JobUnderWay, spec: CheckpointSpec) -> CheckpointDirectory:
    """The checkpoints of a run that others train; raises `InputError` if this machine does not see its folder."""
    return directory_of(job.stated(START, 0), spec)


def shared_settings(spec: RunSpec, config: Any) -> dict[str, str]:
    """What has to be equal on all ranks, by name."""
    plan, folder = spec.layout.plan, spec.model.folder
    stated = {
        "plan": "null" if plan is None else f"a file with the hash {plan_sha256(plan)[:12]}",
        "weights of model.folder": "null" if folder is None else weights_sha256(folder),
        **spec.shared_settings,
    }
    return with_version_and_model(stated, config)
