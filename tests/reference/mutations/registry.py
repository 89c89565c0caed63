"""Registers mutations by name: those of rules and those of the form of a plan."""

from collections.abc import Callable
from random import Random
from typing import Any

from reference.instances import Json

Mutation = Callable[[Random, Json], None]

RULES: dict[str, Mutation] = {}
FORMAT: dict[str, Mutation] = {}


class NothingToChangeError(Exception):
    """The plan has nothing that this mutation could change."""


def rule(mutate: Mutation) -> Mutation:
    """Register a mutation that breaks a rule, or may break one."""
    RULES[mutate.__name__] = mutate
    return mutate


def form(mutate: Mutation) -> Mutation:
    """Register a mutation that breaks the form."""
    FORMAT[mutate.__name__] = mutate
    return mutate


def pick(rng: Random, items: list[Any]) -> Any:
    """One of the items, if there is any."""
    if not items:
        raise NothingToChangeError
    return rng.choice(items)
