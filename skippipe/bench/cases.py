"""Fixed sets of instances: presets and folders of files, with their known optima."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skippipe
from skippipe._scheduler import AllocationScope, Problem
from skippipe.allocation import read_allocation
from skippipe.cluster import load_cluster
from skippipe.config import AllocateConfig, ClusterConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError, in_file, unexpected
from skippipe.files import read_json_object
from skippipe.planning import PlanningJob, allocated, planning_job, state_problem

RULES = ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")
_CLUSTER = ".cluster.json"
ALLOCATING = PlannerConfig(work_limit=250_000)
"""Effort of allocating presets: a work limit, so that every machine measures the same instance."""


@dataclass(frozen=True)
class BestKnown:
    """Best known result of an instance under its own rules, for the strategy `skippipe`."""

    iteration_s: float | None
    """the shortest iteration found, in seconds; None: infeasible"""
    proved: bool
    """whether optimality or infeasibility is proved"""
    cpu_s: float | None = None
    """CPU seconds of the proof"""


@dataclass(frozen=True)
class Case:
    """An instance of a fixed set, with its problem statement."""

    name: str
    problem: Problem
    """with its allocation"""
    schedule: ScheduleConfig
    """rules, skip ratio and microbatches"""
    known: BestKnown | None = None
    files: tuple[Path, Path] | None = None
    """where it comes from: the cluster, and the question"""
    scope: AllocationScope | None = None
    """what the planner may change of the allocation"""

    @property
    def job(self) -> PlanningJob:
        """As a question for the planner."""
        return PlanningJob(self.problem, self.scope)


Cases = dict[str, Case]


def preset_cases(presets: Mapping[str, ClusterConfig]) -> Cases:
    """Instances of the presets, with default rules and skip ratio 1/3."""
    schedule = ScheduleConfig()
    cases = {}
    for name, preset in presets.items():
        job = planning_job(preset, AllocateConfig(), schedule)
        problem = allocated(job, ALLOCATING)
        cases[name] = Case(name, problem, schedule, scope=job.scope)
    return cases


def small_folder() -> Path:
    """Folder of the small instances with proved optima, in a checkout of the repository.

    Raises:
        InputError: it is missing, as in an installed wheel.

    """
    folder = Path(skippipe.__file__).parent.parent / "benchmarks" / "small"
    if not folder.is_dir():
        raise InputError(f"small needs a checkout of the repository: no folder {folder}", key="set")
    return folder


def load_cases(key: str, folder: Path) -> Cases:
    """Read NAME.cluster.json, and NAME.json with allocation, rules, skip ratio and microbatches.

    Raises:
        InputError: there are none, or a file is missing or invalid; `key` is the setting that names the folder.

    """
    if not folder.is_dir():
        raise unexpected(key, folder, "a folder with NAME.cluster.json and NAME.json")
    paths = sorted(folder.glob(f"*{_CLUSTER}"))
    if not paths:
        raise unexpected(key, f"{folder} without instances", "NAME.cluster.json and NAME.json")
    cases = [load_case(path) for path in paths]
    return {case.name: case for case in cases}


def load_case(path: Path) -> Case:
    """Read the instance of the cluster file NAME.cluster.json at `path`, with NAME.json next to it.

    Raises:
        InputError: a file is missing or invalid.

    """
    name = path.name.removesuffix(_CLUSTER)
    problem_file = path.with_name(f"{name}.json")
    content = read_json_object(str(problem_file))
    cluster, allocation = load_cluster(str(path)), read_allocation(str(problem_file))
    rules = content.get("rules", {})
    try:
        schedule = ScheduleConfig(
            skip_ratio=float(content["skip_ratio"]),
            microbatches_per_source=content["microbatches_per_source"],
            **{key: rules[key] for key in RULES if key in rules},
        )
        problem = state_problem(cluster, allocation, schedule)
        return Case(name, problem, schedule, _known(content), (path, problem_file))
    except InputError as error:
        raise in_file(error, problem_file) from None
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(str(error), file=problem_file) from None


def _known(content: Mapping[str, Any]) -> BestKnown | None:
    """Read `proved`, or else `best_known`, possibly the one for the given allocation and rules."""
    if "proved" in content:
        proof = content["proved"]
        return BestKnown(proof["iteration_s"], proved=True, cpu_s=proof["cpu_s"])
    best = content.get("best_known", {})
    best = best.get("fixed allocation, rules as here", best)
    if best.get("iteration_s") is None:
        return None
    return BestKnown(float(best["iteration_s"]), proved=bool(best.get("proved_optimal", False)))
