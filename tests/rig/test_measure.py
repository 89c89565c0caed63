"""`skippipe measure` over a real TCP link that carries more in a round trip than TCP sends at first."""

import json
from pathlib import Path

import pytest
from rig.network import Direction, Network
from rig.ranks import ranks
from train.jobs import TINY

LINKS = {("a", "b"): Direction(0.06, 1.5e6), ("b", "a"): Direction(0.06, 3e6)}
OF_MODEL = [setting for setting in TINY if setting.startswith("model.")]
MESSAGE_BYTES = 32 * 64 * 32 * 4


def test_delay_and_bandwidth_of_both_directions_are_found(tmp_path: Path) -> None:
    sizes = ["data.sequence=64", "train.microbatch_size=32", "stages=2", "output=cluster.json"]
    with (
        Network(("a", "b"), LINKS) as network,
        ranks(network, tmp_path, "measure", *OF_MODEL, *sizes) as running,
    ):
        assert running.end(150.0) == {"a": 0, "b": 0}, running.err("a")
    cluster = json.loads((tmp_path / "cluster.json").read_text())
    assert cluster["activation_bytes"] == MESSAGE_BYTES
    names = [node["name"] for node in cluster["nodes"]]
    for pair, direction in LINKS.items():
        sender, receiver = map(names.index, pair)
        assert cluster["latency_s"][sender][receiver] == pytest.approx(direction.delay_s, rel=0.1)
        assert cluster["bandwidth"][sender][receiver] == pytest.approx(direction.bandwidth, rel=0.15)
