"""Where a process stands in its job: its rank, the nodes that it serves, and how it meets the others."""

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skippipe.errors import InputError
from skippipe.ranks import shown_names
from skippipe.train.config import RuntimeConfig

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each rank."""


@dataclass(frozen=True)
class Place:
    """One rank of a job."""

    rank: int
    world: int
    names: tuple[str, ...]
    """names of the nodes that it serves"""
    host: str
    """where the rendezvous is"""
    port: int
    listening: int | None = None
    """file descriptor of a socket that listens there already, on the first rank of a local run"""
    checked: str | None = None
    """hash of the manifest of a checkpoint whose files our own supervisor has checked, so that rank 0 need not"""
    local: bool = False
    """whether the process belongs to our own supervisor on this machine"""
    served: bool = False
    """whether torchrun's agent serves the rendezvous, and not rank 0"""


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether this process is one rank of a job that torchrun, or something alike, has started."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def torchrun_place(node: str | None, environment: Mapping[str, str] = os.environ) -> Place:
    """Read the place from the variables of torchrun; `node` is `runtime.node`."""
    missing = [name for name in TORCHRUN if name not in environment]
    if missing:
        raise InputError(
            f"environment: expected {', '.join(TORCHRUN)} as torchrun sets them, got no {', '.join(missing)}; {_PRESET}"
        )
    numbers = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    for name, value in numbers.items():
        if not value.isdecimal():
            raise InputError(f"{name} is {value!r} in the environment, a number is expected")
    rank, world = int(numbers["RANK"]), int(numbers["WORLD_SIZE"])
    if rank >= world:
        raise InputError(f"RANK is {rank} in the environment, a number below WORLD_SIZE ({world}) is expected")
    return Place(
        rank=rank,
        world=world,
        names=node_names(node),
        host=environment["MASTER_ADDR"],
        port=int(numbers["MASTER_PORT"]),
        served=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def node_names(node: str | None) -> tuple[str, ...]:
    """Names that `runtime.node` lists; the host's where it is not set."""
    names = tuple(name.strip() for name in (socket.gethostname() if node is None else node).split(","))
    if not all(names):
        raise InputError(f"runtime.node is {node!r}, NAME or NAME,NAME is expected")
    return names


_PRESET = (
    "RANK and WORLD_SIZE in the environment make this process one rank of a job; without them, skippipe train starts "
    "processes of its own"
)


def check_node(node: str | None, nodes: Sequence[str]) -> None:
    """Raise `InputError` where `node`, the `runtime.node` of a rank, names what is not among the plan's `nodes`."""
    unknown = [name for name in node_names(node) if name not in nodes]
    if unknown:
        got = f"null, which is the host name {unknown[0]}" if node is None else ", ".join(unknown)
        raise InputError(f"runtime.node: expected nodes of the plan ({shown_names(nodes)}), got {got}; {_PRESET}")


def deal(names: list[str], processes: int | None) -> list[tuple[str, ...]]:
    """Deal the nodes of a plan to the processes of a local run, in turn; one for each where nobody says."""
    count = len(names) if processes is None else processes
    if count > len(names):
        raise InputError(f"runtime.processes is {count}, at most the number of nodes, {len(names)}, is expected")
    return [tuple(names[first::count]) for first in range(count)]


def check_alone(config: RuntimeConfig, processes: int) -> None:
    """Raise `InputError` where a setting is for a process that serves all nodes, and there are several processes."""
    if processes == 1:
        return
    usual = RuntimeConfig()
    for key in ("group", "device", "autocast", "compile", "profile"):
        value = getattr(config, key)
        if value != getattr(usual, key):
            raise InputError(
                f"runtime.{key} is {value}, with {processes} processes {getattr(usual, key)} is expected; "
                "runtime=local has one process serve all nodes"
            )
