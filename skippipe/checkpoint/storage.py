"""Files of torch.distributed.checkpoint as they are read here: the index, a pickle, only from checked bytes."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.distributed.checkpoint.filesystem import FileSystem, FileSystemReader

from skippipe.checkpoint.manifest import Manifest, checked_bytes

INDEX = ".metadata"


def checked_reader(path: Path, tensors: str, manifest: Manifest) -> FileSystemReader:
    """Make a reader of the folder `tensors` of a checkpoint, whose index is the one that the manifest speaks of."""
    reader = FileSystemReader(path / tensors)
    reader.fs = _Files(checked_bytes(path, f"{tensors}/{INDEX}", manifest))
    return reader


class _Files(FileSystem):
    """Gives the index from memory, whatever lies on the disk by now."""

    def __init__(self, index: bytes) -> None:
        self._index = index

    @contextmanager
    def create_stream(self, path: object, mode: str) -> Iterator[io.IOBase]:
        """Open a file."""
        if Path(str(path)).name == INDEX:
            yield io.BytesIO(self._index)
            return
        with super().create_stream(str(path), mode) as stream:
            yield stream
