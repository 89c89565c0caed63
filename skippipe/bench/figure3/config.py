"""Settings of `skippipe bench figure3`."""

from dataclasses import dataclass, field

from skippipe.bench.figure3.networks import NETWORKS
from skippipe.bench.figure3.shapes import MODELS
from skippipe.config import ABOVE_0, AT_LEAST_0, AT_LEAST_1, SEEDS, STRATEGIES, UP_TO_ALL_THREADS, Range, setting

COMPANIONS = ("straight", "ratios")


@dataclass
class CompanionConfig:
    """Companions of the figure, each for one network, model and number of tokens."""

    kinds: list[str] = setting(list(COMPANIONS), choices=COMPANIONS)
    """straight: 16 nodes in 4 stages, nothing skipped, against straight pipelines; ratios: iteration time over skip
    ratio, with TC2 and without"""
    network: str = setting("geo20", choices=tuple(NETWORKS))
    """as in networks"""
    model: str = setting("1.5b", choices=tuple(MODELS))
    """as in models"""
    tokens: int = setting(4096, within=AT_LEAST_1)
    """as in tokens"""


@dataclass
class MeasureConfig:
    """Execution of the plans on emulated links, with stages that sleep; needs torch."""

    iterations: int = setting(0, within=AT_LEAST_0)
    """iterations measured of each strategy's own plan, after one for warm-up; 0: nothing is executed"""
    iteration_s: float = setting(8.0, within=ABOVE_0)
    """seconds that an iteration is to take: links and stages are emulated so much faster or slower (as
    runtime.time_scale in training)"""


@dataclass
class BenchFigure3Job:
    """Settings of `skippipe bench figure3`."""

    networks: list[str] = setting(["geo20", "five_regions", "one_region"], choices=tuple(NETWORKS))
    """20 nodes in the 12 regions of the paper, in 5 or 1 of them; five_clusters, single_cluster: as the presets"""
    models: list[str] = setting(list(MODELS), choices=tuple(MODELS))
    """Llama of so many parameters"""
    tokens: list[int] = setting([4096, 8192, 16384], within=AT_LEAST_1)
    """tokens of a microbatch, multiples of 4096"""
    skip_ratios: list[float] = setting([0.25, 1 / 3], within=Range(0, 1))
    """beside 0, which is the full pipeline"""
    strategies: list[str] = setting(list(STRATEGIES), choices=STRATEGIES)
    """strategies that skip are shown beside full and full-routed, which are always planned"""
    all_reduce: list[bool] = field(default_factory=lambda: [False])
    """whether iterations include the all-reduce of gradients; the paper's own simulation leaves it out; [false,true]:
    both"""
    microbatches: int = setting(6, within=AT_LEAST_1)
    """microbatches of each source per iteration"""
    flops_per_s: float | None = setting(None, within=ABOVE_0)
    """of a node, as reached; null: as in the measurements in the paper's public code, 8.8e12"""
    companion: CompanionConfig = field(default_factory=CompanionConfig)
    """companions"""
    searches: int = setting(4, within=AT_LEAST_1)
    """searches for the plan of each strategy, with different seeds; the shortest iteration counts"""
    work_limit: int = setting(3_000_000, within=AT_LEAST_1)
    """units of search effort of each search: results do not depend on the machine's load"""
    seed: int = setting(0, within=SEEDS)
    """random seed of the first search"""
    threads: int = setting(1, within=UP_TO_ALL_THREADS)
    """worker threads of a search"""
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    """execution of the plans"""
    checker: str | None = None
    """a Python script that checks each plan in addition to the scheduler's own checker, as in bench planner; null:
    none"""
    output: str = "figure3"
    """folder of rows (rows.json, rows.csv), table (figure3.md), charts (.svg, needs matplotlib) and plans; plans in
    it are used again"""
