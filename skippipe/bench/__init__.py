"""Benchmarks of planner, allocator and simulator on fixed sets of instances."""

from skippipe.bench.allocator import (
    AllocationCase,
    AllocatorRow,
    allocation_cases_of,
    best_random_s,
    measure_allocator,
    preset_allocation_cases,
    random_stages,
)
from skippipe.bench.cases import (
    ALLOCATING,
    BestKnown,
    Case,
    Cases,
    load_case,
    load_cases,
    preset_cases,
    small_folder,
)
from skippipe.bench.machine import environment
from skippipe.bench.planner import PlannerRow, contradictions, measure_planner, violations, with_shared_allocation
from skippipe.bench.simulator import measure_simulator

__all__ = [
    "ALLOCATING",
    "AllocationCase",
    "AllocatorRow",
    "BestKnown",
    "Case",
    "Cases",
    "PlannerRow",
    "allocation_cases_of",
    "best_random_s",
    "contradictions",
    "environment",
    "load_case",
    "load_cases",
    "measure_allocator",
    "measure_planner",
    "measure_simulator",
    "preset_allocation_cases",
    "preset_cases",
    "random_stages",
    "small_folder",
    "violations",
    "with_shared_allocation",
]
