"""Omissions: which layers of a model are skipped or swapped, and the resulting layer paths. No torch."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise

import numpy as np

from skippipe.errors import unexpected

LayerPath = tuple[int, ...]
"""numbers of the layers that run, in order"""
GRAMMAR = "none, random:SHARE, every:K, last:N, stages:S+S, layers:L+L, lost:STAGE, lost:NODE, swap:STAGE or swaps:N"


@dataclass(frozen=True)
class Partition:
    """The layers of each stage, and how omissions count."""

    sizes: tuple[int, ...]
    """layers of each stage"""
    unit: str = "layers"
    """unit of `random`, `every` and `last`: layers or stages"""
    keep_first: bool = True
    """exempt stage 0 from `random`, `every` and `swaps`"""
    stage_of_node: Mapping[str, int] = field(default_factory=dict)
    """by node name in the plan"""

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.sizes)

    def described(self) -> str:
        """Number and kind of the units, for messages."""
        return f"{len(self.units)} {self.unit}"

    @property
    def stages(self) -> list[range]:
        """Numbers of each stage's layers."""
        return [range(begin, end) for begin, end in pairwise(accumulate(self.sizes, initial=0))]

    @property
    def units(self) -> list[range]:
        """The layers of each unit."""
        return self.stages if self.unit == "stages" else [range(layer, layer + 1) for layer in range(self.layers)]

    @property
    def omittable(self) -> list[range]:
        """Units that may be omitted at random."""
        return [unit for unit in self.units if not (self.keep_first and unit.start < self.sizes[0])]

    def without(self, units: Sequence[range]) -> LayerPath:
        """The path through all layers but those of some units."""
        omitted = {layer for unit in units for layer in unit}
        return tuple(layer for layer in range(self.layers) if layer not in omitted)

    def swapped(self, stages: Sequence[int]) -> LayerPath:
        """The path on which each of these stages is swapped with the next one; no two of them are neighbours."""
        order = list(range(len(self.sizes)))
        for stage in stages:
            order[stage : stage + 2] = [stage + 1, stage]
        return tuple(layer for stage in order for layer in self.stages[stage])


@dataclass(frozen=True)
class Draws:
    """The layer paths of an omission."""

    paths: tuple[LayerPath, ...]
    """all different"""
    complete: bool
    """whether these are all possible paths"""


@dataclass(frozen=True)
class FullModel:
    """`none`: the full model."""

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        return _single(partition.without([]))


@dataclass(frozen=True)
class Random:
    """`random:SHARE`: a random subset of the units."""

    share: float

    def draw(self, partition: Partition, draws: int, random: np.random.Generator) -> Draws:
        """Draw sets of units."""
        count, omittable = math.floor(self.share * len(partition.units) + 0.5), partition.omittable
        if count > len(omittable) or count == len(partition.units):
            most = min(len(omittable), len(partition.units) - 1)
            raise _UnsuitableError(f"at most {most} of {partition.described()} to skip{_first_kept(partition)}")
        if count == 0:
            raise _UnsuitableError(f"at least half of one of {partition.described()}")

        def draw_one() -> tuple[int, ...]:
            return tuple(sorted(random.choice(len(omittable), count, replace=False).tolist()))

        sets, complete = _distinct_sets(
            draw_one, combinations(range(len(omittable)), count), math.comb(len(omittable), count), draws
        )
        return Draws(tuple(partition.without([omittable[slot] for slot in chosen]) for chosen in sets), complete)


@dataclass(frozen=True)
class Every:
    """`every:K`: units K, 2 K, 3 K ..., counted from 1."""

    step: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        chosen = [unit for unit in partition.units[self.step - 1 :: self.step] if unit in partition.omittable]
        if not chosen:
            raise _UnsuitableError(f"one of {partition.described()} to skip{_first_kept(partition)}")
        return _single(partition.without(chosen))


@dataclass(frozen=True)
class Last:
    """`last:N`: early exit, skips the last N units."""

    count: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        if self.count >= len(partition.units):
            raise _UnsuitableError(f"at most {len(partition.units) - 1} of {partition.described()} to skip")
        return _single(partition.without(partition.units[-self.count :]))


@dataclass(frozen=True)
class Named:
    """`stages:2+5`, `layers:3+7`: the units with these numbers, from 0."""

    unit: str
    numbers: tuple[int, ...]

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        units = Partition(partition.sizes, self.unit).units
        _check_numbers(self.numbers, self.unit, len(units) - 1)
        if len(set(self.numbers)) == len(units):
            raise _UnsuitableError("at least one layer to run")
        return _single(partition.without([units[number] for number in self.numbers]))


@dataclass(frozen=True)
class Lost:
    """`lost:3`, `lost:NAME`: a stage, or the stage of a lost node, as if it had no other replica."""

    node: str
    """a stage number or node name"""

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        stage = partition.stage_of_node.get(self.node)
        if stage is None and _is_number(self.node):
            stage = int(self.node)
        if stage is None:
            known = ", ".join(partition.stage_of_node) or "no node names known"
            raise _UnsuitableError(f"a stage number or a node name ({known})")
        _check_numbers([stage], "stages", len(partition.sizes) - 1)
        if stage == 0:
            raise _UnsuitableError("another stage than 0, which holds embedding and head")
        return _single(partition.without([partition.stages[stage]]))


@dataclass(frozen=True)
class Swap:
    """`swap:S`: stage S runs after stage S + 1."""

    stage: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Return the only path."""
        if len(partition.sizes) < 2:
            raise _UnsuitableError("a model of at least two stages")
        _check_numbers([self.stage], "stages", len(partition.sizes) - 2)
        return _single(partition.swapped([self.stage]))


@dataclass(frozen=True)
class Swaps:
    """`swaps:N`: N disjoint swaps of neighbouring stages."""

    count: int

    def draw(self, partition: Partition, draws: int, random: np.random.Generator) -> Draws:
        """Draw sets of swaps."""
        first, stages = int(partition.keep_first), len(partition.sizes)
        slots = stages - first - self.count
        """positions of swaps and unswapped stages: a swap occupies one slot for its two stages"""
        if self.count > slots:
            most = max(stages - first, 0) // 2
            raise _UnsuitableError(f"at most {most} swaps of {stages} stages{_first_kept(partition)}")

        def draw_one() -> tuple[int, ...]:
            return tuple(sorted(random.choice(slots, self.count, replace=False).tolist()))

        sets, complete = _distinct_sets(
            draw_one, combinations(range(slots), self.count), math.comb(slots, self.count), draws
        )
        # The swap in the n-th chosen slot follows n others, each of which took one slot for two stages.
        return Draws(
            tuple(partition.swapped([first + slot + before for before, slot in enumerate(chosen)]) for chosen in sets),
            complete,
        )


class _UnsuitableError(Exception):
    """An entry of `omit` is malformed, or does not apply to the model; the text is what was expected."""


Omission = FullModel | Random | Every | Last | Named | Lost | Swap | Swaps


def parse_omission(text: str) -> Omission:
    """Parse one entry of `omit`.

    Raises:
        InputError: unknown or malformed; the message names key, entry and expectation.

    """
    kind, sign, rest = text.partition(":")
    try:
        omission = _parsed(kind, rest) if sign or kind == "none" else None
    except _UnsuitableError as error:
        raise unexpected("omit", text, str(error)) from None
    if omission is None:
        raise unexpected("omit", text, GRAMMAR)
    return omission


def _parsed(kind: str, rest: str) -> Omission | None:
    match kind:
        case "none" if not rest:
            return FullModel()
        case "random":
            return Random(_share(rest))
        case "every":
            return Every(_count(rest, 2))
        case "last":
            return Last(_count(rest, 1))
        case "stages" | "layers":
            return Named(kind, tuple(_count(number, 0) for number in rest.split("+")))
        case "lost" if rest:
            return Lost(rest)
        case "swap":
            return Swap(_count(rest, 0))
        case "swaps":
            return Swaps(_count(rest, 1))
    return None


def draw(text: str, partition: Partition, draws: int, seed: int) -> Draws:
    """Draw the layer paths of an omission.

    Args:
        text: an entry of `omit`.
        partition: of the model.
        draws: number of different paths of a random omission; more draws extend fewer ones, unless they exhaust all
            paths.
        seed: of the draws; each omission has a separate generator.

    Raises:
        InputError: unknown, or not applicable to this model; the message names it.

    """
    omission = parse_omission(text)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    try:
        return omission.draw(partition, draws, np.random.Generator(np.random.PCG64([seed, number])))
    except _UnsuitableError as error:
        raise unexpected("omit", text, str(error)) from None


def _single(path: LayerPath) -> Draws:
    return Draws((path,), complete=True)


def _distinct_sets(
    draw_one: Callable[[], tuple[int, ...]], every: Iterator[tuple[int, ...]], number: int, wanted: int
) -> tuple[list[tuple[int, ...]], bool]:
    """Draw `wanted` different sets of `number` possible ones; all of them if there are no more."""
    if number <= wanted:
        return list(every), True
    found: dict[tuple[int, ...], None] = {}  # in the order of the draws
    while len(found) < wanted:
        found[draw_one()] = None
    return list(found), False


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise _UnsuitableError("a share between 0 and 1, exclusive")
    return share


def _count(text: str, least: int) -> int:
    if not _is_number(text) or int(text) < least:
        raise _UnsuitableError(f"an integer of at least {least}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _check_numbers(numbers: Sequence[int], unit: str, highest: int) -> None:
    for number in numbers:
        if number > highest:
            raise _UnsuitableError(f"{unit} from 0 to {highest}")


def _first_kept(partition: Partition) -> str:
    return " (keep_first=true exempts stage 0)" if partition.keep_first else ""
