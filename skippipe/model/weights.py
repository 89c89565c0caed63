"""Weights of one stage, from the safetensors files of a folder; no other tensor is read, and nothing is unpickled.

How tensors on disk map to those in memory is known to transformers (the experts of a Mixtral are many matrices there
and one here): its own loading gets a model of this stage's layers and their tensors.
"""

import contextlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from skippipe.errors import InputError, unexpected
from skippipe.model.families import Family, family_of
from skippipe.model.finite import describe_non_finite, is_finite
from skippipe.model.folder import weight_files
from skippipe.model.settings import one_line
from skippipe.model.stage_module import stage_config

if TYPE_CHECKING:
    from transformers import PretrainedConfig

FLOATS = ("F64", "F32", "F16", "BF16")
"""Types of weights, by the names of safetensors."""
_EXPERT = re.compile(r"(.+\.experts\.)(\d+)(\..+)")
"""Prefix, number and rest of the name of a tensor of experts that are stored separately."""


@dataclass(frozen=True)
class _Source:
    """The open files of a folder."""

    stated_by: Path
    files: Mapping[str, Any]
    """the open file that holds each tensor, by the tensor's name on disk"""
    paths: Mapping[str, Path]

    def file_of(self, name: str) -> Path:
        """The file to name in a message about a tensor, whose name in memory may differ from that on disk."""
        return self.paths.get(name, self.stated_by)


def stage_weights(
    config: "PretrainedConfig", folder: Path, *, layers: range, first: bool, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Read the weights of one stage.

    Args:
        config: of the full model.
        folder: with `model.safetensors`, or with several files and their index.
        layers: numbers of the stage's layers in the full model.
        first: whether it is stage 0, with embedding, final norm and head.
        dtype: of the result; weights are converted one at a time.

    Returns:
        The weights by their names in the full model, on the CPU, not memory-mapped; head and embedding are one tensor
        if the model ties them.

    Raises:
        InputError: a file is broken, or tensors are missing, too many, or of other shapes than the settings ask for;
            the message names file and tensor.

    """
    with contextlib.ExitStack() as stack:
        source = _open(folder, stack)
        _check_layers(source, config)
        _check_experts(source, config)
        given = _read(source, family_of(config.model_type), layers, first=first)
        loaded = _load(config, source, given, layers, first=first, dtype=dtype)
        files = {tensor.untyped_storage().data_ptr() for tensor in given.values()}
        # A tensor that needed no conversion is still mapped from the file, which may change.
        weights = {
            name: tensor.clone() if tensor.untyped_storage().data_ptr() in files else tensor
            for name, tensor in loaded.items()
        }
    if first and config.tie_word_embeddings:
        head, embedding = _tied_names(config)
        weights[head] = weights[embedding]
    return weights


def _open(folder: Path, stack: contextlib.ExitStack) -> _Source:
    """Open all files, of which only the headers are read."""
    found = weight_files(folder)
    files: dict[str, Any] = {}
    paths: dict[str, Path] = {}
    for path in found.paths:
        try:
            file = stack.enter_context(safe_open(path, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise InputError(file=path, expected="a complete safetensors file", found=one_line(error)) from None
        names = list(file.keys())
        files |= dict.fromkeys(names, file)
        paths |= dict.fromkeys(names, path)
    for name, path in (found.index or {}).items():
        if paths.get(name) != path:
            raise InputError(f"{path.name} does not hold it", key=name, file=found.stated_by)
    return _Source(found.stated_by, files, paths)


def _check_layers(source: _Source, config: "PretrainedConfig") -> None:
    family, layers = family_of(config.model_type), int(config.num_hidden_layers)
    for name in source.files:
        number = family.layer_of(name)
        if number is not None and number >= layers:
            reason = f"surplus, by the settings there are {layers} layers (num_hidden_layers)"
            raise InputError(reason, key=name, file=source.file_of(name))


def _check_experts(source: _Source, config: Any) -> None:
    """Raise `InputError` unless all experts are there and alike: what transformers makes of all would name none."""
    if family_of(config.model_type).router is None:
        return
    numbers: dict[tuple[str, str], set[int]] = {}
    sides = sorted((config.hidden_size, config.intermediate_size))
    for name, file in source.files.items():
        expert = _EXPERT.fullmatch(name)
        if expert is None:
            continue
        numbers.setdefault((expert[1], expert[3]), set()).add(int(expert[2]))
        _check_float(source, name)
        shape = list(file.get_slice(name).get_shape())
        if sorted(shape) != sides:
            expected = f"a {sides[0]} x {sides[1]} matrix by the settings"
            raise unexpected(name, f"shape {shape}", expected, source.file_of(name))
    for (before, after), found in numbers.items():
        for number in sorted(set(range(config.num_local_experts)) ^ found)[:1]:
            name = f"{before}{number}{after}"
            there = "surplus" if number in found else "missing"
            reason = f"{there}, by the settings there are {config.num_local_experts} experts"
            raise InputError(reason, key=name, file=source.file_of(name))


def _read(source: _Source, family: Family, layers: range, *, first: bool) -> dict[str, Tensor]:
    """Read a stage's tensors, under their names in a model of its layers alone.

    On stage 0 also those outside layers. Masks, which older versions saved as well, are not floating point and skipped.
    """
    given: dict[str, Tensor] = {}
    for name, file in source.files.items():
        number = family.layer_of(name)
        wanted = first if number is None else number in layers
        if wanted and file.get_slice(name).get_dtype() in FLOATS:
            tensor = file.get_tensor(name)
            _check_finite(tensor, source.paths[name], name)
            given[family.renumbered(name, lambda n: n - layers.start)] = tensor
    return given


def check_weights(folder: Path) -> None:
    """Raise `InputError` naming file and tensor if a folder's weights hold NaN or infinity; reads all of them once.

    Building a stage checks its own weights; this is for callers that build none.
    """
    with contextlib.ExitStack() as stack:
        source = _open(folder, stack)
        for name, file in source.files.items():
            if file.get_slice(name).get_dtype() in FLOATS:
                _check_finite(file.get_tensor(name), source.paths[name], name)


def _check_finite(tensor: Tensor, path: Path, name: str, dtype: str = "") -> None:
    if not is_finite(tensor):
        raise unexpected(name, describe_non_finite(tensor), f"finite numbers{dtype}", path)


def _load(  # noqa: PLR0913 - what a stage is
    config: "PretrainedConfig",
    source: _Source,
    given: Mapping[str, Tensor],
    layers: range,
    *,
    first: bool,
    dtype: torch.dtype,
) -> dict[str, Tensor]:
    """Have transformers convert a stage's tensors on disk to those in memory, and check that they are complete."""
    part = stage_config(config, layers)
    if not first:  # an embedding that it does not hold should take no memory: one token instead
        part.vocab_size, part.pad_token_id = 1, None
    family = family_of(config.model_type)
    model: Any = family.model_class()
    try:
        with quiet(), torch.random.fork_rng(devices=[]):
            model, report = model.from_pretrained(
                None,
                config=part,
                state_dict=dict(given),
                dtype=dtype,
                ignore_mismatched_sizes=True,  # they are reported
                output_loading_info=True,
            )
    except Exception as error:
        raise InputError(f"the weights do not fit the settings: {one_line(error)}", file=source.stated_by) from error
    _check(source, report, family, layers, first=first)
    loaded = {_full_name(family, name, layers): parameter.data for name, parameter in model.named_parameters()}
    if first and config.tie_word_embeddings:
        head, embedding = _tied_names(config)
        _check_tied(source, loaded[embedding], loaded.pop(head, None))
    converted = {
        name: tensor.to(dtype) for name, tensor in loaded.items() if first or family.layer_of(name) is not None
    }
    for name, tensor in converted.items():  # a finite weight may overflow in another type
        _check_finite(tensor, source.file_of(name), name, f" in {str(dtype).removeprefix('torch.')}")
    return converted


def _check(source: _Source, report: Mapping[str, Any], family: Family, layers: range, *, first: bool) -> None:
    """Raise `InputError` if tensors are missing, surplus or of other shapes; `report` is by transformers."""

    def named(names: Iterable[str]) -> list[str]:
        kept = [name for name in names if first or family.layer_of(name) is not None]
        return sorted(_full_name(family, name, layers) for name in kept)

    missing, surplus = named(report["missing_keys"]), named(report["unexpected_keys"])
    for name, found, expected in sorted(report["mismatched_keys"]):
        whole = _full_name(family, name, layers)
        raise unexpected(whole, list(found), f"shape {list(expected)} by the settings", source.file_of(whole))
    for name in missing[:1]:
        _check_float(source, name)
        raise InputError(f"missing{_and_more(missing)}", key=name, file=source.stated_by)
    for name in surplus[:1]:
        reason = f"surplus{_and_more(surplus)}: the model does not have it by its settings"
        raise InputError(reason, key=name, file=source.file_of(name))
    if report["error_msgs"]:
        raise InputError("; ".join(map(str, report["error_msgs"])), file=source.stated_by)


def _check_float(source: _Source, name: str) -> None:
    """Refuse a tensor that is not floating point."""
    kind = source.files[name].get_slice(name).get_dtype() if name in source.files else None
    if kind is not None and kind not in FLOATS:
        raise unexpected(name, kind, f"one of {', '.join(FLOATS)}", source.file_of(name))


def _check_tied(source: _Source, embedding: Tensor, head: Tensor | None) -> None:
    """Refuse a head that differs from the embedding: transformers would not tie them."""
    if head is not None and not torch.equal(head, embedding):
        hint = "+model.tie_word_embeddings=false keeps them apart"
        raise InputError("head and embedding differ", key="tie_word_embeddings", file=source.stated_by, hint=hint)


def _tied_names(config: "PretrainedConfig") -> tuple[str, str]:
    """Names of the weights of head and embedding."""
    family = family_of(config.model_type)
    return f"{family.head}.weight", f"{family.body}.{family.embedding}.weight"


def _full_name(family: Family, name: str, layers: range) -> str:
    """Name in the full model of a tensor of a model of these layers alone."""
    return family.renumbered(name, lambda n: n + layers.start)


def _and_more(names: list[str]) -> str:
    return f" (and {len(names) - 1} more)" if len(names) > 1 else ""


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Within: transformers shows no progress and no report, which is checked instead."""
    from transformers import utils  # noqa: PLC0415 - slow

    logging: Any = utils.logging
    level, shown = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shown:
            logging.enable_progress_bar()
