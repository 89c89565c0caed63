"""What is measured and how: a fixed set of instances, the planner's results on it, the simulator's speed."""

import datetime as dt
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import skippipe
from skippipe import _scheduler
from skippipe._scheduler import Plan
from skippipe.allocation import read_allocation
from skippipe.cluster import load_cluster
from skippipe.config import ORDERS, AllocateConfig, ClusterConfig, PlannerConfig, ScheduleConfig
from skippipe.errors import InputError, LockupError
from skippipe.files import read_json_object
from skippipe.planning import Instance, evaluate, make_plan, prepare, state_problem

Instances = dict[str, Instance]

_RULES = ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")


def preset_instances(presets: Mapping[str, ClusterConfig]) -> Instances:
    """Make the instances of the presets, with the rules of this project and skip ratio 1/3."""
    return {name: prepare(preset, AllocateConfig(), ScheduleConfig()) for name, preset in presets.items()}


def load_instances(folder: Path) -> Instances:
    """Read NAME.cluster.json, and NAME.json for allocation, rules, skip ratio and microbatches.

    Raises:
        InputError: there are none, or a file is missing or cannot be used.

    """
    if not folder.is_dir():
        raise InputError(f"data={folder} is no folder, one with NAME.cluster.json and NAME.json is expected")
    paths = sorted(folder.glob("*.cluster.json"))
    if not paths:
        raise InputError(f"data={folder} holds no instance, NAME.cluster.json and NAME.json are expected")
    return {path.name.removesuffix(".cluster.json"): _load_instance(path) for path in paths}


def _load_instance(path: Path) -> Instance:
    question = str(path.with_name(path.name.removesuffix(".cluster.json") + ".json"))
    content = read_json_object(question)
    cluster, allocation = load_cluster(str(path)), read_allocation(question)
    rules = content.get("rules", {})
    try:
        schedule = ScheduleConfig(
            skip_ratio=float(content["skip_ratio"]),
            microbatches_per_source=content["microbatches_per_source"],
            **{key: rules[key] for key in _RULES if key in rules},
        )
        return Instance(cluster, allocation, state_problem(cluster, allocation, schedule))
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{question}: {error}") from None


def measure_planner(
    instances: Instances, strategies: Sequence[str], planner: PlannerConfig
) -> Iterator[dict[str, Any]]:
    """Plan every instance with every strategy."""
    for name, instance in instances.items():
        for strategy in strategies:
            begin = time.perf_counter()
            reached = evaluate(instance.problem, strategy, planner)
            yield {
                "instance": name,
                "strategy": strategy,
                "iteration_s": reached.iteration_s,
                "lower_bound_s": reached.lower_bound_s,
                "gap": reached.gap,
                "wall_s": time.perf_counter() - begin,
                "note": reached.note,
            }


def measure_simulator(instances: Instances, seconds: float) -> list[dict[str, Any]]:
    """Measure evaluations per second of one plan of each instance, in both modes, on one thread."""
    planner = PlannerConfig(time_limit_s=0.2)
    plans = {name: make_plan(instance.problem, "skippipe", planner) for name, instance in instances.items()}
    return [
        {
            "instance": name,
            "microbatches": len(plan.microbatches),
            "nodes": len(plan.cluster),
            "order": order,
            "evaluations_per_s": rate,
        }
        for name, plan in plans.items()
        for order in ORDERS
        if (rate := _rate(plan, order, seconds)) is not None
    ]


def _rate(plan: Plan, order: str, seconds: float) -> float | None:
    """Evaluations per second; None where the dispatch rule locks up on these routes."""
    try:
        return _scheduler.benchmark_simulator(plan, order=order, seconds=seconds)
    except LockupError:
        return None


def environment() -> dict[str, Any]:
    """When and on what this was measured."""
    return {
        "date": dt.datetime.now(tz=dt.UTC).isoformat(timespec="seconds"),
        "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
        "versions": {"skippipe": skippipe.__version__, "python": sys.version.split()[0], "numpy": np.__version__},
    }


def _processor() -> str:
    """Name of the processor, where the system tells it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
