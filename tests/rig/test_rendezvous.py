"""`skippipe node` on three hosts, of which the one that serves the rendezvous is cut off from the others, or dies.

The others have all stages and links to each other, but no store to agree in. All machines end, each with one message,
and the latest checkpoint is complete.
"""

import itertools
import json
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from rig.machines import ENDS_S, PORT, Machines
from rig.network import Direction, Network

from skippipe.checkpoint import open_checkpoint

HOSTS = ("a", "b", "c")
LINK = Direction(0.002, 2e7)
START_S = 20.0
SETTINGS = [
    "allocate.stages=stages.json", "runtime.heartbeat_s=2", "runtime.timeout_s=10",
    f"runtime.start_timeout_s={START_S}", "train.iterations=100000", "checkpoint.every=1",
]  # fmt: skip


@contextmanager
def training(folder: Path, *settings: str) -> Iterator[tuple[Network, Machines]]:
    """A network and a training on it, within its third iteration or later; `b` and `c` have all stages."""
    (folder / "stages.json").write_text(json.dumps({"stages": [[1], [0, 2]]}))
    with Network(HOSTS, dict.fromkeys(itertools.permutations(HOSTS, 2), LINK)) as network:
        machines = Machines(network, folder, *SETTINGS, *settings, link=LINK)
        machines.until("iteration    3", "a")
        yield network, machines


def check_checkpoint(run: Path) -> None:
    """The latest one is complete."""
    assert open_checkpoint(run).state.iteration >= 1


@pytest.mark.timeout(2 * ENDS_S)
def test_the_host_of_the_rendezvous_is_cut_off(tmp_path: Path) -> None:
    """All machines start again, and end once they have waited for the others in vain."""
    with training(tmp_path) as (network, machines):
        for other in ("b", "c"):
            network.cut("a", other)
        statuses, address = machines.end(), network.address("a")
    told = {host: machines.err(host) for host in HOSTS}
    assert statuses == dict.fromkeys(HOSTS, 1), told
    for rank, host in ((1, "b"), (2, "c")):
        assert told[host].startswith(
            f"skippipe node: node {host} (rank {rank}): the rendezvous at {address}:{PORT} cannot be reached within "
            f"{START_S:g} s: "
        )
        assert f"node {host} (rank {rank}): the rendezvous no longer answers; starting again" in machines.out(host)
    assert told["a"].startswith(
        f"skippipe node: node a (rank 0): timed out after {START_S:g} s waiting for rank 1, rank 2; "
    )
    assert [len(text.splitlines()) for text in told.values()] == [1, 1, 1]
    check_checkpoint(tmp_path / "run")


@pytest.mark.timeout(2 * ENDS_S)
@pytest.mark.parametrize("fate", ["dies", "hears nothing", "is not heard"])
def test_without_restarts_all_end_at_once(fate: str, tmp_path: Path) -> None:
    with training(tmp_path, "runtime.restarts=0") as (network, machines):
        for other in ("b", "c"):
            if fate == "hears nothing":
                network.cut(other, "a", one_way=True)
            elif fate == "is not heard":
                network.cut("a", other, one_way=True)
        if fate == "dies":
            network.kill("a")
        statuses = machines.end()
    told = {host: machines.err(host) for host in HOSTS}
    assert statuses == {"a": -signal.SIGKILL if fate == "dies" else 1, "b": 1, "c": 1}, told
    for rank, host in ((1, "b"), (2, "c")):
        assert told[host].startswith(f"skippipe node: node {host} (rank {rank}): the rendezvous "), told
    if fate != "dies":
        assert told["a"].startswith("skippipe node: node a (rank 0): lost node "), told
    assert [len(text.splitlines()) for text in told.values()] == [int(fate != "dies"), 1, 1], told
    check_checkpoint(tmp_path / "run")
