"""Accepted programs complete, on a machine that waits wherever possible and on Gloo; refused ones deadlock."""

import dataclasses
import json
from collections import Counter
from random import Random

import pytest
from effort import cases
from pool import Failure, Pool
from reference.plans import random_plan
from runtime.fakes import expected_ends, run_programs, serving
from runtime.machine import blocks, hangs, random_ranks, relinked, reordered

from skippipe import Plan
from skippipe.errors import DeadlockError, InputError
from skippipe.runtime.actions import Action, Program, Recv, Reduce, Send, Task
from skippipe.runtime.deadlock import min_recv_buffers, prove_deadlock_free
from skippipe.runtime.lower import lower

LIMITS = [(1, 1), (1, 2), (2, 1), (2, 2)]
Case = tuple[tuple[Program, ...], list[list[int]], list[int]]


def case(seed: int, world: int | None = None) -> Case:
    """Programs of a random plan, its stages and ranks."""
    rng = Random(seed)
    while True:
        content = random_plan(rng)
        if len(content["cluster"]["nodes"]) >= (world or 1):
            break
    ranks = random_ranks(rng, len(content["cluster"]["nodes"]), 6, world)
    return lower(Plan.from_json(json.dumps(content)), ranks), content["stages"], ranks


def accepted(programs: tuple[Program, ...], buffers: int, sends: int) -> bool:
    try:
        prove_deadlock_free(programs, buffers, sends)
    except DeadlockError:
        return False
    return True


def test_proof_agrees_with_execution() -> None:
    """Thousands of plans and of changed orders; both verdicts are frequent."""
    rng = Random(1)
    seen: Counter[tuple[str, bool]] = Counter()
    tried = cases(1000, 400)
    for seed in range(tried):
        programs, _, _ = case(seed)
        changed = reordered(rng, programs, rng.randint(1, 6))
        for buffers, sends in LIMITS:
            for what, these in (("plan", programs), ("changed", changed)):
                fine = accepted(these, buffers, sends)
                assert fine != hangs(these, buffers, sends, rng), (seed, what, buffers, sends)
                seen[what, fine] += 1
    assert min(seen.values()) > tried / 10, seen


@pytest.mark.parametrize("world", [1, 2, 3, 4, 5, 6])
def test_accepted_plans_complete_on_gloo(pool: Pool, world: int) -> None:
    """Plans for every world size, with as few buffers as the proof allows."""
    drawn = [
        (case(1_000_000 * world + n, world), LIMITS[n % len(LIMITS)])
        for n in range(cases(200, 80) if world > 1 else 20)
    ]
    kept = [(made, limits) for made, limits in drawn if accepted(made[0], *limits)]
    assert len(kept) > 0.8 * len(drawn)
    by_rank = [
        ([(programs[r], serving(ranks, stages, r), limits) for (programs, stages, ranks), limits in kept], 20.0)
        for r in range(world)
    ]
    ran = pool.run(run_programs, by_rank)
    for number, ((programs, _, _), _) in enumerate(kept):
        ended = {b: n for rank in range(world) for b, n in ran[rank][number].ended.items()}
        assert ended == expected_ends(programs)


def hanging(world: int, buffers: int, sends: int) -> tuple[Case, tuple[Program, ...]]:
    """A case and an order of it that deadlocks with these limits."""
    rng = Random(world)
    seed = 9_000_000 * world + 1000 * buffers + sends
    while True:
        seed += 1
        programs, stages, ranks = case(seed, world)
        changed = reordered(rng, programs, 3)
        if accepted(programs, 2, 2) and hangs(changed, buffers, sends):
            return (programs, stages, ranks), changed


@pytest.mark.parametrize("world", [2, 3, 4, 6])
@pytest.mark.parametrize(("buffers", "sends"), [(1, 1), (2, 2)])
def test_refused_orders_do_hang_on_gloo(pool: Pool, world: int, buffers: int, sends: int) -> None:
    (_, stages, ranks), changed = hanging(world, buffers, sends)
    with pytest.raises(DeadlockError) as caught:
        prove_deadlock_free(changed, buffers, sends)
    assert "waits for" in str(caught.value)
    limits = (buffers, sends)
    by_rank = [([(changed[rank], serving(ranks, stages, rank), limits)], 0.5) for rank in range(world)]
    results = pool.attempt(run_programs, by_rank)
    failures = [result for result in results if isinstance(result, Failure)]
    assert failures
    assert {failure.kind for failure in failures} == {"ActionError"}
    assert any("imed out" in failure.message or "buffers" in failure.message for failure in failures)


def send_first() -> tuple[Program, ...]:
    """Two ranks that both send before they receive, with room for one message."""
    there = [Task("F", b, 0, 0, 0) for b in range(3)]
    back = [Task("F", b, 0, 1, 0) for b in range(3, 6)]
    rows = []
    for rank, (mine, theirs) in enumerate([(there, back), (back, there)]):
        other = 1 - rank
        row: list[Action] = [action for task in mine for action in (task, Send(task, other))]
        for task in theirs:
            row += [Recv(task, other), dataclasses.replace(task, hop=1, node=rank)]
        rows.append(row)
    return relinked(rows)


def test_cycle_is_named_in_action_codes() -> None:
    programs = send_first()
    with pytest.raises(DeadlockError) as caught:
        prove_deadlock_free(programs, 1, 1)
    message = str(caught.value)
    assert "recv_buffers=1 and sends_in_flight=1" in message
    for event in ("SEND 2F0 -> 1 on rank 0", "transfer of 1F0 from rank 0 to 1", "SEND 5F0 -> 0 on rank 1"):
        assert event in message, message
    assert min_recv_buffers(programs, 1, 1) == 2
    assert min_recv_buffers(programs, 1, 2) == 1
    prove_deadlock_free(programs, 2, 1)
    prove_deadlock_free(programs, 1, 2)
    assert not hangs(programs, 1, 2)


def test_collectives_in_different_orders_are_refused() -> None:
    first, second = Reduce(0, (0, 1)), Reduce(1, (0, 1))
    with pytest.raises(DeadlockError, match="REDUCE s0 on ranks 0, 1"):
        prove_deadlock_free(relinked([[first, second], [second, first]]), 1, 1)
    assert min_recv_buffers(relinked([[first, second], [second, first]]), 1, 1) is None
    prove_deadlock_free(relinked([[first, second], [first, second]]), 1, 1)


def test_a_collective_that_blocks_a_message_is_refused() -> None:
    task = Task("F", 0, 0, 0, 0)
    after = Task("F", 0, 1, 1, 1)
    reduce = Reduce(0, (0, 1))
    prove_deadlock_free(relinked([[task, Send(task, 1), reduce], [Recv(task, 0), after, reduce]]), 1, 1)
    with pytest.raises(DeadlockError, match="REDUCE s0 on ranks 0, 1"):
        prove_deadlock_free(relinked([[reduce, task, Send(task, 1)], [Recv(task, 0), after, reduce]]), 1, 1)


F0, F1 = Task("F", 0, 0, 0, 0), Task("F", 0, 1, 1, 1)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([[F0, Send(F0, 1)], []], "SEND 0F0 -> 1 on rank 0 has no RECV"),
        ([[F0], [Recv(F0, 0), F1]], "RECV 0F0 <- 0 on rank 1 has no SEND"),
        ([[Send(F0, 1), F0], [Recv(F0, 0), F1]], "SEND 0F0 -> 1 on rank 0 does not follow 0F0"),
        ([[F0, Send(F0, 1)], [F1, Recv(F0, 0)]], "0F1 on rank 1: expected its input, got nothing"),
        ([[F0, Task("B", 0, 0, 0, 0)], []], "0B0 on rank 0: expected its input, got 0F0"),
        ([[F0, Send(F0, 1)], [Recv(F0, 0)]], "rank 1 receives 0F0, which none of its tasks consumes"),
        (
            [[F0, Send(F0, 1)], [Recv(F0, 0), Send(F0, 2)], [Recv(F0, 1), F1]],
            "SEND 0F0 -> 2 on rank 1 does not follow 0F0",
        ),
        ([[Reduce(0, (0, 1))], []], r"REDUCE s0 of ranks 0, 1 is in the programs of ranks 0"),
    ],
)
def test_inconsistent_programs_are_refused(rows: list[list[Action]], message: str) -> None:
    with pytest.raises(DeadlockError, match=message):
        prove_deadlock_free(relinked(rows), 1, 1)


def test_messages_out_of_order_are_refused() -> None:
    programs, _, _ = next(
        c for c in map(case, range(100)) if any(len(t) > 1 for p in c[0] for t in p.incoming.values())
    )
    turned = [
        dataclasses.replace(p, incoming={sender: tasks[::-1] for sender, tasks in p.incoming.items()}) for p in programs
    ]
    with pytest.raises(DeadlockError, match="out of order"):
        prove_deadlock_free(turned, 9, 9)


@pytest.mark.parametrize(
    ("buffers", "sends", "message"),
    [(0, 1, "recv_buffers: expected at least 1"), (1, 0, "sends_in_flight: expected at least 1")],
)
def test_limits_below_one_are_refused(buffers: int, sends: int, message: str) -> None:
    with pytest.raises(InputError, match=message):
        prove_deadlock_free(relinked([[]]), buffers, sends)


def test_blocks_keep_every_action() -> None:
    """The changes that the tests make lose nothing."""
    programs, _, _ = case(3)
    for program in programs:
        rows, tail = blocks(program)
        assert [a for row in rows for a in row] + tail == list(program.actions)
