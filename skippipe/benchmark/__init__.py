"""What is measured and how: fixed sets of instances, what planner and allocator reach on them, the simulator."""

from skippipe.benchmark.allocator import (
    AllocatorRow,
    Division,
    best_random,
    case_divisions,
    measure_allocator,
    preset_divisions,
    random_stages,
)
from skippipe.benchmark.cases import ALLOCATING, Case, Cases, Known, load_case, load_cases, preset_cases, small_folder
from skippipe.benchmark.machine import environment
from skippipe.benchmark.planner import Row, contradictions, judged, measure_planner, on_one_allocation
from skippipe.benchmark.simulator import measure_simulator

__all__ = [
    "ALLOCATING",
    "AllocatorRow",
    "Case",
    "Cases",
    "Division",
    "Known",
    "Row",
    "best_random",
    "case_divisions",
    "contradictions",
    "environment",
    "judged",
    "load_case",
    "load_cases",
    "measure_allocator",
    "measure_planner",
    "measure_simulator",
    "on_one_allocation",
    "preset_cases",
    "preset_divisions",
    "random_stages",
    "small_folder",
]
