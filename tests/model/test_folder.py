"""Models in: the folders that transformers writes, read part by part."""

import json
import os
import pickle
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any, Self

import pytest
import torch
from effort import cases
from model.folders import WEIGHTS, change_config, change_weights, parts_in, read_full_model, write_model
from model.small import CUTS, MODELS, config_of, logits_of, state_of, tokens
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from skippipe.errors import InputError
from skippipe.model import folder as folders
from skippipe.model import weights as weights_module
from skippipe.model.build import build_stage_module
from skippipe.model.folder import weights_sha256
from skippipe.model.settings import config_sha256, model_config, plain_settings, resolved_settings, weights_folder
from skippipe.model.weights import check_weights

INDEX = "model.safetensors.index.json"
UP = "model.layers.2.mlp.up_proj.weight"
EXPERT = "model.layers.3.block_sparse_moe.experts.1.w3.weight"


@pytest.fixture(autouse=True)
def _no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a test has asked for the network")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    write_model("llama", tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_cut_of_a_folder_is_the_model_that_transformers_reads(name: str, tmp_path: Path) -> None:
    written = write_model(name, tmp_path)
    full_model = read_full_model(tmp_path)
    given = tokens(2, 16)
    expected = full_model(given, use_cache=False).logits
    tied = full_model.config.tie_word_embeddings
    for cut in CUTS[:: -cases(1, 4)]:  # the last one has a stage for each layer
        parts = parts_in(tmp_path, cut)
        state = state_of(parts)
        assert state.keys() == written.keys()
        assert all(torch.equal(state[key], written[key]) for key in state)
        assert torch.equal(logits_of(parts, given), expected)
        assert all(parameter.requires_grad for part in parts for parameter in part.parameters())
        assert (parts[0].head.weight is parts[0].embedding.weight) == tied


@pytest.mark.parametrize("name", MODELS)
def test_settings_come_from_the_file(name: str, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    config = config_of(name)
    assert config_sha256(model_config({"folder": str(tmp_path)})) == config_sha256(config)
    settings = resolved_settings({"folder": str(tmp_path), "initializer_range": 0.25})
    assert "folder" not in settings
    assert {"model_type": config.model_type, "hidden_size": 32, "num_hidden_layers": 4}.items() <= settings.items()
    changed = model_config({"folder": str(tmp_path), "initializer_range": 0.25})
    assert plain_settings(changed) == plain_settings(config) | {"initializer_range": 0.25}
    assert resolved_settings(plain_settings(config)) == plain_settings(config)


def test_settings_by_the_names_of_older_versions(llama: Path) -> None:
    change_config(llama, rope_parameters=None, rope_theta=12345.0, rope_scaling={"type": "linear", "factor": 4.0})
    rotary: Any = model_config({"folder": str(llama)})
    assert rotary.rope_parameters["rope_theta"] == 12345.0
    assert (rotary.rope_parameters["rope_type"], rotary.rope_parameters["factor"]) == ("linear", 4.0)


def test_settings_are_resolved_without_torch(llama: Path) -> None:
    program = (
        "import sys; from skippipe.model.settings import resolved_settings; "
        f"print(resolved_settings({{'folder': {str(llama)!r}}})['hidden_size'], 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["32", "False"]


@pytest.mark.parametrize("name", ["llama-tied", "mixtral"])
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_are_converted(name: str, stored: torch.dtype, tmp_path: Path) -> None:
    written = write_model(name, tmp_path, dtype=stored)
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        parts = parts_in(tmp_path, [1, 3], dtype)
        state = state_of(parts)
        assert all(torch.equal(state[key], written[key].to(dtype)) for key in written)
        assert torch.isfinite(logits_of(parts, tokens(1, 8))).all()


@pytest.mark.parametrize("name", ["llama", "gpt_neox", "gpt2", "mixtral"])
def test_files_in_pieces(name: str, tmp_path: Path) -> None:
    written = write_model(name, tmp_path, shard="50KB")
    assert (tmp_path / INDEX).is_file()
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    state = state_of(parts_in(tmp_path, [2, 2]))
    assert all(torch.equal(state[key], written[key]) for key in written)


@pytest.mark.parametrize("name", ["llama", "mixtral"])
def test_only_the_tensors_of_the_stage_are_read(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []
    really: Any = safe_open

    class Watched:
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self._file: Any = really(*args, **kwargs)

        def __enter__(self) -> Self:
            self._file.__enter__()
            return self

        def __exit__(self, *args: object) -> None:
            self._file.__exit__(*args)

        def get_tensor(self, name: str) -> torch.Tensor:
            read.append(name)
            tensor: torch.Tensor = self._file.get_tensor(name)
            return tensor

        def keys(self) -> Any:
            return self._file.keys()

        def get_slice(self, name: str) -> Any:
            return HeaderOnly(self._file.get_slice(name))

    class HeaderOnly:
        def __init__(self, header: Any) -> None:
            self.get_shape, self.get_dtype = header.get_shape, header.get_dtype

    write_model(name, tmp_path)
    names = list(load_file(tmp_path / WEIGHTS))
    config = model_config({"folder": str(tmp_path)})
    monkeypatch.setattr(weights_module, "safe_open", Watched)
    for stage, layers in enumerate([range(1), range(1, 3), range(3, 4)]):
        read.clear()
        build_stage_module(config, stage=stage, layers=layers, first=stage == 0, seed=0, weights=tmp_path)
        of_layers = [n for n in names if any(f".layers.{layer}." in n for layer in layers)]
        of_none = [n for n in names if ".layers." not in n]
        assert sorted(read) == sorted(of_layers + (of_none if stage == 0 else []))


def test_later_stages_have_no_embedding_of_the_whole_vocabulary(tmp_path: Path) -> None:
    from model.test_stage_module import Allocations

    write_model("llama", tmp_path, vocab_size=20_000, hidden_size=32)
    config = model_config({"folder": str(tmp_path)})
    with Allocations() as allocations:
        part = build_stage_module(config, stage=1, layers=range(2, 3), first=False, seed=0, weights=tmp_path)
    own = sum(parameter.nbytes for parameter in part.parameters())
    assert own <= allocations.peak < 10 * own < 20_000 * 32 * 4


def test_weights_do_not_lie_in_the_file(llama: Path) -> None:
    parts = parts_in(llama, [2, 2])
    before = {name: tensor.clone() for name, tensor in state_of(parts).items()}
    with (llama / WEIGHTS).open("r+b") as file:
        file.seek(-4096, os.SEEK_END)
        file.write(bytes(4096))
        file.truncate(100)
    assert all(torch.equal(tensor, before[name]) for name, tensor in state_of(parts).items())


def test_building_leaves_the_generator_and_the_messages_of_transformers_alone(
    llama: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    before = torch.get_rng_state(), logging.get_verbosity(), logging.is_progress_bar_enabled()
    parts_in(llama, [2, 2])
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (logging.get_verbosity(), logging.is_progress_bar_enabled()) == before[1:]
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("name", "head"),
    [("llama-tied", "lm_head.weight"), ("gpt_neox-serial", "embed_out.weight"), ("gpt2", "lm_head.weight")],
)
def test_a_tied_head_in_the_file(name: str, head: str, tmp_path: Path) -> None:
    written = write_model(name, tmp_path)
    embedding = next(key for key in load_file(tmp_path / WEIGHTS) if "embed" in key or "wte" in key)
    change_weights(tmp_path, {head: written[embedding].clone()})
    part: Any = parts_in(tmp_path)[0]
    assert part.head.weight is part.embedding.weight
    assert torch.equal(part.embedding.weight, written[embedding])
    change_weights(tmp_path, {head: written[embedding] + 1})
    with pytest.raises(
        InputError,
        match=r"model\.safetensors: tie_word_embeddings: head and embedding differ.*tie_word_embeddings=false",
    ):
        parts_in(tmp_path)
    untied: Any = parts_in(tmp_path, tie_word_embeddings=False)[0]
    assert torch.equal(untied.head.weight, written[embedding] + 1)
    assert torch.equal(untied.embedding.weight, written[embedding])


def test_gpt2_as_it_was_published(tmp_path: Path) -> None:
    """Names without that of the body, masks among the weights, settings by their own names and some of no use."""
    written = write_model("gpt2", tmp_path)
    state = {key.removeprefix("transformer."): tensor for key, tensor in load_file(tmp_path / WEIGHTS).items()}
    state |= {f"h.{layer}.attn.bias": torch.ones(1, 1, 64, 64).tril() for layer in range(4)}
    save_file(state, tmp_path / WEIGHTS, metadata={"format": "pt"})
    change_config(tmp_path, n_ctx=64, summary_type="cls_index", task_specific_params={}, n_embd=32)
    parts = parts_in(tmp_path, [1, 3])
    found = state_of(parts)
    assert found.keys() == written.keys()
    assert all(torch.equal(found[key], written[key]) for key in written)


def test_a_tied_model_without_a_head_cannot_be_untied(tmp_path: Path) -> None:
    write_model("llama-tied", tmp_path)
    with pytest.raises(InputError, match=r"model\.safetensors: lm_head\.weight: missing$"):
        parts_in(tmp_path, tie_word_embeddings=False)


def test_what_older_versions_kept_beside_weights(tmp_path: Path) -> None:
    written = write_model("gpt_neox", tmp_path)
    change_weights(
        tmp_path,
        {
            "gpt_neox.layers.1.attention.bias": torch.ones(1, 1, 8, 8, dtype=torch.bool),
            "gpt_neox.layers.1.attention.masked_bias": torch.tensor(-1e9),
            "gpt_neox.layers.1.attention.rotary_emb.inv_freq": torch.ones(4),
        },
    )
    state = state_of(parts_in(tmp_path, [1, 3]))
    assert all(torch.equal(state[key], written[key]) for key in written)


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("llama", {UP: None}, f"{UP}: missing"),
        ("llama", {UP: torch.ones(47, 32)}, f"{UP}: expected shape [48, 32] by the settings, got [47, 32]"),
        ("llama", {UP: torch.ones(48, 32, dtype=torch.int8)}, f"{UP}: expected one of F64, F32, F16, BF16, got I8"),
        ("llama", {UP.replace("up", "side"): torch.ones(4)}, "side_proj.weight: surplus: the model does not have it"),
        ("llama", {"vision.weight": torch.ones(4)}, "vision.weight: surplus: the model does not have it"),
        (
            "llama",
            {UP.replace(".2.", ".4."): torch.ones(4)},
            "mlp.up_proj.weight: surplus, by the settings there are 4 layers",
        ),
        ("llama", {"model.norm.weight": None}, "model.norm.weight: missing"),
        (
            "llama",
            {"lm_head.weight": torch.ones(98, 32)},
            "lm_head.weight: expected shape [97, 32] by the settings, got [98, 32]",
        ),
        ("mixtral", {EXPERT: None}, f"{EXPERT}: missing, by the settings there are 4 experts"),
        ("mixtral", {EXPERT.replace(".1.", ".4."): torch.ones(48, 32)}, "experts.4.w3.weight: surplus, by the"),
        (
            "mixtral",
            {EXPERT: torch.ones(48, 31)},
            f"{EXPERT}: expected a 32 x 48 matrix by the settings, got shape [48, 31]",
        ),
        ("mixtral", {EXPERT: torch.ones(48, 32, dtype=torch.uint8)}, "expected one of F64, F32, F16, BF16, got U8"),
    ],
)
def test_weights_that_do_not_fit(name: str, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    write_model(name, tmp_path)
    change_weights(tmp_path, changes)
    with pytest.raises(InputError) as refusal:
        parts_in(tmp_path, [2, 2])
    assert str(refusal.value).startswith(f"{tmp_path / WEIGHTS}: ")
    assert message in str(refusal.value)


ODD = [torch.nan, torch.inf, -torch.inf]


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("stored", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_weights_that_are_not_finite(odd: float, stored: torch.dtype, llama: Path) -> None:
    bad = load_file(llama / WEIGHTS)[UP].to(stored)
    bad[1, 2] = odd
    change_weights(llama, {UP: bad})
    value = f"{odd} at {bad.shape[1] + 2} (1 of {bad.numel()} values)"
    message = f"{llama / WEIGHTS}: {UP}: expected finite numbers, got {value}"
    for refused in (lambda: parts_in(llama), lambda: parts_in(llama, [2, 2]), lambda: check_weights(llama)):
        with pytest.raises(InputError) as caught:
            refused()
        assert str(caught.value) == message
    config = model_config({"folder": str(llama)})
    part = build_stage_module(config, stage=0, layers=range(2), first=True, seed=0, weights=llama)
    assert len(part.layers) == 2, "the tensor is no business of the first two layers"


def test_experts_and_pieces_that_are_not_finite(tmp_path: Path) -> None:
    write_model("mixtral", tmp_path, shard="40KB")
    index = json.loads((tmp_path / INDEX).read_text())["weight_map"]
    file = tmp_path / index[EXPERT]
    state = load_file(file)
    state[EXPERT][0, 0] = -torch.inf
    save_file(state, file, metadata={"format": "pt"})
    for refused in (lambda: parts_in(tmp_path), lambda: check_weights(tmp_path)):
        with pytest.raises(InputError, match=rf"{file}: {EXPERT}: expected finite numbers, got -inf at 0 \(1 of"):
            refused()


def test_weights_that_are_finite_in_another_type_alone(llama: Path) -> None:
    wide = load_file(llama / WEIGHTS)[UP].double()
    wide[0, 1] = -1e300
    change_weights(llama, {UP: wide})
    check_weights(llama)
    assert parts_in(llama, dtype=torch.float64)[0].state_dict()[UP][0, 1] == -1e300
    with pytest.raises(InputError, match=rf"{WEIGHTS}: {UP}: expected finite numbers in float32, got -inf at 1 \(1 of"):
        parts_in(llama)


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"hidden_size": 64}, "expected shape [97, 64] by the settings, got [97, 32]"),
        ({"vocab_size": 100}, "expected shape [100, 32] by the settings, got [97, 32]"),
        ({"num_hidden_layers": 3}, ": model.layers.3."),
        ({"num_hidden_layers": 5}, "model.layers.4."),
        ({"attention_bias": True}, "self_attn.k_proj.bias: missing (and 7 more)"),
    ],
)
def test_settings_that_change_shapes(own: dict[str, Any], message: str, llama: Path) -> None:
    with pytest.raises(InputError) as refusal:
        parts_in(llama, [2, own.get("num_hidden_layers", 4) - 2], **own)
    assert str(refusal.value).startswith(str(llama / WEIGHTS))
    assert message in str(refusal.value)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "gemma3"}, "model_type: expected one of llama, "),
        ({"model_type": None}, "model_type: expected one of llama, "),
        (
            {"quantization_config": {"quant_method": "fp8"}},
            "quantization_config: expected plain floating-point weights",
        ),
        ({"hidden_size": 0}, "model.hidden_size: expected an integer of at least 1"),
        ({"hidden_size": "big"}, "hidden_size"),
        ({"num_key_value_heads": 3}, "model.num_key_value_heads: expected a divisor"),
    ],
)
def test_a_configuration_that_cannot_be_used(changes: dict[str, Any], message: str, llama: Path) -> None:
    change_config(llama, **changes)
    with pytest.raises(InputError) as refusal:
        model_config({"folder": str(llama)})
    assert str(refusal.value).startswith(f"{llama / 'config.json'}: ")
    assert message in str(refusal.value)


def test_settings_beside_the_folder_are_checked(llama: Path) -> None:
    with pytest.raises(InputError, match=r"^model\.dropout: unknown setting of llama"):
        model_config({"folder": str(llama), "dropout": 0.1})
    with pytest.raises(InputError, match=r"^model\.model_type: expected llama as in .*config\.json, got qwen3"):
        model_config({"folder": str(llama), "model_type": "qwen3"})
    with pytest.raises(InputError, match=r"^model\.attention_dropout: expected .*, got 2"):
        model_config({"folder": str(llama), "attention_dropout": 2})


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"^model\.folder: no such folder: meta-llama/X.*hf download NAME"):
        weights_folder({"folder": "meta-llama/X"})
    with pytest.raises(InputError, match=r"^model\.folder: expected a folder with config\.json, got "):
        resolved_settings({"folder": str(tmp_path)})
    for other in (None, 3, ""):
        with pytest.raises(InputError, match=r"^model\.folder: expected a folder with .* got "):
            weights_folder({"folder": other})
    assert weights_folder({"model_type": "llama"}) is None


class Bomb:
    """What leaves a trace where it is unpickled."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> Any:
        return (os.mkdir, (str(self.trace),))


def test_pickles_are_never_opened(llama: Path) -> None:
    trace = llama.parent / f"{llama.name}-trace"
    for name in ("pytorch_model.bin", "training_args.bin", "model.pt"):
        (llama / name).write_bytes(pickle.dumps(Bomb(trace)))
    torch.save(Bomb(trace), llama / "pytorch_model-00001-of-00001.bin")
    parts_in(llama, [2, 2])
    assert not trace.exists(), "beside safetensors"
    (llama / WEIGHTS).unlink()
    with pytest.raises(InputError, match=r"got weights in pickle only \(model\.pt, pytorch_model"):
        parts_in(llama, [2, 2])
    (llama / WEIGHTS).write_bytes(pickle.dumps(Bomb(trace)))
    with pytest.raises(InputError, match=r"model\.safetensors: expected a complete safetensors file"):
        parts_in(llama, [2, 2])
    assert not trace.exists()
    pickle.loads(pickle.dumps(Bomb(trace)))
    assert trace.exists(), "it does go off"
    trace.rmdir()


@pytest.mark.parametrize("keep", [0, 4, 100, 5000, -1])
def test_a_truncated_file(keep: int, llama: Path) -> None:
    content = (llama / WEIGHTS).read_bytes()
    (llama / WEIGHTS).write_bytes(content[:keep])
    with pytest.raises(InputError, match=r"model\.safetensors: expected a complete safetensors file, got "):
        parts_in(llama, [2, 2])


def test_a_broken_header(llama: Path) -> None:
    content = bytearray((llama / WEIGHTS).read_bytes())
    content[8:20] = b"x" * 12
    (llama / WEIGHTS).write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors: expected a complete safetensors file, got "):
        parts_in(llama, [2, 2])


def test_no_weights(llama: Path) -> None:
    (llama / WEIGHTS).unlink()
    with pytest.raises(
        InputError, match=r"expected model\.safetensors or model\.safetensors\.index\.json, got no weights"
    ):
        parts_in(llama)


def test_an_index_that_lies(tmp_path: Path) -> None:
    write_model("llama", tmp_path, shard="50KB")
    index = json.loads((tmp_path / INDEX).read_text())
    files = sorted(set(index["weight_map"].values()))

    def refusal(weight_map: Any) -> str:
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
        with pytest.raises(InputError) as error:
            parts_in(tmp_path, [2, 2])
        return str(error.value)

    right = index["weight_map"]
    other = next(file for file in files if file != right[UP])
    assert f"{UP}: {other} does not hold it" in refusal(right | {UP: other})
    assert "no such file: gone.safetensors" in refusal(right | {UP: "gone.safetensors"})
    assert f"weight_map.{UP}: expected a safetensors file beside it, got ../x.safetensors" in refusal(
        right | {UP: "../x.safetensors"}
    )
    assert f"weight_map.{UP}: expected a safetensors file beside it, got pytorch_model.bin" in refusal(
        right | {UP: "pytorch_model.bin"}
    )
    assert "weight_map: expected the file of each tensor, got null" in refusal(None)


def test_hash_of_the_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folders, "STRIDE", 3000)
    monkeypatch.setattr(folders, "PART", 256)
    write_model("llama", tmp_path / "a", shard="100KB")
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    for limit in (2**30, 1000):
        monkeypatch.setattr(folders, "FULLY_HASHED", limit)
        first = weights_sha256(tmp_path / "a")
        assert first == weights_sha256(tmp_path / "b")
        write_model("llama", tmp_path / "c", shard="100KB", rms_norm_eps=0.1)
        assert first == weights_sha256(tmp_path / "c"), "settings are no weights"
        for path in (tmp_path / "c").glob("*.safetensors"):
            before = path.read_bytes()
            state = load_file(path)
            name = max(state, key=lambda key: state[key].nbytes)
            save_file(state | {name: state[name] + 1}, path, metadata={"format": "pt"})
            assert first != weights_sha256(tmp_path / "c")
            path.write_bytes(before)
