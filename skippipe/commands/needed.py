"""What a command needs beyond the base of the package."""

from collections.abc import Sequence
from importlib.util import find_spec

from skippipe.errors import InputError


def check_installed(what: str, packages: Sequence[str]) -> None:
    """Raise `InputError` saying that `what` needs packages that are not there, where some are not."""
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        raise InputError(
            f"{what} needs {', '.join(missing)}, which is not installed here: pip install 'skippipe[train]' brings it"
        )
