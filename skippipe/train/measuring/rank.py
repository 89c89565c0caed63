"""One rank of a measurement, from the rendezvous to the end; rank 0 reports."""

import contextlib

import torch

from skippipe.devices import open_device
from skippipe.model.settings import model_config
from skippipe.ranks import assign_ranks
from skippipe.train.connect.authentication import authenticate
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rank_spec import RankSpec
from skippipe.train.connect.rendezvous import join
from skippipe.train.connect.shared import with_version_and_model
from skippipe.train.measuring.profile import profile_cluster
from skippipe.train.measuring.spec import MeasureSpec
from skippipe.train.observe.events import ClusterMeasured, MeasuringProgress, Report
from skippipe.train.prepare.stages import message_spec_of


def measure_rank(spec: MeasureSpec, rank_spec: RankSpec, report: Report) -> None:
    """Be one rank of a measurement.

    Args:
        spec: the job, the same on all ranks but for `launch`.
        rank_spec: which rank, which nodes, and where the others are.
        report: takes the events of rank 0; on other ranks none.

    Raises:
        InputError: settings or names that cannot be used, or that differ between ranks.
        SchedulerError: a rank did not join, or a message did not arrive.

    """
    torch.set_num_threads(spec.launch.threads)
    profile = spec.profile
    config = model_config(spec.model)
    device = open_device(
        profile.device.device, "runtime.device", rank_spec.local_rank, deterministic=profile.device.deterministic
    )

    def progress(done: int, total: int, what: str) -> None:
        if rank_spec.rank == 0:
            report(MeasuringProgress(done=done, total=total, what=what))

    with join(rank_spec, profile.communication) as rendezvous, contextlib.ExitStack() as stack:
        authenticate(rendezvous, None)
        rendezvous.check_equal("settings", with_version_and_model(spec.settings, config))
        named = [name for names in rendezvous.names_by_rank for name in names]
        own = spec.network.names
        emulated = profile.communication.links == "emulated"
        names = own if emulated or sorted(named) == sorted(own) else named
        rank_of = assign_ranks(names, rendezvous.names_by_rank)
        message_spec = message_spec_of(config, profile.microbatch_size, profile.sequence, profile.precision, device)
        links = open_links(profile.communication, spec.network, rendezvous, message_spec, rank_of, stack)
        cluster = profile_cluster(
            profile,
            config,
            rendezvous,
            links,
            message_spec,
            names=names,
            rank_of=rank_of,
            source="measured by skippipe measure",
            progress=progress,
        )
        if rendezvous.rank == 0:
            report(ClusterMeasured(cluster=cluster.to_json()))
