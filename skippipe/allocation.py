"""Which node serves which stage: taken from a file, or searched for by the extension."""

from dataclasses import dataclass, replace
from typing import Any

from skippipe import _scheduler
from skippipe._scheduler import Allocated, Cluster
from skippipe.config import AllocateConfig, PlannerConfig
from skippipe.errors import InputError, NoPlanError
from skippipe.files import read_json_object
from skippipe.workload import workload_of

DEFAULT_STAGES = 6
"""At most so many stages where nobody says how many: what the published instance has."""
LAYERS_PER_STAGE = 4
"""Decoder layers of each stage where they are to be chosen and nobody says how many there are."""
SHARE = 5
"""The surrogate gets one part in so many of the time or work that the planner has."""
MOST_S = 0.2
"""It gets no more seconds than this: 20 nodes are settled by then, and the planner goes on from there."""


@dataclass(frozen=True)
class Allocation:
    """The node numbers of every stage, the stages that no node serves, and the decoder layers of each if known."""

    stages: list[list[int]]
    absent_stages: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    absent_nodes: tuple[int, ...] = ()
    """nodes that serve no stage"""
    found: Allocated | None = None
    """what the surrogate says of it, of the next best and of all; None where the allocation was given"""


def allocate(
    config: AllocateConfig, cluster: Cluster, wanted: int | None, preset: list[int] | None, planner: PlannerConfig
) -> Allocation:
    """Make the allocation that the settings ask for; with a search, the best one by the surrogate.

    Args:
        config: a file, or what to search for.
        cluster: the nodes.
        wanted: `schedule.stages`, the number of stages if it is given.
        preset: the sizes that the cluster's preset brings.
        planner: how long and how hard to search.

    Raises:
        InputError: settings that contradict each other or do not fit the cluster.
        NoPlanError: the limit on transfers inside a stage was held by no allocation found.

    """
    if config.stages is not None:
        return _given(config, config.stages, cluster, wanted)
    # A cluster that says what each stage all-reduces has so many stages.
    wanted = wanted or len(config.sizes or cluster.gradient_bytes) or None
    sizes = choose_sizes(config.sizes, len(cluster), wanted, preset, config.sources)
    layers = _layers(config, len(sizes), workload_of(cluster).layers)
    time_limit_s, work_limit = effort(planner)
    try:
        found = _scheduler.allocate(
            cluster,
            sizes,
            sources=config.sources,
            max_replica_transfer_s=config.max_replica_transfer_s,
            time_limit_s=time_limit_s,
            work_limit=work_limit,
            threads=planner.threads,
            seed=planner.seed,
        )
    except (InputError, NoPlanError) as error:
        raise type(error)(str(error).replace("max_replica", "allocate.max_replica", 1)) from None
    first, *others = found.best.stages
    # Microbatches may be given source by source, so the order in which the sources were given stands.
    return Allocation([config.sources or first, *others], layers=layers, found=found)


def effort(planner: PlannerConfig) -> tuple[float | None, int | None]:
    """Seconds and work that the surrogate may take of what the planner has; a clock only where the planner has one."""
    work_limit = None if planner.work_limit is None else max(planner.work_limit // SHARE, 1)
    if planner.time_limit_s is not None:
        return min(planner.time_limit_s / SHARE, MOST_S), work_limit
    return MOST_S if work_limit is None else None, work_limit


def choose_sizes(
    asked: list[int] | None,
    nodes: int,
    wanted: int | None,
    preset: list[int] | None,
    sources: list[int] | None = None,
) -> list[int]:
    """Nodes per stage: those asked for, else the preset's where they fit, else as even as can be.

    Raises:
        InputError: they do not add up to the nodes, or do not fit the sources.

    """
    if sources is not None:
        _check_sources(sources, nodes)
    if asked is not None:
        _check_count("allocate.sizes", len(asked), wanted)
        if sum(asked) != nodes:
            raise InputError(f"allocate.sizes is {asked}, a list that adds up to the {nodes} nodes is expected")
        if sources is not None and len(sources) != asked[0]:
            raise InputError(
                f"allocate.sources is {sources}, as many as allocate.sizes begins with, {asked[0]}, are expected"
            )
        return asked
    fits = sources is None or (preset is not None and preset[0] == len(sources))
    if preset is not None and sum(preset) == nodes and wanted in (None, len(preset)) and fits:
        return preset
    if sources is None:
        return even_sizes(nodes, default_stages(nodes) if wanted is None else wanted)
    others = nodes - len(sources)
    rest = min(default_stages(nodes) - 1, others) if wanted is None else wanted - 1
    if others < rest or (others and not rest):
        raise InputError(
            f"allocate.sources is {sources}, that leaves {others} of {nodes} nodes for {rest} other stages"
        )
    return [len(sources), *(even_shares(others, rest) if rest else [])]


def default_stages(nodes: int) -> int:
    """How many stages, where nobody says: so many that stage 0 has two nodes or more, and at most six."""
    return min(DEFAULT_STAGES, nodes // 2 + 1)


def even_sizes(nodes: int, stages: int) -> list[int]:
    """Deal `nodes` to `stages` as evenly as can be, larger stages first."""
    if stages > nodes:
        raise InputError(f"schedule.stages is {stages}, at most the number of nodes, {nodes}, is expected")
    return even_shares(nodes, stages)


def even_shares(total: int, parts: int) -> list[int]:
    """Divide `total` into `parts` as evenly as can be, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def read_allocation(path: str) -> Allocation:
    """Read a JSON file with the key "stages", and where they apply "absent_stages", "absent_nodes" and "layers"."""
    content = read_json_object(path)
    if "stages" not in content:
        raise InputError(f"{path}: the key stages is missing, a list of lists of node numbers is expected")
    stages = _list(path, "stages", content["stages"])
    return Allocation(
        stages=[_integers(path, f"stages[{i}]", stage) for i, stage in enumerate(stages)],
        absent_stages=tuple(_integers(path, "absent_stages", content.get("absent_stages", []))),
        layers=tuple(_integers(path, "layers", content.get("layers", []))),
        absent_nodes=tuple(_integers(path, "absent_nodes", content.get("absent_nodes", []))),
    )


def _given(config: AllocateConfig, path: str, cluster: Cluster, wanted: int | None) -> Allocation:
    """Read the allocation of a file and hold it against the other settings."""
    for key in ("sizes", "sources"):
        if getattr(config, key) is not None:
            raise InputError(f"allocate.stages and allocate.{key} are both set, only one of them is expected")
    if config.layers == "auto":
        raise InputError("allocate.layers is auto, equal is expected with allocate.stages: the file may give layers")
    allocation = read_allocation(path)
    _check_count(f"{path}: stages", len(allocation.stages), wanted)
    if config.max_replica_transfer_s is not None:
        _check_transfers(path, allocation.stages, cluster, config.max_replica_transfer_s)
    layers = allocation.layers or _layers(config, len(allocation.stages), None)
    if config.decoder_layers not in (None, sum(layers)):
        raise InputError(f"{path}: layers add up to {sum(layers)}, allocate.decoder_layers is {config.decoder_layers}")
    return replace(allocation, layers=layers)


def _check_transfers(path: str, stages: list[list[int]], cluster: Cluster, most_s: float) -> None:
    """Refuse a stage with a slower transfer inside than is allowed; other faults are for the problem to find."""
    transfer_s = cluster.transfer_matrix()
    for stage, nodes in enumerate(stages):
        if max(nodes, default=0) >= len(cluster):
            continue
        for sender in nodes:
            for receiver in nodes:
                if transfer_s[sender, receiver] > most_s:
                    raise InputError(
                        f"{path}: stages[{stage}] is {_shown(nodes)}: a message from {cluster.names[sender]} to "
                        f"{cluster.names[receiver]} takes {transfer_s[sender, receiver]:.4f} s, at most "
                        f"allocate.max_replica_transfer_s, {most_s:g} s, is expected"
                    )


def _layers(config: AllocateConfig, stages: int, stated: int | None) -> tuple[int, ...]:
    """Decoder layers of each stage before any are chosen, as even as can be; none where nobody says how many.

    `stated` are those of the model that the cluster's times hold for; they count where layers are to be chosen.
    """
    total = config.decoder_layers
    if total is None and config.layers == "auto" and stated is not None and stated >= stages:
        total = stated
    if total is None:
        return (LAYERS_PER_STAGE,) * stages if config.layers == "auto" else ()
    if total < stages:
        raise InputError(f"allocate.decoder_layers is {total}, at least the number of stages, {stages}, is expected")
    return tuple(even_shares(total, stages))


def _check_sources(sources: list[int], nodes: int) -> None:
    for i, source in enumerate(sources):
        if source >= nodes or source in sources[:i]:
            raise InputError(f"allocate.sources[{i}] is {source}, different numbers below {nodes} are expected")
    if not sources:
        raise InputError("allocate.sources is empty, at least one node is expected")


def _check_count(what: str, found: int, wanted: int | None) -> None:
    if wanted is not None and found != wanted:
        raise InputError(f"{what} lists {found} stages, schedule.stages is {wanted}")


def _list(path: str, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InputError(f"{path}: {key} is {_shown(value)}, a list is expected")
    return value


def _integers(path: str, key: str, value: Any) -> list[int]:
    for i, entry in enumerate(_list(path, key, value)):
        if type(entry) is not int or not 0 <= entry < 2**63:
            raise InputError(f"{path}: {key}[{i}] is {_shown(entry)}, an integer of at least 0 is expected")
    return list(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
