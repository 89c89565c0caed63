"""Which process serves which node, matched by name before anything else happens in a job; and what ranks are called."""

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from skippipe._scheduler import Cluster, Plan
from skippipe.errors import InputError, unexpected
from skippipe.moves import TransferTime

NO_RANK = -1
"""In place of a rank: no rank serves a node, because the node serves no stage."""


def assign_ranks(
    node_names: Sequence[str], names_by_rank: Sequence[Sequence[str]], unused: Collection[str] = ()
) -> list[int]:
    """Match the nodes of a plan to the ranks of a job by name.

    Args:
        node_names: the names of the plan's nodes, by node number.
        names_by_rank: what each rank says it serves, by rank number: one or more node names.
        unused: names of nodes that serve no stage; a rank may name them in addition to others.

    Returns:
        The rank that serves node `n`, at index `n`; `NO_RANK` for those in `unused`. A rank may serve several nodes.

    Raises:
        InputError: a node has no rank or two, a rank serves none or only nodes that the plan does not use, or a name is
            not one of the plan's; the message names them.

    """
    _refuse("the plan names two nodes alike", _repeated(node_names))
    rank_of: dict[str, int] = {}
    for rank, names in enumerate(names_by_rank):
        if not names:
            raise unexpected(f"rank {rank}", "none", "at least one node name")
        rank_of.update(dict.fromkeys(names, rank))
    claimed = [name for names in names_by_rank for name in names]
    _refuse("named more than once", [f"{name} ({_claimants(name, names_by_rank)})" for name in _repeated(claimed)])
    _refuse("not in the plan", sorted(set(claimed) - set(node_names)))
    idle = [f"{node_title(names, rank)}" for rank, names in enumerate(names_by_rank) if set(names) <= set(unused)]
    _refuse("the plan leaves these nodes out, so that no rank may be started for them", idle)
    _refuse("no rank serves", [name for name in node_names if name not in rank_of and name not in unused])
    return [NO_RANK if name in unused else rank_of[name] for name in node_names]


def serving_ranks(stages: Sequence[Sequence[int]], rank_of: Sequence[int]) -> dict[int, frozenset[int]]:
    """The ranks that serve each stage that has nodes, by number; `stages` are nodes."""
    return {stage: frozenset(rank_of[node] for node in nodes) for stage, nodes in enumerate(stages) if nodes}


def holding_ranks(allocations: Iterable[Sequence[Sequence[int]]], rank_of: Sequence[int]) -> dict[int, frozenset[int]]:
    """The ranks that serve each stage in any of several allocations, and so hold its weights."""
    found: dict[int, frozenset[int]] = {}
    for stages in allocations:
        for stage, ranks in serving_ranks(stages, rank_of).items():
            found[stage] = found.get(stage, frozenset()) | ranks
    return found


def processors_of(rank_of: Sequence[int]) -> list[int | None]:
    """What each node computes on, as `Cluster.with_processors` takes it: its rank, None where it has none.

    A rank runs one task at a time, and its nodes hand tensors over without a transfer.
    """
    return [None if rank == NO_RANK else rank for rank in rank_of]


def planned_processors(rank_of: Sequence[int]) -> list[int | None]:
    """The processors that plans are made for.

    One process runs all tasks one after the other whatever the plan, so nodes are then planned as if they were apart:
    its routes are those of the cluster.
    """
    return [None] * len(rank_of) if len({*rank_of} - {NO_RANK}) == 1 else processors_of(rank_of)


def iteration_s_on(plan: Plan, rank_of: Sequence[int]) -> float:
    """Predicted iteration time of a plan for `planned_processors` on these ranks, in seconds."""
    processors = processors_of(rank_of)
    alone = processors != planned_processors(rank_of)
    return (plan.on_processors(processors) if alone else plan).predicted.iteration_s


def transfer_time(cluster: Cluster, rank_of: Sequence[int]) -> TransferTime:
    """Seconds of a transfer between two ranks over the link of their first nodes."""
    node_of = {rank: node for node, rank in reversed([*enumerate(rank_of)])}

    @functools.cache
    def matrix(size_bytes: float) -> NDArray[np.float64]:
        return cluster.transfer_matrix(size_bytes)

    return lambda sender, receiver, size: float(matrix(size)[node_of[sender], node_of[receiver]])


SHOWN = 6
"""Names of nodes that a message has, at most."""


def node_title(names: Sequence[str], rank: int) -> str:
    """How messages call a rank: by the nodes that it serves, where they are known."""
    return f"node {shown_names(names)} (rank {rank})" if names else f"rank {rank}"


def shown_names(names: Sequence[str]) -> str:
    """Names of nodes in a line, the first of many."""
    return ", ".join(names if len(names) <= SHOWN else [*names[: SHOWN - 1], f"{len(names) - SHOWN + 1} more"])


def _refuse(what: str, names: Sequence[str]) -> None:
    if names:
        raise InputError(f"nodes and ranks do not match: {what}: {', '.join(names)}", key="runtime.node")


def _repeated(names: Iterable[str]) -> list[str]:
    return sorted(name for name, count in Counter(names).items() if count > 1)


def _claimants(name: str, names_by_rank: Sequence[Sequence[str]]) -> str:
    return "ranks " + ", ".join(str(rank) for rank, names in enumerate(names_by_rank) for x in names if x == name)
