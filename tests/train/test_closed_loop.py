"""Predicted and measured times side by side, and another plan where links have changed."""

import dataclasses
import itertools
import json
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pool as pools
import pytest
import torch
from pool import Pool
from torch import Tensor
from train.alone import EventDict, free_port, of_kind, train_alone, train_in_pool
from train.conftest import Folder
from train.jobs import make_cluster, make_job

from skippipe._scheduler import Plan
from skippipe.checkpoint import open_checkpoint
from skippipe.checkpoint.tensors import open_tensors
from skippipe.cluster import load_cluster
from skippipe.config import AllocateConfig, LinkChange, LinkProfile
from skippipe.errors import InputError
from skippipe.phases import phase_problem
from skippipe.plan_file import load_plan
from skippipe.planning import PlanningJob, make_plan
from skippipe.runtime.actions import Step
from skippipe.runtime.deadlock import prove_deadlock_free
from skippipe.runtime.executor import Timings
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.lower import lower
from skippipe.train.config import TrainJob
from skippipe.train.connect.clocks import clock_offset_s
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import join
from skippipe.train.loop.replanning import Question, find_plan
from skippipe.train.loop.timelines import TimelineExchange
from skippipe.train.observe.display import iteration_lines, searched_lines
from skippipe.train.observe.events import IterationDone, PlanSearched
from skippipe.train.resolve.resolve import resolve
from skippipe.train.resolve.spec import CommunicationSpec

FOUR = [("local-0",), ("local-1",), ("local-2",), ("local-3",)]
STAGES = [[0], [1], [2, 3]]
LATENCY_S, FACTOR = 0.04, 12.0
SLOW = [(1, 2), (2, 0)]
"""Links that become slower by the factor: local-3 is then the better replica."""


def replanned_job(folder: Path, stages: list[list[int]] = STAGES, **changes: Any) -> TrainJob:
    """Messages take far longer than tasks, so that the machine's own pace hardly matters."""
    (folder / "stages.json").write_text(json.dumps({"stages": stages}))
    cluster = make_cluster(4, [1, 1, 2])
    cluster.inside = cluster.between = LinkProfile(LATENCY_S, 1e9)
    slower = [LinkChange(2, FACTOR, [f"local-{i}"], [f"local-{j}"]) for i, j in SLOW]
    asked: dict[str, Any] = {
        "cluster": cluster, "allocate": AllocateConfig(stages=str(folder / "stages.json")), "schedule__skip_ratio": 0.0,
        "schedule__microbatches_per_source": 4, "train__iterations": 10, "train__validate_every": None,
        "train__replan": "routes", "runtime__links": "emulated", "runtime__link_changes": slower,
        "checkpoint__every": None,
    }  # fmt: skip
    return make_job(**asked | changes)


def uses(path: Path, links: list[tuple[int, int]]) -> int:
    """How often a plan's microbatches take these links."""
    count = 0
    for microbatch in load_plan(str(path)).microbatches:
        way = [*microbatch.nodes, microbatch.source]
        way = [*way, *reversed(way[:-1])]
        count += sum(pair in links for pair in itertools.pairwise(way))
    return count


def test_links_that_become_slow_are_avoided(folder: Folder, pool: Pool) -> None:
    path = folder("run")
    reported = train_in_pool(pool, replanned_job(path), FOUR, path)
    changes, searched = of_kind(reported, "plan_changed"), of_kind(reported, "plan_searched")
    assert changes, searched
    assert [event["iteration"] for event in searched if event["taken"]] == [event["iteration"] - 1 for event in changes]
    iterations = of_kind(reported, "iteration")
    for change in changes:
        assert change["previous_s"] > (1 + 0.05) * change["predicted_s"]
        assert change["moved_stages"] == []
        assert iterations[change["iteration"] - 1]["predicted_s"] == change["predicted_s"]
    assert changes[-1]["iteration"] > 4, "a single slow iteration is not enough"
    assert uses(path / changes[-1]["plan_file"], SLOW) < uses(path / "plan.json", SLOW)
    assert len(iterations) == 10
    assert all(event["message_ratio"] > 0.9 for event in iterations[1:]), "never sooner than the links deliver"
    assert all(event["task_ratio"] > 0 and event["iteration_ratio"] > 0 for event in iterations[1:])
    profile = load_cluster(str(path / "profile.json"))
    assert "measured in training" in str(profile.source)
    seen = [pair for pair in SLOW if profile.transfer_matrix()[pair] > 0.9 * FACTOR * LATENCY_S]
    assert seen, profile.transfer_matrix()


def result_of(run: Path) -> dict[str, Tensor]:
    """Weights and optimizer state of all stages at the end of a run."""
    checkpoint = open_checkpoint(run)
    with open_tensors(checkpoint.path, checkpoint.manifest) as files:
        return {name: files.read(name).clone() for name in files}


def moves_stages(event: EventDict) -> bool:
    return event["event"] == "plan_changed" and bool(event["moved_stages"])


def precedes(iteration: int, event: EventDict) -> bool:
    return event["event"] == "iteration" and bool(event["iteration"] == iteration - 1)


def follow_plans(job: TrainJob, run: Path, changes: Sequence[EventDict], folder: Path) -> dict[str, Tensor]:
    """Train in one process by the plans that a run has used, each from the checkpoint where the one before ended."""
    train = dataclasses.replace(job.train, replan="off")
    ends = [change["iteration"] - 1 for change in changes]
    for name, end in zip(["plan.json", *(change["plan_file"] for change in changes)], [*ends, None], strict=True):
        alone = make_job(plan=str(run / name), train=train, checkpoint__every=None)
        train_alone(alone, folder, None if end is None else partial(precedes, end))
        assert open_checkpoint(folder).state.iteration == (end or train.iterations)
    return result_of(folder)


def test_nodes_change_stages_with_their_weights(folder: Folder, pool: Pool) -> None:
    """Weights and optimizer state become those of one process that follows the same plans, over a resumption too.

    Routes visit all stages in order, so that only another allocation avoids the slow links.
    """
    path, slow = folder("moved"), LinkChange(1, FACTOR, ["local-0", "local-1"], ["local-0", "local-1"])
    job = replanned_job(
        path, [[0], [1], [2], [3]], runtime__link_changes=[slow], train__replan="allocation", train__dtype="float64",
        planner__work_limit=50_000, schedule__max_swaps=0,
    )  # fmt: skip
    job.cluster.activation_bytes *= 2
    moved = train_in_pool(pool, job, FOUR, path, moves_stages)
    changes = of_kind(moved, "plan_changed")
    assert moves_stages(changes[-1]), of_kind(moved, "plan_searched")
    assert 0 not in changes[-1]["moved_stages"], "sources stay"
    assert of_kind(moved, "stopped")[0]["iteration"] == changes[-1]["iteration"] < job.train.iterations
    job.train.replan, job.checkpoint.resume, resumed = "off", str(path), folder("resumed")
    went_on = train_in_pool(pool, job, FOUR, resumed)
    assert of_kind(went_on, "resumed")[0]["plan_kept"]
    (plan,) = of_kind(went_on, "plan")
    assert (resumed / plan["files"]["plans"]["0"]).read_text() == (path / changes[-1]["plan_file"]).read_text()
    ours, theirs = result_of(resumed), follow_plans(job, path, changes, folder("followed"))
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        assert torch.allclose(tensor, theirs[name], rtol=1e-6, atol=1e-12), name


def test_a_run_without_replanning_keeps_its_plan_and_a_profile(folder: Folder, pool: Pool) -> None:
    path = folder("run")
    job = replanned_job(path, train__replan="off", train__iterations=5)
    reported = train_in_pool(pool, job, FOUR, path)
    assert not of_kind(reported, "plan_changed")
    assert not of_kind(reported, "plan_searched")
    first, *later = of_kind(reported, "iteration")
    assert "message_ratio" not in first, "the first iteration is slower"
    ratios = [float(event["message_ratio"]) for event in later]
    assert max(ratios[1:]) > 2 > ratios[0]
    assert load_cluster(str(path / "profile.json")).names == [f"local-{i}" for i in range(4)]


def test_a_plan_that_may_deadlock_is_not_offered(folder: Folder) -> None:
    spec = resolve(replanned_job(folder("run")))
    (phase,), cluster, rank_of = spec.phases, spec.layout.cluster, range(4)
    plan = make_plan(PlanningJob(phase_problem(cluster, phase, [1, 1, 1])), "skippipe", phase.planner)

    def prove(found: Plan, *, backwards: bool = False) -> None:
        programs = list(lower(found, rank_of))
        if backwards:
            programs[1] = dataclasses.replace(programs[1], actions=programs[1].actions[::-1])
        prove_deadlock_free(programs, 4, 4)

    good = Question(plan, cluster, phase.planner, rank_of, False, prove)
    bad = dataclasses.replace(good, prove=lambda found: prove(found, backwards=True))
    found, refused = find_plan(good), find_plan(bad)
    assert found.plan is not None
    assert found.refused is None
    assert refused.plan is None
    assert refused.candidate_s is None
    assert refused.refused == "inconsistent programs: rank 0 receives the messages of rank 1 out of order"


def test_line_of_a_plan_that_cannot_be_used() -> None:
    cycle = "deadlock with recv_buffers=4 and sends_in_flight=4:\n  F\n  waits for B"
    event = PlanSearched(iteration=3, current_s=2.0, found_s=None, change_s=None, taken=False, refused=cycle)
    (line,) = searched_lines(event)
    assert line.endswith("cannot be used (deadlock with recv_buffers=4 and sends_in_flight=4); the plan stays")


def test_replanning_needs_times_that_hold(folder: Folder) -> None:
    job = make_job(runtime__group=4, train__replan="routes")
    with pytest.raises(InputError, match=r"train\.replan: expected off, got routes; microbatches share passes"):
        train_alone(job, folder("run"))


# --- clocks and timelines


def exchange_times(rank: int, world: int) -> list[tuple[float, list[float]]]:
    """Ranks have 1, 2, ... actions, and clocks that are behind that of rank 0 by as many seconds as their number."""
    actions = [number + 1 for number in range(world)]
    ends = [10.0 * rank + number for number in range(rank + 1)]
    timings = Timings((Step(),) * len(ends), [0.0, *ends[:-1]], ends, 100.0 - rank)
    found = TimelineExchange(GlooLink(), rank, actions, timings, float(rank)).finish(20.0)
    return [(timeline.began_at, list(timeline.ends)) for timeline in found]


def test_rank_0_gets_all_timelines_on_its_clock(pool: Pool) -> None:
    found, *others = pool.run(exchange_times, [(3,)] * 3)
    assert found == [(100.0, [0.0]), (100.0, [10.0, 11.0]), (100.0, [20.0, 21.0, 22.0])]
    assert others == [[], []]


def compare_clocks(rank: int, world: int, port: int, back: str) -> float:
    """Ranks 0 and 1 are on one machine, rank 2 on another, whose clock is an hour ahead."""
    pools.leave()
    spec = RankSpec(rank, world, (f"n{rank}",), "127.0.0.1", port, launcher=Launcher.LOCAL)
    ahead_s = 3600.0 if rank == 2 else 0.0
    with join(spec, CommunicationSpec(start_timeout_s=60.0)) as rendezvous:
        machine = "far" if rank == 2 else "near"
        link = GlooLink(rendezvous.group)
        found = clock_offset_s(rendezvous, link, machine, lambda: time.perf_counter() + ahead_s)
    pools.join(rank, world, back)
    return found


def test_clocks_of_other_machines_are_compared(pool: Pool, tmp_path: Path) -> None:
    offsets = pool.run(compare_clocks, [(3, free_port(), str(tmp_path / "back"))] * 3)
    assert offsets[:2] == [0.0, 0.0]
    assert offsets[2] == pytest.approx(-3600.0, abs=1.0)


def test_iteration_line() -> None:
    event = IterationDone(
        iteration=3, loss=2.0, tokens=10, tokens_per_s=5.0, iteration_s=2.0, norm=1.0, learning_rate=0.1,
        predicted_s=1.0, iteration_ratio=2.0, task_ratio=1.25, message_ratio=None,
    )  # fmt: skip
    assert "measured 2.000 s  predicted 1.000 s (x2.00, tasks x1.25)  norm" in iteration_lines(event)[0]
