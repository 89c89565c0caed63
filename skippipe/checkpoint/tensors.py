"""Tensors of a checkpoint: one safetensors file for each rank that gave any, read by name whatever rank wrote it."""

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
from skippipe.errors import InputError
from skippipe.model.finite import is_finite, odd_number

TENSORS = "tensors"
"""within the folder of a checkpoint"""
_NAME = re.compile(rf"{TENSORS}/rank-\d{{5,}}\.safetensors")
_SYSTEM = re.compile(r"\(os error (\d+)\)")


def tensor_file(rank: int) -> str:
    """Name of a rank's file within the folder of a checkpoint."""
    return f"{TENSORS}/rank-{rank:05d}.safetensors"


def write_tensors(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write tensors, on the CPU and contiguous, and see that they have reached the disk; raises `OSError`."""
    try:
        save_file(dict(tensors), path)
    except SafetensorError as error:
        raise _system_error(error, path) from None
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _system_error(error: SafetensorError, path: Path) -> OSError:
    """What the system has said, which safetensors puts into a text of its own."""
    code = _SYSTEM.search(str(error))
    return OSError(int(code[1]), os.strerror(int(code[1])), str(path)) if code else OSError(f"{path}: {error}")


class TensorFiles:
    """The open tensor files of a checkpoint whose manifest has been checked."""

    def __init__(self, files: Mapping[str, Any], paths: Mapping[str, Path]) -> None:
        """Take for each tensor, by name, the open file that holds it and that file's path."""
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
        """Give a tensor, which may lie in the mapped file: for reading, as long as the files are open."""
        tensor: Tensor = self._files[name].get_tensor(name)
        return tensor

    def check_finite(self) -> None:
        """Raise `InputError` naming file and tensor where one holds NaN or infinity."""
        for name, path in self._paths.items():
            if not is_finite(self.read(name)):
                raise InputError(f"{path}: {name}: expected finite numbers, got {odd_number(self.read(name))}")


@contextlib.contextmanager
def open_tensors(folder: Path, manifest: Manifest) -> Iterator[TensorFiles]:
    """Open the tensor files that a checkpoint's manifest names; of each, only the header is read.

    Raises:
        InputError: a file is no safetensors file, or two hold the same tensor.

    """
    files: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    with contextlib.ExitStack() as stack:
        for path in (folder / name for name in manifest.files if _NAME.fullmatch(name)):
            try:
                file = stack.enter_context(safe_open(path, framework="pt"))
                names = list(file.keys())
            except (SafetensorError, OSError) as error:
                raise InputError(f"{path}: cannot be read: {error}") from None
            for name in names:
                if name in files:
                    raise InputError(f"{path}: holds {name}, which {paths[name].name} holds already")
                files[name], paths[name] = file, path
        yield TensorFiles(files, paths)
