"""A training of two hosts over WireGuard, as docs/machines.md has it set up."""

import ipaddress
import json
from pathlib import Path

import pytest
from rig import wireguard
from rig.machines import PORT, Machines
from rig.network import Direction, Network

HOSTS = ("a", "b")
LINK = Direction(0.002, 2e7)
LISTENS = "0A"
"""State of a socket in the kernel's table."""


def listening(network: Network, host: str) -> set[tuple[str, int]]:
    """Addresses and ports at which TCP sockets of a host listen."""
    found = set()
    for version in ("tcp", "tcp6"):
        with network.start(host, ["cat", f"/proc/net/{version}"], stdout=-1) as process:
            table, _ = process.communicate()
        for line in table.splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            address, port = local.split(":")
            if state == LISTENS:
                words = [bytes.fromhex(address[at : at + 8])[::-1] for at in range(0, len(address), 8)]
                found.add((str(ipaddress.ip_address(b"".join(words))), int(port, 16)))
    return found


def test_a_training_over_wireguard_listens_there_alone(tmp_path: Path) -> None:
    reason = wireguard.missing()
    if reason is not None:
        pytest.skip(reason)
    with (
        Network(HOSTS, dict.fromkeys([HOSTS, HOSTS[::-1]], LINK)) as network,
        wireguard.tunnels(network, tmp_path) as hosts,
    ):
        settings = ["allocate.sizes=[1,1]", "train.iterations=100000", "checkpoint.enabled=false"]
        machines = Machines(network, tmp_path, *settings, link=LINK, hosts=hosts)
        machines.until("iteration    3", "a")
        found = {host: listening(network, host) for host in HOSTS}
        machines.processes["b"].terminate()
        assert machines.end() == dict.fromkeys(HOSTS, 0), machines.err("a") + machines.err("b")
    assert (hosts["a"].address, PORT) in found["a"], "the rendezvous"
    assert found["b"], "Gloo"
    assert {host: {address for address, _ in found[host]} for host in HOSTS} == {
        host: {hosts[host].address} for host in HOSTS
    }
    events = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [event["outcome"] for event in events if event["event"] == "run_ended"] == ["stopped"]
