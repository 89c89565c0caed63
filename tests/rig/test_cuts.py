"""A training over real TCP links, some of which are cut or become slow while it runs."""

import itertools
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from rig.machines import write_cluster
from rig.network import Direction, Network
from rig.ranks import Ranks, ranks
from train.jobs import TINY, prepared_text

from skippipe.cluster import load_cluster
from skippipe.plan_file import load_plan

HOSTS = ("a", "b", "c")
LINK = Direction(0.01, 4e6)
JOB = [
    *TINY, "cluster.file=cluster.json", "allocate.sizes=[1,2]", "schedule.stages=2", "runtime.calibrate=false",
    "runtime.heartbeat_s=2", "train.iterations=100000", "train.validate_every=null", "checkpoint.enabled=false",
    "folder=run",
]  # fmt: skip
CUT_S = 60.0
"""Two heartbeats each to notice, and to see that the rendezvous does not answer, on a busy machine. A rank that only
waited for a message, or for the rendezvous, would take longer."""
PATIENCE_S = 150.0
FACTOR = 10
LOST = "node c (rank 2) has shown no sign of life for 4 s"


@contextmanager
def training(folder: Path, *settings: str) -> Iterator[tuple[Network, Ranks]]:
    """A network and a training on it, within its third iteration or later."""
    write_cluster(folder / "cluster.json", HOSTS, LINK)
    settings = (*JOB, f"data.prepared={prepared_text()}", *settings)
    with (
        Network(HOSTS, dict.fromkeys(itertools.permutations(HOSTS, 2), LINK)) as network,
        ranks(network, folder, "train", *settings) as running,
    ):
        running.until("iteration    3", "a")
        yield network, running


def test_a_node_that_is_cut_off_is_named_and_all_end(tmp_path: Path) -> None:
    with training(tmp_path) as (network, running):
        for other in ("a", "b"):
            network.cut("c", other)
        assert running.end(CUT_S) == dict.fromkeys(HOSTS, 1)
    assert LOST in running.err("a") + running.err("b"), "whoever notices first breaks off what the other waits for"
    assert "skippipe train: node c (rank 2): the rendezvous no longer answers" in running.err("c")


def test_a_node_that_hears_nothing_but_is_heard(tmp_path: Path) -> None:
    with training(tmp_path) as (network, running):
        for other in ("a", "b"):
            network.cut(other, "c", one_way=True)
        assert running.end(CUT_S) == dict.fromkeys(HOSTS, 1)
    assert LOST in running.err("a") + running.err("b"), "whoever notices first breaks off what the other waits for"
    assert "skippipe train: node c (rank 2): the rendezvous no longer answers" in running.err("c")


def test_a_node_that_hears_but_is_not_heard(tmp_path: Path) -> None:
    with training(tmp_path) as (network, running):
        for other in ("a", "b"):
            network.cut("c", other, one_way=True)
        assert running.end(CUT_S) == dict.fromkeys(HOSTS, 1)
    assert LOST in running.err("a") + running.err("b"), "whoever notices first breaks off what the other waits for"


def test_training_goes_on_over_a_link_that_has_become_slow_and_takes_a_plan_that_avoids_it(tmp_path: Path) -> None:
    settings = ["schedule.skip_ratio=0", "train.replan=routes", "train.replan_wait=1", "train.iterations=40"]
    with training(tmp_path, *settings) as (network, running):
        for pair in (("a", "c"), ("c", "a")):
            network.slow(*pair, delay_s=FACTOR * LINK.delay_s, bandwidth=LINK.bandwidth / FACTOR)
        assert running.end(PATIENCE_S) == dict.fromkeys(HOSTS, 0), running.err("a")
    run = tmp_path / "run"
    events = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [event["iteration"] for event in events if event["event"] == "iteration"] == list(range(1, 41))
    plans = [event["plan_file"] for event in events if event["event"] == "plan_changed"]
    assert plans, "other routes are worth it"
    seen_s = load_cluster(str(run / "profile.json")).transfer_matrix()[0, 2]
    assert seen_s > FACTOR * LINK.delay_s / 2, "it was noticed"
    assert visits(run / plans[-1], "c") < visits(run / "plan.json", "c")


def visits(path: Path, node: str) -> int:
    """Microbatches of a plan that visit a node."""
    plan = load_plan(str(path))
    number = plan.cluster.names.index(node)
    return sum(number in microbatch.nodes for microbatch in plan.microbatches)
