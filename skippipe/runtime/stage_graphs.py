"""The stages of a rank on a GPU, whose work on a microbatch is recorded once and launched at once from then on.

A stage of small layers is over before the host has launched its last kernel: the GPU waits for the host. Here forward,
backward and loss are CUDA graphs, one launch each. A graph reads and writes fixed memory, so a microbatch takes one of
a few slots from its forward to its backward: as many as the stage holds microbatches at a time in the rank's program.

That costs memory: a stage whose layers keep the GPU busy for longer than the host takes to launch them is left alone.

The forward of each slot has memory of its own, since what it saves has to outlast what the others compute meanwhile.
Losses and backwards share memory: nothing of theirs is needed once their results have been copied.
"""

import gc
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from skippipe.devices import restart_peak
from skippipe.runtime.actions import Action, Task
from skippipe.runtime.executor import StageCompute
from skippipe.runtime.message import MessageSpec
from skippipe.runtime.stage import ReadyGradients, SavedActivation, Stage

Pool = Any
"""Handle of memory that graphs allocate from."""
HOST_RUNS = 4
HOST_SHARE = 0.3
"""Of what a stage's work takes the GPU: where the host takes longer to launch it, it is recorded. On an H200, a share
of 0.24 costs 0.4 % of the time, one of 0.38 to 0.44 2 to 4 %, and one of 0.9 up to 35 % (benchmarks/RESULTS.md)."""


class StageGraphs:
    """The stages that a rank's program uses; `stages` is for its executor, within `iteration`."""

    def __init__(
        self,
        actions: Sequence[Action],
        stages: Mapping[int, Stage],
        message_spec: MessageSpec,
        watched: Collection[Task] = (),
        *,
        host_share: float,
    ) -> None:
        """Prepare.

        Args:
            actions: of the rank's program.
            stages: those that the rank serves, by number. Losses must not be scaled, and layers issue the same work for
                every microbatch.
            message_spec: shape and type of hidden states.
            watched: backwards that give away gradients while they run, which a graph cannot.
            host_share: a stage's work is recorded where the host takes longer to launch it than this share of what it
                takes the GPU; `HOST_SHARE` is where that pays.

        """
        self._device = message_spec.device
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        # A stage that no task of this rank uses has nothing to launch.
        used = {action.stage for action in actions if isinstance(action, Task)}
        self.stages = {
            number: GraphedStage(
                stage,
                message_spec,
                slots_needed(actions, number, watched),
                frozenset(task.microbatch for task in watched if task.stage == number),
                host_share,
            )
            if number in used
            else stage
            for number, stage in stages.items()
        }

    @contextmanager
    def iteration(self) -> Iterator[None]:
        """Within: an iteration, after `Stage.begin`, on the stream that graphs are recorded on."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        try:
            with torch.cuda.stream(self._stream):
                recorded = [stage.begin() for stage in self._graphed]
                if any(recorded):
                    restart_peak(self._device)
                yield
        except BaseException:
            with suppress(RuntimeError):  # of a GPU that has failed: the first error says more
                current.wait_stream(self._stream)
            raise
        current.wait_stream(self._stream)

    def release(self) -> None:
        """Free the memory of the recordings; the next iterations record anew."""
        restart_peak(self._device, self.uncounted_bytes)
        for stage in self._graphed:
            stage.release()

    @property
    def uncounted_bytes(self) -> int:
        """Memory of the recordings that torch does not count as allocated: they use it while it looks free."""
        pools = {pool for stage in self._graphed for pool in stage.pools}
        return sum(
            segment["total_size"] - segment["allocated_size"]
            for segment in torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
            if tuple(segment["segment_pool_id"]) in pools
        )

    @property
    def _graphed(self) -> list["GraphedStage"]:
        return [stage for stage in self.stages.values() if isinstance(stage, GraphedStage)]


class GraphedStage:
    """A stage as the executor sees it (`skippipe.runtime.executor.StageCompute`)."""

    def __init__(
        self, stage: Stage, message_spec: MessageSpec, slots: int, eager: frozenset[int], host_share: float
    ) -> None:
        self._stage, self._message_spec, self._count, self._eager = stage, message_spec, slots, eager
        self._host_share = host_share
        self.release()

    def release(self) -> None:
        """Free the memory of the recording."""
        self._slots: list[_Slot] = []
        self._free: list[_Slot] = []
        self._taken: dict[int, _Slot] = {}
        self._loss: _LossGraph | None = None
        self._gradients: list[Tensor] = []
        self._worth_it: bool | None = None
        self.pools: list[Pool] = []

    def begin(self) -> bool:
        """Begin an iteration, after that of the stage itself; whether this one has recorded, as the first one does."""
        first = self._worth_it is None
        if first:
            with torch.random.fork_rng(devices=[self._message_spec.device]):
                self._worth_it = _host_share(self._stage, self._message_spec) > self._host_share
                if self._worth_it:
                    self._record()
        if self._worth_it:
            torch._foreach_zero_(self._gradients)
            self._use_gradients()
            self._free, self._taken = list(self._slots), {}
        return first and bool(self._worth_it)

    def _use_gradients(self) -> None:
        """Have parameters use the gradients that graphs add to, from the first microbatch of an iteration on."""
        for parameter, gradient in zip(self._stage.reached, self._gradients, strict=True):
            parameter.grad = gradient

    def _record(self) -> None:
        """Record, and run what is recorded: the first run is slow."""
        stage, message_spec = self._stage, self._message_spec
        self._gradients = [torch.empty_like(parameter) for parameter in stage.reached]
        self._use_gradients()
        gc.collect()
        torch.cuda.empty_cache()
        scratch, *own = self.pools = [torch.cuda.graph_pool_handle() for _ in range(1 + self._count)]
        self._slots = [_Slot(stage, message_spec, pool) for pool in own]
        passed = torch.zeros(message_spec.shape, dtype=message_spec.dtype, device=message_spec.device)
        if stage.module.first:
            self._loss = _LossGraph(stage, message_spec, scratch)
        for slot in self._slots:
            slot.record_backward(scratch, passed)

    @property
    def slot_bytes(self) -> int:
        """Memory that the recording of a microbatch's forward takes to itself; 0 if nothing is recorded."""
        if not self._slots:
            return 0
        segments = torch.cuda.memory_snapshot()  # type: ignore[no-untyped-call]
        own: int = sum(
            segment["total_size"] for segment in segments if tuple(segment["segment_pool_id"]) in self.pools[1:]
        )
        return own // len(self._slots) + self._slots[0].input.nbytes

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Embed; see `StageCompute`."""
        return self._stage.embed(microbatch, tokens)

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Run the layers; see `StageCompute`."""
        if not self._slots or microbatch in self._eager:
            return self._stage.forward(microbatch, hidden)
        slot = self._taken[microbatch] = self._free.pop()
        return slot.forward(hidden)

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Run head and loss; see `StageCompute`."""
        if self._loss is None:
            return self._stage.loss(microbatch, hidden, labels)
        summed, gradient = self._loss(hidden, labels, self._stage.loss_factor)
        self._stage.keep_loss(microbatch, summed)
        return gradient

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        """Run the layers backward; see `StageCompute`."""
        if microbatch not in self._taken:
            return self._stage.backward(microbatch, gradient, ready)
        assert ready is None, "gradients of a graph are ready when all of it has run"
        slot = self._taken.pop(microbatch)
        self._free.append(slot)
        return slot.backward(gradient)

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Run the embedding backward; see `StageCompute`."""
        self._stage.embed_backward(microbatch, gradient)

    def gradient_parts(self) -> list[list[Tensor]]:
        """Give the gradients in parts; see `StageCompute`."""
        return self._stage.gradient_parts()

    def gradients(self) -> list[Tensor]:
        """Give the gradients; see `StageCompute`."""
        return self._stage.gradients()


class _Slot:
    """Memory of a microbatch from its forward to its backward, and the graphs of both.

    Slots share `passed`, in which the gradient of the output comes and that of the input goes.
    """

    def __init__(self, stage: Stage, message_spec: MessageSpec, pool: Pool) -> None:
        """Record the forward."""
        self.input = torch.zeros(message_spec.shape, dtype=message_spec.dtype, device=message_spec.device)
        self._forward, self._backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        self._saved: SavedActivation
        with _recording(self._forward, pool):
            self._output, self._saved = stage.run_layers(self.input)

    def record_backward(self, scratch: Pool, passed: Tensor) -> None:
        """Record the backward, and run both."""
        self._passed, leaf = passed, self._saved.leaf
        with _recording(self._backward, scratch):
            torch.autograd.backward([self._saved.output], [passed])
            assert leaf.grad is not None, "no gradient"
            passed.copy_(leaf.grad)
            leaf.grad = None
        self._forward.replay()
        self._backward.replay()

    def forward(self, hidden: Tensor) -> Tensor:
        self.input.copy_(hidden)
        self._forward.replay()
        return self._output.clone()

    def backward(self, gradient: Tensor) -> Tensor:
        self._passed.copy_(gradient)
        self._backward.replay()
        return self._passed.clone()


@contextmanager
def launched(
    stage: Stage, message_spec: MessageSpec, host_share: float | None, held: int = 1
) -> Iterator[StageCompute]:
    """Within, after `Stage.begin`: a stage alone, launched as `StageGraphs` would, to be timed.

    Args:
        stage: the stage.
        message_spec: shape and type of hidden states.
        host_share: as for `StageGraphs`; None: its work is not recorded.
        held: most microbatches at a time, numbered from 0.

    """
    if host_share is None:
        yield stage
        return
    number = stage.module.stage
    tasks = [Task(kind, microbatch, 1, number, number) for kind in ("F", "B") for microbatch in range(held)]
    graphs = StageGraphs(tasks, {number: stage}, message_spec, host_share=host_share)
    try:
        with graphs.iteration():
            yield graphs.stages[number]
    finally:
        graphs.release()


class _LossGraph:
    """Head and loss of a microbatch, forward and backward."""

    def __init__(self, stage: Stage, message_spec: MessageSpec, scratch: Pool) -> None:
        """Record, after a run without recording, and run what is recorded."""
        self._hidden = torch.zeros(message_spec.shape, dtype=message_spec.dtype, device=message_spec.device)
        self._labels = torch.zeros(message_spec.shape[:2], dtype=torch.int64, device=message_spec.device)
        # A number of the iteration: what is recorded reads it from memory.
        self._factor = torch.ones((), dtype=torch.float64, device=message_spec.device)
        stage.run_head(self._hidden, self._labels, self._factor)
        self._graph = torch.cuda.CUDAGraph()
        with _recording(self._graph, scratch):
            self._summed, self._gradient = stage.run_head(self._hidden, self._labels, self._factor)
        self._graph.replay()

    def __call__(self, hidden: Tensor, labels: Tensor, factor: float) -> tuple[Tensor, Tensor]:
        self._hidden.copy_(hidden)
        self._labels.copy_(labels)
        self._factor.fill_(factor)
        self._graph.replay()
        return self._summed.clone(), self._gradient.clone()


def _host_share(stage: Stage, message_spec: MessageSpec) -> float:
    """Time in which the host launches a forward and a backward, as a share of the time in which they have run.

    Kernels are loaded, and no gradient is left. 0 without layers.
    """
    if not stage.module.layers_in_use:
        return 0.0
    device = message_spec.device
    hidden = torch.randn(message_spec.shape, dtype=message_spec.dtype, device=device)
    shares: list[float] = []
    for _ in range(HOST_RUNS):
        torch.cuda.synchronize(device)
        begin = time.perf_counter()
        output, saved = stage.run_layers(hidden)
        torch.autograd.backward([saved.output], [output])
        launched = time.perf_counter()
        torch.cuda.synchronize(device)
        shares.append((launched - begin) / (time.perf_counter() - begin))
        del output, saved
    for parameter in stage.parameters:
        parameter.grad = None
    return min(shares[1:])  # the first run loads kernels; anything else on the host makes a share larger


@contextmanager
def _recording(graph: torch.cuda.CUDAGraph, pool: Pool) -> Iterator[None]:
    """Within: what the current stream is given is recorded, while other threads may use the GPU."""
    graph.capture_begin(pool=pool, capture_error_mode="thread_local")
    try:
        yield
    finally:
        graph.capture_end()


def slots_needed(actions: Sequence[Action], stage: int, eager: Collection[Task] = ()) -> int:
    """The most microbatches that a stage holds at a time, from their forward to their backward.

    Args:
        actions: of a rank's program, in order.
        stage: its number.
        eager: backwards of microbatches that are not counted.

    """
    left_out = {task.microbatch for task in eager if task.stage == stage}
    held = most = 0
    for action in actions:
        if isinstance(action, Task) and action.stage == stage and action.microbatch not in left_out:
            held += {"F": 1, "B": -1}.get(action.kind, 0)
            most = max(most, held)
    return most
