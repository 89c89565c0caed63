"""How many random cases a property is tried on, and how many settings a test."""

from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")
THOROUGH = "thorough"
"""The profile with which all are tried: `pytest --hypothesis-profile=thorough`, or `python -m nox -s thorough`."""


def cases(thorough: T, usual: T) -> T:
    """What a thorough run tries, or a usual one, which finds what is wrong more than now and then."""
    return thorough if settings.get_current_profile_name() == THOROUGH else usual
