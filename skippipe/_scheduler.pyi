"""
Scheduler of skippipe: clusters, problems and plans; planning, simulation and checking.
"""

from _typeshed import SupportsGetItem
from numpy import float64, int64
from numpy.typing import ArrayLike, NDArray
from typing import Any, SupportsFloat, SupportsIndex, final

__all__ = ["Allocated", "AllocationReport", "AllocationScope", "Assumptions", "Cluster", "Constraints", "Explanation", "LeftOut", "Microbatch", "Plan", "PlanRequest", "Predicted", "Problem", "RunnerUp", "Scored", "SearchEvent", "SearchReport", "Segment", "Task", "Upgrade", "allocate", "benchmark_simulator", "explain", "first_allocation", "greedy_allocation", "is_full", "is_joint", "is_random", "plan", "score_allocation", "simulate", "strategies", "upgrades"]

@final
class Allocated:
    """
    The best allocation found, and what is known of all others.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def best(self, /) -> Scored:
        """
        The best allocation.
        """
    @property
    def lower_bound_s(self, /) -> float:
        """
        No allocation that was allowed has a lower score.
        """
    @property
    def optimal(self, /) -> bool:
        """
        Whether the best is proved to be the best there is.
        """
    @property
    def runner_up(self, /) -> Scored | None:
        """
        The best other one that was seen: not the same stages in another order, nor with other nodes just like these.
        """
    @property
    def statistics(self, /) -> dict[str, int]:
        """
        Counts of the search, by name.
        """

@final
class AllocationReport:
    """
    How the search for an allocation by the iteration went.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    @property
    def left_out(self, /) -> list[LeftOut]:
        """
        What each absent node would cost.
        """
    @property
    def lower_bound_s(self, /) -> float:
        """
        No allocation that was allowed takes less, in seconds.
        """
    @property
    def planned_one_by_one(self, /) -> bool:
        """
        Whether every allocation was looked at by itself.
        """
    @property
    def rounds(self, /) -> int:
        """
        Rounds of the search.
        """
    @property
    def runner_up(self, /) -> RunnerUp | None:
        """
        The best plan of another allocation.
        """
    @property
    def start_s(self, /) -> float | None:
        """
        Seconds of the iteration on the first allocation.
        """
    @property
    def work(self, /) -> int:
        """
        Search steps.
        """

@final
class AllocationScope:
    """
    What a search may change of a problem's allocation, beside which node serves which stage.

    `unused`: nodes may serve no stage; stage 0 keeps as many as it has, every other stage has at least one, and none gets
    more than it has. `layers`: so many decoder layers are shared out anew over the stages, and the microbatches over the
    sources; times, memory and gradients of the cluster hold for an equal share of the layers (0: both stay as they are).
    `sources`: other nodes may be sources. `max_replica_transfer_s`: no message between two nodes of one stage takes longer,
    in seconds (None: any).
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __getnewargs_ex__(self, /) -> "tuple[tuple[()], dict[str, object]]": ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, *, layers: SupportsIndex = 0, sources: bool = True, max_replica_transfer_s: SupportsFloat | SupportsIndex | None = None, unused: bool = False) -> AllocationScope: ...
    def __repr__(self, /) -> str: ...
    @property
    def layers(self, /) -> int:
        """
        Decoder layers to be shared out; 0: they stay.
        """
    @property
    def max_replica_transfer_s(self, /) -> float | None:
        """
        Seconds that a message within a stage takes at most; None: any.
        """
    @property
    def sources(self, /) -> bool:
        """
        Other nodes may be sources.
        """
    @property
    def unused(self, /) -> bool:
        """
        Nodes may serve no stage.
        """

@final
class Assumptions:
    """
    What the times of a plan take for granted of the machines beside the figures of its cluster.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def contention(self, /) -> str:
        """
        Which messages take turns: "none", "link" or "uplink".
        """
    @property
    def processors(self, /) -> list[list[int]]:
        """
        Nodes that share a processor, by number: sets of at least two.
        """

@final
class Cluster:
    """
    The machines and the links between them (`skippipe.cluster/1`); always valid.

    Times are seconds for one microbatch and the stage that a node serves, sizes bytes, bandwidths bytes per second. Of N
    nodes, link matrices have the shape (N, N), row = sender; with `region_of` (R, R) over regions, their diagonal for two
    nodes of one region. Give either `transfer_s`, or `latency_s` and `bandwidth`: a message of b bytes then takes
    latency_s + b / bandwidth + overhead_s.

    Args:
        names: a name for each node.
        forward_s: seconds of a forward on each node, shape (N,).
        backward_s: seconds of a backward on each node, shape (N,).
        loss_s: seconds of head and loss, forward and backward together, on each node, where it is a source, shape (N,).
        memory: the most microbatches whose activations each node can hold, shape (N,).
        transfer_s: seconds of a whole message; no `gradient_bytes` then.
        latency_s: seconds.
        bandwidth: bytes per second; the diagonal over nodes is ignored.
        overhead_s: seconds added to every transfer between two different nodes.
        region_of: region of each node, shape (N,).
        activation_bytes: bytes of a message, forward or backward.
        gradient_bytes: bytes that the replicas of each stage all-reduce, one for each stage; empty: not modelled.
        step_s: seconds of the optimizer step on each node; empty: none.
        norm_s: seconds of the exchange of the global gradient norm.
        source: where the figures come from.
        workload: what the times hold for: a JSON object as text.
        measured: how the figures were measured: a JSON object as text.
        processors: a number for what each node computes on, shape (N,): nodes with the same number run one task at a
            time and exchange messages in no time. None, for one node or for all: on a processor of its own.
        contention: which messages take turns: "none" of them, those from one processor to another ("link"), or all that a
            processor sends ("uplink").

    Raises:
        skippipe.errors.InputError: a value that cannot be used; the message names the key.

    Example:
        >>> import numpy as np
        >>> import skippipe
        >>> cluster = skippipe.Cluster(
        ...     names=["a", "b"], forward_s=[0.1, 0.2], backward_s=[0.2, 0.4], loss_s=[0.05, 0.1], memory=[4, 4],
        ...     latency_s=np.full((2, 2), 0.01), bandwidth=np.full((2, 2), 1e8), activation_bytes=1e6,
        ... )
        >>> cluster.transfer_matrix()
        array([[0.  , 0.02],
               [0.02, 0.  ]])
        >>> skippipe.Cluster.from_json(cluster.to_json()) == cluster
        True
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __len__(self, /) -> int: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, names: SupportsGetItem[int, str], forward_s: ArrayLike, backward_s: ArrayLike, loss_s: ArrayLike, memory: SupportsGetItem[int, SupportsIndex], *, transfer_s: ArrayLike | None = None, latency_s: ArrayLike | None = None, bandwidth: ArrayLike | None = None, overhead_s: SupportsFloat | SupportsIndex = 0.0, region_of: SupportsGetItem[int, SupportsIndex] | None = None, activation_bytes: SupportsFloat | SupportsIndex = 0.0, gradient_bytes: SupportsGetItem[int, SupportsFloat | SupportsIndex] = ..., step_s: SupportsGetItem[int, SupportsFloat | SupportsIndex] = ..., norm_s: SupportsFloat | SupportsIndex = 0.0, source: str | None = None, workload: str | None = None, measured: str | None = None, processors: SupportsGetItem[int, SupportsIndex | None] | None = None, contention: str = "none") -> Cluster: ...
    def __reduce__(self, /) -> tuple[Any, tuple[type]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def activation_bytes(self, /) -> float:
        """
        Bytes of one message, forward or backward.
        """
    @property
    def backward_s(self, /) -> NDArray[float64]:
        """
        Seconds of a backward on each node, shape (N,).
        """
    @property
    def contention(self, /) -> str:
        """
        Which messages take turns: none of them ("none"), those from one processor to another ("link"), or all that a
        processor sends ("uplink").
        """
    @property
    def forward_s(self, /) -> NDArray[float64]:
        """
        Seconds of a forward on each node, shape (N,).
        """
    @staticmethod
    def from_json(text: str) -> Cluster:
        """
        Reads `skippipe.cluster/1`. Raises InputError naming the key that does not fit.
        """
    @property
    def gradient_bytes(self, /) -> list[float]:
        """
        Bytes that the replicas of each stage all-reduce; empty: not modelled.
        """
    @property
    def loss_s(self, /) -> NDArray[float64]:
        """
        Seconds of head and loss on each node, where it is a source, shape (N,).
        """
    @property
    def measured(self, /) -> str | None:
        """
        How the figures were measured, a JSON object as text (the part `measured` of the file); None: not known.
        """
    @property
    def memory(self, /) -> NDArray[int64]:
        """
        The most microbatches that each node can hold, shape (N,).
        """
    @property
    def names(self, /) -> list[str]:
        """
        Names of the nodes, by number.
        """
    @property
    def norm_s(self, /) -> float:
        """
        Seconds of the exchange of the global gradient norm.
        """
    @property
    def overhead_s(self, /) -> float:
        """
        Seconds added to every transfer between two different nodes.
        """
    @property
    def processors(self, /) -> NDArray[int64]:
        """
        The processor of each node by the first node on it, shape (N,): equal numbers run one task at a time and exchange
        messages in no time.
        """
    @property
    def region_of(self, /) -> NDArray[int64] | None:
        """
        Region of each node, shape (N,); None where links are given over nodes.
        """
    @property
    def shares_processors(self, /) -> bool:
        """
        Whether some nodes share a processor.
        """
    def slowest_transfer(self, /, nodes: SupportsGetItem[int, SupportsIndex]) -> float | None:
        """
        Seconds of the slowest message between two different ones of `nodes`; None where there are no two.
        """
    @property
    def source(self, /) -> str | None:
        """
        Where the figures come from.
        """
    @property
    def step_s(self, /) -> list[float]:
        """
        Seconds of the optimizer step on each node; empty: none.
        """
    def to_json(self, /) -> str:
        """
        Writes `skippipe.cluster/1`.
        """
    def transfer_matrix(self, /, size_bytes: SupportsFloat | SupportsIndex | None = None) -> NDArray[float64]:
        """
        Seconds that `size_bytes` (default: one message) take from each node to each other, shape (N, N), row = sender.
        """
    def transfer_times(self, /, senders: SupportsGetItem[int, SupportsIndex], receivers: SupportsGetItem[int, SupportsIndex]) -> NDArray[float64]:
        """
        Seconds that a message takes from each of `senders` to each of `receivers`, shape (senders, receivers).
        """
    def with_contention(self, /, contention: str) -> Cluster:
        """
        The same cluster where messages take turns: none of them ("none"), those from one processor to another ("link"), or
        all that a processor sends ("uplink").
        """
    def with_processors(self, /, processors: SupportsGetItem[int, SupportsIndex | None]) -> Cluster:
        """
        The same cluster where nodes with equal numbers share a processor; None: on one of its own.
        """
    def with_times(self, /, forward_s: ArrayLike, backward_s: ArrayLike, loss_s: ArrayLike) -> Cluster:
        """
        The same cluster with other seconds of forward, backward, and head and loss on each node, each of shape (N,).
        """
    @property
    def workload(self, /) -> str | None:
        """
        What the times hold for, a JSON object as text (keys of plans' `model`, `device`, `node_layers`); None: not known.
        """

@final
class Constraints:
    """
    The rules that a plan keeps; each can be switched off by name. `profile` has one weight for each stage but stage 0;
    `classes` are pairs of stages and the number of routes that visit exactly these.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __getnewargs_ex__(self, /) -> "tuple[tuple[()], dict[str, object]]": ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, *, cc1: bool = True, cc2: bool = True, cc3: bool = True, tc1: str = "held", tc2: bool = True, max_swaps: SupportsIndex = 1, waves: SupportsIndex = 1, max_stage_jump: SupportsIndex | None = None, profile: SupportsGetItem[int, SupportsFloat | SupportsIndex] | None = None, classes: SupportsGetItem[int, tuple[SupportsGetItem[int, SupportsIndex], SupportsIndex]] | None = None) -> Constraints: ...
    def __repr__(self, /) -> str: ...
    @property
    def cc1(self, /) -> bool:
        """
        Stage 0 is never skipped and comes first.
        """
    @property
    def cc2(self, /) -> bool:
        """
        Stages in increasing order but for at most `max_swaps` swaps of neighbours.
        """
    @property
    def cc3(self, /) -> bool:
        """
        Stages 1.. lie on equally many routes.
        """
    @property
    def classes(self, /) -> list[tuple[list[int], int]] | None:
        """
        Stages and number of routes of each class of routes; None: no classes.
        """
    @property
    def max_stage_jump(self, /) -> int | None:
        """
        The most by which a step may pass the furthest stage so far; None: any.
        """
    @property
    def max_swaps(self, /) -> int:
        """
        For CC2.
        """
    @property
    def profile(self, /) -> list[float] | None:
        """
        Weights of the stages but stage 0, by which the visits are shared out; None: evenly.
        """
    @staticmethod
    def reference() -> Constraints:
        """
        The rule set of the published figures: waves 2, TC1 `routes`, at most 2 swaps, jumps of at most 4 stages.
        """
    @property
    def tc1(self, /) -> str:
        """
        Node memory: "held", "routes" or "off".
        """
    @property
    def tc2(self, /) -> bool:
        """
        Routes and order know that a node runs one task at a time.
        """
    @property
    def waves(self, /) -> int:
        """
        Microbatches that share a route, one after the other.
        """

@final
class Explanation:
    """
    Why a plan takes as long as it does. Arrays have one entry for each of the plan's tasks.
    """
    @property
    def arrival_s(self, /) -> NDArray[float64]:
        """
        When each task's input was there, in seconds.
        """
    @property
    def blockers(self, /) -> NDArray[int64]:
        """
        The task behind that reason, by its index in the plan's tasks; -1 where there is none.
        """
    @property
    def busy_s(self, /) -> NDArray[float64]:
        """
        Seconds that each task waited, its input at hand, while its node ran others.
        """
    @property
    def critical(self, /) -> list[Segment]:
        """
        The critical path, without a gap from 0 to the end of the iteration: tasks, transfers and what follows them, each
        of which begins as the one before it ends. It changes microbatch where a task waited for its node.
        """
    @property
    def last(self, /) -> list[Segment]:
        """
        The microbatch at the end of that path, without a gap from 0: tasks, transfers and waiting.
        """
    @property
    def memory_s(self, /) -> NDArray[float64]:
        """
        Seconds that each task waited, its input at hand, while its node was idle and full.
        """
    @property
    def order_s(self, /) -> NDArray[float64]:
        """
        Seconds that each task waited, its input at hand, while its node was idle and had room.
        """
    @property
    def plan(self, /) -> Plan:
        """
        The plan with the simulator's times in its own order, which are the times that are explained.
        """
    @property
    def reasons(self, /) -> list[str]:
        """
        Why each task did not start before: "start", "input" (arrived then), "wave" (the one before completed then),
        "busy" (its node ran others), "memory" (its node was idle but full), "order" (its node was idle; the plan lets
        another go first).
        """
    @property
    def slack_s(self, /) -> NDArray[float64]:
        """
        How much later each task may start without lengthening the iteration, the order kept, in seconds.
        """

@final
class LeftOut:
    """
    What an absent node would cost in the stage where it costs least, routes and order being the same.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    @property
    def allreduce_s(self, /) -> float:
        """
        Seconds of the stage's all-reduce with the node.
        """
    @property
    def allreduce_without_s(self, /) -> float:
        """
        Seconds of the stage's all-reduce without it.
        """
    @property
    def iteration_s(self, /) -> float:
        """
        Seconds of the iteration with the node.
        """
    @property
    def node(self, /) -> int:
        """
        The node.
        """
    @property
    def stage(self, /) -> int:
        """
        The stage.
        """

@final
class Microbatch:
    """
    One microbatch and its route through the pipeline.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def id(self, /) -> int:
        """
        Unique number.
        """
    @property
    def nodes(self, /) -> list[int]:
        """
        Nodes in order of the forward pass.
        """
    @property
    def route(self, /) -> int:
        """
        Route, shared by at most `waves` microbatches of one source.
        """
    @property
    def source(self, /) -> int:
        """
        Stage-0 node that it starts from and returns to.
        """
    @property
    def stages(self, /) -> list[int]:
        """
        Their stages.
        """
    @property
    def wave(self, /) -> int:
        """
        Place among those, from 0.
        """

@final
class Plan:
    """
    The route of every microbatch and the order of every node's tasks (`skippipe.plan/1`), as `skippipe.plan` and
    `skippipe.load_plan` give it.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __reduce__(self, /) -> tuple[Any, tuple[type]]: ...
    def __repr__(self, /) -> str: ...
    @property
    def absent_nodes(self, /) -> list[int]:
        """
        Nodes that serve no stage: they run nothing and take no part in an all-reduce.
        """
    @property
    def absent_stages(self, /) -> list[int]:
        """
        Stages that no node serves.
        """
    @property
    def assumptions(self, /) -> Assumptions:
        """
        What its times take for granted of the machines.
        """
    def check(self, /) -> list[str]:
        """
        Every rule that the plan breaks, in words; empty where it keeps them all.
        """
    @property
    def cluster(self, /) -> Cluster:
        """
        The cluster that it was made for.
        """
    @property
    def constraints(self, /) -> Constraints:
        """
        The rules that it keeps.
        """
    def find_deadlock(self, /) -> str | None:
        """
        Tasks that wait for each other in a cycle, in words, None where the order can be executed; of a plan that
        keeps its rules.
        """
    @staticmethod
    def from_json(text: str) -> Plan:
        """
        Reads `skippipe.plan/1`: types, ranges and shapes; whether it keeps the rules is `check`'s to say. Raises
        InputError naming the key that does not fit.
        """
    @property
    def is_bound_by_routes(self, /) -> bool:
        """
        Whether its lower bound holds for its own routes alone, as its strategy does not look for the best ones.
        """
    @property
    def layers(self, /) -> list[int]:
        """
        Decoder layers of each stage; empty: not known.
        """
    @property
    def microbatches(self, /) -> list[Microbatch]:
        """
        All microbatches.
        """
    @property
    def microbatches_per_source(self, /) -> dict[int, int]:
        """
        Microbatches that each source starts, by node number.
        """
    @property
    def model(self, /) -> str | None:
        """
        What model it was made for: a JSON object as text, or None.
        """
    def on_processors(self, /, processors: SupportsGetItem[int, SupportsIndex | None]) -> Plan:
        """
        The same routes where nodes with equal numbers share a processor (None: on one of its own), such as those that
        one process serves, with the simulator's times. The order on each node stays; those of one processor take their
        tasks by the starts that these have in this plan. Where the same nodes share as in this plan it is this plan.
        """
    def plot(self, /, axes: Any | None = None) -> Any:
        """
        Draws the plan as a Gantt chart, its critical path outlined, and gives the matplotlib axes that it is on: `axes`,
        or those of a new figure, so that `plan.plot().figure.savefig("plan.svg")` writes a file. Raises InputError where
        matplotlib is not installed (`pip install "skippipe[plot]"`), DeadlockError where the plan's order cannot be executed.
        """
    @property
    def predicted(self, /) -> Predicted:
        """
        Predicted times.
        """
    def problem(self, /) -> Problem:
        """
        The question that the plan answers, with the plan's allocation.
        """
    @property
    def skip_ratio(self, /) -> float:
        """
        Share of stage visits left out.
        """
    @property
    def solver(self, /) -> SearchReport:
        """
        How the search went.
        """
    @property
    def stages(self, /) -> list[list[int]]:
        """
        Nodes of each stage.
        """
    @property
    def strategy(self, /) -> str:
        """
        "full", "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe".
        """
    def task_arrays(self, /) -> "dict[str, NDArray[Any]]":
        """
        The plan's tasks as columns, in the order of `tasks`: a dict of arrays of shape (tasks,) with the keys `node`,
        `stage`, `microbatch` and `hop` (int64), `kind` ("F", "L" or "B"), `start_s` and `end_s` (float64). A data frame
        is made of it by `pandas.DataFrame(plan.task_arrays())`.
        """
    @property
    def tasks(self, /) -> list[Task]:
        """
        All tasks; those of one processor stand in the order in which it runs them.
        """
    def to_json(self, /) -> str:
        """
        Writes `skippipe.plan/1`.
        """
    def with_cluster(self, /, cluster: Cluster) -> Plan:
        """
        The same plan for another cluster of as many nodes on the same processors; its times stay, and `simulate` gives the
        new ones. For other processors: `on_processors`.
        """
    def with_contention(self, /, contention: str) -> Plan:
        """
        The same plan where messages take turns, with the simulator's times: none of them ("none"), those from one
        processor to another ("link"), or all that a processor sends ("uplink"). Where they do so already it is this plan.
        """
    def with_model(self, /, *, config_sha256: str, hidden: SupportsIndex, layers: SupportsIndex, microbatch_size: SupportsIndex, sequence: SupportsIndex, wire_dtype: str) -> Plan:
        """
        The same plan, said to be for this model.
        """
    def without_report(self, /) -> Plan:
        """
        The same plan without how it was found.
        """

@final
class PlanRequest:
    """
    What `plan` is asked for: `first`, a problem, whose first allocation is the surrogate's where it has none; `scope`,
    what may be changed of that by the iteration (None: it stands); and how to search. `strategy` is "full",
    "full-routed", "random-skip", "skippipe-no-tc2" or "skippipe"; `method` is "auto", or "cbs" for conflict-based search
    alone, which with `suboptimality` above 1 ends with a plan of at most so many times the lower bound; `work_limit`
    counts search steps; `without` names a part of the search that is left out, for a study of what it is worth. Same seed
    and work limit: same plan, whatever the number of threads.
    """
    def __new__(cls, /, first: Problem, strategy: str = "skippipe", *, scope: AllocationScope | None = None, method: str = "auto", suboptimality: SupportsFloat | SupportsIndex = 1.0, time_limit_s: SupportsFloat | SupportsIndex | None = 1.0, work_limit: SupportsIndex | None = None, threads: SupportsIndex = 1, seed: SupportsIndex = 0, without: str | None = None) -> PlanRequest: ...

@final
class Predicted:
    """
    What the simulator gives for a plan, and how far from the best it can be.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def allreduce_s(self, /) -> list[float]:
        """
        All-reduce of each stage, in seconds.
        """
    @property
    def gap(self, /) -> float:
        """
        (iteration_s - lower_bound_s) / lower_bound_s.
        """
    @property
    def iteration_s(self, /) -> float:
        """
        Seconds of the whole iteration.
        """
    @property
    def lower_bound_s(self, /) -> float:
        """
        No plan of this allocation and these rules (`random-skip`, `skippipe-no-tc2`: of these routes) takes less.
        """
    @property
    def pipeline_s(self, /) -> float:
        """
        End of the last backward, in seconds.
        """

@final
class Problem:
    """
    The question that a plan answers: how one training iteration runs on a cluster; always consistent.

    Give either `stages`, the nodes of each stage by number, or `sizes`, how many nodes each stage has: then `skippipe.plan`
    decides which ones. Stage 0 comes first; its nodes are the sources.

    Args:
        cluster: the nodes and the links between them.
        stages: nodes of each stage; None where `sizes` is given.
        microbatches: microbatches that each source starts per iteration: one number, or one for each source, in the order
            of `stages[0]` or `sources`. Default: 6.
        sizes: number of nodes of each stage; they add up to the nodes of the cluster.
        sources: with `sizes`, the nodes of stage 0; None: any.
        max_replica_transfer_s: with `sizes`, no message between two nodes of a stage takes longer, in seconds; None: any.
        skip_ratio: share of all stage visits left out, stage 0 counted: from 0 to (stages - 1) / stages.
        constraints: the rules to keep; None: all of them, as `Constraints()` has them.
        layers: decoder layers of each stage; empty: not known.
        absent_stages: stages without nodes, which no route visits.
        absent_nodes: with `stages`, the nodes that serve no stage.

    Raises:
        skippipe.errors.InputError: a value that cannot be used; the message names the key.

    Example:
        >>> import numpy as np
        >>> import skippipe
        >>> cluster = skippipe.Cluster(
        ...     ["a", "b", "c", "d"], np.full(4, 0.1), np.full(4, 0.2), np.full(4, 0.05), [4] * 4,
        ...     transfer_s=np.full((4, 4), 0.01),
        ... )
        >>> problem = skippipe.Problem(cluster, sizes=[2, 1, 1], microbatches=4)
        >>> problem
        Problem(4 nodes, sizes=[2, 1, 1], microbatches=[4, 4], skip_ratio=0.3333333333333333)
        >>> problem.with_rules(problem.constraints, skip_ratio=0.0).skip_ratio
        0.0
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __getnewargs_ex__(self, /) -> "tuple[tuple[Cluster], dict[str, object]]": ...
    def __ne__(self, value: object, /) -> bool: ...
    def __new__(cls, /, cluster: Cluster, stages: SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]] | None = None, microbatches: SupportsIndex | SupportsGetItem[int, SupportsIndex] = ..., *, sizes: SupportsGetItem[int, SupportsIndex] | None = None, sources: SupportsGetItem[int, SupportsIndex] | None = None, max_replica_transfer_s: SupportsFloat | SupportsIndex | None = None, skip_ratio: SupportsFloat | SupportsIndex = 0.3333333333333333, constraints: Constraints | None = None, layers: SupportsGetItem[int, SupportsIndex] = ..., absent_stages: SupportsGetItem[int, SupportsIndex] = ..., absent_nodes: SupportsGetItem[int, SupportsIndex] = ...) -> Problem: ...
    def __repr__(self, /) -> str: ...
    @property
    def absent_nodes(self, /) -> list[int]:
        """
        Nodes that serve no stage.
        """
    @property
    def absent_stages(self, /) -> list[int]:
        """
        Stages that no node serves.
        """
    @property
    def cluster(self, /) -> Cluster:
        """
        The nodes and the links between them.
        """
    @property
    def constraints(self, /) -> Constraints:
        """
        The rules to keep.
        """
    @property
    def layers(self, /) -> list[int]:
        """
        Decoder layers of each stage; empty: not known.
        """
    def lower_bound_s(self, /) -> float:
        """
        A bound in seconds that no plan of this allocation and these rules can beat. Raises InputError where the nodes are
        still to be chosen.
        """
    @property
    def max_replica_transfer_s(self, /) -> float | None:
        """
        The most seconds of a message within a stage, where the nodes are still to be chosen; None: any.
        """
    @property
    def microbatches(self, /) -> list[int]:
        """
        Microbatches of each node of stage 0, in their order.
        """
    @property
    def sizes(self, /) -> list[int]:
        """
        Number of nodes of each stage.
        """
    @property
    def skip_ratio(self, /) -> float:
        """
        Share of stage visits left out.
        """
    @property
    def sources(self, /) -> list[int] | None:
        """
        Nodes of stage 0; None where they are still to be chosen.
        """
    @property
    def stages(self, /) -> list[list[int]]:
        """
        Nodes of each stage; empty where they are still to be chosen.
        """
    def with_rules(self, /, constraints: Constraints, *, skip_ratio: SupportsFloat | SupportsIndex) -> Problem:
        """
        The same question under other rules.
        """

@final
class RunnerUp:
    """
    An allocation, and the iteration of its best plan.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    @property
    def iteration_s(self, /) -> float:
        """
        Seconds of the iteration.
        """
    @property
    def stages(self, /) -> list[list[int]]:
        """
        Nodes of each stage.
        """

@final
class Scored:
    """
    An allocation and what the surrogate says of it, in seconds. `stages` holds the nodes of each stage, stage 0 first,
    the others in the order of the shortest tour.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def compute_s(self, /) -> float:
        """
        Sum over the stages of twice the mean forward.
        """
    @property
    def replica_s(self, /) -> float:
        """
        Longest transfer of a message between two nodes of one stage.
        """
    @property
    def score_s(self, /) -> float:
        """
        The sum of the parts.
        """
    @property
    def stages(self, /) -> list[list[int]]:
        """
        Nodes of each stage.
        """
    @property
    def tour_s(self, /) -> float:
        """
        The tour over all stages and back to stage 0: from one to the next, the longest round trip of a message in the
        bottleneck matching of their nodes.
        """

@final
class SearchEvent:
    """
    Best plan and best bound from a moment of a search on.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    @property
    def elapsed_s(self, /) -> float:
        """
        Seconds since the search began.
        """
    @property
    def lower_s(self, /) -> float | None:
        """
        Seconds of the best lower bound; None where it says nothing.
        """
    @property
    def upper_s(self, /) -> float | None:
        """
        Seconds of the best iteration; None as long as there is no plan.
        """
    @property
    def work(self, /) -> int:
        """
        Search steps done.
        """

@final
class SearchReport:
    """
    What a search reports of itself: the part `solver` of a plan. What a plan of others does not say is None or empty.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    @property
    def allocation(self, /) -> AllocationReport | None:
        """
        How the allocation was found, where it was searched by the iteration.
        """
    @property
    def attempts(self, /) -> int | None:
        """
        Draws of random routes or straight pipelines.
        """
    @property
    def events(self, /) -> list[SearchEvent]:
        """
        Plans and bounds as they were found, in order.
        """
    @property
    def interrupted(self, /) -> bool:
        """
        Whether somebody ended the search early.
        """
    @property
    def optimal(self, /) -> bool:
        """
        Whether the plan is proved to be the best for its allocation and rules.
        """
    @property
    def rounds(self, /) -> int | None:
        """
        Rounds of the search for routes and order.
        """
    @property
    def seed(self, /) -> int | None:
        """
        Seed of every random choice.
        """
    @property
    def statistics(self, /) -> dict[str, float]:
        """
        Counts of the search for routes and order, by name.
        """
    @property
    def surrogate(self, /) -> Allocated | None:
        """
        The allocation that the surrogate found before, where it was asked.
        """
    @property
    def threads(self, /) -> int | None:
        """
        Threads that it had.
        """
    @property
    def wall_s(self, /) -> float | None:
        """
        Seconds that the search took.
        """
    @property
    def work(self, /) -> int | None:
        """
        Search steps.
        """

@final
class Segment:
    """
    A time interval on a path through the iteration.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def end_s(self, /) -> float:
        """
        Seconds from the start of the iteration.
        """
    @property
    def link(self, /) -> tuple[int, int] | None:
        """
        Sender and receiver of a transfer; None for other parts.
        """
    @property
    def part(self, /) -> str:
        """
        "task", "transfer", "busy", "memory", "order" or "wave" (what a task waited for), "all-reduce", "norm", "step".
        """
    @property
    def stage(self, /) -> int | None:
        """
        Stage of an all-reduce; None for other parts.
        """
    @property
    def start_s(self, /) -> float:
        """
        Seconds from the start of the iteration.
        """
    @property
    def task(self, /) -> int | None:
        """
        The task that runs or waits, by its index in the plan's tasks; None for other parts.
        """

@final
class Task:
    """
    One task of one microbatch on one node.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    @property
    def end_s(self, /) -> float:
        """
        Seconds from the start of the iteration.
        """
    @property
    def hop(self, /) -> int:
        """
        Position in the route; 0 for "L".
        """
    @property
    def kind(self, /) -> str:
        """
        "F" forward, "L" head and loss, "B" backward.
        """
    @property
    def microbatch(self, /) -> int:
        """
        Id of the microbatch.
        """
    @property
    def node(self, /) -> int:
        """
        Node that runs it.
        """
    @property
    def start_s(self, /) -> float:
        """
        Seconds from the start of the iteration.
        """

@final
class Upgrade:
    """
    A node or a link made twice as fast, and what that gains with the routes of a plan unchanged.
    """
    def __eq__(self, value: object, /) -> bool: ...
    def __ne__(self, value: object, /) -> bool: ...
    def __repr__(self, /) -> str: ...
    def apply(self, /, cluster: Cluster) -> Cluster:
        """
        The cluster with this upgrade.
        """
    @property
    def both_ways(self, /) -> bool:
        """
        Whether both directions of the link are faster.
        """
    @property
    def dispatched_s(self, /) -> float | None:
        """
        Seconds of the iteration in the order of the dispatch rule, where that is shorter; else None.
        """
    @property
    def iteration_s(self, /) -> float:
        """
        Seconds of the iteration, the order of every node kept.
        """
    @property
    def link(self, /) -> tuple[int, int] | None:
        """
        Sender and receiver of the link whose latency is halved and bandwidth doubled: nodes, or regions where the
        cluster has those; None for a node.
        """
    @property
    def node(self, /) -> int | None:
        """
        The node whose forward, loss and backward are halved; None for a link.
        """

def allocate(cluster: Cluster, sizes: SupportsGetItem[int, SupportsIndex], *, sources: SupportsGetItem[int, SupportsIndex] | None = None, max_replica_transfer_s: SupportsFloat | SupportsIndex | None = None, time_limit_s: SupportsFloat | SupportsIndex | None = 0.2, work_limit: SupportsIndex | None = None, threads: SupportsIndex = 1, seed: SupportsIndex = 0, progress: Any | None = None) -> Allocated:
    """
    The best allocation by the surrogate that is found within the limits; same seed and work limit: same allocation,
    whatever the number of threads. `sizes` are the numbers of nodes, stage 0 first; the stages after it come in the
    order of the tour, so their sizes may change order. `sources` are the nodes of stage 0, where they are fixed;
    no transfer within a stage takes longer than `max_replica_transfer_s`. `work_limit` counts changes tried;
    `progress(elapsed_s, score_s, lower_bound_s, work)` is called about twenty times a second. Raises ImpossibleError
    where no allocation can keep the limit, NoPlanError where none was found, KeyboardInterrupt after Ctrl-C.
    """

def benchmark_simulator(plan: Plan, *, order: str = "plan", seconds: SupportsFloat | SupportsIndex = 1.0) -> float:
    """
    How many times a second one thread simulates `plan` anew, routes and order included, measured for `seconds`.
    """

def explain(plan: Plan) -> Explanation:
    """
    Explains a plan as its own order runs. Raises DeadlockError or InputError as `simulate` does.
    """

def first_allocation(request: PlanRequest) -> tuple[Problem, Allocated | None]:
    """
    The problem on the allocation with which the search for a request begins, and what the surrogate says of that
    allocation where it is the surrogate's.
    """

def greedy_allocation(cluster: Cluster, sizes: SupportsGetItem[int, SupportsIndex]) -> list[list[int]]:
    """
    A first allocation: compact stages, each near the one before it. `sizes` are the numbers of nodes, stage 0
    first, and add up to the nodes of the cluster. Gives the nodes of each stage.
    """

def is_full(strategy: str) -> bool:
    """
    Whether a strategy runs every stage. Raises InputError for an unknown name.
    """

def is_joint(strategy: str) -> bool:
    """
    Whether a strategy searches allocation, routes and order together, so that more time may always help. Raises
    InputError for an unknown name.
    """

def is_random(strategy: str) -> bool:
    """
    Whether a strategy draws its routes, so that its result is the median over draws. Raises InputError for an unknown
    name.
    """

def plan(request: PlanRequest, *, progress: Any | None = None) -> Plan:
    """
    The best plan found for a request within its limits. `progress(elapsed_s, incumbent_s, lower_bound_s, work)` is called
    about twenty times a second (`incumbent_s` is infinite as long as there is no plan). A KeyboardInterrupt ends the
    search with the best plan so far (`solver.interrupted`), and is raised where there is none. Raises ImpossibleError
    where no plan can exist, NoPlanError where none was found, DeadlockError where the dispatch rule deadlocks. With a
    scope, stages, layers, cluster and microbatches of the plan may differ from the problem's.
    """

def score_allocation(cluster: Cluster, stages: SupportsGetItem[int, SupportsGetItem[int, SupportsIndex]]) -> Scored:
    """
    What the surrogate says of an allocation. `stages` may come in any order but for stage 0; nodes that serve no stage do
    not count. Raises InputError where a stage is empty, or a node is not in the cluster or in two stages.
    """

def simulate(plan: Plan, *, order: str = "plan") -> Plan:
    """
    The plan with the times that the simulator gives its tasks: in the order that it states on each node ("plan"), or
    in the order of the dispatch rule ("dispatch"). Raises DeadlockError naming the cycle, InputError where the tasks do
    not belong to the routes.
    """

def strategies() -> list[str]:
    """
    The names of all strategies, in the order of the documentation.
    """

def upgrades(explanation: Explanation) -> list[Upgrade]:
    """
    The upgrades that shorten the iteration of an explained plan with its routes and order kept, best first.
    """
