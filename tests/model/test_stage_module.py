"""Parts of models against the full models of transformers."""

import copy
import functools
import weakref
from typing import Any, NamedTuple

import pytest
import torch
from effort import cases
from model.small import CUTS, LAYERS, MODELS, TIED, config_of, full_model_of, logits_of, parts_of, state_of, tokens
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from skippipe.errors import InputError
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.families import FAMILIES, family_of
from skippipe.model.memory import parameter_count
from skippipe.model.stage_module import empty_stage_module


def test_a_model_of_every_architecture_is_tried() -> None:
    assert {settings["model_type"] for settings in MODELS.values()} == FAMILIES.keys()
    assert len(CUTS) == 2 ** (LAYERS - 1)


class Whole(NamedTuple):
    """A model in one part, and transformers' with the same weights."""

    config: Any
    state: dict[str, Tensor]
    logits: list[tuple[Tensor, Tensor]]
    """of transformers', each with its tokens"""


@functools.cache
def whole(name: str) -> Whole:
    config = config_of(name)
    parts = parts_of(config, [LAYERS])
    full_model, state = full_model_of(config, parts), state_of(parts)
    assert state.keys() == full_model.state_dict().keys()
    given = (tokens(2, 16), tokens(1, 7), tokens(2, 16, seed=2))
    return Whole(config, state, [(each, full_model(each, use_cache=False).logits) for each in given])


@pytest.mark.parametrize("cut", cases(CUTS, CUTS[::-4]), ids=str)
@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_every_cut_is_the_model_of_transformers(name: str, cut: list[int]) -> None:
    config, expected, logits = whole(name)
    parts = parts_of(config, cut)
    state = state_of(parts)
    assert state.keys() == expected.keys()
    assert all(torch.equal(state[key], expected[key]) for key in state)
    for given, found in logits:
        assert torch.equal(logits_of(parts, given), found)


@pytest.mark.parametrize("name", ["qwen2", "qwen3", "mixtral", "mistral", "phi3", "gemma2", "gemma3_text"])
@torch.no_grad()
def test_the_small_models_do_have_a_window(name: str) -> None:
    parts = parts_of(config_of(name), [1, 3])
    given = tokens(1, 40)
    other = given.clone()
    other[0, 0] = (given[0, 0] + 1) % 97
    layer = parts[1] if name.startswith("qwen") else parts[0]
    hidden, changed = (layer(parts[0].embed(x))[0] for x in (given, other))
    last_is_the_same = torch.equal(hidden[0, -1], changed[0, -1])
    assert last_is_the_same == (layer is parts[0]), "one layer sees 6 positions, of three layers the first sees all"


@pytest.mark.parametrize("name", MODELS)
@torch.no_grad()
def test_a_position_sees_nothing_after_it(name: str) -> None:
    parts = parts_of(config_of(name), [2, 2])
    given = tokens(1, 16)
    other = given.clone()
    other[0, -1] = (given[0, -1] + 1) % 97
    first, second = logits_of(parts, given), logits_of(parts, other)
    torch.testing.assert_close(first[:, :-1], second[:, :-1])
    assert not torch.allclose(first[:, -1], second[:, -1])


def test_weights_depend_on_seed_and_place() -> None:
    config = config_of("llama")
    state, other = (state_of(parts_of(config, [4], seed=seed)) for seed in (5, 6))
    drawn = [name for name in state if "norm" not in name]
    assert all(not torch.equal(state[name], other[name]) for name in drawn)
    first, second = (state[f"model.layers.{layer}.mlp.up_proj.weight"] for layer in (0, 1))
    assert not torch.equal(first, second)
    assert state["model.embed_tokens.weight"].std() == pytest.approx(config.initializer_range, rel=0.05)


@pytest.mark.parametrize("name", MODELS)
def test_initial_weights_spread_as_those_of_transformers(name: str) -> None:
    """Also where they depend on the number of layers, as in GPT-2."""
    config = config_of(name, vocab_size=300, hidden_size=256)
    ours = state_of(parts_of(config, [1, 3]))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        make: Any = family_of(config.model_type).model_class()
        theirs = make(copy.deepcopy(config)).state_dict()
    for key, weight in theirs.items():
        assert ours[key].mean().item() == pytest.approx(weight.mean().item(), abs=0.005), key
        spread = weight.std().item() if weight.numel() > 1 else 0.0
        assert ours[key].std().item() == pytest.approx(spread, rel=0.1), key


def test_building_leaves_the_generator_of_the_process_alone() -> None:
    before = torch.get_rng_state()
    parts_of(config_of("llama"), [2, 2])
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("name", ["llama-tied", "mixtral", "gpt_neox", "gpt2", "gemma3_text"])
def test_weights_are_drawn_in_float32_and_then_converted(name: str) -> None:
    config = config_of(name)
    exact = state_of(parts_of(config, [1, 3]))
    for dtype in (torch.bfloat16, torch.float64):
        parts = parts_of(config, [1, 3], dtype=dtype)
        converted = state_of(parts)
        assert all(torch.equal(converted[key], exact[key].to(dtype)) for key in exact)
        frequencies = [buffer for part in parts for buffer in part.buffers()]
        assert {buffer.dtype for buffer in frequencies} == (set() if name == "gpt2" else {torch.float32})
        assert torch.isfinite(logits_of(parts, tokens(2, 8))).all()


@pytest.mark.parametrize("name", MODELS)
def test_embeddings_are_tied_where_the_model_has_it_so(name: str) -> None:
    config = config_of(name)
    part = parts_of(config, [4])[0]
    assert (part.head.weight is part.embedding.weight) == (name in TIED)
    assert parameter_count(part) == sum(parameter.numel() for parameter in full_model_of(config, [part]).parameters())


def test_sequences_of_more_shapes_than_are_remembered() -> None:
    config = config_of("qwen2")
    parts = parts_of(config, [2, 2])
    full_model = full_model_of(config, parts)
    for sequence in (4, 5, 6, 7, 8, 9, 4, 5):
        given = tokens(1, sequence)
        assert torch.equal(logits_of(parts, given), full_model(given, use_cache=False).logits)


def test_a_first_run_without_gradients_does_not_spoil_the_next() -> None:
    part = parts_of(config_of("qwen3"), [4])[0]
    with torch.inference_mode():
        part(torch.zeros(1, 8, 32))
    hidden = torch.randn(1, 8, 32, requires_grad=True)
    part(hidden)[0].sum().backward()
    assert hidden.grad is not None


class Allocations(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of tensors with memory that exist at one time, at most, of those made within."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live: dict[int, int] = {}
        self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, Tensor) and not result.is_meta:
            storage = result.untyped_storage()
            if storage._cdata not in self.live:
                self.live[storage._cdata] = storage.nbytes()
                weakref.finalize(storage, self.live.pop, storage._cdata, None)
                self.peak = max(self.peak, sum(self.live.values()))
        return result


def test_no_rank_ever_holds_the_whole_model() -> None:
    config = config_of("llama", hidden_size=128, intermediate_size=256, num_hidden_layers=24, vocab_size=8000)
    full_model = parameter_count(empty_stage_module(config, stage=0, layers=range(24), first=True))
    with Allocations() as allocations:
        part = build_stage_module(config, stage=1, layers=range(3, 5), first=False, seed=0)
    own = parameter_count(part)
    assert own == 2 * (3 * 128 * 128 + 3 * 128 * 256 + 2 * 128)
    assert own < full_model / 15
    assert 4 * own <= allocations.peak <= 1.5 * 4 * own


@pytest.mark.parametrize(("name", "dropout"), [("gpt_neox", "hidden_dropout"), ("gpt2", "embd_pdrop"), ("llama", None)])
def test_dropout_comes_once_after_the_embedding(name: str, dropout: str | None) -> None:
    config = config_of(name) if dropout is None else config_of(name, **{dropout: 0.5})
    part = build_stage_module(config, stage=0, layers=range(0), first=True, seed=0)
    given = tokens(4, 16)
    embedded = part.embed(given)
    dropped = (embedded == 0).double().mean().item()
    assert dropped == (0 if dropout is None else pytest.approx(0.5, abs=0.1))
    assert torch.equal(part(embedded)[0], embedded), "a stage begins with no dropout of its own"
    part.eval()
    expected = nn.functional.embedding(given, part.get_parameter(f"{part.family.body}.{part.family.embedding}.weight"))
    if part.family.positions is not None:
        expected = expected + part.get_parameter(f"{part.family.body}.{part.family.positions}.weight")[:16]
    assert torch.equal(part.embed(given), expected)


def balance_loss(logits: Tensor, chosen: int) -> Tensor:
    """Load-balancing loss of one layer's router: experts x sum over them of share of choices x mean probability."""
    probabilities = logits.softmax(-1)
    choices = torch.zeros_like(logits).scatter(1, probabilities.topk(chosen, -1).indices, 1.0)
    return logits.shape[-1] * (choices.mean(0) * probabilities.mean(0)).sum()


@pytest.mark.parametrize("cut", [[4], [1, 2, 1], [2, 2]], ids=str)
def test_router_losses_do_not_depend_on_the_cut(cut: list[int]) -> None:
    config = config_of("mixtral")
    parts = parts_of(config, cut)
    full_model = full_model_of(config, parts)
    given = tokens(2, 16)
    logits = full_model(given, use_cache=False, output_router_logits=True).router_logits
    expected = 0.5 * sum(balance_loss(layer, 2) for layer in logits) / LAYERS
    hidden, total = parts[0].embed(given), torch.zeros(())
    for part in parts:
        hidden, local = part(hidden)
        assert local is not None
        total = total + local
    torch.testing.assert_close(total, expected)


def test_the_router_loss_of_one_layer_is_that_of_transformers() -> None:
    config = config_of("mixtral", num_hidden_layers=1)
    part = parts_of(config, [1])[0]
    given = tokens(2, 16)
    _, local = part(part.embed(given))
    expected = full_model_of(config, [part])(given, use_cache=False, output_router_logits=True).aux_loss
    torch.testing.assert_close(local, 0.5 * expected)


@pytest.mark.parametrize("settings", [{"output_router_logits": False}, {}])
def test_no_router_loss_where_none_is_asked_for(settings: dict[str, Any]) -> None:
    config = config_of("mixtral", **settings) if settings else config_of("llama")
    part = parts_of(config, [4])[0]
    assert part(torch.zeros(1, 4, 32))[1] is None


def test_token_losses_are_summed_and_ignored_labels_do_not_count() -> None:
    config = config_of("llama")
    part = parts_of(config, [4])[0]
    full_model = full_model_of(config, [part])
    given, labels = tokens(2, 9), tokens(2, 9, seed=3)
    labels[0, :4] = -100
    chances = full_model(given, use_cache=False).logits.log_softmax(-1)
    counted = labels != -100
    expected = -chances[counted].gather(1, labels[counted][:, None]).sum()
    hidden, _ = part(part.embed(given))
    torch.testing.assert_close(part.loss(hidden, labels), expected)


def test_losses_are_float32_at_least() -> None:
    for dtype, expected in ((torch.bfloat16, torch.float32), (torch.float64, torch.float64)):
        part = parts_of(config_of("llama"), [4], dtype=dtype)[0]
        assert part.loss(torch.zeros(1, 4, 32, dtype=dtype), tokens(1, 4)).dtype == expected


@pytest.mark.parametrize("sizes", [[], [4, 0], [1, 2], [2, 3], [5, -1]], ids=str)
def test_sizes_that_are_no_cut_are_refused(sizes: list[int]) -> None:
    with pytest.raises(InputError, match=r"layers: expected .*the model's 4, got \["):
        stage_layers(sizes, config_of("llama"))
