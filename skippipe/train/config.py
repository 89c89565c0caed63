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
    """Processes, devices and communication."""

    node: str | None = None
    """nodes of the plan that this process serves under torchrun: NAME or NAME,NAME; null: the host name"""
    backend: str = setting("gloo", choices=BACKENDS)
    """communication backend"""
    processes: int | None = setting(None, within=AT_LEAST_1)
    """processes of a local run, to which the nodes are assigned; null: one per node"""
    port: int = setting(0, within=Range(0, 65535))
    """port of the rendezvous of a local run on 127.0.0.1; 0: any free port"""
    threads: int = setting(1, within=Range(1, 1024))
    """threads of torch in each process"""
    recv_buffers: int = setting(2, within=AT_LEAST_1)
    """receive buffers per link"""
    sends_in_flight: int = setting(2, within=AT_LEAST_1)
    """sends that a process may have in flight"""
    timeout_s: float = setting(60.0, within=ABOVE_0)
    """seconds; training fails if a message takes longer than timeout_s + 3 x max(predicted, last iteration): a healthy
    process may wait for the busiest one"""
    start_timeout_s: float = setting(120.0, within=ABOVE_0)
    """seconds within which all processes have to join"""
    memory_bytes: float | None = setting(None, within=ABOVE_0)
    """bytes available to each process; --dry-run refuses what needs more; null: not checked"""
    calibrate: bool = True
    """if no plan is given: measure stages and messages first, in place of the figures of the cluster"""
    group: int = setting(1, within=AT_LEAST_1)
    """single process: most microbatches in one pass through a stage; 1: exactly the plan's order"""
    device: str = "cpu"
    """device of the stages: cpu; a single process may take cuda, cuda:1 and so on, or auto: a GPU if there is one"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """single process: type in which torch's autocast computes; weights keep train.dtype; null: no autocast"""
    compile: bool = False
    """single process: compile layers and loss with torch.compile"""
    profile: int = setting(0, within=AT_LEAST_0)
    """single process: iterations to profile, for a time breakdown and trace.json; 0: none"""


@dataclass
class SkipChange:
    """Another skip ratio for the rest of a run."""

    after: float = setting(within=Range(0, 1))
    """fraction of the run's iterations before the change"""
    skip_ratio: float = setting(within=Range(0, 1))
    """as schedule.skip_ratio"""


@dataclass
class TrainConfig:
    """How the model learns."""

    iterations: int = setting(120, within=AT_LEAST_1)
    """iterations, each one step of the optimizer over all microbatches"""
    microbatch_size: int = setting(4, within=AT_LEAST_1)
    """sequences per microbatch"""
    layers: list[int] | None = setting(None, within=AT_LEAST_0)
    """decoder layers per stage, e.g. [1,2,3]; null: as in the plan, else as even as possible"""
    learning_rate: float = setting(3e-3, within=AT_LEAST_0)
    """peak learning rate"""
    final_learning_rate: float = setting(0.1, within=Range(0, 1))
    """final learning rate as a fraction of the peak"""
    warmup: float = setting(0.1, within=Range(0, 1))
    """fraction of the run's tokens for linear warm-up; then cosine decay"""
    weight_decay: float = setting(0.1, within=AT_LEAST_0)
    """weight decay of AdamW, for weight matrices alone"""
    beta1: float = setting(0.9, within=BELOW_1)
    """AdamW: decay rate of the first moment"""
    beta2: float = setting(0.95, within=BELOW_1)
    """AdamW: decay rate of the second moment"""
    epsilon: float = setting(1e-8, within=ABOVE_0)
    """AdamW: added to the denominator"""
    clip_norm: float | None = setting(1.0, within=ABOVE_0)
    """maximum norm of the gradient of the whole model; null: no clipping"""
    stage_gradient: str = setting("exact", choices=STAGE_GRADIENTS)
    """exact: the derivative of the mean loss; per_visit: a stage's gradient times microbatches / visits"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """dtype of weights, messages and gradients"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of initial weights and of the order of the text"""
    validate_every: int | None = setting(20, within=AT_LEAST_1)
    """iterations between validations of the whole model; null: only before and after training"""
    validate_training: bool = False
    """validate on training text as well: on as many of the sequences that are trained on first"""
    skip_changes: list[SkipChange] = field(default_factory=list)
    """skip ratios later in the run, e.g. [{after: 0.8, skip_ratio: 0}]; before the first: schedule.skip_ratio"""


@dataclass
class CheckpointConfig:
    """Checkpoints, from which a run resumes; in `folder`, which all nodes have to see."""

    enabled: bool = True
    """save checkpoints; if so, always after the last iteration and when the run is asked to stop"""
    every: int | None = setting(50, within=AT_LEAST_1)
    """iterations between checkpoints; null: only at the end"""
    keep: int = setting(2, within=AT_LEAST_1)
    """how many checkpoints stay; the newest"""
    resume: str | None = None
    """a checkpoint or the folder of a run to resume from in a new folder; a folder with checkpoints needs none"""
    key: str | None = None
    """a file with the secret that checkpoints are signed with, the same on all machines of a job; null: the user's own
    (~/.config/skippipe)"""


@dataclass
class TrainJob:
    """`skippipe train`: train a model by a plan, with local processes or as one rank under torchrun."""

    plan: str | None = None
    """a skippipe.plan/1 file; null: make a plan for the cluster, whose times are measured first"""
    cluster: ClusterConfig = MISSING
    """the machines, where no plan is given"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """which node serves which stage, if no plan is given: by the surrogate, since stages are built before anything is
    measured"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """strategy, skip ratio and constraints, if no plan is given"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """search budget and method"""
    model: dict[str, Any] = field(default_factory=dict)
    """the model: model_type and its settings, as transformers names them; +model.KEY=VALUE adds one"""
    data: DataConfig = field(default_factory=DataConfig)
    """the text"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """the processes"""
    train: TrainConfig = field(default_factory=TrainConfig)
    """how the model learns"""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """checkpoints, from which the run resumes"""
    folder: str | None = None
    """output of the run; a run in it resumes from its newest checkpoint; null: runs/DATE_TIME"""
    dry_run: bool = False
    """validate plan, model and data, estimate memory, and stop (same as --dry-run)"""
