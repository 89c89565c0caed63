"""One process of a job: its rank, the nodes that it serves, and the address of the rendezvous."""

import enum
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from skippipe.errors import unexpected
from skippipe.ranks import shown_names
from skippipe.train.resolve.spec import RunSpec

TORCHRUN = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
"""Variables that torchrun sets for each rank."""


class Launcher(enum.Enum):
    """Who has started the processes of a job."""

    LOCAL = "local"
    """`skippipe train`: one supervisor, which owns all of them, on one machine"""
    NODE = "node"
    """`skippipe node`: a supervisor on each machine, for the processes there"""
    TORCHRUN = "torchrun"

    @property
    def lets_survivors_live(self) -> bool:
        """Whether the others may go on when a process dies; torchrun ends them."""
        return self is not Launcher.TORCHRUN


@dataclass(frozen=True)
class RankSpec:
    """One rank of a job."""

    rank: int
    world: int
    names: tuple[str, ...]
    """of the nodes that it serves"""
    host: str
    """of the rendezvous"""
    port: int
    verified: str | None = None
    """hash of the manifest of a checkpoint whose files our own supervisor has verified, so that rank 0 need not"""
    launcher: Launcher = Launcher.TORCHRUN
    agent_store: bool = False
    """whether another process than rank 0 serves the store of the rendezvous: torchrun's agent, our own
    parent, or the service of `skippipe node`"""
    local_rank: int = 0
    """number of the process on its machine"""
    newcomer: bool = False
    """whether it can only join ranks that train already: it is none of those with which a run begins"""
    process_token: str = ""
    """random, of this process alone, so that its parent can tell the others that it has died; empty: it does not"""


def under_torchrun(environment: Mapping[str, str] = os.environ) -> bool:
    """Whether torchrun or a similar launcher has started this process as one rank of a job."""
    return "RANK" in environment and "WORLD_SIZE" in environment


def torchrun_rank(node: str | None, environment: Mapping[str, str] = os.environ) -> RankSpec:
    """Read the rank from the variables of torchrun; `node` is `runtime.node`."""
    missing = [name for name in TORCHRUN if name not in environment]
    if missing:
        expected = f"{', '.join(TORCHRUN)} as torchrun sets them"
        raise unexpected("environment", f"no {', '.join(missing)}", expected, hint=_HINT)
    texts = {name: environment[name] for name in ("RANK", "WORLD_SIZE", "MASTER_PORT")}
    texts["LOCAL_RANK"] = environment.get("LOCAL_RANK", "0")
    for name, value in texts.items():
        if not value.isdecimal():
            raise unexpected(f"environment variable {name}", value, "a number")
    numbers = {name: int(value) for name, value in texts.items()}
    rank, world = numbers["RANK"], numbers["WORLD_SIZE"]
    if rank >= world:
        raise unexpected("environment variable RANK", rank, f"a number below WORLD_SIZE ({world})")
    return RankSpec(
        rank=rank,
        world=world,
        names=node_names(node),
        host=environment["MASTER_ADDR"],
        port=numbers["MASTER_PORT"],
        agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
        local_rank=numbers["LOCAL_RANK"],
    )


def node_names(node: str | None) -> tuple[str, ...]:
    """Names that `runtime.node` lists; the host name if it is not set."""
    names = tuple(name.strip() for name in (socket.gethostname() if node is None else node).split(","))
    if not all(names):
        raise unexpected("runtime.node", node, "NAME or NAME,NAME")
    return names


_HINT = (
    "RANK and WORLD_SIZE in the environment make this process one rank of a job; without them, skippipe train starts "
    "its own processes"
)


def check_node(node: str | None, nodes: Sequence[str], hint: str = _HINT) -> None:
    """Raise `InputError` where `node`, the `runtime.node` of a rank, names what is not among the plan's `nodes`."""
    unknown = [name for name in node_names(node) if name not in nodes]
    if unknown:
        got = f"null, which is the host name {unknown[0]}" if node is None else ", ".join(unknown)
        raise unexpected("runtime.node", got, f"nodes of the plan ({shown_names(nodes)})", hint=hint)


def assign_nodes(names: Sequence[str], processes: int | None) -> list[tuple[str, ...]]:
    """Assign the nodes of a plan to the processes of a local run, round robin; None: one process per node."""
    count = len(names) if processes is None else processes
    if count > len(names):
        raise unexpected("runtime.processes", count, f"at most the number of nodes, {len(names)}")
    return [tuple(names[first::count]) for first in range(count)]


def check_single_process(spec: RunSpec, processes: int) -> None:
    """Raise `InputError` where several processes are asked for what only one that serves all nodes can do."""
    if processes == 1:
        return
    if spec.device.group != 1:
        hint = "runtime=local has one serve all nodes"
        raise unexpected("runtime.group", spec.device.group, f"1 with {processes} processes", hint=hint)
