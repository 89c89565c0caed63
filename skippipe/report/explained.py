"""A plan explained: what its time is made of, which upgrade would shorten it, how its search went. No output here."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from skippipe import _scheduler
from skippipe._scheduler import Cluster, Explanation, Plan, Segment, Task, Upgrade
from skippipe.config import PlannerConfig
from skippipe.errors import DeadlockError, NoPlanError
from skippipe.planning import PlanningJob, make_plan
from skippipe.report.search import Search, read_search

PARTS = {
    "F": "forward",
    "L": "head and loss",
    "B": "backward",
    "transfer": "transfer",
    "busy": "waiting: node busy",
    "memory": "waiting: memory full",
    "order": "waiting: order of the plan",
    "wave": "waiting: wave before",
    "all-reduce": "all-reduce",
    "norm": "gradient norm",
    "step": "optimizer step",
}
"""What a stretch of an iteration can be spent on, and how that is called."""
REPLANNED = 3
"""Upgrades that `replan` plans anew."""


@dataclass(frozen=True)
class Explained:
    """All that is said about one plan."""

    name: str
    """where it comes from"""
    plan: Plan
    """with the simulator's times in its own order"""
    explanation: Explanation
    upgrades: list[Upgrade]
    """best first"""
    search: Search
    replanned: list[float | None] = field(default_factory=list)
    """seconds of the iteration planned anew with each of the first upgrades; None where no plan was found"""
    tasks: list[Task] = field(default_factory=list)
    """those of the plan, made once"""


def explain(plan: Plan, name: str) -> Explained:
    """Explain a plan as its own order runs.

    Raises:
        DeadlockError: its tasks wait for each other.

    """
    explanation = _scheduler.explain(plan)
    simulated = explanation.plan
    upgrades = _scheduler.upgrades(explanation)
    return Explained(name, simulated, explanation, upgrades, read_search(plan.solver), tasks=simulated.tasks)


def replan(explained: Explained, count: int = REPLANNED) -> list[float | None]:
    """Plan anew with each of the first `count` upgrades, with the seed and the work of the plan itself."""
    report = explained.plan.solver
    planner = PlannerConfig(seed=report.seed or 0, work_limit=report.work or None)
    times: list[float | None] = []
    for upgrade in explained.upgrades[:count]:
        problem = explained.plan.with_cluster(upgrade.apply(explained.plan.cluster)).problem()
        try:
            times.append(make_plan(PlanningJob(problem), explained.plan.strategy, planner).predicted.iteration_s)
        except (NoPlanError, DeadlockError):
            times.append(None)
    return times


def composition(tasks: Sequence[Task], segments: Sequence[Segment]) -> dict[str, float]:
    """Seconds of each part of `PARTS` on a way through the iteration; parts that take none are left out."""
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
    """One direction of a link on a way through the iteration."""

    sender: int
    receiver: int
    """nodes, or regions where the cluster has those"""
    messages: int
    seconds: float


def links(cluster: Cluster, segments: Sequence[Segment]) -> list[LinkUse]:
    """Links on a way through the iteration, those that take longest first."""
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


def handovers(explained: Explained) -> Counter[str]:
    """Why the tasks on the critical path did not start before, counted by reason."""
    reasons = explained.explanation.reasons
    return Counter(reasons[segment.task] for segment in explained.explanation.critical if segment.task is not None)


def place(cluster: Cluster, number: int) -> str:
    """Name one end of a link: a node, or a region where the cluster has those."""
    regions = cluster.region_of
    if regions is None:
        return cluster.names[number]
    members = [name for name, region in zip(cluster.names, regions, strict=True) if region == number]
    return f"region {number} ({members[0]}{', ...' if len(members) > 1 else ''})" if members else f"region {number}"


def upgrade_name(cluster: Cluster, upgrade: Upgrade) -> str:
    """Name what an upgrade makes faster."""
    if upgrade.node is not None:
        return f"node {cluster.names[upgrade.node]}"
    assert upgrade.link is not None
    one, other = (place(cluster, end) for end in upgrade.link)
    return f"link {one} {'<->' if upgrade.both_ways else '->'} {other}"
