"""How many random cases a property is tried on."""

from hypothesis import settings

THOROUGH = "thorough"
"""The profile with which all are tried: `pytest --hypothesis-profile=thorough`, or `python -m nox -s thorough`."""


def cases(thorough: int, usual: int) -> int:
    """The number of cases in a thorough run or in a usual one, which finds what is wrong more than now and then."""
    return thorough if settings.get_current_profile_name() == THOROUGH else usual
