"""Write a full model as the folder that transformers reads: configuration, safetensors, tokenizer."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from tokenizers import Tokenizer
from torch import Tensor

from skippipe.data.tokenizer import END_OF_TEXT
from skippipe.errors import unexpected, unwritable
from skippipe.files import check_utf8, sync_folder
from skippipe.model.families import family_of
from skippipe.model.finite import describe_non_finite
from skippipe.model.settings import model_config
from skippipe.model.weights import quiet

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel


@dataclass(frozen=True)
class Exported:
    """What was written."""

    parameters: int
    """tied weights once"""
    bytes: int
    """of all files together"""


def export_model(
    settings: Mapping[str, Any],
    load: Callable[[dict[str, Tensor]], None],
    tokenizer_json: str | None,
    output: Path,
    dtype: torch.dtype,
) -> Exported:
    """Write a model, completely or not at all.

    Args:
        settings: the model's, by `plain_settings`.
        load: fills tensors in place, given by the names of transformers' state dict; converts to their type.
        tokenizer_json: the tokenizer, in the format of `tokenizers`; None: none is written.
        output: the folder, which must not exist yet or be empty.
        dtype: of the weights.

    Raises:
        InputError: the folder cannot be written, the weights are not finite in `dtype`, or the tokenizer has tokens
            beyond the model's vocabulary.

    """
    config = _config_to_read(settings)
    tokenizer: Any = None if tokenizer_json is None else Tokenizer.from_str(tokenizer_json)
    if tokenizer is not None:
        _check_words(tokenizer, config)
    special = {} if tokenizer is None else _special_tokens(tokenizer, config)
    if "eos_token" in special:
        config.eos_token_id = _with_end(config.eos_token_id, tokenizer.token_to_id(special["eos_token"]))
    with new_folder(output) as folder, quiet():
        model = _filled(config, load, dtype)
        model.save_pretrained(folder)
        if tokenizer is not None:
            _save_tokenizer(tokenizer, special, config.max_position_embeddings, folder)
        parameters = sum(parameter.numel() for parameter in model.parameters())
        return Exported(parameters, sum(path.stat().st_size for path in folder.iterdir()))


def _config_to_read(settings: Mapping[str, Any]) -> Any:
    """Make the configuration for readers of the folder: settings for training only are off."""
    config: Any = model_config(settings)
    config.use_cache = True
    if hasattr(config, "output_router_logits"):
        config.output_router_logits = False  # generating text fails with it
    return config


def _filled(
    config: "PretrainedConfig", load: Callable[[dict[str, Tensor]], None], dtype: torch.dtype
) -> "PreTrainedModel":
    """Build the full model, once in memory, and have it filled."""
    with torch.device("meta"):
        model: Any = family_of(config.model_type).model_class()(config)
    model.to(dtype).to_empty(device="cpu")
    model.tie_weights()
    state: dict[str, Tensor] = model.state_dict()
    for tensor in state.values():
        tensor.fill_(float("nan"))  # to detect tensors that are never filled
    load(state)
    for name, tensor in state.items():
        if not tensor.isfinite().all():
            hint = "dtype=float32 has the widest range"
            raise unexpected(
                name, describe_non_finite(tensor), f"finite numbers in {str(dtype).removeprefix('torch.')}", hint=hint
            )
    filled: PreTrainedModel = model
    return filled


def _check_words(tokenizer: Any, config: Any) -> None:
    words: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    word = max(words, key=words.__getitem__)
    if words[word] >= config.vocab_size:
        expected, hint = f"tokens below model.vocab_size ({config.vocab_size})", "it is not the model's tokenizer"
        raise unexpected("tokenizer", f"{words[word]} for {word!r}", expected, hint=hint)


def _with_end(stated: Any, end: int) -> Any:
    """End-of-text tokens: those stated, if the right one is among them, else that one."""
    return stated if end in (stated if isinstance(stated, list) else [stated]) else end


def _special_tokens(tokenizer: Any, config: Any) -> dict[str, str]:
    """Beginning, end and padding tokens: those that the configuration names, if they are special tokens.

    A configuration left at its defaults may name any token as the end of a text; corpora then have the usual one.
    """
    special = {number: token.content for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    found: dict[str, str] = {}
    for name in ("bos_token", "eos_token", "pad_token"):
        stated = getattr(config, f"{name}_id")
        for number in stated if isinstance(stated, list) else [stated]:
            if number in special:
                found.setdefault(name, special[number])
    usual = next((token for token in END_OF_TEXT if tokenizer.token_to_id(token) is not None), None)
    return found if usual is None else {"eos_token": usual} | found


def _save_tokenizer(tokenizer: Any, special: Mapping[str, str], positions: int, folder: Path) -> None:
    """Write a tokenizer so that `AutoTokenizer` reads it as it is."""
    from transformers import PreTrainedTokenizerFast  # noqa: PLC0415 - slow

    make: Any = PreTrainedTokenizerFast
    wrapped = make(tokenizer_object=tokenizer, model_max_length=positions, **special)
    wrapped.save_pretrained(folder)
    if not _read_alike(tokenizer, folder):
        # For some architectures AutoTokenizer uses a pre-tokenizer of its own, whatever the file says, unless the file
        # names a custom class. An empty one keeps it from both: the file decides.
        wrapped.init_kwargs["auto_map"] = {"AutoTokenizer": [None, None]}
        wrapped.save_pretrained(folder)


def _read_alike(tokenizer: Any, folder: Path) -> bool:
    """Whether transformers reads the tokenizer as it was written."""
    from transformers import AutoTokenizer  # noqa: PLC0415 - slow

    read: Any = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    ours, theirs = (json.loads(x.to_str()) for x in (tokenizer, read.backend_tokenizer))
    return all(ours[part] == theirs[part] for part in ("normalizer", "pre_tokenizer", "model", "decoder"))


@contextlib.contextmanager
def new_folder(output: Path) -> Iterator[Path]:
    """Within: a hidden staging folder next to `output`, renamed to it at the end; an error leaves nothing behind.

    Raises:
        InputError: `output` is there already and not empty, or the disk takes no more; the message names it.

    """
    check_new_folder(output)
    try:
        with _staging_beside(output) as staging:
            yield staging
            for path in staging.iterdir():
                _sync(path)
            sync_folder(staging)
            staging.rename(output)  # over an empty folder, if there is one; never over one with files in it
        sync_folder(output.parent)
    except OSError as error:
        raise unwritable(output, error, "output") from None
    except SafetensorError as error:  # what safetensors makes of an OSError
        raise unwritable(output, error, "output") from None


def check_new_folder(output: Path) -> None:
    """Raise `InputError` unless `output` can become a new folder: called before the work whose result goes there."""
    check_utf8(output, "output")
    if output.is_dir() and any(output.iterdir()):
        raise unexpected("output", f"{output} with files in it", "a new or empty folder")
    if output.exists() and not output.is_dir():
        raise unexpected("output", f"the file {output}", "a new or empty folder")
    if not output.parent.is_dir():
        raise unwritable(output, f"the folder {output.parent} does not exist", "output")
    try:
        with _staging_beside(output):
            pass
    except OSError as error:
        raise unwritable(output, error, "output") from None


@contextlib.contextmanager
def _staging_beside(output: Path) -> Iterator[Path]:
    """Within: an empty hidden folder next to `output`, removed at the end if it still exists."""
    staging = output.with_name(f".{output.name[:200]}.{os.getpid()}.tmp")
    shutil.rmtree(staging, ignore_errors=True)
    staging.mkdir()
    try:
        yield staging
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())
