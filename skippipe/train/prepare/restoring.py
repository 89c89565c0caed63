"""A stage that was lost with all of its nodes, restored on the ranks that take it over.

From the copy of another rank or the latest checkpoint, with its optimizer state; or as a mean of the stages before and
after it, without: that is CheckFree (arXiv 2506.15461), which weights them by the squared norms of their gradients.
Here AdamW's second moments take the place of these norms: they are running means of squared gradients, and every
replica has them.
"""

import json
import math
from collections.abc import Collection, Mapping, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.checkpoint.key import load_key
from skippipe.checkpoint.reading import latest_complete, open_shared
from skippipe.errors import InputError
from skippipe.moves import Holding, Transfer
from skippipe.runtime.stage import Stage
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.copies import StageCopy, youngest
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.transfers import run_transfers, stage_state, unpack
from skippipe.train.prepare.remaining import NotRecoverableError
from skippipe.train.prepare.resume import ResumePoint

RESTORING_S = 60.0
"""How long reading a checkpoint may take, beside the usual time of an answer."""


Source = Literal["copy", "checkpoint", "average"]
"""What a stage is restored from: another rank's copy, the latest checkpoint, or the stages beside it."""
SOURCES: Mapping[str, Sequence[Source]] = {
    "checkpoint": ["checkpoint"],
    "average": ["average"],
    "copy": ["copy", "checkpoint"],
    "skip": ["copy", "checkpoint", "average"],
}
"""What is tried, by `runtime.lost_stage`."""
Receivers = Mapping[int, frozenset[int]]
"""The ranks that take over each stage."""


class Restored(NamedTuple):
    """A stage whose weights are there again."""

    stage: int
    source: Source
    iteration: int | None
    """iterations before what it comes from; None: other stages, as they are now"""


class Restorer:
    """Restores stages on one rank; all ranks call its methods."""

    def __init__(
        self,
        context: RankContext,
        optimizer: StageOptimizer,
        directory: CheckpointDirectory,
        holding: Holding,
        copies: Mapping[int, StageCopy],
    ) -> None:
        """Take what this rank has.

        Args:
            context: of the ranks that are left; has the stages that this rank takes over, with any weights.
            optimizer: of the stages.
            directory: of the run's checkpoints.
            holding: who has which weights, and which layers have joined, those of the stages to be restored too.
            copies: of stages, on this rank.

        """
        self._context, self._optimizer, self._directory, self._holding = context, optimizer, directory, holding
        self._copies = copies

    def restore(self, receivers: Receivers, sources: Sequence[Source]) -> list[Restored]:
        """Restore stages, on their `receivers`, from the first of some sources that has them.

        Raises:
            NotRecoverableError: none of them has.

        """
        ways = {"copy": self.from_copies, "checkpoint": self.from_checkpoint, "average": self.from_neighbours}
        restored: list[Restored] = []
        problem = ""
        for source in sources:
            left = {stage: ranks for stage, ranks in receivers.items() if stage not in {r.stage for r in restored}}
            if left:
                found, problem = ways[source](left)
                restored += found
        if len(restored) < len(receivers):
            raise NotRecoverableError(problem)
        return sorted(restored)

    def from_copies(self, receivers: Receivers) -> tuple[list[Restored], str]:
        """Restore stages from the youngest copies that ranks have; gives them, and why others are not restored."""
        context, rank = self._context, self._context.rendezvous.rank
        kept = {
            stage: copy for stage, copy in self._copies.items() if stage in receivers and self._fits(stage, copy.layers)
        }
        texts = context.rendezvous.all_gather(
            "copies of lost stages", json.dumps({stage: copy.iteration for stage, copy in kept.items()})
        )
        found = youngest([{int(stage): i for stage, i in json.loads(text).items()} for text in texts])
        own = self._own(receivers)
        states = {
            stage: stage_state(held, self._optimizer, self._holding.joined)
            for stage, held in own.items()
            if stage in found
        }
        mine = {stage: kept[stage].state for stage, copy in found.items() if copy.keeper == rank}
        for stage in states.keys() & mine.keys():
            unpack(mine[stage], states[stage])
        transfers = [
            Transfer(stage, copy.keeper, stage, receiver)
            for stage, copy in sorted(found.items())
            for receiver in sorted(receivers[stage] - {copy.keeper})
        ]
        here = states | {stage: [state] for stage, state in mine.items()}
        run_transfers(context.rendezvous, context.links.control, transfers, here, "stages from their copies")
        missing = ", ".join(map(str, sorted(set(receivers) - set(found))))
        return [
            Restored(s, "copy", copy.iteration) for s, copy in found.items()
        ], f"nobody has a copy of stage {missing}"

    def from_checkpoint(self, receivers: Receivers) -> tuple[list[Restored], str]:
        """Restore stages from the latest checkpoint; gives them, or why they are not restored."""
        rendezvous, spec = self._context.rendezvous, self._context.spec
        stages = ", ".join(map(str, sorted(receivers)))
        found = json.loads(rendezvous.broadcast("checkpoint of a stage", self._newest, RESTORING_S))
        if found is None:
            return [], f"there is no checkpoint for stage {stages}"
        problem, iteration = "", 0
        path = self._directory.folder / found["name"]
        try:
            checkpoint = open_shared(path, found["sha256"], load_key(spec.checkpoints.key))
            iteration = checkpoint.state.iteration
            if all(self._fits(stage, checkpoint.state.layers) for stage in receivers):
                ResumePoint(self._directory, checkpoint, []).load(self._own(receivers), self._optimizer)
            else:
                problem = f"checkpoint {path.name} lacks layers of stage {stages}"
        except InputError as error:
            problem = str(error)
        problems = [text for text in rendezvous.all_gather("stage restored", problem, RESTORING_S) if text]
        if problems:
            return [], f"a stage cannot be restored: {problems[0]}"
        return [Restored(stage, "checkpoint", iteration) for stage in receivers], ""

    def _fits(self, stage: int, layers: Collection[int]) -> bool:
        """Whether these are all layers of a stage that have joined, and no others of it."""
        own = self._context.layers[stage]
        return self._holding.joined.intersection(own) == set(layers).intersection(own)

    def _newest(self) -> str:
        """Name and hash of the latest complete checkpoint, as JSON."""
        if not self._directory.all():
            return "null"
        checkpoint, _ = latest_complete(self._directory, load_key(self._context.spec.checkpoints.key))
        if checkpoint is None:
            return "null"
        return json.dumps({"name": checkpoint.path.name, "sha256": checkpoint.manifest.sha256})

    def from_neighbours(self, receivers: Receivers) -> tuple[list[Restored], str]:
        """Restore stages as means of those before and after; gives them, or why they are not restored."""
        own = self._own(receivers)
        squares = self._second_moments()
        layers = [[layer for layer in stage if layer in self._holding.joined] for stage in self._context.layers]
        for stage, ranks in sorted(receivers.items()):
            sides = neighbours(stage, [side for side in sorted(squares) if layers[side]])
            if not sides:
                return [], f"no stage beside stage {stage} is left"
            sums: dict[int, list[Tensor]] = {}
            for side, weight in zip(sides, weights([squares[side] for side in sides]), strict=True):
                self._copy(stage, side, counterparts(layers[stage], layers[side]), ranks)
                for layer in layers[stage] if stage in own else ():
                    parts = [weight * tensor for tensor in _tensors(own[stage], layer)]
                    before = sums.get(layer, [torch.zeros_like(part) for part in parts])
                    sums[layer] = [total + part for total, part in zip(before, parts, strict=True)]
            for layer, mean in sums.items():
                for tensor, value in zip(_tensors(own[stage], layer), mean, strict=True):
                    tensor.copy_(value)
        return [Restored(stage, "average", None) for stage in receivers], ""

    def _copy(self, stage: int, side: int, counterpart: Mapping[int, int], ranks: frozenset[int]) -> None:
        """Copy layers of a stage that is left to those of a lost one."""
        context, sender = self._context, min(self._holding.current[side])
        transfers = [
            Transfer(source, sender, target, rank) for target, source in counterpart.items() for rank in sorted(ranks)
        ]
        here = {layer: _tensors(held, layer) for held in context.stages.values() for layer in held.module.layers}
        run_transfers(context.rendezvous, context.links.control, transfers, here, f"stage {stage} from stage {side}")

    def _own(self, receivers: Receivers) -> dict[int, Stage]:
        """Those of the stages that this rank takes over."""
        rank = self._context.rendezvous.rank
        return {stage: self._context.stages[stage] for stage, ranks in receivers.items() if rank in ranks}

    def _second_moments(self) -> dict[int, float]:
        """Sum of the running means of squared gradients of each stage whose weights somebody has."""
        rendezvous, mine = self._context.rendezvous, dict[int, float]()
        for number, stage in self._context.stages.items():
            if rendezvous.rank == min(self._holding.current.get(number, frozenset()), default=None):
                parameters = stage.module.parameters_of(self._holding.joined)
                moments = self._optimizer.tensors(parameters)
                mine[number] = sum(float(t.sum()) for name, t in moments.items() if name.endswith("exp_avg_sq"))
        found: dict[int, float] = {}
        for text in rendezvous.all_gather("second moments", json.dumps(mine)):
            found |= {int(number): square for number, square in json.loads(text).items()}
        return found


def _tensors(stage: Stage, layer: int) -> list[Tensor]:
    """Weights of a layer, in the same order on all ranks."""
    return [parameter.data for _, parameter in sorted(stage.module.parameters_of_layer(layer).items())]


def neighbours(stage: int, held: Sequence[int]) -> list[int]:
    """The nearest stage before and after one, of those that are held."""
    before, after = [other for other in held if other < stage], [other for other in held if other > stage]
    return [*before[-1:], *after[:1]]


def counterparts(lost: Sequence[int], other: Sequence[int]) -> dict[int, int]:
    """For each layer of a lost stage one of another stage, at the same relative place."""
    return {layer: other[place * len(other) // len(lost)] for place, layer in enumerate(lost)}


def weights(squares: Sequence[float]) -> list[float]:
    """In proportion to some squared norms; equal ones if they say nothing."""
    total = sum(squares)
    if not math.isfinite(total) or total <= 0:
        return [1.0 / len(squares)] * len(squares)
    return [square / total for square in squares]
