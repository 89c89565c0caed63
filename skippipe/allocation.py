"""Which node serves which stage: taken from a file, or built from the sizes of the stages."""

from dataclasses import dataclass
from typing import Any

from skippipe._scheduler import Cluster, greedy_allocation
from skippipe.config import AllocateConfig
from skippipe.errors import InputError
from skippipe.files import read_json_object

DEFAULT_STAGES = 6
"""At most so many stages where nobody says how many: what the published instance has."""


@dataclass(frozen=True)
class Allocation:
    """The node numbers of every stage, the stages that no node serves, and the decoder layers of each if known."""

    stages: list[list[int]]
    absent_stages: tuple[int, ...] = ()
    layers: tuple[int, ...] = ()


def allocate(config: AllocateConfig, cluster: Cluster, wanted: int | None, preset: list[int] | None) -> Allocation:
    """Make the allocation that the settings ask for.

    Args:
        config: a file, or sizes, or neither.
        cluster: the nodes.
        wanted: `schedule.stages`, the number of stages if it is given.
        preset: the sizes that the cluster's preset brings.

    Raises:
        InputError: settings that contradict each other or do not fit the cluster.

    """
    if config.stages is not None:
        if config.sizes is not None:
            raise InputError("allocate.stages and allocate.sizes are both set, only one of them is expected")
        allocation = read_allocation(config.stages)
        _check_count(f"{config.stages}: stages", len(allocation.stages), wanted)
        return allocation
    # A cluster that says what each stage all-reduces has so many stages.
    wanted = wanted or len(config.sizes or cluster.gradient_bytes) or None
    return Allocation(greedy_allocation(cluster, choose_sizes(config.sizes, len(cluster), wanted, preset)))


def choose_sizes(asked: list[int] | None, nodes: int, wanted: int | None, preset: list[int] | None) -> list[int]:
    """Nodes per stage: those asked for, else the preset's where they fit, else as even as can be."""
    if asked is not None:
        _check_count("allocate.sizes", len(asked), wanted)
        if sum(asked) != nodes:
            raise InputError(f"allocate.sizes is {asked}, a list that adds up to the {nodes} nodes is expected")
        return asked
    if preset is not None and sum(preset) == nodes and wanted in (None, len(preset)):
        return preset
    return even_sizes(nodes, default_stages(nodes) if wanted is None else wanted)


def default_stages(nodes: int) -> int:
    """How many stages, where nobody says: so many that stage 0 has two nodes or more, and at most six."""
    return min(DEFAULT_STAGES, nodes // 2 + 1)


def even_sizes(nodes: int, stages: int) -> list[int]:
    """Deal `nodes` to `stages` as evenly as can be, larger stages first."""
    if stages > nodes:
        raise InputError(f"schedule.stages is {stages}, at most the number of nodes, {nodes}, is expected")
    return [nodes // stages + (stage < nodes % stages) for stage in range(stages)]


def read_allocation(path: str) -> Allocation:
    """Read a JSON file with the key "stages", "absent_stages" if some are lost, and "layers" if they are known."""
    content = read_json_object(path)
    if "stages" not in content:
        raise InputError(f"{path}: the key stages is missing, a list of lists of node numbers is expected")
    stages = _list(path, "stages", content["stages"])
    return Allocation(
        stages=[_integers(path, f"stages[{i}]", stage) for i, stage in enumerate(stages)],
        absent_stages=tuple(_integers(path, "absent_stages", content.get("absent_stages", []))),
        layers=tuple(_integers(path, "layers", content.get("layers", []))),
    )


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
