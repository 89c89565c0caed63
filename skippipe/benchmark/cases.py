"""Fixed sets of instances: the presets, and folders of files, with what is known of their optima."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import skippipe
from skippipe._scheduler import AllocationScope, Problem
from skippipe.allocation import read_allocation
from skippipe.cluster import load_cluster
from skippipe.config import AllocateConfig, ClusterConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError
from skippipe.files import read_json_object
from skippipe.planning import PlanningJob, allocated, prepare, state_problem

RULES = ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")
_CLUSTER = ".cluster.json"
ALLOCATING = PlannerConfig(work_limit=250_000)
"""How hard allocations of presets are searched: by work, so that every machine measures the same instance."""


@dataclass(frozen=True)
class Known:
    """What somebody else knows of an instance under its own rules, for the strategy `skippipe`."""

    iteration_s: float | None
    """the shortest iteration found, in seconds; None: there is none"""
    proved: bool
    """whether that is proved: nothing shorter, or nothing at all, can be"""
    cpu_s: float | None = None
    """seconds of processor time that the proof took"""


@dataclass(frozen=True)
class Case:
    """An instance of a fixed set, and how its question was put."""

    name: str
    problem: Problem
    """with its allocation"""
    schedule: ScheduleConfig
    """rules, skip ratio and microbatches"""
    known: Known | None = None
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
    """Make the instances of the presets, with the rules of this project and skip ratio 1/3."""
    schedule = ScheduleConfig()
    cases = {}
    for name, preset in presets.items():
        job = prepare(preset, AllocateConfig(), schedule)
        problem = allocated(job, ALLOCATING)
        cases[name] = Case(name, problem, schedule, scope=job.scope)
    return cases


def small_folder() -> Path:
    """The folder of small instances with proved optima, which a checkout of the repository has.

    Raises:
        InputError: it is not there, as in an installed wheel.

    """
    folder = Path(skippipe.__file__).parent.parent / "benchmarks" / "small"
    if not folder.is_dir():
        raise InputError(f"set=small needs a checkout of the repository: there is no folder {folder}")
    return folder


def load_cases(key: str, folder: Path) -> Cases:
    """Read NAME.cluster.json, and NAME.json for allocation, rules, skip ratio and microbatches.

    Raises:
        InputError: there are none, or a file is missing or cannot be used; `key` is the setting that named the folder.

    """
    if not folder.is_dir():
        raise InputError(f"{key}={folder} is no folder, one with NAME.cluster.json and NAME.json is expected")
    paths = sorted(folder.glob(f"*{_CLUSTER}"))
    if not paths:
        raise InputError(f"{key}={folder} holds no instance, NAME.cluster.json and NAME.json are expected")
    cases = [load_case(path) for path in paths]
    return {case.name: case for case in cases}


def load_case(path: Path) -> Case:
    """Read the instance whose cluster is the file NAME.cluster.json at `path`; NAME.json lies beside it.

    Raises:
        InputError: a file is missing or cannot be used.

    """
    name = path.name.removesuffix(_CLUSTER)
    question = path.with_name(f"{name}.json")
    content = read_json_object(str(question))
    cluster, allocation = load_cluster(str(path)), read_allocation(str(question))
    rules = content.get("rules", {})
    try:
        schedule = ScheduleConfig(
            skip_ratio=float(content["skip_ratio"]),
            microbatches_per_source=content["microbatches_per_source"],
            **{key: rules[key] for key in RULES if key in rules},
        )
        problem = state_problem(cluster, allocation, schedule)
        return Case(name, problem, schedule, _known(content), (path, question))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{question}: {error}") from None


def _known(content: Mapping[str, Any]) -> Known | None:
    """What a file says: `proved`, or else `best_known`, by itself or for the allocation and the rules as they stand."""
    if "proved" in content:
        proof = content["proved"]
        return Known(proof["iteration_s"], proved=True, cpu_s=proof["cpu_s"])
    best = content.get("best_known", {})
    best = best.get("fixed allocation, rules as here", best)
    if best.get("iteration_s") is None:
        return None
    return Known(float(best["iteration_s"]), proved=bool(best.get("proved_optimal", False)))
