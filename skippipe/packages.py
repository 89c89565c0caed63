"""Packages that only some functions need, in the extras of the installation."""

from collections.abc import Sequence
from importlib.util import find_spec

from skippipe.errors import InputError


def check_installed(what: str, packages: Sequence[str]) -> None:
    """Raise `InputError` if packages that `what` needs are missing; its hint names the extra that brings them."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        extra = "plot" if missing == ["matplotlib"] else "train"
        reason, hint = f"requires {', '.join(missing)} (not installed)", f"pip install 'skippipe[{extra}]'"
        raise InputError(reason, key=what, hint=hint)
