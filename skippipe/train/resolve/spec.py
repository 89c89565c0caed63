"""The description of a run. Everything after `resolve` takes it and reads no settings."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from skippipe._scheduler import Cluster
from skippipe.allocation import Allocation
from skippipe.config import AllocateConfig, Contention, LinkChange, PhasesConfig, PlannerConfig, ScheduleConfig
from skippipe.data.config import DataConfig
from skippipe.devices import Precision
from skippipe.phases import Phase
from skippipe.train.resolve.layout import Layout

SLOWEST_HEALTHY = 3.0
"""An iteration that takes so many times as long as expected may still be a healthy one."""
REPLANNING_S = 2.0
"""Limit of the search for the plan of a phase while all ranks wait for it after a loss."""


@dataclass(frozen=True)
class ModelSpec:
    """Which model is trained."""

    settings: Mapping[str, Any]
    """`model_type` and settings, or `folder` and settings on top, as `skippipe.model.settings` takes them"""
    folder: Path | None
    """where weights, configuration and tokenizer come from; None: weights are initialized at random"""
    layers: tuple[int, ...] | None
    """decoder layers per stage, if set; None: as in the plan, else as even as possible"""


@dataclass(frozen=True)
class DataSpec:
    """Which text is read, and how it is divided."""

    text: DataConfig
    """files, tokenizer and sequence length"""
    microbatch_size: int
    """sequences per microbatch"""

    @property
    def sequence(self) -> int:
        """Tokens per sequence."""
        return self.text.sequence


@dataclass(frozen=True)
class DeviceSpec:
    """What the stages of a process compute on, and how; may differ between ranks."""

    device: str = "cpu"
    """as `skippipe.devices.find_device` takes it"""
    group: int = 1
    """most microbatches in one pass through a stage"""
    cuda_graphs: Literal["auto", "always", "never"] = "auto"
    """whether a stage's work on a microbatch, or passes of several microbatches, are launched as CUDA graphs, where
    that can be; auto: the former only where the host would keep the GPU waiting"""
    compile: bool = False
    """whether layers and loss run compiled"""
    activation_checkpointing: int = 0
    """n: every nth decoder layer is recomputed in the backward pass; 0: none"""
    loss_chunk: int | None = None
    """tokens per chunk of final norm, head and loss; None: all at once"""
    deterministic: bool = False
    """whether only deterministic kernels are used"""
    profile: int = 0
    """iterations to profile"""


@dataclass(frozen=True)
class CommunicationSpec:
    """How processes exchange messages, and how long they wait; seconds."""

    backend: Literal["auto", "gloo", "nccl"] = "auto"
    """how messages travel; auto: NCCL where every rank has a GPU of its own"""
    links: Literal["real", "emulated"] = "real"
    """emulated: transfers take as long as the cluster's links"""
    time_scale: float = 1.0
    """factor on the transfer times of emulated links"""
    contention: Contention | None = None
    """which messages leave one after the other over emulated links; None: those that the cluster says"""
    link_changes: Sequence[LinkChange] = ()
    """of emulated links, during the run"""
    recv_buffers: int = 2
    """inputs that may wait on each link"""
    sends_in_flight: int = 2
    timeout_s: float = 60.0
    """waited for a message, in addition to the time that iterations take"""
    start_timeout_s: float = 120.0
    """within which all ranks have to join, and each has to answer while they prepare"""
    heartbeat_s: float = 5.0
    """a rank that shows no sign of life for two heartbeats is lost"""
    recover: bool = True
    """whether those that are left go on without a rank that is lost, if their launcher lets them"""
    lost_stage: Literal["restart", "checkpoint", "average", "copy", "skip"] = "restart"
    """what follows when the last node of a stage is lost: another one takes it over, or all routes skip it, unless all
    start again"""
    max_slowdown: float | None = None
    """a rank that is slower by this factor than planned, compared with the others, is treated as lost"""

    def planned_contention(self, cluster: Cluster) -> Contention:
        """Which messages take turns in predictions for a cluster: over real links, at least those of a link."""
        stated = cast("Contention", cluster.contention)
        if self.links == "emulated":
            return self.contention or stated
        return "link" if stated == "none" else stated


@dataclass(frozen=True)
class OptimizerSpec:
    """AdamW and its learning rate."""

    learning_rate: float
    """peak"""
    final_learning_rate: float
    """as a fraction of the peak"""
    warmup: float
    """fraction of the run's tokens"""
    decay: Literal["cosine", "linear"]
    """cosine over all that follows the warm-up, or linear over the last `decay_fraction`"""
    decay_fraction: float
    """of the run's tokens; for linear decay"""
    weight_decay: float
    beta1: float
    beta2: float
    epsilon: float
    clip_norm: float | None
    """None: gradients are not clipped"""


@dataclass(frozen=True, kw_only=True)
class PlanPhase(Phase):
    """A phase in iterations."""

    after: int
    """iterations before it"""


@dataclass(frozen=True)
class ReplanSpec:
    """Whether and when a run looks for other plans."""

    mode: Literal["off", "routes", "allocation"]
    """what may change: nothing; routes and order; also which stage a node serves"""
    gain: float
    """least fraction of the iteration time that a plan has to save"""
    wait: int
    """iterations until the next search after one that brought nothing"""


@dataclass(frozen=True)
class RedundancySpec:
    """Copies of stages in the memory of ranks that do not serve them."""

    copies: int
    """of each stage"""
    every: int
    """iterations from one renewal to the next"""


@dataclass(frozen=True)
class CheckpointSpec:
    """Which checkpoints are written, and from which one the run resumes."""

    enabled: bool
    every: int | None
    """iterations; None: only at the end"""
    keep: int
    """how many stay"""
    resume: str | None
    """a checkpoint, or the folder of a run; None: the newest checkpoint of the run's own folder, if any"""
    key: str | None
    """the file with the signing secret; None: the user's own"""


@dataclass(frozen=True)
class AllocationSearch:
    """What is asked of an allocation that is searched once all nodes are measured; until then it is provisional."""

    allocate: AllocateConfig
    schedule: ScheduleConfig
    phases: PhasesConfig


@dataclass(frozen=True)
class LaunchSpec:
    """How processes are started; the only part that may differ between ranks."""

    node: str | None
    """nodes that this process serves under torchrun: NAME or NAME,NAME; None: the host name"""
    processes: int | None
    """of a local run; None: one per node"""
    port: int
    """of the rendezvous of a local run; 0: any"""
    threads: int
    """of torch in each process"""
    folder: str | None
    """of the run; None: named after date and time"""
    restarts: int = 0
    """times that a local run which has lost a process starts again"""
    start_retries: int | None = None
    """how often in a row a local run starts a lost process again that has not trained since; None: never"""


@dataclass(frozen=True)
class RunSpec:
    """One run, resolved from its settings."""

    layout: Layout
    """nodes, stages, and the plan if one is given"""
    phases: tuple[PlanPhase, ...]
    """in order; the first one begins the run"""
    search: AllocationSearch | None
    """what is asked of an allocation for measured nodes; None: the allocation stays as it is"""
    planner: PlannerConfig
    model: ModelSpec
    data: DataSpec
    precision: Precision
    device: DeviceSpec
    communication: CommunicationSpec
    optimizer: OptimizerSpec
    checkpoints: CheckpointSpec
    launch: LaunchSpec
    iterations: int
    seed: int
    """of the weights and of the order of the text"""
    stage_gradient: Literal["exact", "per_visit"]
    replan: ReplanSpec
    redundancy: RedundancySpec
    new_layers: Literal["init", "copy"]
    """weights of layers whose stage joins in a later phase"""
    validate_every: int | None
    """iterations; None: only before and after"""
    validate_training: bool
    """whether validations also measure the loss on training text"""
    calibrate: bool
    """whether a plan made here is made for measured times"""
    memory_bytes: float | None
    """available to each process; None: not checked"""
    shared_settings: Mapping[str, str]
    """settings that have to be equal on all ranks, as JSON, by their keys; only to be compared"""
    settings_yaml: str
    """the settings as given, for the run's folder"""

    @property
    def allocations(self) -> list[Allocation]:
        """The run's allocation, and those that phases have to themselves; no two are equal."""
        found = [self.layout.allocation]
        for phase in self.phases:
            if phase.anew and phase.allocation not in found:
                found.append(phase.allocation)
        return found

    def allocation_of(self, phase: PlanPhase) -> Allocation:
        """The one of these that a phase uses."""
        return phase.allocation if phase.anew else self.layout.allocation

    def held_stages(self, nodes: Collection[int]) -> list[int]:
        """The stages that these nodes serve in any phase."""
        return sorted(
            {
                stage
                for allocation in self.allocations
                for stage, served in enumerate(allocation.stages)
                if not set(nodes).isdisjoint(served)
            }
        )
