"""From the ranks that are left after a loss to their training loop: the same stages, under another plan."""

import dataclasses
import json
from collections.abc import Collection, Mapping
from contextlib import ExitStack

from skippipe._scheduler import Plan
from skippipe.checkpoint.directory import CheckpointDirectory
from skippipe.errors import DeadlockError, InputError, NoPlanError
from skippipe.model.settings import model_config
from skippipe.plan_file import plan_sha256
from skippipe.planning import PlanningJob, make_plan
from skippipe.ranks import assign_ranks
from skippipe.remaining import left_of, remaining_problem
from skippipe.runtime.message import MessageBuffers
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.links import open_links
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.loop.context import RankContext
from skippipe.train.loop.engine import Engine
from skippipe.train.loop.loop import TrainingLoop
from skippipe.train.loop.standing import CommonStanding
from skippipe.train.observe.run_log import Reporting
from skippipe.train.prepare.planning import request_sha256
from skippipe.train.prepare.prepare import engine_of, make_closed_loop, make_factory, make_saver, share_tokenizer
from skippipe.train.prepare.remaining import (
    NotRecoverableError,
    remaining_holding,
    without_nodes,
)
from skippipe.train.prepare.stages import PartitionedModel, partition_model
from skippipe.train.resolve.spec import REPLANNING_S, PlanPhase


def continue_loop(  # noqa: PLR0913 - by keyword
    loop: TrainingLoop,
    rendezvous: Rendezvous,
    *,
    new_rank: Mapping[int, int],
    common: CommonStanding,
    directory: CheckpointDirectory,
    report: Reporting,
    stack: ExitStack,
) -> TrainingLoop:
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
        NotRecoverableError: a stage has no node left, or there is no plan for those that are.

    """
    before, served = loop.context, {name for names in rendezvous.names_by_rank for name in names}
    names = before.spec.layout.cluster.names
    unused = before.spec.layout.unused
    lost = [node for node, name in enumerate(names) if name not in served and name not in unused]
    spec = without_nodes(before.spec, lost)
    holding = remaining_holding(loop.holding(common.phase), new_rank)
    rank_of = assign_ranks(names, rendezvous.names_by_rank, spec.layout.unused)
    links = open_links(spec.communication, spec.layout.cluster, rendezvous, before.message_spec, rank_of, stack)
    context = dataclasses.replace(
        before, spec=spec, rendezvous=rendezvous, rank_of=rank_of, links=links,
        allocations=[left_of(engine.plan.stages, lost) for engine in loop.engines],
        buffers=MessageBuffers(before.message_spec), clock_offset_s=clock_offset_s(rendezvous, links.control),
    )  # fmt: skip
    model = partition_model(spec, model_config(spec.model.settings))
    engines = _engines(context, model, loop, common.iteration, lost)
    # Rank 0, which writes checkpoints, may be another one than before.
    metadata = dataclasses.replace(loop.metadata, tokenizer=share_tokenizer(rendezvous, loop.token_batches))
    saver = make_saver(spec, rendezvous, directory)
    return loop.continued(
        context, engines, common, holding=holding, metadata=metadata, saver=saver, report=report,
        factory=make_factory(context, model),
        closed_loop=make_closed_loop(context, report),
    )  # fmt: skip


def _engines(
    context: RankContext, model: PartitionedModel, loop: TrainingLoop, iteration: int, lost: Collection[int]
) -> list[Engine]:
    """Plan the phase of an iteration and those to come on rank 0; every rank proves each plan, and all compare them."""
    spec, rendezvous = context.spec, context.rendezvous
    ends = [*(phase.after for phase in spec.phases[1:]), spec.iterations]
    current = {phase.after: phase for phase, end in zip(spec.phases, ends, strict=True) if end >= iteration}
    before = [engine for engine in loop.engines if engine.phase.after in current]
    phases = [current[engine.phase.after] for engine in before]
    text = rendezvous.broadcast(
        "plans", lambda: json.dumps([_planned(e.plan, p, model, lost) for e, p in zip(before, phases, strict=True)]),
        REPLANNING_S * len(before),
    )  # fmt: skip
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


def _planned(plan: Plan, phase: PlanPhase, model: PartitionedModel, lost: Collection[int]) -> str:
    """The plan of a phase for the nodes that are left, found in the time for which all may wait, as JSON."""
    limit_s = phase.planner.time_limit_s
    planner = dataclasses.replace(
        phase.planner, time_limit_s=REPLANNING_S if limit_s is None else min(limit_s, REPLANNING_S)
    )
    # Nodes may have changed stages since the phase was stated.
    allocation = dataclasses.replace(phase.allocation, stages=left_of(plan.stages, lost))
    try:
        found = make_plan(PlanningJob(remaining_problem(plan, allocation)), plan.strategy, planner)
    except (InputError, NoPlanError, DeadlockError) as error:
        raise NotRecoverableError(f"there is no plan for the nodes that are left: {error}") from None
    return found.with_model(**dataclasses.asdict(model.plan_model)).to_json()
