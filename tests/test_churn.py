"""Nodes that come and go, simulated: against a process simulation in SimPy that shares no code with it."""

import json
import math
import random
from collections.abc import Generator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import simpy
from conftest import Run
from hypothesis import given
from hypothesis import strategies as st

import skippipe
from skippipe.churn.simulation import Costs, Policy, Progress, goodput, nodes_down, simulate_churn
from skippipe.churn.timing import Redundant, Remaining, shadows, with_shadows
from skippipe.churn.trace import Change, draw_trace, load_trace
from skippipe.commands.churn import POLICIES
from skippipe.config import CHURN_POLICIES
from skippipe.errors import InputError
from skippipe.plan_file import save_plan

STAGES = [[0, 1], [2, 3, 4]]
HORIZON_S = 1000.0
Steps = Generator[Any, Any, None]


def iteration_s(absent: frozenset[int]) -> float | None:
    """Two stages; each lost node makes iterations longer."""
    if any(absent.issuperset(nodes) for nodes in STAGES):
        return None
    return 7.3 * (1.0 + 0.31 * len(absent))


class Process:
    """A run as a process that trains, and one that interrupts it."""

    def __init__(self, policy: Policy, changes: Sequence[Change], costs: Costs) -> None:
        self.policy, self.changes, self.costs = policy, changes, costs
        self.environment, self.found = simpy.Environment(), Progress()
        self.down: set[int] = set()
        self.absent: set[int] = set()
        self.is_interruptible = True
        self.since, self.cause = 0.0, "redone"
        self.changed = self.environment.event()
        self.running = self.environment.process(self.job())
        self.environment.process(self.nodes())
        self.environment.run(HORIZON_S)
        self.spend("")

    def spend(self, cause: str) -> None:
        """Book the time since the last call, and have what follows be for a `cause`."""
        spent = getattr(self.found.account, self.cause)
        setattr(self.found.account, self.cause, spent + self.environment.now - self.since)
        self.since, self.cause = self.environment.now, cause

    def uninterrupted(self, event: simpy.Event) -> Steps:
        self.is_interruptible = False
        yield event
        self.is_interruptible = True

    def is_done(self, seconds: float) -> Generator[Any, Any, bool]:
        """Whether no node is lost for so long."""
        try:
            yield self.environment.timeout(seconds)
        except simpy.Interrupt:
            return False
        return True

    def job(self) -> Steps:
        while True:
            self.spend("redone")
            length = iteration_s(frozenset(self.absent))
            assert length is not None
            if not (yield from self.is_done(length)):
                yield from self.lose()
                continue
            self.found.iterations += 1
            self.cause = "training"
            if self.policy.admits and not self.absent <= self.down:
                self.spend("joining")
                self.absent &= self.down
                yield from self.uninterrupted(self.environment.timeout(self.costs.join_s))
                if not self.down <= self.absent:
                    yield from self.lose()

    def lose(self) -> Steps:
        while self.policy.goes_on and iteration_s(frozenset(self.absent | self.down)) is not None:
            self.absent |= self.down
            self.found.losses += 1
            self.spend("recovering")
            if (yield from self.is_done(self.costs.detect_s + self.costs.recover_s)):
                return
        saved = self.found.iterations - self.found.iterations % self.costs.checkpoint_every
        self.found.undone += self.found.iterations - saved
        self.found.iterations = saved
        self.spend("restarting")
        yield from self.uninterrupted(self.environment.timeout(self.costs.detect_s))
        while True:
            self.spend("waiting")
            while iteration_s(frozenset(self.down)) is None:
                yield from self.uninterrupted(self.changed)
            self.absent = set(self.down)
            self.found.restarts += 1
            self.spend("restarting")
            if (yield from self.is_done(self.costs.restart_s)):
                return

    def nodes(self) -> Steps:
        for change in sorted(self.changes):
            yield self.environment.timeout(change.time_s - self.environment.now)
            (self.down.discard if change.up else self.down.add)(change.node)
            self.changed.succeed()
            self.changed = self.environment.event()
            if not change.up and change.node not in self.absent and self.is_interruptible:
                self.running.interrupt()


@given(st.integers(0, 10**9), st.sampled_from(["recover", "join", "restart"]))
def test_as_processes_do(seed: int, name: str) -> None:
    generator = random.Random(seed)
    costs = Costs(
        generator.uniform(0.1, 5), generator.uniform(0.1, 9), generator.uniform(1, 40), generator.uniform(0.1, 9),
        generator.randint(1, 9),
    )  # fmt: skip
    changes = draw_trace(5, generator.uniform(50, 500), generator.uniform(5, 200), HORIZON_S, seed)
    found = simulate_churn(POLICIES[name], changes, iteration_s, costs, HORIZON_S)
    expected = Process(POLICIES[name], changes, costs).found
    counts = ("iterations", "undone", "losses", "restarts")
    assert [getattr(found, count) for count in counts] == [getattr(expected, count) for count in counts]
    assert asdict(found.account) == pytest.approx(asdict(expected.account), abs=1e-6)
    assert sum(asdict(found.account).values()) == pytest.approx(HORIZON_S)
    assert [moment for moment, _ in found.points] == sorted(moment for moment, _ in found.points)


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES)
def test_nobody_is_lost(policy: Policy) -> None:
    found = simulate_churn(policy, [], iteration_s, Costs(1, 1, 1, 1, 5), HORIZON_S)
    assert found.iterations == math.floor(HORIZON_S / 7.3)
    assert (found.undone, found.losses, found.restarts) == (0, 0, 0)
    assert goodput(found, 7.3, HORIZON_S) > 0.99


def test_by_hand() -> None:
    """A loss in iteration 3, the node is back in iteration 4; then the other node of its stage as well, for good."""
    changes = [
        Change(25.0, 0, up=False),
        Change(40.0, 0, up=True),
        Change(75.0, 0, up=False),
        Change(76.0, 1, up=False),
    ]
    costs = Costs(detect_s=1, recover_s=4, restart_s=20, join_s=3, checkpoint_every=3)

    def ten(absent: frozenset[int]) -> float | None:
        return None if absent >= {0, 1} else 10.0

    found = simulate_churn(POLICIES["join"], changes, ten, costs, 100.0)
    # 2 iterations by 20; recovered at 30, the next at 40 and 50 (the node is back just as the first of them ends),
    # joined at 53; iterations end at 63 and 73; lost at 75 and at 76, from when on nobody can train.
    assert found.account.joining == 3.0
    assert found.account.redone == pytest.approx(5.0 + 2.0)
    assert (found.iterations, found.undone, found.losses) == (6, 0, 2)
    assert found.account.waiting == pytest.approx(100.0 - 76.0 - 1.0)
    kept = simulate_churn(POLICIES["restart"], changes, ten, costs, 100.0)
    # 2 are undone; from 46 without node 0, which is back too late for the restart, until iteration 3 ends at 76.
    assert (kept.iterations, kept.undone, kept.restarts) == (3, 2, 1)


def test_a_trace_is_drawn_as_asked() -> None:
    changes = draw_trace(200, 100.0, 50.0, 10_000.0, 7)
    assert changes == draw_trace(200, 100.0, 50.0, 10_000.0, 7)
    assert nodes_down(changes, 200, 10_000.0) == pytest.approx(1 / 3, abs=0.02)
    for node in range(200):
        ups = [change.up for change in changes if change.node == node]
        assert ups == [number % 2 == 1 for number in range(len(ups))]


def test_a_trace_is_read(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    changes = [{"time_s": 7, "node": "b", "up": True}, {"time_s": 2.5, "node": "b", "up": False}]
    path.write_text(json.dumps({"format": "skippipe.churn/1", "changes": changes}))
    assert load_trace(str(path), ["a", "b"]) == [Change(2.5, 1, up=False), Change(7.0, 1, up=True)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "expected a file in the format skippipe.churn/1"),
        ("[]", "format: expected skippipe.churn/1"),
        ({"format": "skippipe.churn/2"}, "format: expected skippipe.churn/1, got skippipe.churn/2"),
        ({}, "changes: expected a list of changes"),
        ({"changes": [5]}, r"changes\[0\]: expected {time_s, node, up}, got 5"),
        ({"changes": [{"time_s": -1, "node": "a", "up": False}]}, r"0\].time_s: expected seconds from 0, got -1"),
        ({"changes": [{"time_s": True, "node": "a", "up": False}]}, r"changes\[0\].time_s: expected seconds from 0"),
        ({"changes": [{"time_s": 1, "node": "mars", "up": False}]}, r"changes\[0\].node: expected a node of the plan"),
        ({"changes": [{"time_s": 1, "node": "a", "up": 1}]}, r"changes\[0\].up: expected true or false, got 1"),
        ({"changes": [{"time_s": 1, "node": "a", "up": False, "why": 1}]}, r"0\].why: expected time_s"),
        ({"changes": [{"time_s": 1, "node": "a", "up": True}]}, r"changes\[0\].up: .* got node a up twice in a row"),
    ],
)  # fmt: skip
def test_a_trace_that_cannot_be_used(content: Any, message: str, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    given_text = json.dumps({"format": "skippipe.churn/1"} | content) if isinstance(content, dict) else content
    path.write_text(given_text)
    with pytest.raises(InputError, match=message) as refused:
        load_trace(str(path), ["a", "b"])
    assert str(path) in str(refused.value)


@pytest.fixture(scope="module")
def plan() -> skippipe.Plan:
    """Six nodes in stages of 3, 2 and 1."""
    cluster = skippipe.Cluster(
        [f"n{node}" for node in range(6)], [0.1] * 6, [0.2] * 6, [0.05] * 6, [8] * 6, transfer_s=[[0.01] * 6] * 6
    )
    problem = skippipe.Problem(cluster, [[0, 1, 2], [3, 4], [5]], microbatches=2, skip_ratio=0.25)
    return skippipe.plan(problem, work_limit=2000)


def test_times_of_those_left(plan: skippipe.Plan) -> None:
    asked: list[skippipe.Problem] = []

    def planned(problem: skippipe.Problem) -> float:
        asked.append(problem)
        return 1.0 + len(asked)

    times = Remaining(plan, planned)
    assert times(frozenset()) == plan.predicted.iteration_s
    first, second = plan.stages[1]
    assert times(frozenset({first})) == times(frozenset({first})) == 2.0
    assert times(frozenset({first, second})) is None, "a stage has no node left"
    assert times(frozenset(plan.stages[2])) is None
    (problem,) = asked
    assert problem.stages == [plan.stages[0], [second], plan.stages[2]]
    assert sum(problem.microbatches) == sum(plan.problem().microbatches), "as many as before"


def test_who_does_whose_work(plan: skippipe.Plan) -> None:
    by = shadows(plan)
    stage_of = {node: stage for stage, nodes in enumerate(plan.stages) for node in nodes}
    assert sorted(by) == sorted(stage_of)
    assert all(stage_of[by[node]] == (stage_of[node] - 1) % 3 for node in by)
    (last,) = plan.stages[2]
    cluster = with_shadows(plan.cluster, {last: by[last]})
    assert cluster.processors[last] == cluster.processors[by[last]]
    assert list(cluster.forward_s) == [0.2] * 6, "each forward is computed twice"
    transfer_s = cluster.transfer_matrix()
    assert transfer_s[last, by[last]] == 0.0
    times = Redundant(plan, lambda problem: float(len(set(problem.cluster.processors))))
    assert times(frozenset({last, by[last]})) is None
    assert times(frozenset({last})) == 5.0
    assert times(frozenset()) == 6.0


def test_the_command(plan: skippipe.Plan, run: Run, tmp_path: Path) -> None:
    save_plan(plan, tmp_path / "plan.json")
    settings = ["plan=plan.json", "hours=2", "mean_up_s=1800", "mean_down_s=300", "work_limit=500"]
    pytest.importorskip("matplotlib").use("agg")
    shown = run("churn", *settings, "output=churn.json", "picture=churn.png")
    assert shown.status == 0, shown.err
    assert (tmp_path / "churn.png").read_bytes().startswith(b"\x89PNG")
    written = json.loads((tmp_path / "churn.json").read_text())
    assert list(written["policies"]) == list(CHURN_POLICIES) == list(POLICIES)
    for name, found in written["policies"].items():
        assert sum(found["seconds"].values()) == pytest.approx(7200.0)
        assert 0 < found["goodput"] <= 1
        assert any(line.startswith(name) and f"{found['iterations']:,}" in line for line in shown.out.splitlines())
    assert written["policies"]["recover"]["iterations"] >= written["policies"]["restart"]["iterations"]
    again = run("churn", *settings, "output=again.json")
    assert again.status == 0
    assert json.loads((tmp_path / "again.json").read_text())["policies"] == written["policies"]
    refused = run("churn", "plan=plan.json", "trace=plan.json")
    assert (refused.status, refused.err.count("\n")) == (2, 1)
    assert "plan.json: format: expected skippipe.churn/1" in refused.err
    assert "policies" in run("churn", "plan=plan.json", "policies=[]").err
