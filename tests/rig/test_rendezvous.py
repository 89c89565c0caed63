"""`skippipe node` on three hosts, of which the one that serves the rendezvous is cut off from the others, or dies.

The others have all stages and links to each other, but no store to agree in. All machines end, each with one message,
and the latest checkpoint is complete.
"""

import itertools
import json
import signal
from pathlib import Path

import pytest
from rig.machines import PORT, Machines
from rig.network import Direction, Network

from skippipe.checkpoint import open_checkpoint

HOSTS = ("a", "b", "c")
LINK = Direction(0.002, 2e7)
START_S = 20.0
SETTINGS = [
    "allocate.stages=stages.json", "runtime.heartbeat_s=2", "runtime.timeout_s=10",
    f"runtime.start_timeout_s={START_S}", "train.iterations=100000", "checkpoint.every=1",
]  # fmt: skip


@pytest.mark.parametrize("fate", ["cut off", "hears nothing", "is not heard", "dies"])
def test_the_host_of_the_rendezvous_is_lost(fate: str, tmp_path: Path) -> None:
    (tmp_path / "stages.json").write_text(json.dumps({"stages": [[1], [0, 2]]}))
    with Network(HOSTS, dict.fromkeys(itertools.permutations(HOSTS, 2), LINK)) as network:
        machines = Machines(network, tmp_path, *SETTINGS, link=LINK)
        machines.until("iteration    3", "a")
        match fate:
            case "dies":
                network.kill("a")
            case "cut off":
                network.cut("a", "b")
                network.cut("a", "c")
            case "hears nothing":
                network.cut("b", "a", one_way=True)
                network.cut("c", "a", one_way=True)
            case "is not heard":
                network.cut("a", "b", one_way=True)
                network.cut("a", "c", one_way=True)
        statuses = machines.end()
        address = network.address("a")
    told = {host: machines.err(host) for host in HOSTS}
    assert statuses == {"a": -signal.SIGKILL if fate == "dies" else 1, "b": 1, "c": 1}, told
    for rank, host in ((1, "b"), (2, "c")):
        end = f"the rendezvous at {address}:{PORT} cannot be reached within {START_S:g} s: "
        assert told[host].startswith(f"skippipe node: node {host} (rank {rank}): {end}")
        assert len(told[host].splitlines()) == 1
        assert f"node {host} (rank {rank}): the rendezvous " in machines.out(host), "why it has started again"
    if fate != "dies":
        assert told["a"].startswith(
            f"skippipe node: node a (rank 0): timed out after {START_S:g} s waiting for rank 1, rank 2; "
        )
        assert len(told["a"].splitlines()) == 1
    assert open_checkpoint(tmp_path / "run").state.iteration >= 1
    assert not list((tmp_path / "run").rglob("*.tmp")) or fate == "dies"
