"""Settings of `skippipe train`. What they share with the planner is in `skippipe.config`."""

from dataclasses import dataclass, field
from typing import Any

from omegaconf import MISSING

from skippipe.config import (
    ABOVE_0,
    AT_LEAST_0,
    AT_LEAST_1,
    CONTENTIONS,
    NEW_LAYERS,
    AllocateConfig,
    ClusterConfig,
    LinkChange,
    PhasesConfig,
    PlannerConfig,
    Range,
    ScheduleConfig,
    setting,
)
from skippipe.data.config import DataConfig
from skippipe.devices import AUTOCASTS, DTYPES, WIRE_DTYPES

BACKENDS = ("auto", "gloo", "nccl")
LINKS = ("real", "emulated")
DECAYS = ("cosine", "linear")
CUDA_GRAPHS = ("auto", "always", "never")
LOST_STAGES = ("restart", "checkpoint", "average", "copy", "skip")
REPLANS = ("off", "routes", "allocation")
STAGE_GRADIENTS = ("exact", "per_visit")
ABOVE_1 = Range(1, open_low=True)
BELOW_1 = Range(0, 0.999999)


@dataclass
class RuntimeConfig:
    """Processes, devices and communication."""

    node: str | None = None
    """nodes of the plan that this process serves: NAME or NAME,NAME; null: the host name (local runs set it)"""
    backend: str = setting("auto", choices=BACKENDS)
    """how messages travel: gloo, nccl, or auto: nccl where every process has a GPU of its own"""
    links: str = setting("real", choices=LINKS)
    """emulated: messages take as long as over the cluster's links; for processes of one machine"""
    time_scale: float = setting(1.0, within=ABOVE_0)
    """emulated links: factor on transfer times; 0.1: ten times as fast"""
    contention: str | None = setting(None, choices=CONTENTIONS)
    """emulated links: which messages leave one by one: none, those of a link, or all of a node's uplink; null: those
    that the cluster says"""
    link_changes: list[LinkChange] = field(default_factory=list)
    """emulated links: changes during the run, e.g. [{after: 20, factor: 4, senders: [tokyo-0]}]"""
    processes: int | None = setting(None, within=AT_LEAST_1)
    """processes of a local run, over which the nodes are distributed; null: one per node"""
    port: int = setting(0, within=Range(0, 65535))
    """rendezvous port of a local run on 127.0.0.1; 0: any free port"""
    threads: int = setting(1, within=Range(1, 1024))
    """torch threads per process"""
    recv_buffers: int = setting(2, within=AT_LEAST_1)
    """receive buffers per link"""
    sends_in_flight: int = setting(2, within=AT_LEAST_1)
    """maximum number of sends in flight per process"""
    timeout_s: float = setting(60.0, within=ABOVE_0)
    """seconds allowed for a message beyond normal waiting: timeout = timeout_s + 3 x max(predicted, last iteration)"""
    start_timeout_s: float = setting(120.0, within=ABOVE_0)
    """seconds allowed for the rendezvous of all processes"""
    heartbeat_s: float = setting(5.0, within=ABOVE_0)
    """a process that shows no sign of life for two heartbeats of so many seconds is lost"""
    lost_stage: str = setting("restart", choices=LOST_STAGES)
    """when the last node of a stage is lost: restart from the latest checkpoint; or another node takes the stage over,
    with its weights in that checkpoint (checkpoint), a mean of the stages before and after it (average), or the copy
    of it that another node has (copy, with train.redundancy); or all routes skip it until a node joins (skip)"""
    max_slowdown: float | None = setting(None, within=ABOVE_1)
    """where the others go on without a lost process: one that takes so many times its planned time, compared with the
    others, is treated as lost if every stage has a node left; null: never"""
    recover: bool = True
    """except under torchrun: go on without a lost process if every stage has a node left, and redo the iteration"""
    restarts: int = setting(3, within=AT_LEAST_0)
    """times that a run which has lost a process starts again, from its latest complete checkpoint; or that a machine of
    skippipe node which has lost its only one joins the others again, if they go on"""
    rejoin: bool = False
    """local runs: start a lost process again, which joins the others after an iteration, if they go on"""
    start_retries: int = setting(3, within=AT_LEAST_1)
    """with runtime.rejoin: restarts of a process in a row, without an iteration trained, before it is given up"""
    memory_bytes: float | None = setting(None, within=ABOVE_0)
    """memory limit per process in bytes, checked by --dry-run; null: not checked"""
    calibrate: bool = True
    """without a plan: first measure stages and messages, instead of using the figures of the cluster"""
    group: int = setting(1, within=AT_LEAST_1)
    """single process only: maximum number of microbatches per pass through a stage; 1: exactly the plan's order"""
    cuda_graphs: str = setting("auto", choices=CUDA_GRAPHS)
    """on a GPU: launch a stage's work on a microbatch, or with runtime.group above 1 an iteration, as a CUDA graph;
    auto: that of a stage only where the host would need more than 0.3 of the GPU's time to launch its kernels. Costs
    memory; not with experts, float16 autocast or activation checkpointing"""
    device: str = "cpu"
    """cpu; cuda: the machine's GPUs in turn, one per process; cuda:1 etc.; auto: cuda if there is a GPU, else cpu"""
    autocast: str | None = setting(None, choices=AUTOCASTS)
    """dtype of torch autocast; weights keep train.dtype; float16 scales the loss"""
    wire_dtype: str | None = setting(None, choices=tuple(WIRE_DTYPES))
    """dtype of messages; int8 and float8_e4m3fn are scaled per token; null: runtime.autocast, else train.dtype"""
    compile: bool = False
    """compile layers and loss with torch.compile"""
    activation_checkpointing: int = setting(0, within=AT_LEAST_0)
    """n: recompute every nth decoder layer in the backward pass instead of saving its activations; 0: none, 1: all"""
    loss_chunk: int | None = setting(None, within=AT_LEAST_1)
    """tokens per chunk of final norm, head and loss, so that logits are never held in full; null: no chunks"""
    deterministic: bool = False
    """use deterministic kernels only, so that two runs are bit-equal"""
    profile: int = setting(0, within=AT_LEAST_0)
    """iterations to profile on rank 0, for the time breakdown and trace.json; 0: none"""


@dataclass
class TrainConfig:
    """Optimization."""

    iterations: int = setting(120, within=AT_LEAST_1)
    """iterations; each is one optimizer step over all microbatches"""
    microbatch_size: int = setting(4, within=AT_LEAST_1)
    """sequences per microbatch"""
    layers: list[int] | None = setting(None, within=AT_LEAST_0)
    """decoder layers per stage, e.g. [1,2,3]; null: as in the plan, else as even as possible"""
    learning_rate: float = setting(3e-3, within=AT_LEAST_0)
    """peak learning rate"""
    final_learning_rate: float = setting(0.1, within=Range(0, 1))
    """final learning rate as a fraction of the peak"""
    warmup: float = setting(0.1, within=Range(0, 1))
    """fraction of the run's tokens for linear warm-up"""
    decay: str = setting("cosine", choices=DECAYS)
    """after the warm-up: cosine decay; or linear: warm-up, stable, decay (WSD), with linear decay at the end"""
    decay_fraction: float = setting(0.2, within=Range(0, 1))
    """with decay=linear: fraction of the run's tokens for the decay"""
    weight_decay: float = setting(0.1, within=AT_LEAST_0)
    """weight decay of AdamW, on weight matrices only"""
    beta1: float = setting(0.9, within=BELOW_1)
    """AdamW: decay rate of the first moment"""
    beta2: float = setting(0.95, within=BELOW_1)
    """AdamW: decay rate of the second moment"""
    epsilon: float = setting(1e-8, within=ABOVE_0)
    """AdamW: epsilon added to the denominator"""
    clip_norm: float | None = setting(1.0, within=ABOVE_0)
    """clip the global gradient norm, over all stages; null: no clipping"""
    stage_gradient: str = setting("exact", choices=STAGE_GRADIENTS)
    """exact: gradient of the mean loss; per_visit: a stage's gradient scaled by microbatches / visits"""
    dtype: str = setting("float32", choices=tuple(DTYPES))
    """dtype of weights and gradients"""
    seed: int = setting(0, within=Range(0, 2**63 - 1))
    """seed of weight initialization and data order"""
    validate_every: int | None = setting(20, within=AT_LEAST_1)
    """iterations between validations of the full model; null: only before and after training"""
    validate_training: bool = False
    """also validate the full model on as much of the training text: the sequences trained on first"""
    replan: str = setting("off", choices=REPLANS)
    """other plans during the run, for nodes and links as training measures them: off; routes: other routes and order;
    allocation: nodes may also change stages, with their weights and optimizer state, but for those of stage 0"""
    replan_gain: float = setting(0.05, within=Range(0, 1, open_low=True))
    """least fraction of the iteration time that another plan has to save; also how much the time has to change before
    one is searched, or by half of that the time of all routes"""
    replan_wait: int = setting(8, within=AT_LEAST_1)
    """iterations until the next search after a plan, or a search, that brought nothing; doubles each time"""
    redundancy: int = setting(0, within=AT_LEAST_0)
    """copies of each stage, with its optimizer state, in the memory of nodes of other stages, on other machines where
    there are any; for runtime.lost_stage=copy or skip. Stage 0 has none"""
    redundancy_every: int = setting(10, within=AT_LEAST_1)
    """iterations after which these copies are renewed, while training goes on; later if that is still under way"""
    new_layers: str = setting("init", choices=NEW_LAYERS)
    """weights of layers whose stage joins in a later phase: init: as drawn from the seed, or read from model.folder;
    copy: those of a layer in use, layer l from layer l modulo their number; moments start at zero"""


@dataclass
class CheckpointConfig:
    """Checkpoints, in `folder`, which must be visible to all nodes."""

    enabled: bool = True
    """save checkpoints: every so many iterations, after the last one, and when the run is asked to stop"""
    every: int | None = setting(50, within=AT_LEAST_1)
    """iterations between checkpoints; null: only at the end"""
    keep: int = setting(2, within=AT_LEAST_1)
    """number of latest checkpoints kept"""
    resume: str | None = None
    """a checkpoint or run folder from which to resume in a new folder; a folder with checkpoints resumes by itself"""
    key: str | None = None
    """file with the key that checkpoints are signed with, the same on all machines of a job; null: the user's own
    (~/.config/skippipe)"""


@dataclass
class TrainJob:
    """Settings of `skippipe train`."""

    plan: str | None = None
    """a skippipe.plan/1 file; null: plan for the cluster, after measuring its times"""
    cluster: ClusterConfig = MISSING
    """the cluster, if no plan is given"""
    allocate: AllocateConfig = field(default_factory=AllocateConfig)
    """allocation of nodes to stages, if no plan is given: by the surrogate, or searched with layers=auto"""
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)
    """strategy, skip ratio and constraints, if no plan is given"""
    phases: PhasesConfig = field(default_factory=PhasesConfig)
    """skip ratio and stages in use over the run; a given plan allows for one phase only"""
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    """search budget and method"""
    model: dict[str, Any] = field(default_factory=dict)
    """the model: model_type and its settings, named as in transformers; +model.KEY=VALUE adds one"""
    data: DataConfig = field(default_factory=DataConfig)
    """the text"""
    runtime: RuntimeConfig = field(default_factory=RuntimeConfig)
    """processes, devices and communication"""
    train: TrainConfig = field(default_factory=TrainConfig)
    """optimization"""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    """checkpoints"""
    folder: str | None = None
    """output folder of the run; an existing run resumes from its latest checkpoint; null: runs/DATE_TIME"""
    dry_run: bool = False
    """only check plan, model, data and memory, in this process (also --dry-run)"""


@dataclass
class NodeJob(TrainJob):
    """Settings of `skippipe node`."""

    rendezvous: str = MISSING
    """HOST:PORT where the machines of the job find each other; the machine with that address serves it"""
