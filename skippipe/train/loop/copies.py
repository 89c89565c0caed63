"""Copies of stages that this rank does not serve, in its memory: renewed while training goes on.

A renewal is a round of transfers, over connections of its own, in a background thread. Only taking the bytes of a stage
holds up training, and no longer than until the next optimizer step. A copy counts once all of them have arrived; until
then the one before it stays.
"""

import json
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from skippipe.checkpoint.exchange import ExchangeError, gather_json
from skippipe.moves import Holding, Transfer
from skippipe.redundancy import copy_transfers
from skippipe.runtime.links import Link
from skippipe.runtime.links.addresses import machine_id
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.transfers import pack, run_transfers
from skippipe.train.resolve.spec import RedundancySpec


@dataclass(frozen=True)
class StageCopy:
    """Weights and optimizer state of a stage at some time."""

    iteration: int
    """iterations before it"""
    layers: frozenset[int]
    """decoder layers that it has"""
    state: Tensor
    """bytes of `skippipe.train.loop.transfers.stage_state`"""


class Found(NamedTuple):
    """The copy from which a stage is restored."""

    iteration: int
    keeper: int
    """rank"""


def youngest(kept: Sequence[Mapping[int, int]]) -> dict[int, Found]:
    """The youngest copy of each stage, of those on the lowest rank; `kept` are iterations by stage, by rank."""
    found: dict[int, Found] = {}
    for rank, own in enumerate(kept):
        for stage, iteration in own.items():
            if stage not in found or iteration > found[stage].iteration:
                found[stage] = Found(iteration, rank)
    return found


class CopyKeeper:
    """Copies of stages on one rank; all ranks call the same methods with the same numbers."""

    def __init__(
        self,
        rendezvous: Rendezvous,
        group: dist.ProcessGroup,
        link: Link,
        spec: RedundancySpec,
        kept: Mapping[int, StageCopy],
    ) -> None:
        """Prepare.

        Args:
            rendezvous: all ranks.
            group: all ranks, reserved for this object.
            link: over that group.
            spec: how many copies there are to be, and how often they are renewed.
            kept: those that this rank has, of an earlier generation.

        """
        self._rendezvous, self._group, self._link, self._spec = rendezvous, group, link, spec
        self._kept = dict(kept)
        self._holding = Holding({}, frozenset())
        self._placed = 0
        """times that it was decided who keeps which copies"""
        self._transfers: Sequence[Transfer] = ()
        self._sizes: dict[int, int] = {}
        self._thread: threading.Thread | None = None
        self._taken = threading.Event()
        self._taken.set()
        self._due = False
        self._error: Exception | None = None

    @property
    def kept(self) -> Mapping[int, StageCopy]:
        """The copies that this rank has, complete ones."""
        return self._kept

    @property
    def busy(self) -> bool:
        """Whether copies are being renewed."""
        return self._thread is not None and self._thread.is_alive()

    def place(self, holding: Holding, sizes: Mapping[int, int]) -> None:
        """Decide who keeps which copies from the next renewal on, which is due now.

        Args:
            holding: who has which stages.
            sizes: bytes of the state of stages that this rank has.

        """
        self._placed += 1
        texts = self._rendezvous.all_gather(f"copies {self._placed}", json.dumps([machine_id(), dict(sizes)]))
        stated = [json.loads(text) for text in texts]
        self._holding = holding
        self._sizes = {int(stage): size for _, own in stated for stage, size in own.items()}
        # A stage whose layers are still to join has nothing to be copied.
        filled = {stage: ranks for stage, ranks in holding.current.items() if self._sizes.get(stage)}
        self._transfers = copy_transfers(filled, [machine for machine, _ in stated], self._spec.copies)
        self._due = True

    def after(
        self,
        iteration: int,
        state: Callable[[int], Sequence[Tensor]],
        layers: Callable[[int], Collection[int]],
        *,
        renewing: bool,
    ) -> None:
        """Begin a renewal after an iteration if one is due, and none is under way on any rank.

        Args:
            iteration: the number of those that are done.
            state: gives weights and optimizer state of a stage.
            layers: gives the decoder layers of a stage that have joined.
            renewing: whether some rank is still busy.

        Raises:
            ActionError: a transfer has failed since the last call.
            SchedulerError: a copy has changed on the way.

        """
        if self._error is not None:
            raise self._error
        self._due |= iteration % self._spec.every == 0
        if not self._due or renewing or not self._transfers:
            return
        self._due = False
        self.wait()
        rank = self._rendezvous.rank
        own = {transfer.source: state(transfer.source) for transfer in self._transfers if transfer.sender == rank}
        arriving = {
            stage: StageCopy(iteration, frozenset(layers(stage)), torch.empty(self._sizes[stage], dtype=torch.uint8))
            for _, _, stage, receiver in self._transfers
            if receiver == rank
        }
        self._taken.clear()
        renewal = (self._transfers, own, arriving, frozenset(self._holding.current), iteration)
        # A daemon: a failing run must not wait for transfers that cannot finish.
        self._thread = threading.Thread(target=self._renew, args=renewal, daemon=True)
        self._thread.start()

    def settle(self) -> None:
        """Wait until weights and optimizer state may change; to be called before each step."""
        self._taken.wait()

    def wait(self) -> None:
        """Wait until no copy is being renewed, whatever becomes of it."""
        if self._thread is not None:
            self._thread.join()

    def _renew(
        self,
        transfers: Sequence[Transfer],
        own: Mapping[int, Sequence[Tensor]],
        arriving: Mapping[int, StageCopy],
        stages: Collection[int],
        iteration: int,
    ) -> None:
        """Send and receive; `stages` are those that are there, whose older copies go."""
        try:
            try:
                packed = {stage: [pack(tensors)] for stage, tensors in own.items()}
            finally:
                self._taken.set()
            here = packed | {stage: [copy.state] for stage, copy in arriving.items()}
            what = f"copies of stages after iteration {iteration}"
            run_transfers(self._rendezvous, self._link, transfers, here, what, self._gather)
        except Exception as error:  # noqa: BLE001 - raised again by the thread that trains
            self._error = error
        else:
            of_lost_stages = {stage: copy for stage, copy in self._kept.items() if stage not in stages}
            self._kept = of_lost_stages | dict(arriving)

    def _gather(self, text: str, _: float) -> list[str]:
        """Exchange texts over the group: the store keeps what it is given, and there are many renewals."""
        with self._rendezvous.transferring("hashes of copies of stages", range(self._rendezvous.world)):
            try:
                return [str(found) for found in gather_json(text, self._group)]
            except ExchangeError:
                raise
            except RuntimeError as error:
                raise ConnectionError(str(error)) from None
