"""The plans of one setting: every strategy with its own best allocation, and all on the allocation of `full`.

All strategies get the same effort: so many searches with different seeds for an allocation of their own, and one on an
allocation that another strategy found. A search is unlucky at times. So where every plan of one strategy is a plan of
another too, the other is never worse: it takes over a shorter plan.
"""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import skippipe
from skippipe._scheduler import AllocationScope, Plan, Problem, is_full, is_random
from skippipe.bench.cases import Case
from skippipe.bench.figure3.networks import Setting, cluster_of
from skippipe.bench.planner import violations
from skippipe.config import STRATEGIES, PlannerConfig, ScheduleConfig
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError, SchedulerError
from skippipe.files import read_text, write_text
from skippipe.planning import RANDOM_SEEDS, PlanningJob, constraints, make_plan, microbatches, on_allocation_of

STRAIGHT = tuple(filter(is_full, STRATEGIES))
"""Strategies that skip nothing."""
CONTAINED = {"full-routed": ("full",), "skippipe": ("random-skip", "skippipe-no-tc2")}
"""Strategies whose plans are plans of another one too, with the same skip ratio."""
OWN, SAME = "own", "same"


@dataclass(frozen=True)
class Effort:
    """What each strategy may spend on a plan."""

    searches: int
    """with an allocation of its own"""
    work_limit: int
    """of each of them"""
    seed: int
    """of the first"""
    threads: int = 1

    def planner(self, seed: int) -> PlannerConfig:
        """Limits of one search."""
        return PlannerConfig(work_limit=self.work_limit, seed=seed, threads=self.threads)

    @property
    def seeds(self) -> range:
        """Of all searches."""
        return range(self.seed, self.seed + self.searches)


@dataclass(frozen=True)
class Cell:
    """The result of one strategy in a setting."""

    setting: Setting
    strategy: str
    skip_ratio: float
    allocation: str
    """own, or same: that of `full`"""
    plan: Plan | None
    """None: there is none"""
    taken_from: str | None = None
    """the strategy whose plan was shorter than that of any search"""
    note: str = ""
    """why there is no plan"""

    @property
    def iteration_s(self) -> float | None:
        """Predicted iteration time in seconds."""
        return None if self.plan is None else self.plan.predicted.iteration_s


@dataclass(frozen=True)
class PlanStore:
    """Plans in files, each named by a hash of all that it depends on, so that no search runs twice."""

    folder: Path
    checker: Path | None = None
    """a script that checks every plan, see `skippipe.bench.planner.violations`"""

    def search(self, problem: Problem, strategy: str, planner: PlannerConfig, scope: AllocationScope | None) -> Plan:
        """The plan of one search, from its file where it has one.

        Raises:
            SchedulerError: the plan breaks a rule; or as `skippipe.planning.make_plan`.

        """
        job = PlanningJob(problem, scope)
        return self._kept(problem, strategy, planner, lambda: make_plan(job, strategy, planner))

    def median_draw(self, problem: Problem, strategy: str, planner: PlannerConfig) -> Plan:
        """Of the plans with 20 seeds, on a given allocation, the one in the middle: the strategy draws its routes."""

        def draw() -> Plan:
            seeds = range(planner.seed, planner.seed + RANDOM_SEEDS)
            plans = [
                make_plan(PlanningJob(problem), strategy, dataclasses.replace(planner, seed=seed)) for seed in seeds
            ]
            return sorted(plans, key=_iteration_s)[RANDOM_SEEDS // 2]

        return self._kept(problem, f"{strategy}, {RANDOM_SEEDS} draws", planner, draw)

    def _kept(self, problem: Problem, what: str, planner: PlannerConfig, make: Callable[[], Plan]) -> Plan:
        path = self.folder / f"{_digest(problem, what, planner)}.json"
        if path.is_file():
            return Plan.from_json(read_text(str(path)))
        plan = make()
        self.check(plan, problem)
        write_text(path, plan.to_json())
        return plan

    def check(self, plan: Plan, problem: Problem) -> None:
        """Raise `SchedulerError` naming the rules that a plan breaks."""
        schedule = _schedule(problem.skip_ratio, max(problem.microbatches))
        broken = violations(plan, Case("figure3", problem, schedule), self.checker)
        if broken:
            raise SchedulerError("\n  ".join([f"a plan of {plan.strategy} that cannot be right:", *broken]))


@dataclass(frozen=True)
class SettingPlanner:
    """Searches for one setting."""

    setting: Setting
    flops_per_s: float | None
    """speed of the nodes, see `cluster_of`"""
    count: int
    """microbatches of each source"""
    effort: Effort
    store: PlanStore

    def plan(self, skipping: Sequence[tuple[str, float]], begin: Callable[[str], None]) -> list[Cell]:
        """Plan `full`, `full-routed` and strategies that skip, in both comparisons.

        Args:
            skipping: strategies that skip, each with a skip ratio.
            begin: called before each of these `2 + len(skipping)` strategies, with its name.

        Raises:
            SchedulerError: a plan breaks a rule.

        """
        begin("full")
        full = self.own("full", 0.0)
        begin("full-routed")
        routed = self.own("full-routed", 0.0)
        if routed.plan is not None:  # its allocation may be the better one for straight pipelines, too
            full = shortest([full, self.on(routed.plan, "full", 0.0, OWN)])
        if full.plan is None:
            return [full, routed]
        cells = [full, dataclasses.replace(full, allocation=SAME), *self._both(routed, full.plan)]
        for strategy, skip_ratio in skipping:
            begin(bar_name(strategy, skip_ratio))
            cells += self._both(self.own(strategy, skip_ratio), full.plan)
        return [self.at_least_as_good(cell, cells) for cell in cells]

    def _both(self, own: Cell, other: Plan) -> tuple[Cell, Cell]:
        """The results of a strategy in both comparisons, of which the first has more to choose from.

        Args:
            own: with an allocation of its own.
            other: the plan whose allocation all use.

        """
        same = self.on(other, own.strategy, own.skip_ratio, SAME)
        return shortest([own, dataclasses.replace(same, allocation=OWN)]), same

    def own(self, strategy: str, skip_ratio: float) -> Cell:
        """The best of several searches, each for an allocation of its own."""
        schedule = _schedule(skip_ratio, self.count)
        problem = Problem(
            cluster_of(self.setting, self.flops_per_s),
            microbatches=microbatches(self.count, self.setting.sizes[0]),
            sizes=list(self.setting.sizes),
            skip_ratio=skip_ratio,
            constraints=constraints(schedule),
        )

        def search(seed: int) -> Plan:
            planner = self.effort.planner(seed)
            plan = self.store.search(problem, strategy, planner, AllocationScope(unused=True))
            if not is_random(strategy):
                return plan
            return self.store.median_draw(on_allocation_of(plan, schedule), strategy, planner)

        return shortest([self._cell(strategy, skip_ratio, OWN, search, seed) for seed in self.effort.seeds])

    def on(self, other: Plan, strategy: str, skip_ratio: float, allocation: str) -> Cell:
        """One search on the allocation of another plan."""
        problem = on_allocation_of(other, _schedule(skip_ratio, self.count))

        def search(seed: int) -> Plan:
            if is_random(strategy):
                return self.store.median_draw(problem, strategy, self.effort.planner(seed))
            return self.store.search(problem, strategy, self.effort.planner(seed), None)

        return self._cell(strategy, skip_ratio, allocation, search, self.effort.seed)

    def _cell(
        self, strategy: str, skip_ratio: float, allocation: str, search: Callable[[int], Plan], seed: int
    ) -> Cell:
        try:
            return Cell(self.setting, strategy, skip_ratio, allocation, search(seed))
        except ImpossibleError as error:
            note = f"impossible: {error}"
        except (NoPlanError, DeadlockError) as error:
            note = f"none found: {error}"
        return Cell(self.setting, strategy, skip_ratio, allocation, None, note=note)

    def at_least_as_good(self, cell: Cell, cells: Iterable[Cell]) -> Cell:
        """The cell, or the best of those whose plans are plans of its strategy too, if that is better."""
        contained = [
            other
            for other in cells
            if other.strategy in CONTAINED.get(cell.strategy, ())
            and (other.skip_ratio, other.allocation) == (cell.skip_ratio, cell.allocation)
        ]
        best = shortest([cell, *contained])
        if best is cell or best.plan is None:
            return cell
        searched = self.on(best.plan, cell.strategy, cell.skip_ratio, cell.allocation)
        if searched.plan is None or shortest([best, searched]) is searched:
            return searched
        plan = taken_over(best.plan, searched.plan)
        self.store.check(plan, searched.plan.problem())
        return dataclasses.replace(cell, plan=plan, taken_from=best.strategy, note="")


def bar_name(strategy: str, skip_ratio: float) -> str:
    """Name of a strategy with its skip ratio."""
    return strategy if strategy in STRAIGHT else f"{strategy} {100 * skip_ratio:.0f} %"


def shortest(cells: Sequence[Cell]) -> Cell:
    """The cell with the shortest iteration; of equal ones the first, and one without a plan only if all are."""
    return min(cells, key=lambda cell: float("inf") if cell.iteration_s is None else cell.iteration_s)


def taken_over(plan: Plan, searched: Plan) -> Plan:
    """The plan, as one of another strategy with the same allocation.

    Args:
        plan: shorter than `searched`.
        searched: of the other strategy, whose rules `plan` keeps; its bound holds for all plans of that strategy.

    """
    content, routes = json.loads(searched.to_json()), json.loads(plan.to_json())
    bound_s = content["predicted"]["lower_bound_s"]
    content |= {key: routes[key] for key in ("microbatches", "tasks")}
    content["predicted"] = routes["predicted"] | {
        "lower_bound_s": bound_s,
        "gap": routes["predicted"]["iteration_s"] / bound_s - 1,
    }
    return Plan.from_json(json.dumps(content))


def _schedule(skip_ratio: float, count: int) -> ScheduleConfig:
    return ScheduleConfig(skip_ratio=skip_ratio, microbatches_per_source=count)


def _iteration_s(plan: Plan) -> float:
    return plan.predicted.iteration_s


def _digest(problem: Problem, what: str, planner: PlannerConfig) -> str:
    """Hash of all that a plan depends on."""
    parts = (
        skippipe.__version__, problem.cluster.to_json(), problem.stages, problem.sizes, problem.absent_nodes,
        problem.microbatches, problem.skip_ratio, what, planner.work_limit, planner.seed,
    )  # fmt: skip
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:24]
