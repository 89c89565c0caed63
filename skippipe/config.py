"""Every setting of the command line as a typed dataclass: its default, its range, and under it what it means.

The functions of the package take these dataclasses; where their values come from (a command line, a YAML file, a
test) is no concern of theirs. Composed by Hydra from `skippipe/conf`, where the defaults of the groups stand.
"""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

STRATEGIES = ("full", "full-routed", "random-skip", "skippipe-no-tc2", "skippipe")
MEMORY_RULES = ("held", "routes", "off")
OBJECTIVES = ("surrogate", "simulated")
LAYERS = ("equal", "auto")
UNUSED = ("allow", "forbid")
ORDERS = ("plan", "dispatch")
COMPARISONS = ("own", "same")


@dataclass(frozen=True)
class Range:
    """Which finite numbers a setting may take: from `low` (itself too unless `open_low`) to `high`, if there is one."""

    low: float
    high: float | None = None
    open_low: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is within; NaN and the infinities never are."""
        above = value > self.low if self.open_low else value >= self.low
        return above and value < float("inf") and (self.high is None or value <= self.high)

    def __str__(self) -> str:
        bound = f"more than {self.low}" if self.open_low else f"at least {self.low}"
        return bound if self.high is None else f"{bound} and at most {self.high}"


def setting(default: Any = MISSING, *, within: Range | None = None, choices: tuple[str, ...] | None = None) -> Any:
    """Declare a dataclass field with the numbers or words that it may hold; lists are checked item by item."""
    metadata = {"within": within, "choices": choices}
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata=metadata)
    return field(default=default, metadata=metadata)


AT_LEAST_0 = Range(0)
AT_LEAST_1 = Range(1)
MOST_NODES = 100_000
"""Of a preset; links between regions are matrices, and a slip of the pen is not to fill the memory."""
UP_TO_ALL_NODES = Range(1, MOST_NODES)
UP_TO_ALL_REGIONS = Range(1, 2_000)
ABOVE_0 = Range(0, open_low=True)


@dataclass
class NodeProfile:
    """What one node needs for one microbatch, and how many it can hold."""

    forward_s: float = setting(within=AT_LEAST_0)
    """seconds for the forward pass of one stage"""
    backward_s: float = setting(within=AT_LEAST_0)
    """seconds for the backward pass of one stage"""
    loss_s: float = setting(within=AT_LEAST_0)
    """seconds for head and loss, forward and backward together, on a node of stage 0"""
    memory: int = setting(within=AT_LEAST_1)
    """the most microbatches whose activations the node can hold"""


@dataclass
class LinkProfile:
    """One direction of a link."""

    latency_s: float = setting(within=AT_LEAST_0)
    """seconds until the first byte arrives"""
    bandwidth: float = setting(within=ABOVE_0)
    """bytes per second"""


@dataclass
class WorkloadConfig:
    """What the times of the nodes and the size of a message are stated for; null: not known."""

    layers: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the whole model"""
    layers_per_stage: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the stage that a node's times hold for"""
    hidden: int | None = setting(None, within=AT_LEAST_1)
    """hidden size"""
    microbatch_size: int | None = setting(None, within=AT_LEAST_1)
    """sequences of a microbatch"""
    sequence: int | None = setting(None, within=AT_LEAST_1)
    """tokens of a sequence"""
    wire_dtype: str | None = setting(None, choices=("float32", "float64", "bfloat16"))
    """type of the numbers in a message"""


@dataclass
class ClusterConfig:
    """The machines: a preset, or a file."""

    file: str | None = None
    """a skippipe.cluster/1 file; it takes the place of everything else in this group"""
    stage_sizes: list[int] | None = setting(None, within=AT_LEAST_1)
    """nodes per stage that suit the preset; allocate.sizes, allocate.stages and schedule.stages come first"""
    activation_bytes: float = setting(0.0, within=AT_LEAST_0)
    """bytes of one message, activations forward or gradients backward"""
    gradient_bytes: float = setting(0.0, within=AT_LEAST_0)
    """bytes that the replicas of a stage average after an iteration; 0: not modelled"""
    overhead_s: float = setting(0.0, within=AT_LEAST_0)
    """seconds added to every transfer between two nodes"""
    source: str = ""
    """where the figures come from; written into the plan"""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    """what the figures are stated for; written into the plan"""


@dataclass
class SitesConfig(ClusterConfig):
    """Equal nodes at one or more equal sites: fast links inside, slower ones between."""

    name: str = "node"
    """what node names begin with"""
    sites: int = setting(1, within=UP_TO_ALL_REGIONS)
    """number of sites"""
    nodes_per_site: int = setting(1, within=UP_TO_ALL_NODES)
    """number of nodes at each"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """every node"""
    inside: LinkProfile = field(default_factory=LinkProfile)
    """links between two nodes of one site"""
    between: LinkProfile = field(default_factory=LinkProfile)
    """links between two sites"""


@dataclass
class RegionsConfig(ClusterConfig):
    """Equal nodes in named cloud regions, with the links that were measured between those."""

    regions: list[str] = field(default_factory=list)
    """the region of each node, by name; a region may be named more than once"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """every node"""


@dataclass
class SyntheticConfig(ClusterConfig):
    """Any number of unequal nodes in any number of regions, drawn from a seed."""

    seed: int = setting(0, within=AT_LEAST_0)
    """the same seed and settings give the same cluster"""
    nodes: int = setting(24, within=UP_TO_ALL_NODES)
    """number of nodes"""
    regions: int = setting(4, within=UP_TO_ALL_REGIONS)
    """number of regions; nodes are dealt to them in turn"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """a node of middle speed; its memory is the least that is drawn"""
    speed_spread: float = setting(2.0, within=AT_LEAST_1)
    """how many times faster the fastest node can be than the slowest; 1: all alike"""
    memory_spread: int = setting(2, within=AT_LEAST_0)
    """by how much a node's memory can exceed node.memory"""
    inside: LinkProfile = field(default_factory=LinkProfile)
    """links between two nodes of one region"""
    farthest: LinkProfile = field(default_factory=LinkProfile)
    """the link between regions at opposite ends of the map; nearer ones lie between this and `inside`"""
    asymmetry: float = setting(1.5, within=AT_LEAST_1)
    """how many times slower than drawn each direction of a link can be; 1: both directions alike"""


@dataclass
class AllocateConfig:
    """Which node serves which stage."""

    stages: str | None = None
    """a JSON file: nodes of each stage ("stages"), stages left empty ("absent_stages"), nodes that serve none
    ("absent_nodes"), "layers" of the stages if known"""
    sizes: list[int] | None = setting(None, within=AT_LEAST_1)
    """nodes per stage, e.g. [5,3,3,3,3,3]; null: what the preset brings, else as even as can be, larger ones first"""
    sources: list[int] | None = setting(None, within=AT_LEAST_0)
    """numbers of the nodes that stage 0 has, e.g. [0,3,4]; null: any"""
    max_replica_transfer_s: float | None = setting(None, within=AT_LEAST_0)
    """the most seconds that a message may take between two nodes of one stage; null: any"""
    objective: str = setting("simulated", choices=OBJECTIVES)
    """what an allocation is judged by: surrogate (slowest transfer inside a stage, tour over the stages, compute), or
    simulated: from there on by the iteration that the strategy plans for it, all-reduce included"""
    unused: str = setting("allow", choices=UNUSED)
    """allow: nodes of stages after the first may be left out where that makes the iteration shorter, as an all-reduce
    need not reach them then (the plan names them); forbid: every node serves a stage"""
    layers: str = setting("equal", choices=LAYERS)
    """decoder layers of the stages: equal, or auto: chosen with the allocation, and nodes per stage too unless sizes
    says them; microbatches are then dealt to the sources anew, as many in all"""
    decoder_layers: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the model; times, memory and gradient_bytes of the cluster hold for an equal share of them;
    null: not known, with layers=auto what the cluster's times are stated for, else 4 for each stage"""


@dataclass
class ScheduleConfig:
    """What is asked for: stages, skipping, microbatches, and the rules that hold."""

    strategy: str = setting("skippipe", choices=STRATEGIES)
    """full, full-routed, random-skip, skippipe-no-tc2 or skippipe"""
    stages: int | None = setting(None, within=AT_LEAST_1)
    """number of stages; null: as the allocation or the cluster file has, else half the nodes plus one and at most 6"""
    skip_ratio: float = setting(1 / 3, within=Range(0, 1))
    """share of all stage visits that is left out, 0 to (stages - 1) / stages"""
    microbatches_per_source: Any = 6
    """microbatches that each node of stage 0 starts: one number, or a list with one for each"""
    cc1: bool = True
    """stage 0 is never skipped and comes first"""
    cc2: bool = True
    """stages are visited in rising order but for max_swaps swaps of neighbours"""
    cc3: bool = True
    """all stages but stage 0 are on the same number of routes"""
    tc1: str = setting("held", choices=MEMORY_RULES)
    """memory: held (microbatches held at one time), routes (routes over a node) or off"""
    tc2: bool = True
    """routes are chosen knowing that a node runs one task at a time"""
    max_swaps: int = setting(1, within=AT_LEAST_0)
    """the most swaps of neighbouring stages on a route (CC2)"""
    waves: int = setting(1, within=AT_LEAST_1)
    """microbatches that share one route, each starting when the one before is back"""
    max_stage_jump: int | None = setting(None, within=AT_LEAST_1)
    """the most by which a step may pass the furthest stage so far; null: any"""


@dataclass
class PlannerConfig:
    """How long and how hard to search."""

    method: str = setting("auto", choices=("auto", "cbs"))
    """auto: everything there is, side by side; cbs: conflict-based search alone, until the plan is proved optimal"""
    suboptimality: float = setting(1.0, within=AT_LEAST_1)
    """with method=cbs: end with a plan that takes at most so many times the lower bound"""
    time_limit_s: float | None = setting(None, within=AT_LEAST_0)
    """seconds; null: 1, or 5 where the allocation is searched too; no limit where work_limit is set"""
    work_limit: int | None = setting(None, within=AT_LEAST_1)
    """units of search; the same limit and seed give the same plan whatever the machine and the threads"""
    threads: int = setting(1, within=Range(1, 1024))
    """worker threads"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of every random choice"""


@dataclass
class PlanJob:
    """Settings of `skippipe plan`."""

    cluster: ClusterConfig = MISSING
    """the machines"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """which node serves which stage"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """what is asked for"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """how long and how hard to search"""
    compare: list[str] = setting([], choices=STRATEGIES)
    """other strategies to plan as well; full and full-routed come together; random-skip is the median of 20 seeds"""
    compare_allocation: str = setting("own", choices=COMPARISONS)
    """own: an allocation is searched for each strategy with the same limits: what a user gains; same: all strategies
    on the allocation of schedule.strategy: what routes and order alone gain"""
    output: str | None = None
    """file that the plan is written to (skippipe.plan/1); null: none"""


@dataclass
class SimulateJob:
    """Settings of `skippipe simulate`."""

    plan: str = MISSING
    """a skippipe.plan/1 file"""
    order: str = setting("plan", choices=ORDERS)
    """plan: every node keeps the plan's order; dispatch: a free node takes a backward or loss first, else what came
    first"""
    output: str | None = None
    """file that the plan with the simulated times is written to; null: none"""


@dataclass
class ReportJob:
    """Settings of `skippipe report`."""

    plan: str = MISSING
    """a skippipe.plan/1 file"""
    compare: str | None = None
    """another plan, drawn beside the first on one time axis; null: none"""
    top: int = setting(10, within=AT_LEAST_1)
    """how many upgrades are listed; json has all"""
    replan: bool = False
    """plan anew with each of the first three upgrades, with the seed and the work of the plan itself"""
    output: str | None = "report.html"
    """file that the page is written to: one HTML file that needs no network; null: none"""
    picture: str | None = None
    """file that the Gantt chart is written to, as PNG (needs matplotlib); null: none"""
    map: str | None = None
    """file that a map is written to, as PNG (needs matplotlib): nodes by the transfer times between them, coloured by
    stage, with the links in use; null: none"""
    curve: str | None = None
    """file that best plan and bound over the search are written to, as PNG (needs matplotlib); null: none"""
    json: str | None = None
    """file that the whole explanation is written to, as JSON; null: none"""


@dataclass
class BenchSimulatorJob:
    """Settings of `skippipe bench simulator`."""

    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """presets to measure, by name; +cluster@instances.mine=mine adds one"""
    folder: str | None = None
    """a folder with NAME.cluster.json and NAME.json: those instances are measured as well; data= is the same"""
    seconds: float = setting(1.0, within=Range(0, 3600, open_low=True))
    """how long each figure is measured"""
    output: str | None = None
    """file that the figures are written to, as JSON; null: none"""


@dataclass
class BenchPlannerJob:
    """Settings of `skippipe bench planner`."""

    set: str = "presets"
    """what to plan: presets, small (the instances with proved optima of a checkout) or a folder with NAME.cluster.json
    and NAME.json"""
    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """the presets of set=presets, by name; +cluster@instances.mine=mine adds one"""
    strategies: list[str] = setting(list(STRATEGIES), choices=STRATEGIES)
    """strategies to plan each instance with"""
    compare_allocation: str = setting("own", choices=COMPARISONS)
    """own: an allocation is searched for each strategy, where the instance has none; same: all on that of skippipe"""
    folder: str | None = None
    """a folder with NAME.cluster.json and NAME.json: those instances are planned as well; data= is the same"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """how long and how hard to search, for each instance and strategy"""
    checker: str | None = None
    """a Python script that judges each plan beside the scheduler's own checker: called with a plan's file and what was
    asked, its exit status is 0 where all is well; null: none"""
    output: str | None = None
    """file that the figures are written to, as JSON; null: none"""


@dataclass
class BenchAllocatorJob:
    """Settings of `skippipe bench allocator`."""

    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """presets to allocate, by name; +cluster@instances.mine=mine adds one"""
    folder: str | None = None
    """a folder with NAME.cluster.json and NAME.json: those clusters are allocated as well, with the sizes of the stages
    there; data= is the same"""
    seconds: float = setting(1.0, within=Range(0, 3600, open_low=True))
    """how long each cluster is searched, once by the allocator and once at random"""
    threads: int = setting(1, within=Range(1, 1024))
    """worker threads of the allocator"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of every random choice"""
    output: str | None = None
    """file that the figures are written to, as JSON; null: none"""
