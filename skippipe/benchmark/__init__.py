"""What is measured and how: fixed sets of instances, the planner's results on them, the simulator's speed."""

from skippipe.benchmark.cases import Case, Cases, Known, load_case, load_cases, preset_cases, small_folder
from skippipe.benchmark.machine import environment
from skippipe.benchmark.planner import Row, contradictions, judged, measure_planner
from skippipe.benchmark.simulator import measure_simulator

__all__ = [
    "Case",
    "Cases",
    "Known",
    "Row",
    "contradictions",
    "environment",
    "judged",
    "load_case",
    "load_cases",
    "measure_planner",
    "measure_simulator",
    "preset_cases",
    "small_folder",
]
