"""The settings of planning, simulation, reports and benchmarks: default, range and, below each, its meaning.

The functions of the package take these dataclasses, wherever their values come from: a command line, a YAML file, a
test. On the command line Hydra composes them from `skippipe/conf`, which holds the defaults of the groups.
"""

from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from omegaconf import MISSING

from skippipe._scheduler import strategies
from skippipe.devices import WIRE_DTYPES

STRATEGIES = tuple(strategies())
MEMORY_RULES = ("held", "routes", "off")
OBJECTIVES = ("surrogate", "simulated")
LAYERS = ("equal", "auto")
UNUSED = ("allow", "forbid")
ORDERS = ("plan", "dispatch")
Contention = Literal["none", "link", "uplink"]
CONTENTIONS = get_args(Contention)
ALLOCATIONS = ("kept", "anew")
COMPARISONS = ("own", "same")
NEW_LAYERS = ("init", "copy")
METHODS = ("auto", "cbs")
CHURN_POLICIES = ("recover", "join", "restart", "redundant")


@dataclass(frozen=True)
class Range:
    """Finite numbers that a setting may take: from `low` (included unless `open_low`) to `high`, if there is one."""

    low: float
    high: float | None = None
    open_low: bool = False

    def holds(self, value: float) -> bool:
        """Whether `value` is in range; NaN and the infinities never are."""
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
"""Of a preset. Links between regions are matrices, and a typing error must not exhaust the memory."""
UP_TO_ALL_NODES = Range(1, MOST_NODES)
UP_TO_ALL_REGIONS = Range(1, 2_000)
ABOVE_0 = Range(0, open_low=True)
UP_TO_ALL_THREADS = Range(1, 1024)
SEEDS = Range(0, 2**63 - 1)


@dataclass
class NodeProfile:
    """Compute times of one node per microbatch, and its memory."""

    forward_s: float = setting(within=AT_LEAST_0)
    """seconds for the forward pass of its stage"""
    backward_s: float = setting(within=AT_LEAST_0)
    """seconds for the backward pass of its stage"""
    loss_s: float = setting(within=AT_LEAST_0)
    """seconds for head and loss, forward and backward together, if it serves stage 0"""
    memory: int = setting(within=AT_LEAST_1)
    """maximum number of microbatches whose activations it can hold"""


@dataclass
class LinkProfile:
    """One direction of a link."""

    latency_s: float = setting(within=AT_LEAST_0)
    """latency in seconds"""
    bandwidth: float = setting(within=ABOVE_0)
    """bandwidth in bytes per second"""


@dataclass
class WorkloadConfig:
    """The workload for which node times and message sizes hold; null: unknown."""

    layers: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the model"""
    layers_per_stage: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers per stage for which the node times hold"""
    hidden: int | None = setting(None, within=AT_LEAST_1)
    """hidden size"""
    microbatch_size: int | None = setting(None, within=AT_LEAST_1)
    """sequences per microbatch"""
    sequence: int | None = setting(None, within=AT_LEAST_1)
    """tokens per sequence"""
    wire_dtype: str | None = setting(None, choices=tuple(WIRE_DTYPES))
    """dtype of messages"""


@dataclass
class ClusterConfig:
    """The cluster: a preset or a file."""

    file: str | None = None
    """a skippipe.cluster/1 file, in place of all other settings of this group"""
    stage_sizes: list[int] | None = setting(None, within=AT_LEAST_1)
    """default number of nodes per stage; allocate.sizes, allocate.stages and schedule.stages take precedence"""
    activation_bytes: float = setting(0.0, within=AT_LEAST_0)
    """bytes per message: activations forward, gradients backward"""
    gradient_bytes: float = setting(0.0, within=AT_LEAST_0)
    """bytes that the replicas of a stage all-reduce per iteration; 0: not modelled"""
    overhead_s: float = setting(0.0, within=AT_LEAST_0)
    """seconds added to each transfer between two nodes"""
    processors: list[int] | None = setting(None, within=AT_LEAST_0)
    """number of the processor of each node: equal ones run one task at a time, without messages; null: all differ"""
    contention: str = setting("none", choices=CONTENTIONS)
    """messages that leave one by one: none, those of a link, or all of a node's uplink; the planner knows it"""
    source: str = ""
    """provenance of the figures; written to the plan"""
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    """the workload for which the figures hold; written to the plan"""


@dataclass
class SitesConfig(ClusterConfig):
    """Identical nodes at one or more sites: fast links within a site, slower ones between sites."""

    name: str = "node"
    """prefix of node names"""
    sites: int = setting(1, within=UP_TO_ALL_REGIONS)
    """number of sites"""
    nodes_per_site: int = setting(1, within=UP_TO_ALL_NODES)
    """nodes per site"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """each node"""
    inside: LinkProfile = field(default_factory=LinkProfile)
    """links within a site"""
    between: LinkProfile = field(default_factory=LinkProfile)
    """links between sites"""


@dataclass
class RegionsConfig(ClusterConfig):
    """Identical nodes in named cloud regions, with measured links between them."""

    regions: list[str] = field(default_factory=list)
    """region of each node; a region may occur more than once"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """each node"""


@dataclass
class SyntheticConfig(ClusterConfig):
    """Heterogeneous nodes in any number of regions, generated from a seed."""

    seed: int = setting(0, within=AT_LEAST_0)
    """seed of the generator; the same seed and settings give the same cluster"""
    nodes: int = setting(24, within=UP_TO_ALL_NODES)
    """number of nodes"""
    regions: int = setting(4, within=UP_TO_ALL_REGIONS)
    """number of regions; nodes are assigned round-robin"""
    node: NodeProfile = field(default_factory=NodeProfile)
    """a node of median speed and minimum memory"""
    speed_spread: float = setting(2.0, within=AT_LEAST_1)
    """maximum ratio between the fastest and the slowest node; 1: all equal"""
    memory_spread: int = setting(2, within=AT_LEAST_0)
    """maximum by which a node's memory exceeds node.memory"""
    inside: LinkProfile = field(default_factory=LinkProfile)
    """links within a region"""
    farthest: LinkProfile = field(default_factory=LinkProfile)
    """the link between the two most distant regions; others are interpolated between it and inside"""
    asymmetry: float = setting(1.5, within=AT_LEAST_1)
    """maximum slowdown of each direction of a link; 1: symmetric links"""


@dataclass
class AllocateConfig:
    """Allocation of nodes to stages."""

    stages: str | None = None
    """a JSON file with the nodes of each stage ("stages"), and optionally empty stages ("absent_stages"), unused nodes
    ("absent_nodes") and the layers of each stage ("layers")"""
    sizes: list[int] | None = setting(None, within=AT_LEAST_1)
    """nodes per stage, e.g. [5,3,3,3,3,3]; null: as in the preset, else as even as possible, larger stages first"""
    sources: list[int] | None = setting(None, within=AT_LEAST_0)
    """nodes of stage 0 by number, e.g. [0,3,4]; null: any"""
    max_replica_transfer_s: float | None = setting(None, within=AT_LEAST_0)
    """maximum transfer time in seconds between two replicas of a stage; null: unlimited"""
    objective: str = setting("simulated", choices=OBJECTIVES)
    """objective of the allocation search: surrogate (slowest transfer within a stage + tour over the stages + compute),
    or simulated: starting from the surrogate's, the simulated iteration time of the strategy's plan"""
    unused: str = setting("allow", choices=UNUSED)
    """allow: nodes of later stages may stay unused where that shortens the iteration, since an all-reduce then skips
    them (the plan lists them); forbid: every node serves a stage"""
    layers: str = setting("equal", choices=LAYERS)
    """decoder layers per stage: equal, or auto: chosen together with the allocation; the same number of microbatches is
    then redistributed over the sources"""
    decoder_layers: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the model; node times, memory and gradient_bytes of the cluster hold for an equal partition;
    null: unknown; with layers=auto those of the cluster's workload, else 4 per stage"""


@dataclass
class RouteClass:
    """Routes that visit exactly the same stages."""

    stages: list[int] = setting([], within=AT_LEAST_0)
    """the stages that they visit"""
    depth: float | None = setting(None, within=Range(0, 1, open_low=True))
    """in place of stages: so many of the stages in use, from the first, as a fraction"""
    routes: int | None = setting(None, within=AT_LEAST_1)
    """number of routes; null: by share"""
    share: float | None = setting(None, within=Range(0, 1, open_low=True))
    """fraction of all routes; null: by routes"""


@dataclass
class LinkChange:
    """Emulated links that become slower or faster during a run."""

    after: int = setting(0, within=AT_LEAST_0)
    """iterations before the change"""
    factor: float = setting(1.0, within=ABOVE_0)
    """factor on their latency and on their seconds per byte, beside those of earlier changes"""
    senders: list[str] = field(default_factory=list)
    """names of the nodes at which they begin; []: all nodes"""
    receivers: list[str] = field(default_factory=list)
    """names of the nodes at which they end; []: all nodes"""


@dataclass
class ScheduleConfig:
    """Strategy, skip ratio, microbatches and constraints."""

    strategy: str = setting("skippipe", choices=STRATEGIES)
    """full, full-routed, random-skip, skippipe-no-tc2 or skippipe"""
    stages: int | None = setting(None, within=AT_LEAST_1)
    """number of stages; null: as in the allocation or the cluster file, else min(6, nodes // 2 + 1)"""
    skip_ratio: float = setting(1 / 3, within=Range(0, 1))
    """fraction of (microbatch, stage) visits skipped, stage 0 counted in the total: 0 to (stages - 1) / stages; with
    classes the default is ignored: they say it"""
    microbatches_per_source: Any = 6
    """microbatches injected per stage-0 node: one number, or a list with one for each"""
    cc1: bool = True
    """stage 0 is never skipped and comes first"""
    cc2: bool = True
    """stages are visited in increasing order, apart from at most max_swaps swaps of neighbouring stages"""
    cc3: bool = True
    """all stages but stage 0 lie on the same number of routes"""
    tc1: str = setting("held", choices=MEMORY_RULES)
    """memory limit of a node: held (microbatches held at the same time), routes (routes through it) or off"""
    tc2: bool = True
    """routing takes into account that a node runs one task at a time"""
    max_swaps: int = setting(1, within=AT_LEAST_0)
    """maximum number of swaps per route (CC2)"""
    waves: int = setting(1, within=AT_LEAST_1)
    """microbatches sharing one route; each starts after the previous one's backward pass"""
    max_stage_jump: int | None = setting(None, within=AT_LEAST_1)
    """largest forward jump beyond the furthest visited stage; null: unlimited"""
    profile: list[float] | None = setting(None, within=AT_LEAST_0)
    """a weight for each of the stages 1, 2, ..., e.g. [3,2,1]: they share visits in proportion; null: evenly (CC3)"""
    classes: list[RouteClass] | None = None
    """which stages the routes visit, e.g. [{stages: [0,1,2], share: 0.67}, {stages: [0,1,2,3], share: 0.33}] (or routes
    for share), in place of CC3 and skip_ratio, which follows; null: the planner chooses"""


@dataclass
class PhasePlannerConfig:
    """Search budget and method of a phase; null: as in the group planner."""

    method: str | None = setting(None, choices=METHODS)
    """as planner.method"""
    suboptimality: float | None = setting(None, within=AT_LEAST_1)
    """as planner.suboptimality"""
    time_limit_s: float | None = setting(None, within=AT_LEAST_0)
    """as planner.time_limit_s"""
    work_limit: int | None = setting(None, within=AT_LEAST_1)
    """as planner.work_limit"""
    threads: int | None = setting(None, within=UP_TO_ALL_THREADS)
    """as planner.threads"""
    seed: int | None = setting(None, within=SEEDS)
    """as planner.seed"""


@dataclass
class PhaseConfig:
    """A part of a run with its own plan; all parts have the same sources and microbatches."""

    share: float | None = setting(None, within=Range(0, 1, open_low=True))
    """fraction of the run's iterations; null in the last phase, which takes the rest"""
    skip_ratio: float | None = setting(None, within=Range(0, 1))
    """fraction of visits skipped, over the stages in use; null: schedule.skip_ratio"""
    stages: float | None = setting(None, within=Range(0, open_low=True))
    """stages in use, from the first: a fraction of them if below 1, else their number; null: all"""
    absent_stages: list[int] = setting([], within=AT_LEAST_1)
    """stages that no route visits, by number, in place of stages"""
    profile: list[float] | None = setting(None, within=AT_LEAST_0)
    """weights of the stages 1, 2, ..., as schedule.profile; null: schedule.profile"""
    classes: list[RouteClass] | None = None
    """which stages the routes visit, as schedule.classes; null: these, unless skip_ratio or profile is set"""
    allocation: str = setting("kept", choices=ALLOCATIONS)
    """kept: the run's allocation, nodes of stages left out are idle; anew: all nodes serve the stages in use, sources
    stay, and weights and optimizer state move between nodes when phases change"""
    layers: float | None = setting(None, within=Range(0, open_low=True))
    """decoder layers in use of every stage, spread evenly over it: a fraction of them if below 1, else their number (or
    all, where a stage has fewer); null: all"""
    tokens: float | None = setting(None, within=ABOVE_0)
    """training tokens, in place of share, e.g. 75e6; without a run, as in skippipe plan, for every phase or none"""
    planner: PhasePlannerConfig = field(default_factory=PhasePlannerConfig)
    """what is different from the group planner, e.g. {time_limit_s: 10}"""


PhaseList = list[PhaseConfig]


@dataclass
class PhasesConfig:
    """Skip ratio and stages in use over a run."""

    list: PhaseList = field(default_factory=lambda: [PhaseConfig()])
    """the phases in order, e.g. [{share: 0.8}, {skip_ratio: 0}]"""


@dataclass
class PlannerConfig:
    """Search budget and method."""

    method: str = setting("auto", choices=METHODS)
    """auto: a portfolio of all methods; cbs: conflict-based search alone, until the plan is proved optimal"""
    suboptimality: float = setting(1.0, within=AT_LEAST_1)
    """with method=cbs: stop at a plan within this factor of the lower bound"""
    time_limit_s: float | None = setting(None, within=AT_LEAST_0)
    """seconds; null: 1, or 5 if the allocation is searched as well; unlimited if work_limit is set"""
    work_limit: int | None = setting(None, within=AT_LEAST_1)
    """units of search effort; the same limit and seed give the same plan on any machine, with any number of threads"""
    threads: int = setting(1, within=UP_TO_ALL_THREADS)
    """worker threads"""
    seed: int = setting(0, within=SEEDS)
    """random seed"""


@dataclass
class PlanJob:
    """Settings of `skippipe plan`."""

    cluster: ClusterConfig = MISSING
    """the cluster"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """allocation of nodes to stages"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """strategy, skip ratio and constraints"""
    phases: PhasesConfig = field(default_factory=PhasesConfig)
    """skip ratio and stages in use over a run: one plan per phase"""
    new_layers: str = setting("init", choices=NEW_LAYERS)
    """initialisation of layers that join in a phase, as train.new_layers; the predicted time includes copies"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """search budget and method"""
    compare: list[str] = setting([], choices=STRATEGIES)
    """strategies to compare with; full implies full-routed and vice versa; random-skip is the median of 20 seeds"""
    compare_allocation: str = setting("own", choices=COMPARISONS)
    """own: the allocation is searched for each strategy with the same budget: the total saving; same: all strategies
    use the allocation of schedule.strategy: the saving of routes and order alone"""
    output: str | None = None
    """file to write the plan to (skippipe.plan/1); null: none"""


@dataclass
class ProposeJob:
    """Settings of `skippipe propose`."""

    cluster: ClusterConfig = MISSING
    """the cluster"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """allocation of nodes to stages"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """microbatches and constraints; the recipes set skip ratio, profile and classes"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """search budget and method of every plan"""
    depth: int | None = setting(None, within=AT_LEAST_1)
    """decoder layers of the model, which have to be among the measured ones; null: allocate.decoder_layers, else those
    of the cluster's workload"""
    tokens: float | None = setting(None, within=ABOVE_0)
    """training tokens of the run, which have to be among the measured ones; null: a proposal for each of these"""
    costs: str | None = None
    """a skippipe.costs/1 file of measured losses; null: the one that ships"""
    output: str | None = None
    """file to write the proposals to, as JSON; null: none"""


@dataclass
class SimulateJob:
    """Settings of `skippipe simulate`."""

    plan: str = MISSING
    """a skippipe.plan/1 file"""
    order: str = setting("plan", choices=ORDERS)
    """plan: each node keeps the plan's order; dispatch: an idle node runs a backward or loss first, else the earliest
    arrival"""
    contention: str | None = setting(None, choices=CONTENTIONS)
    """messages that leave one by one: none, those of a link, or all of a node's uplink; null: as in the plan"""
    output: str | None = None
    """file to write the plan with simulated times to; null: none"""


@dataclass
class ChurnJob:
    """Settings of `skippipe churn`."""

    plan: str = MISSING
    """a skippipe.plan/1 file, for all nodes"""
    trace: str | None = None
    """a skippipe.churn/1 file: when nodes go down and come up; null: drawn from mean_up_s, mean_down_s and seed"""
    mean_up_s: float = setting(6 * 3600.0, within=ABOVE_0)
    """mean seconds until a node goes down"""
    mean_down_s: float = setting(1800.0, within=ABOVE_0)
    """mean seconds until it is back"""
    hours: float = setting(24.0, within=ABOVE_0)
    """simulated hours"""
    seed: int = setting(0, within=SEEDS)
    """random seed of the trace"""
    policies: list[str] = setting(list(CHURN_POLICIES), choices=CHURN_POLICIES)
    """what to compare"""
    checkpoint_every: int = setting(20, within=AT_LEAST_1)
    """iterations between checkpoints, which are written beside the training"""
    detect_s: float = setting(1.0, within=AT_LEAST_0)
    """seconds until a loss is noticed"""
    recover_s: float = setting(4.0, within=AT_LEAST_0)
    """seconds until the others go on, with another plan"""
    restart_s: float = setting(60.0, within=AT_LEAST_0)
    """seconds until all processes have started again and read a checkpoint"""
    join_s: float = setting(10.0, within=AT_LEAST_0)
    """seconds in which all wait for a node that joins, for its weights and another plan"""
    work_limit: int = setting(200_000, within=AT_LEAST_1)
    """units of search effort for the plan of each set of nodes"""
    output: str | None = None
    """file to write the results to, as JSON; null: none"""
    picture: str | None = None
    """PNG file of the iterations over time; null: none"""


@dataclass
class ReportJob:
    """Settings of `skippipe report`."""

    plan: str = MISSING
    """a skippipe.plan/1 file"""
    compare: str | None = None
    """another plan, shown next to the first on one time axis; null: none"""
    top: int = setting(10, within=AT_LEAST_1)
    """number of upgrades listed; json has all"""
    replan: bool = False
    """replan with each of the first three upgrades, with the seed and work limit of the plan"""
    output: str | None = "report.html"
    """file to write the page to: self-contained HTML; null: none"""
    picture: str | None = None
    """file to write the Gantt chart to, as PNG (needs matplotlib); null: none"""
    map: str | None = None
    """file to write a map to, as PNG (needs matplotlib): nodes placed by transfer times and coloured by stage, with the
    links in use; null: none"""
    curve: str | None = None
    """file to write the search history to, as PNG (needs matplotlib): best plan and bound over time; null: none"""
    json: str | None = None
    """file to write the complete analysis to, as JSON; null: none"""


@dataclass
class BenchSimulatorJob:
    """Settings of `skippipe bench simulator`."""

    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """presets to measure; +cluster@instances.mine=mine adds one"""
    folder: str | None = None
    """a folder of further instances, NAME.cluster.json and NAME.json; data= is a synonym"""
    seconds: float = setting(1.0, within=Range(0, 3600, open_low=True))
    """measuring time per figure, in seconds"""
    output: str | None = None
    """file to write the figures to, as JSON; null: none"""


@dataclass
class BenchPlannerJob:
    """Settings of `skippipe bench planner`."""

    set: str = "presets"
    """instances to plan: presets, small (those of a checkout with proved optima), or a folder with NAME.cluster.json
    and NAME.json"""
    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """the presets of set=presets; +cluster@instances.mine=mine adds one"""
    strategies: list[str] = setting(list(STRATEGIES), choices=STRATEGIES)
    """strategies to run on each instance"""
    compare_allocation: str = setting("own", choices=COMPARISONS)
    """for instances without an allocation: own (searched for each strategy) or same (all use that of skippipe)"""
    folder: str | None = None
    """a folder of further instances, NAME.cluster.json and NAME.json; data= is a synonym"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """search budget and method for each instance and strategy"""
    checker: str | None = None
    """a Python script that checks each plan in addition to the scheduler's own checker: called with the plan's file and
    what was asked for, it exits with 0 if the plan is valid; null: none"""
    output: str | None = None
    """file to write the figures to, as JSON; null: none"""


@dataclass
class BenchAllocatorJob:
    """Settings of `skippipe bench allocator`."""

    instances: dict[str, ClusterConfig] = field(default_factory=dict)
    """presets to allocate; +cluster@instances.mine=mine adds one"""
    folder: str | None = None
    """a folder of further clusters, NAME.cluster.json, with the stage sizes of NAME.json; data= is a synonym"""
    seconds: float = setting(1.0, within=Range(0, 3600, open_low=True))
    """search time per cluster in seconds, for the allocator and for random allocation alike"""
    threads: int = setting(1, within=UP_TO_ALL_THREADS)
    """worker threads"""
    seed: int = setting(0, within=SEEDS)
    """random seed"""
    output: str | None = None
    """file to write the figures to, as JSON; null: none"""
