"""Settings of `skippipe train`. What they share with the planner is in `skippipe.config`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from skippipe.config import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    AllocateConfig,
    ClusterConfig,
    PlannerConfig,
    Range,
    ScheduleConfig,
    setting,
)
from skippipe.data.config import DataConfig
from skippipe.devices import AUTOCASTS, DTYPES

BACKENDS = ("gloo",)
STAGE_GRADIENTS = ("exact", "per_visit")
BELOW_1 = Range(0, 0.999999)


@dataclass
class RuntimeConfig:
    """The processes and how they talk."""

    node: str | None = None
    """which nodes of the plan this process serves: NAME or NAME,NAME; null: the host name (local runs set it)"""
    backend: str = setting("gloo", choices=BACKENDS)
    """what carries the messages"""
    processes: int | None = setting(None, within=AT_LEAST_1)
    """processes of a local run, the nodes dealt to them; null: one for each node"""
    port: int = setting(0, within=Range(0, 65535))
    """where the processes of a local run meet on 127.0.0.1; 0: any free port"""
    threads: int = setting(1, within=Range(1, 1024))
    """threads of torch in each process"""
    recv_buffers: int = setting(2, within=AT_LEAST_1)
    """inputs that may wait on each link"""
    sends_in_flight: int = setting(2, within=AT_LEAST_1)
    """messages that a process may have under way"""
    timeout_s: float = setting(60.0, within=ABOVE_0)
    """seconds after which training fails where a message stays out; beside three times the longer of the predicted and
    the latest iteration, for which a healthy process may wait for the busiest"""
    start_timeout_s: float = setting(120.0, within=ABOVE_0)
    """seconds within which all processes must have met"""
    memory_bytes: float | None = setting(None, within=ABOVE_0)
    """bytes that each process may take; --dry-run refuses what needs more; null: not checked"""
    calibrate: bool = True
    """where no plan is given: time stages and messages first, in place of the figures of the cluster"""
    group: int = setting(1, within=AT_LEAST_1)
    """one process alone: microbatches that go through a stage in one pass, at most; 1: the plan's order, to the bit"""
    device: str = "cpu"
    """where stages compute: cpu; one process alone may take cuda, cuda:1 and so on, or auto: a GPU if there is one"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """one process alone: compute in this type where torch's autocast does; weights stay of train.dtype"""
    compile: bool = False
    """one process alone: compile layers and loss with torch.compile"""
    profile: int = setting(0, within=AT_LEAST_0)
    """one process alone: iterations to take apart, for where their time goes and for trace.json; 0: none"""


@dataclass
class SkipChange:
    """Another skip ratio from some point of a run on."""

    after: float = setting(within=Range(0, 1))
    """share of the run's iterations that come before"""
    skip_ratio: float = setting(within=Range(0, 1))
    """as schedule.skip_ratio"""


@dataclass
class TrainConfig:
    """How the model learns."""

    iterations: int = setting(120, within=AT_LEAST_1)
    """iterations, each one step of the optimizer over all microbatches"""
    microbatch_size: int = setting(4, within=AT_LEAST_1)
    """sequences of a microbatch"""
    layers: list[int] | None = setting(None, within=AT_LEAST_0)
    """decoder layers of each stage, e.g. [1,2,3]; null: as the plan says, else as even as can be"""
    learning_rate: float = setting(3e-3, within=AT_LEAST_0)
    """the highest learning rate"""
    final_learning_rate: float = setting(0.1, within=Range(0, 1))
    """what is left of it at the end, as a share"""
    warmup: float = setting(0.1, within=Range(0, 1))
    """share of the run's tokens over which it rises from 0; a cosine over the rest"""
    weight_decay: float = setting(0.1, within=AT_LEAST_0)
    """decay of AdamW, for weight matrices alone"""
    beta1: float = setting(0.9, within=BELOW_1)
    """AdamW: decay of the mean"""
    beta2: float = setting(0.95, within=BELOW_1)
    """AdamW: decay of the mean square"""
    epsilon: float = setting(1e-8, within=ABOVE_0)
    """AdamW: what is added to the root"""
    clip_norm: float | None = setting(1.0, within=ABOVE_0)
    """gradients of a greater norm, over all stages, are scaled down to it; null: never"""
    stage_gradient: str = setting("exact", choices=STAGE_GRADIENTS)
    """exact: the derivative of the mean loss; per_visit: a stage's gradient times microbatches / visits"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """numbers of weights, messages and gradients"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of the weights and of the order of the text"""
    validate_every: int | None = setting(20, within=AT_LEAST_1)
    """iterations between validations of the whole model; null: only before and after"""
    validate_training: bool = False
    """take the whole model's loss also on as much of the training text, the sequences that were trained on first"""
    skip_changes: list[SkipChange] = field(default_factory=list)
    """skip ratios later in the run, e.g. [{after: 0.8, skip_ratio: 0}]; before the first: schedule.skip_ratio"""


@dataclass
class CheckpointConfig:
    """What is kept of a run, so that it can go on; in `folder`, which all nodes have to see."""

    enabled: bool = True
    """save checkpoints; after the last iteration, and where the run is asked to stop, in any case"""
    every: int | None = setting(50, within=AT_LEAST_1)
    """iterations between checkpoints; null: only at the end"""
    keep: int = setting(2, within=AT_LEAST_1)
    """so many stay, the newest"""
    resume: str | None = None
    """a checkpoint or a run's folder to go on from in a new folder; a folder that has checkpoints goes on by itself"""
    key: str | None = None
    """a file with the secret that checkpoints are signed with, the same on all machines of a job; null: the user's own
    (~/.config/skippipe)"""


@dataclass
class TrainJob:
    """`skippipe train`: train a model by a plan; alone with local processes, under torchrun as one rank of a job."""

    plan: str | None = None
    """a skippipe.plan/1 file; null: plan anew for the cluster, whose times are measured first"""
    cluster: ClusterConfig = MISSING
    """the machines, where no plan is given"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """which node serves which stage, where no plan is given: by the surrogate, since stages are built before anything
    is measured"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """what is asked for, where no plan is given"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """how long and how hard to search"""
    model: dict[str, Any] = field(default_factory=dict)
    """the model: model_type and its settings, as transformers names them; +model.KEY=VALUE adds one"""
    data: DataConfig = field(default_factory=DataConfig)
    """the text"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """the processes"""
    train: TrainConfig = field(default_factory=TrainConfig)
    """how the model learns"""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """what is kept, so that the run can go on"""
    folder: str | None = None
    """what the run writes goes here; a run that is there goes on from its newest checkpoint; null: runs/DATE_TIME"""
    dry_run: bool = False
    """check plan, model, data and memory in this one process, and stop (the same as --dry-run)"""
