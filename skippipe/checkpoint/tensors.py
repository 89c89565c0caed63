"""Tensors of a checkpoint: one safetensors file per writing rank, read by tensor name."""

import contextlib
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from skippipe.checkpoint.manifest import Manifest
from skippipe.errors import InputError, unexpected, unreadable
from skippipe.model.finite import describe_non_finite, is_finite

TENSORS = "tensors"
"""folder name within a checkpoint's folder"""
_NAME = re.compile(rf"{TENSORS}/rank-\d{{5,}}\.safetensors")
_SYSTEM = re.compile(r"\(os error (\d+)\)")


def tensor_file(rank: int) -> str:
    """Path of a rank's file within a checkpoint's folder."""
    return f"{TENSORS}/rank-{rank:05d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write contiguous CPU tensors and fsync; raises `OSError`."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise _system_error(error, path) from None
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _system_error(error: SafetensorError, path: Path) -> OSError:
    """The OS error that safetensors wraps into its own message."""
    code = _SYSTEM.search(str(error))
    return OSError(int(code[1]), os.strerror(int(code[1])), str(path)) if code else OSError(f"{path}: {error}")


class TensorFiles:
    """The open tensor files of a checkpoint with a verified manifest."""

    def __init__(self, files: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        """Take the open file of each tensor, by name, and its path."""
        self._files, self._paths = files, paths

    def __contains__(self, name: str) -> bool:
        """Whether there is such a tensor."""
        return name in self._files

    def __iter__(self) -> Iterator[str]:
        """Names of all tensors."""
        return iter(self._files)

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor."""
        return tuple(self._files[name].get_slice(name).get_shape())

    def read(self, name: str) -> Tensor:
        """Read a tensor; it may be mapped from the file: read-only, valid while the files are open."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def check_finite(self) -> None:
        """Raise `InputError` naming file and tensor if any value is NaN or infinite."""
        for name, path in self._paths.items():
            if not is_finite(self.read(name)):
                raise unexpected(name, describe_non_finite(self.read(name)), "finite numbers", path)


@contextlib.contextmanager
def open_tensors(folder: Path, manifest: Manifest) -> Iterator[TensorFiles]:
    """Open the tensor files listed in a checkpoint's manifest, reading only their headers.

    Raises:
        InputError: not a safetensors file, or a tensor in two files.

    """
    files: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:
        for path in (folder / name for name in manifest.files if _NAME.fullmatch(name)):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
                names = list(file.keys())
            except (SafetensorError, OSError) as error:
                raise unreadable(path, error) from None
            for name in names:
                if name in files:
                    raise InputError(f"is also in {paths[name].name}", key=name, file=path)
                files[name], paths[name] = file, path
        yield TensorFiles(files, paths)
