"""What is left out of a model: a small language, and the ways through the layers that it stands for. No torch."""

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, combinations, pairwise

import numpy as np

from skippipe.errors import InputError

LayerPath = tuple[int, ...]
"""the numbers of the layers that are run, in the order in which they are"""
GRAMMAR = "none, random:SHARE, every:K, last:N, stages:S+S, layers:L+L, lost:STAGE, lost:NODE, swap:STAGE or swaps:N"


@dataclass(frozen=True)
class Partition:
    """How a model's layers are dealt to stages, and what is asked of the words that count."""

    sizes: tuple[int, ...]
    """layers of each stage"""
    unit: str = "layers"
    """layers or stages: what `random`, `every` and `last` count"""
    keep_first: bool = True
    """stage 0 is left alone by `random`, `every` and `swaps`"""
    stage_of_node: Mapping[str, int] = field(default_factory=dict)
    """by the names that the plan has"""

    @property
    def layers(self) -> int:
        """Layers of the model."""
        return sum(self.sizes)

    @property
    def stages(self) -> list[range]:
        """Numbers of each stage's layers."""
        return [range(begin, end) for begin, end in pairwise(accumulate(self.sizes, initial=0))]

    @property
    def units(self) -> list[range]:
        """What is counted, as the numbers of its layers."""
        return self.stages if self.unit == "stages" else [range(layer, layer + 1) for layer in range(self.layers)]

    @property
    def omittable(self) -> list[range]:
        """Those units that may be left out at random."""
        return [unit for unit in self.units if not (self.keep_first and unit.start < self.sizes[0])]

    def without(self, units: Sequence[range]) -> LayerPath:
        """The way through all layers but those of some units."""
        left_out = {layer for unit in units for layer in unit}
        return tuple(layer for layer in range(self.layers) if layer not in left_out)

    def swapped(self, stages: Sequence[int]) -> LayerPath:
        """The way on which each of these stages comes after the next one; no two of them are neighbours."""
        order = list(range(len(self.sizes)))
        for stage in stages:
            order[stage : stage + 2] = [stage + 1, stage]
        return tuple(layer for stage in order for layer in self.stages[stage])


@dataclass(frozen=True)
class Draws:
    """The ways that a word stands for."""

    paths: tuple[LayerPath, ...]
    """no two alike"""
    complete: bool
    """whether these are all that there are: then another draw would give the same ones"""


@dataclass(frozen=True)
class FullModel:
    """`none`: every layer in its place."""

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        return _single(partition.without([]))


@dataclass(frozen=True)
class Random:
    """`random:SHARE`: so many units, whichever they are."""

    share: float

    def draw(self, partition: Partition, draws: int, random: np.random.Generator) -> Draws:
        """Draw sets of units."""
        count, omittable = math.floor(self.share * len(partition.units) + 0.5), partition.omittable
        if count > len(omittable) or count == len(partition.units):
            raise InputError(
                f"{count} of {len(partition.units)} {partition.unit} would be left out, at most "
                f"{min(len(omittable), len(partition.units) - 1)} can be{_first_stays(partition)}"
            )
        if count == 0:
            raise InputError(
                f"comes to none of {len(partition.units)} {partition.unit}, at least half of one is expected"
            )

        def one() -> tuple[int, ...]:
            return tuple(sorted(random.choice(len(omittable), count, replace=False).tolist()))

        sets, complete = _distinct_sets(
            one, combinations(range(len(omittable)), count), math.comb(len(omittable), count), draws
        )
        return Draws(tuple(partition.without([omittable[place] for place in chosen]) for chosen in sets), complete)


@dataclass(frozen=True)
class Every:
    """`every:K`: the K-th unit, the 2 K-th and so on, counted from 1."""

    step: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        chosen = [unit for unit in partition.units[self.step - 1 :: self.step] if unit in partition.omittable]
        if not chosen:
            raise InputError(
                f"nothing would be left out of {len(partition.units)} {partition.unit}{_first_stays(partition)}"
            )
        return _single(partition.without(chosen))


@dataclass(frozen=True)
class Last:
    """`last:N`: early exit, the last N units are not run."""

    count: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        if self.count >= len(partition.units):
            raise InputError(
                f"at most {len(partition.units) - 1} of {len(partition.units)} {partition.unit} can be left out"
            )
        return _single(partition.without(partition.units[-self.count :]))


@dataclass(frozen=True)
class Named:
    """`stages:2+5`, `layers:3+7`: these, by their numbers from 0."""

    unit: str
    numbers: tuple[int, ...]

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        units = Partition(partition.sizes, self.unit).units
        _check_numbers(self.numbers, self.unit, len(units) - 1)
        if len(set(self.numbers)) == len(units):
            raise InputError("at least one layer has to be run")
        return _single(partition.without([units[number] for number in self.numbers]))


@dataclass(frozen=True)
class Lost:
    """`lost:3`, `lost:NAME`: the stage of a node that is gone, as if nobody else served it."""

    node: str
    """a stage's number, or a node's name"""

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        stage = partition.stage_of_node.get(self.node)
        if stage is None and _is_number(self.node):
            stage = int(self.node)
        if stage is None:
            known = ", ".join(partition.stage_of_node) or "no names of nodes are known here"
            raise InputError(f"the number of a stage or the name of a node is expected ({known})")
        _check_numbers([stage], "stages", len(partition.sizes) - 1)
        if stage == 0:
            raise InputError("stage 0 holds embedding and head: without it there is nothing to evaluate")
        return _single(partition.without([partition.stages[stage]]))


@dataclass(frozen=True)
class Swap:
    """`swap:S`: stage S comes after stage S + 1."""

    stage: int

    def draw(self, partition: Partition, _draws: int, _random: np.random.Generator) -> Draws:
        """Give the one way."""
        if len(partition.sizes) < 2:
            raise InputError("there is one stage, and nothing that it could be swapped with")
        _check_numbers([self.stage], "stages", len(partition.sizes) - 2)
        return _single(partition.swapped([self.stage]))


@dataclass(frozen=True)
class Swaps:
    """`swaps:N`: N swaps of neighbouring stages, none of which takes part in two."""

    count: int

    def draw(self, partition: Partition, draws: int, random: np.random.Generator) -> Draws:
        """Draw sets of swaps."""
        first, stages = int(partition.keep_first), len(partition.sizes)
        places = stages - first - self.count
        """where a swap, or a stage that stays, can stand: a swap takes one place in place of two"""
        if self.count > places:
            raise InputError(
                f"{stages} stages have room for {max(stages - first, 0) // 2} swaps at most{_first_stays(partition)}"
            )

        def one() -> tuple[int, ...]:
            return tuple(sorted(random.choice(places, self.count, replace=False).tolist()))

        sets, complete = _distinct_sets(
            one, combinations(range(places), self.count), math.comb(places, self.count), draws
        )
        # The swap at the n-th chosen place comes after n others, each of which took a place for two stages.
        return Draws(
            tuple(
                partition.swapped([first + place + before for before, place in enumerate(chosen)]) for chosen in sets
            ),
            complete,
        )


Omission = FullModel | Random | Every | Last | Named | Lost | Swap | Swaps


def parse_omission(text: str) -> Omission:
    """Make sense of one word of `omit`.

    Raises:
        InputError: it is none; the message names key, word, and what is expected.

    """
    kind, sign, rest = text.partition(":")
    try:
        omission = _parsed(kind, rest) if sign or kind == "none" else None
    except InputError as error:
        raise InputError(f"omit: {text!r}: {error}") from None
    if omission is None:
        raise InputError(f"omit: {text!r} is not known, {GRAMMAR} is expected")
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
    """Draw the ways that a word stands for.

    Args:
        word: of `omit`.
        cut: of the model.
        draws: how many different ones, where it is a random one; more draws begin with the same ones, unless they
            come to all that there are.
        seed: of the draws; each word has a generator of its own.

    Raises:
        InputError: no such word, or one that cannot be followed with this model; the message names it.

    """
    omission = parse_omission(text)
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")
    try:
        return omission.draw(partition, draws, np.random.Generator(np.random.PCG64([seed, number])))
    except InputError as error:
        raise InputError(f"omit: {text!r}: {error}") from None


def _single(path: LayerPath) -> Draws:
    return Draws((path,), complete=True)


def _distinct_sets(
    one: Callable[[], tuple[int, ...]], every: Iterator[tuple[int, ...]], number: int, wanted: int
) -> tuple[list[tuple[int, ...]], bool]:
    """Give as many different ones of `number` as are wanted, drawn one by one; all, where these are no more."""
    if number <= wanted:
        return list(every), True
    found: dict[tuple[int, ...], None] = {}  # in the order of the draws
    while len(found) < wanted:
        found[one()] = None
    return list(found), False


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = math.nan
    if not 0 < share < 1:
        raise InputError("a share of more than 0 and less than 1 is expected")
    return share


def _count(text: str, least: int) -> int:
    if not _is_number(text) or int(text) < least:
        raise InputError(f"an integer of at least {least} is expected, not {text!r}")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdecimal() and len(text) < 10


def _check_numbers(numbers: Sequence[int], unit: str, highest: int) -> None:
    for number in numbers:
        if number > highest:
            raise InputError(f"{number} is too high, the {unit} that it may name go from 0 to {highest}")


def _first_stays(partition: Partition) -> str:
    return " (keep_first=true: stage 0 stays as it is)" if partition.keep_first else ""
