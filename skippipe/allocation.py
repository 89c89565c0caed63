"""Which node serves which stage: read from a file, or the sizes and layers with which the search starts."""

from dataclasses import dataclass, replace
from typing import Any

from skippipe._scheduler import Cluster, Plan, Problem
from skippipe.config import AllocateConfig
from skippipe.errors import unexpected
from skippipe.files import read_json_object

DEFAULT_STAGES = 6
"""Maximum number of stages by default: that of the published instance."""
LAYERS_PER_STAGE = 4
"""Default decoder layers per stage where layers are searched."""


@dataclass(frozen=True)
class Allocation:
    """Nodes of each stage by number, stages without nodes, and decoder layers of each stage if known."""

    stages: list[list[int]]
    absent_stages: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()
    absent_nodes: tuple[int, ...] = ()
    """nodes that serve no stage"""
    lost_stages: tuple[int, ...] = ()
    """of the stages without nodes, those that have lost all of them: nodes that join serve them again"""

    @property
    def stage_of(self) -> dict[int, int]:
        """Stage of each node that serves one."""
        return {node: stage for stage, nodes in enumerate(self.stages) for node in nodes}


def allocation_of(source: Plan | Problem) -> Allocation:
    """Take the allocation of a plan or a problem."""
    return Allocation(
        source.stages, tuple(source.absent_stages), tuple(source.layers), absent_nodes=tuple(source.absent_nodes)
    )


def choose_sizes(
    asked: list[int] | None,
    nodes: int,
    wanted: int | None,
    preset: list[int] | None,
    sources: list[int] | None = None,
) -> list[int]:
    """Nodes per stage: those given, else the preset's if they fit, else as even as possible.

    Raises:
        InputError: they do not add up to the nodes, or do not fit the sources.

    """
    if sources is not None:
        _check_sources(sources, nodes)
    if asked is not None:
        _check_count("allocate.sizes", len(asked), wanted)
        if sum(asked) != nodes:
            raise unexpected("allocate.sizes", asked, f"a list that adds up to the {nodes} nodes")
        if sources is not None and len(sources) != asked[0]:
            raise unexpected("allocate.sources", sources, f"as many as allocate.sizes begins with, {asked[0]}")
        return asked
    fits = sources is None or (preset is not None and preset[0] == len(sources))
    if preset is not None and sum(preset) == nodes and wanted in (None, len(preset)) and fits:
        return preset
    if sources is None:
        return even_sizes(nodes, default_stages(nodes) if wanted is None else wanted)
    others = nodes - len(sources)
    rest = min(default_stages(nodes) - 1, others) if wanted is None else wanted - 1
    if others < rest or (others and not rest):
        expected = f"a list that leaves nodes for {rest} other stages ({others} of {nodes} are left)"
        raise unexpected("allocate.sources", sources, expected)
    return [len(sources), *(even_shares(others, rest) if rest else [])]


def default_stages(nodes: int) -> int:
    """Default number of stages: at most six, and so few that stage 0 has at least two nodes."""
    return min(DEFAULT_STAGES, nodes // 2 + 1)


def even_sizes(nodes: int, stages: int) -> list[int]:
    """Distribute `nodes` over `stages` as evenly as possible, larger stages first."""
    if stages > nodes:
        raise unexpected("schedule.stages", stages, f"at most the number of nodes, {nodes}")
    return even_shares(nodes, stages)


def even_shares(total: int, parts: int) -> list[int]:
    """Divide `total` into `parts` as evenly as possible, larger ones first."""
    return [total // parts + (part < total % parts) for part in range(parts)]


def read_allocation(path: str) -> Allocation:
    """Read a JSON file with the key "stages", and optionally "absent_stages", "absent_nodes" and "layers"."""
    content = read_json_object(path)
    if "stages" not in content:
        raise unexpected("stages", "nothing", "a list of lists of node numbers", path)
    stages = _list(path, "stages", content["stages"])
    return Allocation(
        stages=[_integers(path, f"stages[{i}]", stage) for i, stage in enumerate(stages)],
        absent_stages=tuple(_integers(path, "absent_stages", content.get("absent_stages", []))),
        layers=tuple(_integers(path, "layers", content.get("layers", []))),
        absent_nodes=tuple(_integers(path, "absent_nodes", content.get("absent_nodes", []))),
    )


def given_allocation(config: AllocateConfig, cluster: Cluster, wanted: int | None) -> Allocation:
    """Read the allocation from the file `config.stages`, and check it against the other settings.

    Args:
        config: the settings.
        cluster: the nodes.
        wanted: `schedule.stages`, the number of stages if it is given.

    Raises:
        InputError: the file cannot be used, or contradicts a setting.

    """
    path = config.stages
    assert path is not None
    for key in ("sizes", "sources"):
        if getattr(config, key) is not None:
            raise unexpected(f"allocate.{key}", getattr(config, key), "null, as allocate.stages is set")
    if config.layers == "auto":
        raise unexpected("allocate.layers", "auto", "equal, as allocate.stages is set: the file may give layers")
    allocation = read_allocation(path)
    _check_count("stages", len(allocation.stages), wanted, path)
    if config.max_replica_transfer_s is not None:
        _check_transfers(path, allocation.stages, cluster, config.max_replica_transfer_s)
    layers = allocation.layers or choose_layers(config, len(allocation.stages), None)
    if config.decoder_layers not in (None, sum(layers)):
        raise unexpected("layers", list(layers), f"allocate.decoder_layers, {config.decoder_layers}, in all", path)
    return replace(allocation, layers=layers)


def _check_transfers(path: str, stages: list[list[int]], cluster: Cluster, most_s: float) -> None:
    """Refuse a stage with a slower internal transfer than allowed; the problem checks everything else."""
    transfer_s = cluster.transfer_matrix()
    for stage, nodes in enumerate(stages):
        if max(nodes, default=0) >= len(cluster):
            continue
        for sender in nodes:
            for receiver in nodes:
                time_s = transfer_s[sender, receiver]
                if time_s > most_s:
                    found = f"{time_s:.4f} s from {cluster.names[sender]} to {cluster.names[receiver]}"
                    expected = f"messages of at most allocate.max_replica_transfer_s, {most_s:g} s"
                    raise unexpected(f"stages[{stage}]", found, expected, path)


def choose_layers(config: AllocateConfig, stages: int, stated: int | None) -> tuple[int, ...]:
    """Decoder layers of each stage at the start, as even as possible; empty if unknown.

    `stated` is the number of layers of the cluster's workload, used if layers are searched.
    """
    total = config.decoder_layers
    if total is None and config.layers == "auto" and stated is not None and stated >= stages:
        total = stated
    if total is None:
        return (LAYERS_PER_STAGE,) * stages if config.layers == "auto" else ()
    if total < stages:
        raise unexpected("allocate.decoder_layers", total, f"at least the number of stages, {stages}")
    return tuple(even_shares(total, stages))


def _check_sources(sources: list[int], nodes: int) -> None:
    for i, source in enumerate(sources):
        if source >= nodes or source in sources[:i]:
            raise unexpected(f"allocate.sources[{i}]", source, f"different numbers below {nodes}")
    if not sources:
        raise unexpected("allocate.sources", sources, "at least one node")


def _check_count(key: str, found: int, wanted: int | None, path: str | None = None) -> None:
    if wanted is not None and found != wanted:
        raise unexpected(key, f"a list of {found}", f"as many as schedule.stages, {wanted}", path)


def _list(path: str, key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise unexpected(key, value if value is None else repr(value), "a list", path)
    return value


def _integers(path: str, key: str, value: Any) -> list[int]:
    for i, entry in enumerate(_list(path, key, value)):
        if type(entry) is not int or not 0 <= entry < 2**63:
            raise unexpected(f"{key}[{i}]", repr(entry), "an integer of at least 0", path)
    return list(value)
