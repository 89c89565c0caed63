"""What each method of planner and allocator is worth: plans without it, at equal work.

    python benchmarks/leave_one_out.py [--seeds 10] [--questions small/ geo20] [--without order exchange] [--name NAME]

Every question is planned with everything, then without each of the parts that its search has. Limits are of work alone,
so results depend on neither machine nor load; what a part leaves undone goes to the others. Questions: instances with a
given allocation (published, drawn, small with proved optima, presets on the surrogate's allocation); presets and small
clusters with the allocation searched, for every strategy; the surrogate alone, by its score. One process, one thread.
Writes out/NAME.csv, a line for each plan, after every seed, and out/NAME.md, the table, at the end.
"""

import argparse
import csv
import dataclasses
import functools
import math
import statistics
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from output import OUT, Row, markdown, note
from plan_hashes import FREE8, FREE12, SITES, free

from skippipe import _scheduler
from skippipe._scheduler import Plan, PlanRequest, Problem, is_joint
from skippipe.application import compose
from skippipe.bench import ALLOCATING, load_case, small_folder
from skippipe.errors import DeadlockError, ImpossibleError, NoPlanError
from skippipe.planning import PlanningJob, allocated, planning_job

PUBLISHED = Path(__file__).parents[1] / "tests" / "reference" / "published"
PRESETS = ("geo20", "five_clusters", "single_cluster", "synthetic", "local4")
CLUSTERS: dict[str, Callable[[], list[str]]] = {
    **{name: partial(list, [f"cluster={name}"]) for name in PRESETS},
    "two sites": partial(list, [*SITES, "schedule.skip_ratio=0.25"]),
    "eight nodes": partial(list, FREE8),
    "twelve nodes": partial(list, FREE12),
    "small 6 nodes": partial(free, "held-3s-06n-04m"),
    "small 9 nodes": partial(free, "held-3s-09n-09m"),
    "small 10 nodes": partial(free, "held-4s-10n-08m"),
    "geo20 gradients": partial(list, ["cluster=geo20", "cluster.gradient_bytes=2e8"]),
}
"""Settings of `skippipe plan` for each."""
NOTHING = "nothing"
SPENT = "work of "
PORTFOLIO = (
    "exchange", "order", "proof", "first-annealing", "second-annealing", "schedule-annealing",
    "assignment-moves",
)  # fmt: skip
JOINT = ("joint-annealing",)
FEW = ("schedule-chains", "one-by-one")
MOST_FEW, MOST_SMALL = 12, 9
"""Nodes up to which clusters have these, and up to which every allocation is planned."""
SURROGATE = ("crossover", "enumeration")
GREEDY = "genetic"
"""Left out: the greedy allocation comes first."""
PROVED = 1 + 1e-9
ROUNDING = 1e-9
NOISE = 3.0
"""A difference of means counts from so many of its standard errors on."""


@dataclass(frozen=True)
class Question:
    """What is planned, with which strategy and how much work; and which parts its search has."""

    job: PlanningJob
    strategy: str
    work: int
    parts: tuple[str, ...]
    """none: the surrogate alone"""


def questions() -> dict[str, Callable[[], Question]]:
    """All of them by name, stated when they are called; the cheap ones first."""
    found: dict[str, Callable[[], Question]] = {}
    for path in sorted(small_folder().glob("*.cluster.json")):
        found[f"small/{path.name.removesuffix('.cluster.json')}"] = partial(given, path, 400_000)
    for name, work in (
        ("published20", 1_000_000),
        ("fresh20", 1_000_000),
        ("scale100", 2_400_000),
        ("scale1000", 2_400_000),
    ):
        found[f"given/{name}"] = partial(given, PUBLISHED / f"{name}.cluster.json", work)
    for name in PRESETS:
        found[f"given/{name}"] = partial(on_surrogates, name, "skippipe", 1_000_000, PORTFOLIO)
        found[f"given/{name} no-tc2"] = partial(on_surrogates, name, "skippipe-no-tc2", 400_000, ("exchange",))
    for name in CLUSTERS:
        found[f"surrogate/{name}"] = partial(surrogate, name)
        found[f"searched/{name} skippipe"] = partial(searched, name, "skippipe", (*JOINT, *FEW))
        if name not in ("twelve nodes", "small 10 nodes", "geo20 gradients"):
            own = (*JOINT, *FEW, "straight-pipelines")
            found[f"searched/{name} full-routed"] = partial(searched, name, "full-routed", own)
            for strategy in ("full", "random-skip", "skippipe-no-tc2"):
                found[f"searched/{name} {strategy}"] = partial(searched, name, strategy, ("one-by-one", "climbing"))
    return found


def given(cluster: Path, work: int) -> Question:
    """An instance with its allocation."""
    return Question(load_case(cluster).job, "skippipe", work, PORTFOLIO)


@functools.cache
def job_of(name: str) -> PlanningJob:
    """The question for a cluster, with the default rules."""
    settings = compose("plan", CLUSTERS[name]())
    return planning_job(settings.cluster, settings.allocate, settings.schedule)


def on_surrogates(name: str, strategy: str, work: int, parts: tuple[str, ...]) -> Question:
    """A cluster on the surrogate's allocation."""
    return Question(PlanningJob(allocated(job_of(name), ALLOCATING)), strategy, work, parts)


def surrogate(name: str) -> Question:
    """The surrogate alone: it has a fifth of this work."""
    return Question(job_of(name), "skippipe", 250_000, ())


def searched(name: str, strategy: str, parts: tuple[str, ...]) -> Question:
    """A cluster whose allocation is searched."""
    job = job_of(name)
    nodes = len(job.first.cluster)
    own = [part for part in parts if nodes <= MOST_FEW or part not in FEW]
    if job.scope and job.scope.unused and job.first.cluster.gradient_bytes:
        own.append("idle-nodes")
    works = (400_000, 400_000) if not is_joint(strategy) else (600_000, 1_200_000)
    return Question(job, strategy, works[nodes > MOST_SMALL], (*own, GREEDY))


def plan(question: Question, without: str, seed: int) -> Row:
    """Plan once; times in seconds, None where there is no plan."""
    job, part = question.job, None if without in (NOTHING, GREEDY) else without
    if without == GREEDY:
        job = dataclasses.replace(job, first=greedily(job.first))
    request = PlanRequest(
        job.first, question.strategy, scope=job.scope, time_limit_s=None, work_limit=question.work, seed=seed,
        without=part,
    )  # fmt: skip
    begun = time.process_time()
    row: Row = {"iteration_s": None, "proved": False, "work": 0, "share": None}
    try:
        if not question.parts:
            _, found = _scheduler.first_allocation(request)
            assert found is not None
            row |= {"iteration_s": found.best.score_s, "proved": found.optimal, "work": found.statistics["work"]}
        else:
            made = _scheduler.plan(request)
            report = made.solver
            bound_s = made.predicted.lower_bound_s if report.allocation is None else report.allocation.lower_bound_s
            row |= {
                "iteration_s": made.predicted.iteration_s,
                "proved": made.predicted.iteration_s <= bound_s * PROVED,
                "work": report.work,
            } | {f"{SPENT}{name}": spent for name, spent in spent_on(made).items()}
    except ImpossibleError:
        row["proved"] = True
    except (NoPlanError, DeadlockError):
        pass
    return row | {"cpu_s": round(time.process_time() - begun, 3)}


def spent_on(made: Plan) -> dict[str, float]:
    """Work of each part that the plan's report tells apart."""
    report = made.solver
    spent = {name.removeprefix(SPENT): value for name, value in report.statistics.items() if name.startswith(SPENT)}
    if report.allocation is not None:
        spent["joint-annealing" if is_joint(made.strategy) else "climbing"] = report.allocation.work
    return spent


def greedily(problem: Problem) -> Problem:
    """The problem on the greedy allocation, with the sizes that it has."""
    stages = _scheduler.greedy_allocation(problem.cluster, problem.sizes)
    return Problem(
        problem.cluster, stages, problem.microbatches, skip_ratio=problem.skip_ratio, constraints=problem.constraints,
        layers=problem.layers,
    )  # fmt: skip


def summary(rows: Sequence[Row]) -> list[Row]:
    """A line for each part: what is lost without it."""
    results: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        results.setdefault((row["question"], row["without"]), []).append(row)
    lines = []
    for part in dict.fromkeys(row["without"] for row in rows if row["without"] != NOTHING):
        compared = {name: (results[name, NOTHING], own) for (name, left), own in results.items() if left == part}
        found = {name: difference(*both) for name, both in compared.items()}
        known = {name: one for name, one in found.items() if one is not None}
        if not known:
            continue
        worst = max(known, key=lambda name: known[name][0])
        counts = [
            Counter(key for own in side for row in own for key in counted(row))
            for side in zip(*compared.values(), strict=True)
        ]
        spent = [row.get(f"{SPENT}{part}", 0) for own, _ in compared.values() for row in own]
        total = sum(row["work"] for own, _ in compared.values() for row in own)
        mean = math.exp(statistics.fmean(math.log(ratio) for ratio, _ in known.values()))
        error = math.sqrt(sum(error * error for _, error in known.values())) / len(known)
        lines.append({
            "without": part,
            "questions": len(compared),
            "worse": sum(ratio - 1 > NOISE * error + ROUNDING for ratio, error in known.values()),
            "better": sum(1 - ratio > NOISE * error + ROUNDING for ratio, error in known.values()),
            "mean ratio": f"{mean:.4f} ± {error:.4f}",
            "worst ratio": f"{known[worst][0]:.4f} ({worst})",
            "proofs lost": counts[0]["proved"] - counts[1]["proved"],
            "plans lost": counts[0]["planned"] - counts[1]["planned"],
            "share of work": f"{sum(spent) / total:.1%}" if any(spent) else None,
        })  # fmt: skip
    return lines


def difference(with_it: Sequence[Row], without_it: Sequence[Row]) -> tuple[float, float] | None:
    """Ratio of mean iterations, without to with, and its standard error; None if one side has no plan."""
    sides = [[row["iteration_s"] for row in rows if row["iteration_s"] is not None] for rows in (with_it, without_it)]
    if not all(sides):
        return None
    before, after = map(statistics.fmean, sides)
    error = math.sqrt(sum(statistics.pvariance(own) / max(1, len(own) - 1) for own in sides))
    return after / before, error / before


def counted(row: Row) -> list[str]:
    """What a line counts for."""
    return ["planned"] * (row["iteration_s"] is not None) + ["proved"] * row["proved"]


def write(name: str, rows: Sequence[Row]) -> None:
    """Write the lines as CSV."""
    OUT.mkdir(exist_ok=True)
    keys = dict.fromkeys(key for row in rows for key in row)
    with (OUT / f"{name}.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(keys))
        writer.writeheader()
        writer.writerows(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--questions", nargs="+", default=[""], metavar="TEXT", help="those whose name contains one")
    parser.add_argument("--without", nargs="*", metavar="PART", help="these parts alone; none: only with everything")
    parser.add_argument("--name", default="leave_one_out", help="of the files")
    options = parser.parse_args(arguments)
    texts = options.questions
    chosen = {name: state() for name, state in questions().items() if any(text in name for text in texts)}
    rows: list[Row] = []
    for seed in range(options.seeds):
        for name, question in chosen.items():
            parts = [part for part in question.parts or SURROGATE if options.without is None or part in options.without]
            rows += [
                {"question": name, "without": part, "seed": seed, **plan(question, part, seed)}
                for part in (NOTHING, *parts)
            ]
        write(options.name, rows)
        note(f"seed {seed}: {sum(row['cpu_s'] for row in rows):.0f} s of processor time so far")
    table = markdown(lines) if (lines := summary(rows)) else ""
    (OUT / f"{options.name}.md").write_text(table, encoding="utf-8")
    sys.stdout.write(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
