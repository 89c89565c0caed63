"""From the ranks of a new generation to their training loop: those that are left, and those that join them.

Both do the same: they plan anew for the nodes that are there, and whoever serves a stage under the new plan without its
weights gets them from one that has them. A newcomer has none.
"""

import dataclasses
import json
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import NamedTuple

from skippipe._scheduler import Plan
from skippipe.allocation import Allocation
from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.model.settings import model_config
from skippipe.moves import Holding
from skippipe.plan_file import plan_sha256
from skippipe.ranks import assign_ranks
from skippipe.remaining import left_of, taken_over
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.copies import StageCopy
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.loop import TrainingLoop
from skippipe.train.loop.optimizer import StageOptimizer
from skippipe.train.loop.run_state import RunState
from skippipe.train.loop.token_batches import TokenBatches
from skippipe.train.observe.run_log import Reporting
from skippipe.train.prepare.newcomers import NodeFacts
from skippipe.train.prepare.planning import request_sha256
from skippipe.train.prepare.prepare import (
    engine_of,
    make_closed_loop,
    make_copy_keeper,
    make_factory,
    make_saver,
    share_tokenizer,
)
from skippipe.train.prepare.remaining import (
    NotRecoverableError,
    stages_gone,
    with_allocations,
    without_nodes,
    without_stages,
)
from skippipe.train.prepare.replanned import Asked, replanned, waiting_s, with_node
from skippipe.train.prepare.restoring import SOURCES, Restored, Restorer
from skippipe.train.prepare.stages import PartitionedModel, partition_model, weight_bytes
from skippipe.train.resolve.spec import RunSpec


@dataclass(frozen=True)
class Belongings:
    """What a rank brings along into a generation."""

    spec: RunSpec
    message_spec: MessageSpec
    stages: dict[int, Stage]
    """that it has built; those that it serves from now on are added"""
    optimizer: StageOptimizer | None
    """of these stages; None: there are none"""
    batches: TokenBatches | None
    """the text, if it may be a source"""
    copies: Mapping[int, StageCopy]
    """of stages that it does not serve"""

    @staticmethod
    def of(loop: TrainingLoop) -> "Belongings":
        """Those of a rank whose loop was interrupted, which it does not use any more."""
        context = loop.context
        return Belongings(
            context.spec, context.message_spec, context.stages, loop.optimizer, loop.token_batches, loop.copies
        )


class Continued(NamedTuple):
    """How the ranks of a generation go on."""

    loop: TrainingLoop
    restored: Sequence[Restored]
    """stages that were lost"""
    planning_s: float
    """until all had the new plans"""
    moving_s: float
    """for weights and optimizer state to move"""


def continue_loop(  # noqa: PLR0913 - by keyword
    belongings: Belongings,
    state: RunState,
    rendezvous: Rendezvous,
    *,
    newcomers: Mapping[str, NodeFacts],
    directory: CheckpointDirectory,
    report: Reporting,
    stack: ExitStack,
) -> Continued:
    """Make the loop of a rank, and give it the weights that it needs. All ranks of a generation call this.

    Args:
        belongings: of this rank.
        state: of the run.
        rendezvous: the ranks of the generation.
        newcomers: what those that join have said of their nodes, by name; on rank 0.
        directory: of the run's checkpoints.
        report: takes the events.
        stack: closes the links.

    Raises:
        NotRecoverableError: a stage has no node left, or cannot be restored; or there is no plan for those that are.

    """
    spec = with_allocations(belongings.spec, state.allocation, state.phases)
    names, unused = spec.layout.cluster.names, spec.layout.unused
    served = {name for names in rendezvous.names_by_rank for name in names}
    lost = [node for node, name in enumerate(names) if name not in served and name not in unused]
    policy = spec.communication.lost_stage
    left = left_of if policy in {"restart", "skip"} else taken_over
    spec = without_nodes(spec, lost, left, skip=policy == "skip")
    gone = stages_gone(state.holding)
    needed = {stage for phase in spec.phases for stage, nodes in enumerate(phase.allocation.stages) if nodes}
    if (gone and policy == "restart") or (policy == "skip" and not needed.isdisjoint(gone)):
        raise NotRecoverableError(f"no rank that is left has the weights of stage {', '.join(map(str, gone))}")
    absent = [name for name in spec.layout.unused if name not in served]
    rank_of = assign_ranks(names, rendezvous.names_by_rank, absent)
    links = open_links(spec.communication, spec.layout.cluster, rendezvous, belongings.message_spec, rank_of, stack)
    model = partition_model(spec, model_config(spec.model.settings))
    weights = weight_bytes(model, spec.precision.torch_dtype)
    begin = time.monotonic()
    asked = Asked(spec, model, state, rank_of, lost, left, newcomers, weights)
    plans = _plans(rendezvous, asked)
    planning_s = time.monotonic() - begin
    joined = [node for node, name in enumerate(names) if name in served and name in unused]
    spec = with_allocations(spec, *_with_nodes(spec, dict(plans), joined))
    context = RankContext(
        spec=spec, rendezvous=rendezvous, rank_of=rank_of, layers=model.stage_layers, stages=belongings.stages,
        allocations=[plan.stages for _, plan in plans], links=links, buffers=MessageBuffers(belongings.message_spec),
        validation_microbatches=state.metadata.validation_microbatches, vocabulary=model.config.vocab_size,
        clock_offset_s=clock_offset_s(rendezvous, links.control),
    )  # fmt: skip
    tokens = len(plans[0][1].microbatches) * context.microbatch_tokens
    optimizer = _take_over(context, model, belongings, state, tokens)
    engines = _engines(context, model, state, plans)
    holding, restored = state.holding, list[Restored]()
    if policy == "skip":
        holding = without_stages(holding, gone, context.layers)
        gone = sorted({stage for engine in engines for stage in engine.serving} - set(holding.current))
        # Those come back. Layers that later phases alone use join with them.
        again = {layer for stage in gone for layer in engines[0].layers.intersection(context.layers[stage])}
        holding = Holding(holding.current, holding.joined | again)
    if gone:
        receivers = {stage: _serving(stage, engines) for stage in gone}
        trained = {
            stage: ranks for stage, ranks in receivers.items() if holding.joined.intersection(context.layers[stage])
        }
        restorer = Restorer(context, optimizer, directory, holding, belongings.copies)
        restored = restorer.restore(trained, SOURCES[policy])
        holding = Holding({**holding.current, **receivers}, holding.joined)
    # Rank 0, which writes checkpoints, may be another one than before.
    metadata = dataclasses.replace(state.metadata, tokenizer=share_tokenizer(rendezvous, belongings.batches))
    following = TrainingLoop(
        context,
        engines,
        optimizer=optimizer,
        start=state.progress,
        batches=belongings.batches,
        weights=weights,
        metadata=metadata,
        saver=make_saver(spec, rendezvous, directory),
        copies=make_copy_keeper(context, belongings.copies),
        trace=None,
        report=report,
        factory=make_factory(context, model),
        closed_loop=make_closed_loop(context, report),
    )
    begin = time.monotonic()
    following.take_up(dataclasses.replace(state, holding=holding))
    return Continued(following, restored, planning_s, time.monotonic() - begin)


def _plans(rendezvous: Rendezvous, asked: Asked) -> list[tuple[int, Plan]]:
    """The plans of the phase of an iteration and those to come, by the iterations before them, made on rank 0."""
    still = asked.phases_left
    text = rendezvous.broadcast("plans", lambda: replanned(asked), waiting_s(asked))
    plans = [Plan.from_json(plan) for plan in json.loads(text)]
    rendezvous.check_equal("plan", {"hash of the plan": json.dumps([plan_sha256(plan) for plan in plans])})
    return [(phase.after, plan) for phase, plan in zip(still, plans, strict=True)]


def _with_nodes(
    spec: RunSpec, plans: Mapping[int, Plan], joined: Sequence[int]
) -> tuple[Allocation, tuple[Allocation, ...]]:
    """Allocation of a run and its phases with nodes that join.

    They serve what they serve under the plan of a phase, by the iterations before it; else under the latest plan.
    """
    latest = plans[max(plans)]

    def grown(allocation: Allocation, plan: Plan = latest) -> Allocation:
        for stage, nodes in enumerate(plan.stages):
            for node in joined:
                if node in nodes and (stage in allocation.lost_stages or stage not in allocation.absent_stages):
                    allocation = with_node(allocation, node, stage)
        return allocation

    phases = (grown(phase.allocation, plans.get(phase.after, latest)) for phase in spec.phases)
    return grown(spec.layout.allocation), tuple(phases)


def _engines(
    context: RankContext, model: PartitionedModel, state: RunState, plans: Sequence[tuple[int, Plan]]
) -> list[Engine]:
    """The engines of plans; every rank proves each plan."""
    spec, predicts = context.spec, {plan.after: plan.predicts for plan in state.plans}
    phases = {phase.after: phase for phase in spec.phases}
    return [
        engine_of(
            context, model, phases[after], plan, request_sha256(spec, phases[after], model), predicts=predicts[after]
        )
        for after, plan in plans
    ]


def _take_over(
    context: RankContext, model: PartitionedModel, belongings: Belongings, state: RunState, tokens: int
) -> StageOptimizer:
    """Build the stages that this rank has not served so far, whose weights follow; gives the optimizer of all."""
    rank, stages = context.rendezvous.rank, context.stages
    served = {stage for stage, ranks in context.holding().items() if rank in ranks}
    new = sorted(served - set(stages))
    factory = make_factory(context, model)
    stages.update({stage: factory.stage(stage, state.holding.joined) for stage in new})
    if belongings.optimizer is None:
        progress = state.progress
        return StageOptimizer(
            stages, context.spec.optimizer, tokens=tokens, iterations=context.spec.iterations - progress.iteration,
            tokens_done=progress.tokens,
        )  # fmt: skip
    if new:
        belongings.optimizer.follow_stages()
    return belongings.optimizer


def _serving(stage: int, engines: Sequence[Engine]) -> frozenset[int]:
    """The ranks that serve a stage in the next phase that has it."""
    return next(engine.serving[stage] for engine in engines if engine.serving.get(stage))
