"""The executor: data, all-reduce, norm, times, and error messages."""

import itertools
import json
import math
import re
import time
from collections.abc import Sequence
from random import Random
from typing import Any

import pytest
import torch
from pool import Failure, Pool
from reference.plans import random_plan
from runtime.fakes import (
    MESSAGE_SPEC,
    Ran,
    evaluate,
    expected_ends,
    failing,
    numbered,
    run_programs,
    serving,
    stages_of,
)
from runtime.machine import random_ranks
from runtime.models import make_plan
from torch import Tensor

from skippipe import Plan
from skippipe.errors import ActionError
from skippipe.runtime.actions import Norm, Program, Reduce, Send, Step, Task
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor, early_sums
from skippipe.runtime.links import Work, collectives
from skippipe.runtime.links.collectives import RingSums, ring_sum, tree_sum
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.lower import lower, lower_evaluation
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.timeline import HostTimeline


def run(pool: Pool, plan: str, ranks: Sequence[int], programs: Sequence[Program] = ()) -> list[Ran]:
    """Run a plan, or given programs, with counting stages."""
    made = Plan.from_json(plan)
    programs = programs or lower(made, ranks)
    buffers = min_recv_buffers(programs, 1, 1)
    assert buffers is not None
    by_rank = [([(p, serving(ranks, made.stages, p.rank), (buffers, 1))], 20.0) for p in programs]
    return [ran for (ran,) in pool.run(run_programs, by_rank)]


@pytest.mark.parametrize("ranks", [[0, 1, 2, 3, 4], [0, 1, 0, 1, 2], [0, 0, 0, 0, 0], [2, 1, 1, 0, 2]])
def test_every_microbatch_returns_and_replicas_agree(pool: Pool, ranks: list[int]) -> None:
    plan = make_plan(Random(5), [2, 2, 1], 1 / 3, 4, cc1=False)
    stages = Plan.from_json(plan).stages
    ran = run(pool, plan, ranks)
    ended = {b: n for one in ran for b, n in one.ended.items()}
    assert ended == expected_ends(lower(Plan.from_json(plan), ranks))
    squares = 0.0
    for stage, nodes in enumerate(stages):
        members = sorted({ranks[node] for node in nodes})
        wanted = [[sum(10.0 * stage + r for r in members)] * 6, [sum(1.0 + r for r in members)] * 5]
        assert all(ran[r].gradients[stage] == wanted for r in members)
        squares += sum(x * x for row in wanted for x in row)
    (norm,) = {norm for one in ran for norm in one.norms}
    assert norm == pytest.approx(math.sqrt(squares), rel=1e-12)


def test_evaluation_runs_with_the_same_executor(pool: Pool) -> None:
    """Forward and loss of the full model; nothing is saved, and the result of `loss` does not matter."""
    plan, ranks = Plan.from_json(make_plan(Random(5), [2, 1, 1], 1 / 3, 2)), [0, 1, 2, 0]
    programs = lower_evaluation(plan, ranks, 7)
    buffers = min_recv_buffers(programs, 1, 1)
    found = pool.run(evaluate, [(p, serving(ranks, plan.stages, p.rank), buffers) for p in programs])
    assert {b: value for rank in found for b, value in rank.items()} == {b: 1000.0 * b + 3 for b in range(7)}


def sum_in_ring(rank: int, ranks: list[int], tensors: list[Tensor], repeat: int) -> list[list[Tensor]]:
    found = []
    for _ in range(repeat):
        copies = [tensor.clone() for tensor in tensors]
        if rank in ranks:
            ring_sum(GlooLink(), copies, rank, ranks, 20.0)
        found.append(copies)
    return found


@pytest.mark.parametrize("ranks", [[0, 1], [1, 0, 2], [3, 0, 2, 1], [0, 2, 4, 1, 3]])
def test_ring_sum_equals_torch(pool: Pool, ranks: list[int]) -> None:
    """For sizes that do not divide, empty tensors and several dtypes at once; bit-identical on every rank."""
    generator = torch.Generator().manual_seed(1)
    world = max(ranks) + 1

    def draw() -> list[Tensor]:
        shapes = [(3, 5), (1,), (0,), (2, 2, 2), (7,)]
        types = [torch.float64, torch.float64, torch.float32, torch.float32, torch.bfloat16]
        return [torch.randn(s, generator=generator).to(t) for s, t in zip(shapes, types, strict=True)]

    given = [draw() for _ in range(world)]
    results = pool.run(sum_in_ring, [(ranks, given[rank], 2) for rank in range(world)])
    for rank, first, second in ((rank, *results[rank]) for rank in range(world)):
        for i, tensor in enumerate(first):
            if rank not in ranks:
                assert torch.equal(tensor, given[rank][i])
                continue
            wanted = torch.stack([given[r][i].double() for r in ranks]).sum(0)
            tolerance = {torch.float64: 1e-14, torch.float32: 1e-6, torch.bfloat16: 0.05}[tensor.dtype]
            torch.testing.assert_close(tensor.double(), wanted, rtol=tolerance, atol=tolerance)
            assert torch.equal(tensor, results[ranks[0]][0][i])
            assert torch.equal(tensor, second[i])


def sum_in_tree(rank: int, ranks: list[int], values: list[float], width: int) -> list[float]:
    tensor = torch.tensor(values, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(collectives, "TREE_WIDTH", width)
        tree_sum(GlooLink(), tensor, rank, ranks, 20.0)
    return [float(x) for x in tensor]


@pytest.mark.parametrize(("world", "width"), [(1, 1), (2, 2), (3, 1), (4, 2), (5, 3), (6, 2), (6, 32)])
def test_tree_sum_is_identical_on_all_ranks(pool: Pool, world: int, width: int) -> None:
    rng = Random(world)
    ranks = rng.sample(range(world), world)
    given = [[rng.uniform(-1, 1) for _ in range(3)] for _ in range(world)]
    results = pool.run(sum_in_tree, [(ranks, values, width) for values in given])
    assert all(result == results[0] for result in results)
    assert results[0] == pytest.approx([sum(column) for column in zip(*given, strict=True)], rel=1e-12)


def test_times_follow_the_action_order(pool: Pool) -> None:
    for one in run(pool, make_plan(Random(5), [1, 1], 0.0, 4), [0, 1]):
        assert all(start <= end for start, end in zip(one.starts, one.ends, strict=True))
        assert all(end <= start for end, start in zip(one.ends, one.starts[1:], strict=False))
        assert one.starts[0] >= 0
        assert one.ends[-1] <= one.seconds


class Silence(RingSums):
    """A link over which nothing ever arrives, with an observable clock."""

    def __init__(self) -> None:
        self.receives: list[tuple[int, int]] = []
        self.sends: list[tuple[int, int]] = []
        self.waited: list[float] = []

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Work:
        assert tensor.is_contiguous()
        assert not tensor.requires_grad
        self.sends.append((to_rank, tag))
        return self.work()

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        self.receives.append((from_rank, tag))
        return self.work()

    def work(self) -> Work:
        link = self

        class Never:
            def wait(self, timeout_s: float) -> None:
                link.waited.append(timeout_s)
                raise TimeoutError("timed out")

        return Never()


def lonely(
    sizes: Sequence[int],
    rank: int,
    link: Silence | None = None,
    message_spec: MessageSpec = MESSAGE_SPEC,
    **options: Any,
) -> tuple[Executor, Silence, Program]:
    """An executor of one rank of a plan whose other ranks never answer."""
    plan = Plan.from_json(make_plan(Random(1), sizes, 0.0, 5))
    ranks = [next(s for s, nodes in enumerate(plan.stages) if n in nodes) for n in range(sum(sizes))]
    program, link = lower(plan, ranks)[rank], link or Silence()
    title = ("node london-0 (rank 0)", "node paris-0, paris-1 (rank 1)").__getitem__
    executor = Executor(
        program, stages_of(program, [rank]), link, buffers=MessageBuffers(message_spec), title=title, **options
    )
    return executor, link, program


@pytest.mark.parametrize("buffers", [1, 2, 3, 99])
def test_receives_are_posted_ahead_within_the_window(buffers: int) -> None:
    executor, link, program = lonely([1, 1], 1, recv_buffers=buffers)
    with pytest.raises(ActionError):
        executor.run(numbered, lambda _: None, 7.5)
    assert len(link.receives) == min(buffers, len(program.incoming[0]))
    assert link.waited == [7.5]


@pytest.mark.parametrize("sends", [1, 2, 3])
def test_sends_in_flight_are_bounded(sends: int) -> None:
    executor, link, _ = lonely([1, 1], 0, recv_buffers=9, sends_in_flight=sends)
    with pytest.raises(ActionError):
        executor.run(numbered, lambda _: None, 7.5)
    assert 1 <= len(link.sends) <= sends


def test_a_failure_names_node_action_and_peer_and_the_last_actions() -> None:
    executor, _, program = lonely([1, 1], 1)
    with pytest.raises(ActionError) as caught:
        executor.run(numbered, lambda _: None, 7.5)
    message = str(caught.value)
    assert message.startswith(f"{program.actions[0]}, peer node london-0 (rank 0): timed out, ")
    assert "paris" not in message, "whoever reports it says where"
    assert message.splitlines()[-1].endswith(str(program.actions[0]))


class Breaking(Silence):
    """A link that breaks at the receive with the number `receive`, and falls silent after so many waits."""

    def __init__(self, receive: int | None = None, wait: int | None = None) -> None:
        super().__init__()
        self.receive, self.wait = receive, wait

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Work:
        if len(self.receives) == self.receive:
            raise ConnectionError("broken")
        return super().irecv(tensor, from_rank, tag)

    def work(self) -> Work:
        link = self

        class Waited:
            def wait(self, timeout_s: float) -> None:
                link.waited.append(timeout_s)
                if len(link.waited) > (link.wait or 0):
                    raise TimeoutError("timed out")

        return Waited()


def test_exhausted_receive_buffers_are_named() -> None:
    executor, _, program = lonely([1, 1], 1, Breaking(receive=2), recv_buffers=3)
    with pytest.raises(ActionError) as caught:
        executor.run(numbered, lambda _: None, 7.5)
    third = program.incoming[0][2]
    assert str(caught.value).startswith(f"RECV {third} <- 0, peer node london-0 (rank 0): broken, ")
    assert str(caught.value).endswith("last actions of this rank: none")


@pytest.mark.parametrize("sends", [1, 2])
def test_an_earlier_send_that_blocks_is_named(sends: int) -> None:
    """Because the limit on sends in flight is reached, or at the end of the iteration."""
    there, then = Task("F", 0, 0, 0, 0), Task("F", 1, 0, 0, 0)
    program = Program(0, (there, Send(there, 1), then, Send(then, 2)), {})
    stages = stages_of(program, [0])
    executor = Executor(program, stages, Silence(), buffers=MessageBuffers(MESSAGE_SPEC), sends_in_flight=sends)
    with pytest.raises(ActionError, match=r"^SEND 0F0 -> 1, peer rank 1: timed out, .*(\n.*){3}\n.*SEND 1F0 -> 2$"):
        executor.run(numbered, lambda _: None, 7.5)


def test_the_last_actions_are_those_of_this_iteration() -> None:
    executor, _, program = lonely([1, 1], 1, Breaking(wait=3), recv_buffers=3)
    for _ in range(2):
        with pytest.raises(ActionError) as caught:
            executor.run(numbered, lambda _: None, 7.5)
        log = str(caught.value).splitlines()[1:]
        assert [line.split(" s  ")[1] for line in log] == [str(action) for action in program.actions[: len(log)]]


def test_an_error_of_a_stage_names_the_task() -> None:
    executor, _, program = lonely([1, 1], 0)

    def broken(microbatch: int) -> tuple[Tensor, Tensor]:
        raise KeyError(microbatch)

    with pytest.raises(ActionError, match=rf"^{program.actions[0]}: KeyError: "):
        executor.run(broken, lambda _: None, 7.5)


def test_a_result_of_wrong_shape_is_not_sent() -> None:
    executor, link, _ = lonely([1, 1], 0, message_spec=MessageSpec(1, 2, 3))
    with pytest.raises(ActionError, match=r"SEND .*ValueError: result: expected shape \(1, 2, 3\), got \(1, 2, 2\)"):
        executor.run(numbered, lambda _: None, 7.5)
    assert link.sends == []


def stop_early(rank: int, program: Program, stages: list[int], lost: int) -> str:
    """Rank `lost` leaves; return the errors of the others."""
    if rank == lost:
        return "gone"
    executor = Executor(
        program,
        stages_of(program, stages),
        GlooLink(),
        buffers=MessageBuffers(MESSAGE_SPEC),
        recv_buffers=9,
    )
    try:
        executor.run(numbered, lambda _: None, 2.0)
    except ActionError as error:
        return str(error)
    return "done"


def test_a_silent_rank_is_reported_by_timeout(pool: Pool) -> None:
    plan = Plan.from_json(make_plan(Random(1), [1, 1, 1], 0.0, 3))
    ranks = [next(s for s, nodes in enumerate(plan.stages) if n in nodes) for n in range(3)]
    message = pool.run(stop_early, [(p, [p.rank], 2) for p in lower(plan, ranks)])
    assert message[2] == "gone"
    assert all(re.match(r"(SEND|RECV) \d+\w+ (->|<-) \d, peer rank \d: ", text) for text in message[:2])
    assert any("imed out" in text for text in message[:2])
    pool.attempt(failing, [()] * 3)  # the group is of no more use


def test_the_pool_creates_a_new_group_after_a_failure(pool: Pool) -> None:
    results = pool.attempt(failing, [()] * 2)
    assert all(isinstance(r, Failure) and r.kind == "ValueError" for r in results)
    with pytest.raises(AssertionError, match="on purpose on rank 1"):
        pool.run(failing, [()] * 2)
    assert len(run(pool, make_plan(Random(5), [1, 1], 0.0, 2), [0, 1])) == 2


def test_a_program_of_collectives_alone(pool: Pool) -> None:
    programs = [Program(r, (Reduce(0, (1, 0)), Norm((0, 1), (0, None)), Step()), {}) for r in range(2)]
    ran = pool.run(run_programs, [([(p, [0], (1, 1))], 20.0) for p in programs])
    for (one,) in ran:
        assert one.gradients[0] == [[1.0] * 6, [3.0] * 5]
        assert one.norms == [pytest.approx(math.sqrt(6 + 45))]


def test_sums_begin_in_the_same_order_everywhere() -> None:
    """Those that begin early do so before all others, in the order in which the others follow; some do begin early."""
    early_ones = 0
    for seed in range(200):
        rng = Random(seed)
        content = random_plan(rng)
        ranks = random_ranks(rng, len(content["cluster"]["nodes"]), 3)
        for program in lower(Plan.from_json(json.dumps(content)), ranks):
            reduces = [action for action in program.actions if isinstance(action, Reduce)]
            begun = early_sums(program.actions)
            early = [begun[action] for action in program.actions if action in begun]
            assert early == reduces[: len(early)]
            early_ones += len(early)
    assert early_ones > 50


def repeat(rank: int, program: Program, stages: list[int], buffers: int, times: int) -> list[float]:
    """CPU seconds of this thread in each of several iterations of a program."""
    executor = Executor(
        program, stages_of(program, stages), GlooLink(), buffers=MessageBuffers(MESSAGE_SPEC),
        recv_buffers=buffers, sends_in_flight=1, timeline=HostTimeline(time.thread_time),
    )  # fmt: skip
    return [executor.run(numbered, lambda _: None, 20.0).ends[-1] for _ in range(times)]


def test_many_iterations_with_little_overhead(pool: Pool) -> None:
    """Waiting for peers is not counted; the stages here do next to nothing."""
    plan = Plan.from_json(make_plan(Random(4), [2, 1, 1], 1 / 3, 8))
    programs = lower(plan, range(4))
    buffers = min_recv_buffers(programs, 1, 1)
    seconds = pool.run(repeat, [(p, serving(range(4), plan.stages, p.rank), buffers, 50) for p in programs])
    for program, row in zip(programs, seconds, strict=True):
        assert len(row) == 50
        assert min(row) / len(program.actions) < 300e-6


def test_plans_are_json_in_tests() -> None:
    """The plans of these tests satisfy every rule."""
    for seed, sizes in itertools.product(range(5), ([1, 1], [2, 1, 1], [1, 2, 1, 1])):
        plan = Plan.from_json(make_plan(Random(seed), sizes, 0.25, 3))
        assert plan.check() == []
        assert json.loads(plan.to_json())["skip_ratio"] == 0.25
