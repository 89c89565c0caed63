"""From the ranks that are left after a loss to their training loop: the same stages, under another plan."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import NamedTuple

from skippipe._scheduler import Plan
from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.errors import DeadlockError, InputError, NoPlanError
from skippipe.model.settings import model_config
from skippipe.moves import Holding
from skippipe.plan_file import plan_sha256
from skippipe.planning import PlanningJob, make_plan
from skippipe.ranks import assign_ranks
from skippipe.remaining import left_of, remaining_problem, taken_over
from skippipe.runtime.message import MessageBuffers
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.loop import Factory, TrainingLoop
from skippipe.train.loop.standing import CommonStanding
from skippipe.train.observe.run_log import Reporting
from skippipe.train.prepare.planning import request_sha256
from skippipe.train.prepare.prepare import engine_of, make_closed_loop, make_factory, make_saver, share_tokenizer
from skippipe.train.prepare.remaining import (
    NotRecoverableError,
    remaining_holding,
    stages_gone,
    without_nodes,
)
from skippipe.train.prepare.restoring import Restored, Restorer
from skippipe.train.prepare.stages import PartitionedModel, partition_model
from skippipe.train.resolve.spec import REPLANNING_S, PlanPhase


class Continued(NamedTuple):
    """How the ranks that are left go on."""

    loop: TrainingLoop
    restored: Restored
    """stages that were lost"""


def continue_loop(  # noqa: PLR0913 - by keyword
    loop: TrainingLoop,
    rendezvous: Rendezvous,
    *,
    new_rank: Mapping[int, int],
    common: CommonStanding,
    directory: CheckpointDirectory,
    report: Reporting,
    stack: ExitStack,
) -> Continued:
    """Make the loop of the ranks that are left, after what all of them have done. All of them call this.

    Args:
        loop: of this rank before the loss; it is not used any more afterwards.
        rendezvous: those that are left.
        new_rank: their ranks, by those before.
        common: what they have done in common; this rank's weights are there.
        directory: of the run's checkpoints.
        report: takes the events.
        stack: closes the links.

    Raises:
        NotRecoverableError: a stage has no node left, or cannot be restored; or there is no plan for those that are.

    """
    before, served = loop.context, {name for names in rendezvous.names_by_rank for name in names}
    names = before.spec.layout.cluster.names
    unused = before.spec.layout.unused
    lost = [node for node, name in enumerate(names) if name not in served and name not in unused]
    policy = before.spec.communication.lost_stage
    left = left_of if policy == "restart" else taken_over
    spec = without_nodes(before.spec, lost, left)
    holding = remaining_holding(loop.holding(common.phase), new_rank)
    gone = stages_gone(holding)
    if gone and policy == "restart":
        raise NotRecoverableError(f"no rank that is left has the weights of stage {', '.join(map(str, gone))}")
    rank_of = assign_ranks(names, rendezvous.names_by_rank, spec.layout.unused)
    links = open_links(spec.communication, spec.layout.cluster, rendezvous, before.message_spec, rank_of, stack)
    context = dataclasses.replace(
        before, spec=spec, rendezvous=rendezvous, rank_of=rank_of, links=links,
        allocations=[left(engine.plan.stages, lost) for engine in loop.engines],
        buffers=MessageBuffers(before.message_spec), clock_offset_s=clock_offset_s(rendezvous, links.control),
    )  # fmt: skip
    model = partition_model(spec, model_config(spec.model.settings))
    factory = make_factory(context, model)
    _take_over(context, factory, loop, holding)
    engines = _engines(context, model, loop, common.iteration)
    restored = Restored((), None)
    if gone:
        receivers = {stage: _serving(stage, engines) for stage in gone}
        restorer = Restorer(context, loop.optimizer, directory, holding)
        restored = (restorer.from_checkpoint if policy == "checkpoint" else restorer.from_neighbours)(receivers)
        holding = Holding({**holding.current, **receivers}, holding.joined)
    # Rank 0, which writes checkpoints, may be another one than before.
    metadata = dataclasses.replace(loop.metadata, tokenizer=share_tokenizer(rendezvous, loop.token_batches))
    saver = make_saver(spec, rendezvous, directory)
    following = loop.continued(
        context, engines, common, holding=holding, metadata=metadata, saver=saver, report=report, factory=factory,
        closed_loop=make_closed_loop(context, report),
    )  # fmt: skip
    return Continued(following, restored)


def _take_over(context: RankContext, factory: Factory, loop: TrainingLoop, holding: Holding) -> None:
    """Build the stages that this rank has not served so far; their weights follow."""
    rank = context.rendezvous.rank
    served = {stage for stage, ranks in context.holding().items() if rank in ranks}
    new = sorted(served - set(context.stages))
    context.stages.update({stage: factory.stage(stage, holding.joined) for stage in new})
    if new:
        loop.optimizer.follow_stages()


def _serving(stage: int, engines: Sequence[Engine]) -> frozenset[int]:
    """The ranks that serve a stage in the next phase that has it."""
    return next(engine.serving[stage] for engine in engines if engine.serving.get(stage))


def _engines(context: RankContext, model: PartitionedModel, loop: TrainingLoop, iteration: int) -> list[Engine]:
    """Plan the phase of an iteration and those to come on rank 0; every rank proves each plan, and all compare them."""
    spec, rendezvous = context.spec, context.rendezvous
    ends = [*(phase.after for phase in spec.phases[1:]), spec.iterations]
    current = {phase.after: phase for phase, end in zip(spec.phases, ends, strict=True) if end >= iteration}
    still = [
        (e, stages) for e, stages in zip(loop.engines, context.allocations, strict=True) if e.phase.after in current
    ]
    before, allocations = [engine for engine, _ in still], [stages for _, stages in still]
    phases = [current[engine.phase.after] for engine in before]

    def plan() -> str:
        asked = zip(before, phases, allocations, strict=True)
        return json.dumps([_planned(engine.plan, phase, model, stages) for engine, phase, stages in asked])

    text = rendezvous.broadcast("plans", plan, REPLANNING_S * len(before))
    plans = [Plan.from_json(plan) for plan in json.loads(text)]
    rendezvous.check_equal("plan", {"hash of the plan": json.dumps([plan_sha256(plan) for plan in plans])})
    return [
        engine_of(
            context,
            model,
            phase,
            plan,
            request_sha256(spec, phase, model),
            predicts=engine.predicted_s is not None,
        )
        for engine, phase, plan in zip(before, phases, plans, strict=True)
    ]


def _planned(plan: Plan, phase: PlanPhase, model: PartitionedModel, stages: Sequence[Sequence[int]]) -> str:
    """The plan of a phase for the nodes that are left, found in the time for which all may wait, as JSON."""
    limit_s = phase.planner.time_limit_s
    planner = dataclasses.replace(
        phase.planner, time_limit_s=REPLANNING_S if limit_s is None else min(limit_s, REPLANNING_S)
    )
    # Nodes may have changed stages since the phase was stated.
    allocation = dataclasses.replace(phase.allocation, stages=[list(nodes) for nodes in stages])
    try:
        found = make_plan(PlanningJob(remaining_problem(plan, allocation)), plan.strategy, planner)
    except (InputError, NoPlanError, DeadlockError) as error:
        raise NotRecoverableError(f"there is no plan for the nodes that are left: {error}") from None
    return found.with_model(**dataclasses.asdict(model.plan_model)).to_json()
