"""A model's folder as transformers writes it: its `config.json`, and which files hold its weights. No torch."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from skippipe.errors import InputError, unexpected, unreadable
from skippipe.files import check_utf8, read_json_object
from skippipe.model.families import family_of

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "spiece.model", "vocab.json", "vocab.txt")
"""Files of a tokenizer's vocabulary; a folder with none of them has no tokenizer."""
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.pkl")
FULLY_HASHED = 256 * 2**20
"""Bytes up to which a file is hashed in full; a larger one is sampled."""
PART, STRIDE = 64 * 2**10, 8 * 2**20
"""Of a larger file, the first `PART` bytes of every `STRIDE` are hashed: a sample of every large tensor."""


@dataclass(frozen=True)
class WeightFiles:
    """Where the tensors of a model are."""

    stated_by: Path
    """the only file, or the index of several"""
    paths: tuple[Path, ...]
    """the safetensors files"""
    index: Mapping[str, Path] | None
    """the file of each tensor by name, if there is an index"""


def find_folder(name: object) -> Path:
    """Check that `model.folder` is a folder with a configuration; raises `InputError` if it is not."""
    if not isinstance(name, str) or not name:
        raise unexpected("model.folder", name, f"a folder with {CONFIG} and safetensors files")
    folder = Path(name)
    if not folder.is_dir():
        hint = "nothing is downloaded here, a model of the hub is fetched by: hf download NAME --local-dir FOLDER"
        raise InputError(f"no such folder: {name}", key="model.folder", hint=hint)
    if not (folder / CONFIG).is_file():
        raise unexpected("model.folder", name, f"a folder with {CONFIG}")
    check_utf8(folder, "model.folder")
    return folder


def read_config(folder: Path) -> dict[str, Any]:
    """Read a folder's `config.json`: all its keys, settings of the model or not.

    Raises:
        InputError: it cannot be read, or is of an architecture or a kind of weights that cannot be used.

    """
    path = folder / CONFIG
    content = read_json_object(str(path))
    try:
        family_of(content.get("model_type"))
    except InputError as error:
        raise unexpected("model_type", error.found, str(error.expected), path, error.hint) from None
    if content.get("quantization_config") is not None:
        raise unexpected("quantization_config", "quantized ones", "plain floating-point weights", path)
    return content


def own_tokenizer(folder: Path) -> str | None:
    """A model's own tokenizer, as a value of `data.tokenizer`; None: there is none in its folder."""
    return str(folder) if any((folder / name).is_file() for name in TOKENIZERS) else None


def weight_files(folder: Path) -> WeightFiles:
    """Find a folder's safetensors files; raises `InputError` if there are none, or one is missing."""
    if (folder / WEIGHTS).is_file():
        return WeightFiles(folder / WEIGHTS, (folder / WEIGHTS,), None)
    if (folder / INDEX).is_file():
        return _indexed(folder / INDEX)
    pickles = sorted(path.name for pattern in PICKLES for path in folder.glob(pattern))
    if pickles:
        found, hint = (
            f"weights in pickle only ({', '.join(pickles[:3])})",
            "pickle can run any code and is never opened here",
        )
        raise InputError(file=folder, expected=WEIGHTS, found=found, hint=hint)
    raise InputError(file=folder, expected=f"{WEIGHTS} or {INDEX}", found="no weights")


def _indexed(path: Path) -> WeightFiles:
    weight_map = read_json_object(str(path)).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise unexpected("weight_map", weight_map, "the file of each tensor", path)
    index: dict[str, Path] = {}
    for tensor, file in weight_map.items():
        if not isinstance(file, str) or Path(file).name != file or not file.endswith(".safetensors"):
            raise unexpected(f"weight_map.{tensor}", file, "a safetensors file beside it", path)
        index[tensor] = path.with_name(file)
    paths = tuple(sorted(set(index.values())))
    for file in paths:
        if not file.is_file():
            raise InputError(f"no such file: {file.name}", file=path)
    return WeightFiles(path, paths, index)


def weights_sha256(folder: Path) -> str:
    """Hash of a folder's weights, in hexadecimal: differs where two ranks would start from different ones.

    Made of names, sizes and contents of the files; of a file above `FULLY_HASHED` bytes only samples are hashed, so
    that a hundred gigabytes take seconds. It does not detect tampering.
    """
    digest = hashlib.sha256()
    for path in weight_files(folder).paths:
        try:
            size = path.stat().st_size
            digest.update(f"{path.name}:{size}\n".encode())
            with path.open("rb") as file:
                if size <= FULLY_HASHED:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
                    continue
                for start in range(0, size, STRIDE):
                    file.seek(start)
                    digest.update(file.read(PART))
        except OSError as error:
            raise unreadable(path, error) from None
    return digest.hexdigest()
