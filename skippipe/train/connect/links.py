"""The links of a rank: which way messages travel, and in what they are wrapped."""

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Literal, NamedTuple

import torch.distributed as dist

from skippipe._scheduler import Cluster
from skippipe.devices import device_identity
from skippipe.errors import unexpected
from skippipe.runtime.links import Link
from skippipe.runtime.links.addresses import machine_id
from skippipe.runtime.links.emulated import EmulatedLink, uplinks_of
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.links.gpu import GpuLink
from skippipe.runtime.links.peer import PeerEdges
from skippipe.runtime.links.staged import StagedLink
from skippipe.runtime.message import MessageSpec
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.resolve.spec import CommunicationSpec

Backend = Literal["gloo", "nccl"]
ON_CPU = ""
"""In place of what identifies a GPU."""


class Links(NamedTuple):
    """How a rank reaches the others."""

    messages: Link
    """for tensors of the device on which stages compute"""
    control: Link
    """for tensors in the host's memory"""
    transport: str
    """of the messages, for people"""
    emulated: Sequence[EmulatedLink] = ()
    """those of the two, and of `over`, whose transfer times change during the run"""
    over: Callable[[dist.ProcessGroup], Link] = GlooLink
    """makes a link like `control` over other connections"""

    def begin_iteration(self, iteration: int) -> None:
        """Have emulated links take on the transfer times of an iteration of the run, from 1."""
        for link in self.emulated:
            link.begin_iteration(iteration)


def open_links(  # noqa: PLR0913, PLR0917 - what links depend on
    communication: CommunicationSpec,
    network: Cluster,
    rendezvous: Rendezvous,
    message_spec: MessageSpec,
    rank_of: Sequence[int],
    stack: ExitStack,
) -> Links:
    """The links to the other ranks, those of `network` emulated if the job asks for it. All ranks call this.

    Those between GPUs are closed with the stack, all of them when the ranks regroup.

    Raises:
        InputError: NCCL is asked for where it cannot be used, or emulated links between several machines.

    """

    def over(group: dist.ProcessGroup) -> GlooLink:
        link = GlooLink(group)
        rendezvous.interruptible.append(link)
        return link

    gloo, device = over(rendezvous.group), message_spec.device
    emulated: list[EmulatedLink] = []
    devices = rendezvous.all_gather("devices", device_identity(device) or ON_CPU)
    control: Link = gloo
    if choose_backend(communication.backend, devices) == "nccl":
        numbers = itertools.count()
        peers = PeerEdges(
            rendezvous.rank, device, message_spec.payload_bytes,
            lambda text: rendezvous.all_gather(f"peers {next(numbers)}", text),
        )  # fmt: skip
        between_gpus = stack.enter_context(GpuLink(rendezvous.rank, device, peers, rendezvous.timeout_s))
        rendezvous.interruptible.append(between_gpus)
        messages: Link = between_gpus
        transport = "copies from GPU to GPU, between machines NCCL"
    elif device.type == "cuda":
        messages, transport = StagedLink(gloo), "Gloo, through pinned memory"
    else:
        messages, transport = gloo, "Gloo"
    if communication.links == "emulated":
        rendezvous.check_equal("machine", {"machine of emulated links (runtime.links)": machine_id()})
        uplinks = uplinks_of(network, rank_of, rendezvous.rank, communication.time_scale, communication.link_changes)
        contention = communication.planned_contention(network)

        def emulate(link: Link, host_link: Link | None = None) -> Link:
            emulated.append(EmulatedLink(link, uplinks[0], contention, uplinks, host_link))
            return emulated[-1]

        messages, control = emulate(messages, gloo), emulate(gloo)
        transport += ", as slowly as over the cluster's links"
    return Links(
        messages,
        control,
        transport if rendezvous.world > 1 else "",
        emulated,
        lambda group: emulate(over(group)) if emulated else over(group),
    )


def choose_backend(wanted: Literal["auto", "gloo", "nccl"], devices: Sequence[str]) -> Backend:
    """The way of the messages.

    Args:
        wanted: the setting.
        devices: what identifies the GPU of each rank; `ON_CPU` for those without.

    Raises:
        InputError: NCCL is asked for, but a rank computes on its CPU, two share a GPU, or torch has no NCCL.

    """
    if ON_CPU in devices:
        obstacle = f"rank {devices.index(ON_CPU)} computes on its CPU (runtime.device)"
    elif len(set(devices)) < len(devices):
        first, second = _first_equal(devices)
        obstacle = f"ranks {first} and {second} share a GPU"
    elif not dist.is_nccl_available():
        obstacle = "this torch has no NCCL"
    elif len(devices) == 1:
        obstacle = "there is one rank only"
    else:
        return "gloo" if wanted == "gloo" else "nccl"
    if wanted == "nccl":
        raise unexpected("runtime.backend", wanted, "auto or gloo", hint=obstacle)
    return "gloo"


def _first_equal(devices: Sequence[str]) -> tuple[int, int]:
    return next((devices.index(device), rank) for rank, device in enumerate(devices) if devices.index(device) < rank)
