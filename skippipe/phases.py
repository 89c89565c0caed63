"""The phases of a run: skip ratio and stages in use as functions of training time. Pure."""

import contextlib
import dataclasses
import json
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from skippipe._scheduler import AllocationScope, Cluster, Plan, Problem
from skippipe.allocation import Allocation, allocation_of, even_shares
from skippipe.config import AllocateConfig, PhaseConfig, PhasesConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError, in_group, unexpected
from skippipe.moves import Holding, PhaseChange, WeightBytes, change_phase, change_s
from skippipe.planning import PlanningJob, allocated, make_plan, microbatches, rules_of, state_problem
from skippipe.ranks import holding_ranks, serving_ranks, transfer_time
from skippipe.rules import bent_rules, numbers_text

UNKNOWN_LAYERS = 1000
"""Stands for the layers of a stage where their number is not known: any part of them is exact to a thousandth."""
ROUNDING = 1e-9
"""Most by which shares that add up to 1 miss it."""


class RunLength(NamedTuple):
    """How long a run is."""

    iterations: int
    iteration_tokens: int
    """tokens of an iteration"""


@dataclass(frozen=True)
class Phase:
    """A part of a run that follows one plan."""

    begin: float
    """fraction of the run before it"""
    share: float
    """fraction of the run"""
    schedule: ScheduleConfig
    """what its plan is asked for"""
    planner: PlannerConfig
    """how it is searched"""
    allocation: Allocation
    """in which stages that no route visits are absent, and so are their nodes unless it is the phase's own"""
    anew: bool = False
    """whether the allocation is its own"""
    layers: float | None = None
    """decoder layers in use of every stage: a fraction below 1, or a number; None: all"""


@dataclass(frozen=True)
class PhaseSummary:
    """A phase with its plan, in figures; times in seconds."""

    share: float
    """fraction of the run's iterations"""
    stages: int
    """of the model"""
    stages_in_use: list[int]
    skip_ratio: float
    """over the stages in use"""
    left_out: float
    """fraction of (microbatch, decoder layer) executions of the full pipeline that the plan leaves out"""
    bent_rules: list[str]
    """the rules CC1 to TC2 that the plan bends, and the stages that it goes without"""
    iteration_s: float | None
    """predicted; None: the plan's times do not hold for the run"""
    lower_bound_s: float | None
    change_s: float | None
    """predicted for the change to this phase: weights and moments that move, and copies; None: unknown"""


def resolve_phases(
    config: PhasesConfig,
    schedule: ScheduleConfig,
    planner: PlannerConfig,
    allocation: Allocation,
    length: RunLength | None = None,
) -> tuple[Phase, ...]:
    """Resolve the settings of phases, all of them on one allocation: those `anew` are still to be reallocated.

    Args:
        config: the settings.
        schedule: what phases fall back to.
        planner: the same.
        allocation: of nodes to all stages.
        length: of the run, if it is known.

    Raises:
        InputError: shares do not add up, or a phase uses stages that do not exist; the message names the phase.

    """
    present = [stage for stage in range(len(allocation.stages)) if stage not in allocation.absent_stages]
    phases: list[Phase] = []
    begin = 0.0
    for number, (phase, share) in enumerate(zip(config.list, _shares(config, length), strict=True)):
        absent = _absent_stages(phase, present, f"phases.list[{number}]")
        own = without_stages(allocation, absent)
        asked = phase_schedule(phase, schedule)
        anew = phase.allocation == "anew"
        _check_layers(phase, f"phases.list[{number}]")
        phases.append(Phase(begin, share, asked, phase_planner(phase, planner), own, anew=anew, layers=phase.layers))
        begin += share
    return tuple(phases)


def phase_schedule(phase: PhaseConfig, schedule: ScheduleConfig) -> ScheduleConfig:
    """The schedule of a phase: what it sets takes the place of the run's settings for the same choice."""
    if phase.classes is not None:
        return dataclasses.replace(
            schedule, classes=phase.classes, profile=phase.profile, skip_ratio=ScheduleConfig.skip_ratio
        )
    if phase.skip_ratio is None and phase.profile is None:
        return schedule
    return dataclasses.replace(
        schedule,
        skip_ratio=schedule.skip_ratio if phase.skip_ratio is None else phase.skip_ratio,
        profile=schedule.profile if phase.profile is None else phase.profile,
        classes=None,
    )


def phase_planner(phase: PhaseConfig, planner: PlannerConfig) -> PlannerConfig:
    """The planner of a phase: what it sets takes the place of the run's settings."""
    own = {name: value for name, value in dataclasses.asdict(phase.planner).items() if value is not None}
    return dataclasses.replace(planner, **own)


def allocating_phase(config: PhasesConfig) -> int | None:
    """Number of the phase for which the run's allocation is searched: the longest that keeps it and uses all layers.

    None: there is no such phase. Raises `InputError` if shares do not add up.
    """
    shares = _shares(config)
    complete = [
        number
        for number, phase in enumerate(config.list)
        if phase.stages is None and phase.layers is None and not phase.absent_stages and phase.allocation == "kept"
    ]
    return max(complete, key=lambda number: shares[number], default=None)


def _shares(config: PhasesConfig, length: RunLength | None = None) -> list[float]:
    """Share of every phase; the last one takes the rest."""
    if not config.list:
        raise unexpected("phases.list", "an empty list", "at least one phase")
    total, tolerance = _run_tokens(config, length)
    shares: list[float] = []
    for number, phase in enumerate(config.list):
        share, key, unit = phase.share, f"phases.list[{number}].share", 1.0
        if phase.tokens is not None:
            if share is not None:
                raise unexpected(key, share, "null, as tokens is set")
            share, key, unit = phase.tokens / total, f"phases.list[{number}].tokens", total
        rest, found = 1.0 - sum(shares), None if share is None else f"{share * unit:.6g}"
        if number == len(config.list) - 1:
            if share is not None and abs(share - rest) > tolerance:
                raise unexpected(key, found, f"null or {rest * unit:.6g}: the last phase takes the rest")
            share = rest
        elif share is None or share >= rest - ROUNDING:
            raise unexpected(key, found, f"a number below {rest * unit:.6g}: a later phase takes the rest")
        shares.append(share)
    return shares


def _run_tokens(config: PhasesConfig, length: RunLength | None) -> tuple[float, float]:
    """Tokens of a run, and by how much the shares of its phases may miss 1."""
    if length is not None:  # which has whole iterations, unlike settings in tokens
        in_tokens = any(phase.tokens is not None for phase in config.list)
        return float(length.iterations * length.iteration_tokens), 1 / length.iterations if in_tokens else ROUNDING
    stated = [phase.tokens for phase in config.list]
    if None in stated and set(stated) != {None}:
        number = next(number for number, tokens in enumerate(stated) if tokens is not None)
        hint = "the length of the run is not known here"
        raise unexpected(f"phases.list[{number}].tokens", stated[number], "null, or tokens in every phase", hint=hint)
    return sum(tokens or 0.0 for tokens in stated), ROUNDING


def _absent_stages(phase: PhaseConfig, present: Sequence[int], key: str) -> tuple[int, ...]:
    """Stages that a phase leaves out, of those `present`."""
    if phase.stages is None:
        later = present[1:]
        for index, stage in enumerate(phase.absent_stages):
            if stage not in later or stage in phase.absent_stages[:index]:
                expected = f"different stages after the first ({', '.join(map(str, later)) or 'there are none'})"
                raise unexpected(f"{key}.absent_stages[{index}]", stage, expected)
        return tuple(sorted(phase.absent_stages))
    if phase.absent_stages:
        raise unexpected(f"{key}.stages", phase.stages, "null, as absent_stages is set")
    if phase.stages < 1:
        return tuple(present[max(1, int(phase.stages * len(present) + 0.5)) :])
    if phase.stages != int(phase.stages) or phase.stages > len(present):
        expected = f"a fraction below 1, or a whole number up to the {len(present)} stages"
        raise unexpected(f"{key}.stages", phase.stages, expected)
    return tuple(present[int(phase.stages) :])


def _check_layers(phase: PhaseConfig, key: str) -> None:
    """Raise `InputError` where the layers in use of a phase are no number, or it has its own allocation."""
    if phase.layers is None:
        return
    if phase.layers >= 1 and phase.layers != int(phase.layers):
        raise unexpected(f"{key}.layers", phase.layers, "a fraction below 1, or a whole number")
    if phase.allocation == "anew":
        raise unexpected(f"{key}.allocation", "anew", "kept, as layers is set: all stages that it uses have work")


def layers_in_use(setting: float | None, layers: range) -> list[int]:
    """The decoder layers of a stage that a phase uses, by number: spread evenly, the first of the stage among them."""
    if setting is None:
        return list(layers)
    wanted = int(setting * len(layers) + 0.5) if setting < 1 else int(setting)
    count = min(max(wanted, 1), len(layers))
    return [layers[index * len(layers) // count] for index in range(count)]


def phase_problem(cluster: Cluster, phase: Phase, layers: Sequence[int]) -> Problem:
    """State the problem of a phase.

    Args:
        cluster: its times hold for all layers of the stages that nodes serve.
        phase: its allocation may lack the layers.
        layers: decoder layers of each stage; empty: not known.

    """
    allocation = dataclasses.replace(phase.allocation, layers=tuple(layers))
    if phase.layers is not None:
        if not layers and phase.layers >= 1:
            hint = "the layers of the model are not known (allocate.decoder_layers)"
            raise unexpected("layers", phase.layers, "a fraction below 1", hint=hint)
        known = [range(count) for count in layers or [UNKNOWN_LAYERS] * len(allocation.stages)]
        fractions = [len(layers_in_use(phase.layers, own)) / len(own) for own in known]
        of_node = [
            1.0 if stage is None else fractions[stage] for stage in map(allocation.stage_of.get, range(len(cluster)))
        ]
        cluster = scaled_cluster(cluster, of_node, fractions)
    return state_problem(cluster, allocation, phase.schedule)


def scaled_cluster(cluster: Cluster, of_node: Sequence[float], of_stage: Sequence[float]) -> Cluster:
    """The same cluster for fewer layers: times of layers and steps by node, gradients by stage, in proportion.

    What a node holds of a microbatch is left as it is, an upper bound.
    """
    content = json.loads(cluster.to_json())
    for node, fraction in zip(content["nodes"], of_node, strict=True):
        node |= {name: node[name] * fraction for name in ("forward_s", "backward_s")}
    for name, fractions in (("step_s", of_node), ("gradient_bytes", of_stage)):
        if content.get(name):
            content[name] = [value * fraction for value, fraction in zip(content[name], fractions, strict=True)]
    content["source"] = f"{cluster.source}; times and gradients scaled to the decoder layers in use of a phase"
    return Cluster.from_json(json.dumps(content))


def without_stages(allocation: Allocation, absent: Collection[int]) -> Allocation:
    """The same allocation, without some stages and their nodes."""
    nodes = {node for stage in absent for node in allocation.stages[stage]}
    return dataclasses.replace(
        allocation,
        stages=[[] if stage in absent else served for stage, served in enumerate(allocation.stages)],
        absent_stages=tuple(sorted({*allocation.absent_stages, *absent})),
        absent_nodes=tuple(sorted({*allocation.absent_nodes, *nodes})),
    )


def check_phases(cluster: Cluster, phases: Sequence[Phase]) -> None:
    """Raise `InputError`, naming the phase, where one asks for what the nodes of the cluster cannot do."""
    for number, phase in enumerate(phases):
        try:
            state_problem(cluster, phase.allocation, phase.schedule)
        except InputError as error:
            raise in_phase(error, number) from error


def in_phase(error: InputError, number: int) -> InputError:
    """The same error of a schedule, as one of the phase that sets it."""
    located = in_group(error, f"phases.list[{number}]")
    if error.key is not None:
        located.key = f"phases.list[{number}].{error.key.removeprefix('schedule.')}"
    return located


@contextlib.contextmanager
def errors_of_phase(config: PhasesConfig, number: int | None) -> Iterator[None]:
    """Within: errors in what a phase sets of the schedule name the phase; None: there is none."""
    try:
        yield
    except InputError as error:
        name = re.match(r"schedule\.(\w+)", error.key or "")
        if number is None or name is None or not getattr(config.list[number], name[1], None):
            raise
        raise in_phase(error, number) from error


def reallocate(
    cluster: Cluster, phase: Phase, allocating: AllocateConfig, planner: PlannerConfig | None = None
) -> Phase:
    """Give all nodes to the stages in use of a phase that is to have its own allocation; its sources stay.

    Args:
        cluster: the nodes.
        phase: on the run's allocation.
        allocating: how nodes are allocated.
        planner: how the allocation is searched; None: as the phase's plan.

    Raises:
        NoPlanError: no allocation was found within the limit.

    """
    kept = phase.allocation
    in_use = [stage for stage, nodes in enumerate(kept.stages) if nodes]
    if not phase.anew or len(in_use) == 1:
        return phase
    planner = planner or phase.planner
    sources = kept.stages[0]
    counts = microbatches(phase.schedule.microbatches_per_source, len(sources))
    rules, skip_ratio = rules_of(_renumbered(phase.schedule, in_use), counts, range(len(in_use)))
    problem = Problem(
        _with_stages(cluster, in_use),
        microbatches=counts,
        sizes=[len(sources), *even_shares(len(cluster) - len(sources), len(in_use) - 1)],
        skip_ratio=skip_ratio,
        constraints=rules,
        sources=sources,
        max_replica_transfer_s=allocating.max_replica_transfer_s,
        layers=[kept.layers[stage] for stage in in_use] if kept.layers else [],
    )
    if allocating.objective == "simulated":
        scope = AllocationScope(
            sources=False,
            max_replica_transfer_s=allocating.max_replica_transfer_s,
            unused=allocating.unused == "allow",
        )
        found = allocation_of(make_plan(PlanningJob(problem, scope), phase.schedule.strategy, planner))
    else:
        found = allocation_of(allocated(PlanningJob(problem), planner))
    stages: list[list[int]] = [[] for _ in kept.stages]
    for stage, nodes in zip(in_use, found.stages, strict=True):
        stages[stage] = nodes
    stages[0] = sources  # in their order: each has its own number of microbatches
    return dataclasses.replace(
        phase, allocation=dataclasses.replace(kept, stages=stages, absent_nodes=found.absent_nodes)
    )


def _renumbered(schedule: ScheduleConfig, in_use: Sequence[int]) -> ScheduleConfig:
    """The same schedule for a model of the stages in use, which `check_phases` has found to be possible."""
    profile, classes = schedule.profile, schedule.classes
    if profile is not None:
        profile = [profile[stage - 1] for stage in in_use[1:]]
    if classes is not None:
        classes = [dataclasses.replace(one, stages=[in_use.index(stage) for stage in one.stages]) for one in classes]
    return dataclasses.replace(schedule, profile=profile, classes=classes)


def _with_stages(cluster: Cluster, stages: Sequence[int]) -> Cluster:
    """The same cluster for a model of some of its stages."""
    if not len(cluster.gradient_bytes):
        return cluster
    content = json.loads(cluster.to_json())
    content["gradient_bytes"] = [content["gradient_bytes"][stage] for stage in stages]
    return Cluster.from_json(json.dumps(content))


def phase_changes(
    phases: Sequence[Phase], rank_of: Sequence[int], stage_layers: Sequence[range], *, copy: bool
) -> list[PhaseChange]:
    """What changes before each phase, in a run without interruption; nothing before the first.

    Args:
        phases: of the run, allocated.
        rank_of: the rank of every node.
        stage_layers: the decoder layers of each stage.
        copy: whether layers that join become copies of others.

    """
    current = holding_ranks((phase.allocation.stages for phase in phases), rank_of)
    holding, changes = Holding(current, frozenset()), list[PhaseChange]()
    for phase in phases:
        serving = serving_ranks(phase.allocation.stages, rank_of)
        layers = [layer for stage in serving for layer in layers_in_use(phase.layers, stage_layers[stage])]
        changes.append(change_phase(holding, serving, layers, stage_layers, copy=copy))
        holding = changes[-1].after
    return changes


def changes_s(
    changes: Sequence[PhaseChange],
    clusters: Sequence[Cluster],
    rank_of: Sequence[int],
    stage_layers: Sequence[range],
    weights: WeightBytes | None,
) -> list[float | None]:
    """Predicted seconds of each change of phases.

    Args:
        changes: by `phase_changes`.
        clusters: for each of them, whose links it uses.
        rank_of: the rank of every node.
        stage_layers: the decoder layers of each stage.
        weights: None: unknown.

    """
    return [
        (None if change.moves or change.copies else 0.0)
        if weights is None
        else change_s(change, stage_layers, weights, transfer_time(cluster, rank_of))
        for change, cluster in zip(changes, clusters, strict=True)
    ]


def peak_state_bytes(
    phases: Sequence[Phase], nodes: Sequence[int], stage_layers: Sequence[range], weights: WeightBytes
) -> float:
    """Most bytes of weights and moments on a node: all stages that it serves in any phase, and one on its way."""
    held: dict[int, set[int]] = {}
    for stage, own in holding_ranks((phase.allocation.stages for phase in phases), nodes).items():
        for node in own:
            held.setdefault(node, set()).add(stage)
    state = [weights.state(stage, layers) for stage, layers in enumerate(stage_layers)]
    return max(
        sum(state[stage] for stage in stages) + (max(state[stage] for stage in stages) if len(stages) > 1 else 0.0)
        for stages in held.values()
    )


def summarize(phase: Phase, plan: Plan, change_s: float | None, *, predicts: bool = True) -> PhaseSummary:
    """Describe a phase and its plan in figures; `predicts` says whether the plan's times hold."""
    stages, predicted = len(plan.stages), plan.predicted
    layers = plan.layers or [UNKNOWN_LAYERS] * stages
    used = [len(layers_in_use(phase.layers, range(count))) for count in layers]
    executed = sum(used[stage] for microbatch in plan.microbatches for stage in microbatch.stages)
    return PhaseSummary(
        share=phase.share,
        stages=stages,
        stages_in_use=[stage for stage in range(stages) if stage not in plan.absent_stages],
        skip_ratio=plan.skip_ratio,
        left_out=1.0 - executed / (len(plan.microbatches) * sum(layers)),
        bent_rules=bent_rules(plan.constraints, plan.absent_stages, phase_layers(phase.layers, plan)),
        iteration_s=predicted.iteration_s if predicts else None,
        lower_bound_s=predicted.lower_bound_s if predicts else None,
        change_s=change_s if predicts else None,
    )


def phase_layers(setting: float | None, plan: Plan) -> str | None:
    """Which part of the layers of its stages a phase uses, as text; None: all."""
    if setting is None:
        return None
    own = [count for stage, count in enumerate(plan.layers) if stage not in plan.absent_stages]
    if not own:
        return f"{setting:.4g} of the layers of each stage"
    used = sum(len(layers_in_use(setting, range(count))) for count in own)
    return None if used == sum(own) else f"{used} of {sum(own)} layers"


def average_iteration_s(summaries: Sequence[PhaseSummary], iterations: int | None = None) -> float | None:
    """Average iteration time of a run, in seconds; None if that of a phase is unknown.

    With the number of iterations, the known times of changes between phases are included.
    """
    times = [None if phase.iteration_s is None else phase.share * phase.iteration_s for phase in summaries]
    known = [time_s for time_s in times if time_s is not None]
    if len(known) < len(times):
        return None
    return sum(known) + (0.0 if iterations is None else sum(p.change_s or 0.0 for p in summaries) / iterations)


def run_iterations(config: PhasesConfig, iteration_tokens: int | None) -> int | None:
    """Iterations of a run whose phases are in tokens; None: unknown."""
    stated = [phase.tokens for phase in config.list]
    if iteration_tokens is None or None in stated:
        return None
    return max(1, round(sum(tokens or 0.0 for tokens in stated) / iteration_tokens))


def stages_text(numbers: Sequence[int], stages: int) -> str:
    """Name the stages in use: `all 6`, `0-2 of 6`, `0,1,5 of 6`."""
    if len(numbers) == stages:
        return f"all {stages}"
    return f"{numbers_text(numbers)} of {stages}"
