"""Models out: what is exported is what was trained, to whoever reads it with transformers alone."""

import errno
import json
import os
import socket
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from model.folders import WEIGHTS, parts_in, read_full_model, write_model
from model.small import MODELS, config_of, logits_of, parts_of, state_of, tokens
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor

from skippipe.errors import InputError
from skippipe.model.export import export_model
from skippipe.model.families import FAMILIES
from skippipe.model.settings import config_sha256, model_config, plain_settings
from skippipe.model.weights import quiet

TOKENIZER = (resources.files("skippipe.data") / "tokenizer.json").read_text(encoding="utf-8")
TEXT = "We the people of  the United States\n\n  1961, é — 日本!\t<|endoftext|>Fellow-Citizens:"
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test has asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


class Loading:
    """Fills tensors from a state dict, and notes which."""

    def __init__(self, state: dict[str, Tensor]) -> None:
        self.state = state
        self.filled: set[str] = set()

    def __call__(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            tensor.copy_(self.state[name])
            self.filled.add(name)


def test_of_every_architecture_the_logits_are_those_of_the_parts(tmp_path: Path) -> None:
    for name in MODELS:
        parts = parts_of(config_of(name), [1, 1, 2])
        loading = Loading(state_of(parts))
        exported = export_model(plain_settings(config_of(name)), loading, None, tmp_path / name, torch.float32)
        assert loading.filled == loading.state.keys()
        full_model = read_full_model(tmp_path / name)
        given = tokens(2, 16)
        with torch.no_grad():
            assert torch.equal(full_model(given).logits, logits_of(parts, given)), name
        assert exported.parameters == sum(parameter.numel() for parameter in full_model.parameters())
        assert exported.bytes == sum(path.stat().st_size for path in (tmp_path / name).iterdir())
        assert not list((tmp_path / name).glob("*token*"))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(MODELS), "nothing is left beside"


@pytest.mark.parametrize("name", [name for name in MODELS if name not in {"llama", "qwen2", "qwen3"}])
def test_in_and_out_again_is_the_same(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path / "in")
    parts = parts_in(tmp_path / "in", [2, 2])
    settings = plain_settings(model_config({"folder": str(tmp_path / "in")}))
    export_model(settings, Loading(state_of(parts)), None, tmp_path / "out", torch.float32)
    first, second = (load_file(tmp_path / folder / WEIGHTS) for folder in ("in", "out"))
    assert first.keys() == second.keys()
    assert all(torch.equal(first[key], second[key]) for key in first)
    again = model_config({"folder": str(tmp_path / "out"), **training_only(name)})
    assert config_sha256(again) == config_sha256(config_of(name))
    read = read_full_model(tmp_path / "out").config
    assert read.use_cache
    assert not getattr(read, "output_router_logits", False)


def training_only(name: str) -> dict[str, Any]:
    return {"output_router_logits": True} if name == "mixtral" else {}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_types(dtype: torch.dtype, tmp_path: Path) -> None:
    state = state_of(parts_of(config_of("mixtral"), [4], dtype=torch.float64))
    export_model(plain_settings(config_of("mixtral")), Loading(state), None, tmp_path / "out", dtype)
    full_model = read_full_model(tmp_path / "out")
    assert full_model.dtype == dtype
    assert all(torch.equal(tensor, state[name].to(dtype)) for name, tensor in full_model.state_dict().items())


@pytest.mark.parametrize("name", FAMILIES)
def test_the_tokenizer_is_read_as_it_was(name: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    config = config_of(name, vocab_size=1024, pad_token_id=None)  # the end of a text is left at its default: 2
    export_model(
        plain_settings(config), Loading(state_of(parts_of(config, [4]))), TOKENIZER, tmp_path / "out", torch.float32
    )
    read = AutoTokenizer.from_pretrained(tmp_path / "out")
    ours = Tokenizer.from_str(TOKENIZER)
    assert read(TEXT)["input_ids"] == ours.encode(TEXT).ids
    assert read.decode(read(TEXT)["input_ids"]) == TEXT
    assert (read.eos_token, read.eos_token_id) == ("<|endoftext|>", ours.token_to_id("<|endoftext|>"))
    assert read.model_max_length == 64
    full_model = read_full_model(tmp_path / "out")
    assert full_model.config.eos_token_id == full_model.generation_config.eos_token_id == read.eos_token_id
    given = read("We the people of", return_tensors="pt")
    with quiet(), torch.no_grad():
        longer = full_model.eval().generate(**given, max_new_tokens=4, do_sample=False, pad_token_id=0)
    assert longer.shape[1] > given["input_ids"].shape[1]


def test_several_tokens_that_end_a_text_are_kept(tmp_path: Path) -> None:
    config = config_of("llama", vocab_size=1024, eos_token_id=[7, 0])
    load = Loading(state_of(parts_of(config, [4])))
    export_model(plain_settings(config), load, TOKENIZER, tmp_path / "out", torch.float32)
    assert json.loads((tmp_path / "out" / "config.json").read_text())["eos_token_id"] == [7, 0]
    assert json.loads((tmp_path / "out" / "tokenizer_config.json").read_text())["eos_token"] == "<|endoftext|>"


def test_a_tokenizer_with_more_words_than_the_model(tmp_path: Path) -> None:
    config = config_of("llama", vocab_size=1023)
    load = Loading(state_of(parts_of(config, [4])))
    with pytest.raises(InputError, match=r"^tokenizer: expected tokens below model.vocab_size \(1023\), got 1023 for "):
        export_model(plain_settings(config), load, TOKENIZER, tmp_path / "out", torch.float32)
    assert not list(tmp_path.iterdir())


def exporting(output: Path, dtype: torch.dtype = torch.float32, **changes: Tensor) -> None:
    state = state_of(parts_of(config_of("llama"), [4]))
    names = {name.replace(".", "_"): name for name in state}
    load = Loading(state | {names[key]: tensor for key, tensor in changes.items()})
    export_model(plain_settings(config_of("llama")), load, None, output, dtype)


def test_weights_that_a_type_cannot_hold(tmp_path: Path) -> None:
    large = torch.full((32,), 7e4)
    with pytest.raises(InputError, match=r"^model\.norm\.weight: expected finite numbers in float16, got inf"):
        exporting(tmp_path / "out", torch.float16, model_norm_weight=large)
    assert not list(tmp_path.iterdir())
    exporting(tmp_path / "out", torch.bfloat16, model_norm_weight=large)


def test_a_tensor_that_is_never_filled(tmp_path: Path) -> None:
    def forgets(tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            if name != "model.layers.1.input_layernorm.weight":
                tensor.zero_()

    with pytest.raises(InputError, match=r"^model\.layers\.1\.input_layernorm\.weight: expected finite numbers"):
        export_model(plain_settings(config_of("llama")), forgets, None, tmp_path / "out", torch.float32)
    assert not list(tmp_path.iterdir())


def test_outputs_that_cannot_be_used(tmp_path: Path) -> None:
    full = tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("precious")
    with pytest.raises(InputError, match=r"^output: expected a new or empty folder, got .*full with files in it"):
        exporting(full)
    with pytest.raises(InputError, match=r"^output: expected a new or empty folder, got the file .*mine"):
        exporting(full / "mine")
    with pytest.raises(InputError, match=r"^output: .* cannot be written: the folder .*nowhere does not exist"):
        exporting(tmp_path / "nowhere" / "out")
    with pytest.raises(InputError, match=r"^output: expected a folder whose name is UTF-8, got .*new\udcff"):
        exporting(tmp_path / "new\udcff")
    assert [path.name for path in full.iterdir()] == ["mine"]
    assert (full / "mine").read_text() == "precious"
    empty = tmp_path / "empty"
    empty.mkdir()
    exporting(empty)
    assert (empty / WEIGHTS).is_file()


@pytest.mark.parametrize("step", ["save", "sync", "rename"])
def test_a_full_disk_leaves_nothing(step: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if step == "save":
        monkeypatch.setattr("transformers.modeling_utils.safe_save_file", full)
    elif step == "sync":
        monkeypatch.setattr("os.fsync", full)
    else:
        monkeypatch.setattr(Path, "rename", full)
    with pytest.raises(InputError, match=r"^output: .*out cannot be written: No space left on device$"):
        exporting(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_a_folder_that_somebody_fills_meanwhile(tmp_path: Path) -> None:
    output = tmp_path / "out"

    def load(tensors: dict[str, Tensor]) -> None:
        for tensor in tensors.values():
            tensor.zero_()
        output.mkdir()
        (output / "theirs").write_text("x")

    with pytest.raises(InputError, match=r"^output: .*out cannot be written: Directory not empty"):
        export_model(plain_settings(config_of("llama")), load, None, output, torch.float32)
    assert [path.name for path in tmp_path.rglob("*")] == ["out", "theirs"]
