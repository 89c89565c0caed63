"""Analysis of a plan: time breakdown, critical path, upgrades, search history. No output here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from skippipe import _scheduler
from skippipe._scheduler import Cluster, Explanation, Plan, Segment, Task, Upgrade
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, NoPlanError
from skippipe.planning import PlanningJob, make_plan

PARTS = {
    "F": "forward",
    "L": "head and loss",
    "B": "backward",
    "transfer": "transfer",
    "busy": "waiting: node busy",
    "memory": "waiting: memory full",
    "order": "waiting: plan order",
    "wave": "waiting: previous wave",
    "all-reduce": "all-reduce",
    "norm": "gradient norm",
    "step": "optimizer step",
}
"""Kinds of time in an iteration, and their names."""
REPLANNED = 3
"""Number of upgrades that `replan` replans with."""


@dataclass(frozen=True)
class PlanAnalysis:
    """Analysis of one plan."""

    name: str
    """file it comes from"""
    plan: Plan
    """with the simulator's times for its own order"""
    explanation: Explanation
    upgrades: list[Upgrade]
    """best first"""
    replanned: list[float | None] = field(default_factory=list)
    """iteration time in seconds after replanning with each of the first upgrades; None if no plan was found"""
    tasks: list[Task] = field(default_factory=list)
    """the plan's tasks, converted once"""


def analyse_plan(plan: Plan, name: str) -> PlanAnalysis:
    """Analyse a plan with its own task order.

    Raises:
        DeadlockError: its tasks wait for each other.

    """
    explanation = _scheduler.explain(plan)
    simulated = explanation.plan
    upgrades = _scheduler.upgrades(explanation)
    return PlanAnalysis(name, simulated, explanation, upgrades, tasks=simulated.tasks)


def replan(analysis: PlanAnalysis, count: int = REPLANNED) -> list[float | None]:
    """Replan with each of the first `count` upgrades, with the plan's own seed and work."""
    report = analysis.plan.solver
    planner = PlannerConfig(seed=report.seed or 0, work_limit=report.work or None)
    times: list[float | None] = []
    for upgrade in analysis.upgrades[:count]:
        problem = analysis.plan.with_cluster(upgrade.apply(analysis.plan.cluster)).problem()
        try:
            times.append(make_plan(PlanningJob(problem), analysis.plan.strategy, planner).predicted.iteration_s)
        except (NoPlanError, DeadlockError):
            times.append(None)
    return times


def composition(tasks: Sequence[Task], segments: Sequence[Segment]) -> dict[str, float]:
    """Seconds of each part of `PARTS` on a path through the iteration; zero parts are omitted."""
    sums: dict[str, float] = dict.fromkeys(PARTS, 0.0)
    for segment in segments:
        part = segment.part
        if part == "task":
            assert segment.task is not None
            part = tasks[segment.task].kind
        sums[part] += segment.end_s - segment.start_s
    return {part: value for part, value in sums.items() if value}


@dataclass(frozen=True)
class LinkUse:
    """One direction of a link on a path through the iteration."""

    sender: int
    receiver: int
    """nodes, or regions if the cluster has them"""
    messages: int
    seconds: float


def links(cluster: Cluster, segments: Sequence[Segment]) -> list[LinkUse]:
    """Links on a path through the iteration, longest total time first."""
    regions = cluster.region_of
    messages: Counter[tuple[int, int]] = Counter()
    seconds: dict[tuple[int, int], float] = {}
    for segment in segments:
        if segment.link is None:
            continue
        sender, receiver = segment.link
        key = (sender, receiver) if regions is None else (int(regions[sender]), int(regions[receiver]))
        messages[key] += 1
        seconds[key] = seconds.get(key, 0.0) + segment.end_s - segment.start_s
    uses = [LinkUse(*key, messages[key], seconds[key]) for key in messages]
    return sorted(uses, key=lambda use: (-use.seconds, use.sender, use.receiver))


def handovers(analysis: PlanAnalysis) -> Counter[str]:
    """Reasons why tasks on the critical path did not start earlier, with counts."""
    reasons = analysis.explanation.reasons
    return Counter(reasons[segment.task] for segment in analysis.explanation.critical if segment.task is not None)


def endpoint_name(cluster: Cluster, number: int) -> str:
    """Name of one end of a link: a node, or a region if the cluster has them."""
    regions = cluster.region_of
    if regions is None:
        return cluster.names[number]
    members = [name for name, region in zip(cluster.names, regions, strict=True) if region == number]
    return f"region {number} ({members[0]}{', ...' if len(members) > 1 else ''})" if members else f"region {number}"


def upgrade_name(cluster: Cluster, upgrade: Upgrade) -> str:
    """Name of the node or link that an upgrade speeds up."""
    if upgrade.node is not None:
        return f"node {cluster.names[upgrade.node]}"
    assert upgrade.link is not None
    one, other = (endpoint_name(cluster, end) for end in upgrade.link)
    return f"link {one} {'<->' if upgrade.both_ways else '->'} {other}"
