"""Run a stage's layers with the masks and positions that the model class of transformers makes for them."""

import os
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from torch.utils.checkpoint import checkpoint

REMEMBERED_SHAPES = 16
"""Batches of training and validation, the last ones shorter, and groups of microbatches of several sizes."""

COMPILE_CACHE, SHARED_CACHE = "TORCHINDUCTOR_CACHE_DIR", "torchinductor_"
"""Torch's variable for its cache of compiled code, and the prefix of its default name."""


class Shape(NamedTuple):
    """Everything that masks and positions depend on: sequences begin at position 0 and are not padded."""

    size: torch.Size
    dtype: torch.dtype
    device: torch.device


class Arguments(NamedTuple):
    """What a layer is called with besides the hidden state."""

    positional: tuple[Any, ...] = ()
    named: dict[str, Any] = {}  # noqa: RUF012 - never changed


class ArgumentRecorder(nn.Module):
    """Replaces a layer: records the arguments other than the hidden state, and returns the latter."""

    def __init__(self) -> None:
        super().__init__()
        self.given = Arguments()

    def forward(self, hidden: Tensor, *positional: Any, **named: Any) -> Tensor:
        """Record the arguments."""
        self.given = Arguments(positional, named)
        return hidden


class LayerRunner:
    """Calls layers one after the other, with the arguments that the model class gives each of them.

    The model class itself holds layers that only record their arguments (mask, position embeddings). It is run once per
    shape: the arguments are the same for every microbatch, and making them takes as long as a small layer.

    Args:
        body: the model class with `len(layers)` layers, which are taken from it; without embedding and final norm.
        name: of the list of layers in it.
        layers: at least one.

    """

    def __init__(self, body: nn.Module, name: str, layers: Sequence[nn.Module]) -> None:
        self.body = body
        self._layers = tuple(layers)
        self._recorders = [ArgumentRecorder() for _ in layers]
        self._compiled = False
        self._recomputed: frozenset[int] = frozenset()
        self._arguments: dict[Shape, list[Arguments]] = {}
        setattr(body, name, nn.ModuleList(self._recorders))

    def __call__(self, hidden: Tensor, indices: Sequence[int] | None = None) -> Tensor:
        """Run all layers on (b, s, hidden), or those with some indices among them, in the given order."""
        arguments = self._arguments_for(hidden)
        for index in range(len(self._layers)) if indices is None else indices:
            layer, (positional, named) = self._layers[index], arguments[index]
            if self._compiled:
                torch._dynamo.maybe_mark_dynamic(hidden, 0)  # noqa: SLF001 - torch documents it
            if index in self._recomputed and torch.is_grad_enabled():
                hidden = cast("Tensor", checkpoint(layer, hidden, *positional, use_reentrant=False, **named))
            else:
                hidden = cast("Tensor", layer(hidden, *positional, **named))
        return hidden

    def recompute(self, indices: Iterable[int]) -> None:
        """From now on save only the input of the layers with these indices, and recompute them in the backward pass."""
        self._recomputed = frozenset(indices)

    def compile(self, backend: str) -> None:
        """From now on run every layer compiled, by one of the backends of `torch.compile`."""
        own_compile_cache()
        self._compiled = True
        for layer in self._layers:
            layer.compile(backend=backend)

    def _arguments_for(self, hidden: Tensor) -> list[Arguments]:
        shape = Shape(hidden.shape, hidden.dtype, hidden.device)
        known = self._arguments.get(shape)
        if known is None:
            while len(self._arguments) >= REMEMBERED_SHAPES:
                self._arguments.pop(next(iter(self._arguments)))
            known = self._arguments[shape] = self._recorded(hidden)
        return known

    def _recorded(self, hidden: Tensor) -> list[Arguments]:
        device = torch.device("cpu") if hidden.is_meta else hidden.device  # masks depend on values of positions
        with torch.inference_mode(mode=False), torch.no_grad():  # what is recorded is also used with autograd
            nothing = torch.zeros((), dtype=hidden.dtype, device=device).expand(hidden.shape)
            self.body(inputs_embeds=nothing, use_cache=False)
        given = _moved([layer.given for layer in self._recorders], hidden.device)
        for layer in self._recorders:
            layer.given = Arguments()
        return given


def compiled_for_any_batch(
    run: Callable[[Tensor, Tensor], Tensor], backend: str = "inductor"
) -> Callable[[Tensor, Tensor], Tensor]:
    """Compile a function of two tensors whose first dimension, the batch, may be of any length."""
    own_compile_cache()
    compiled = torch.compile(run, backend=backend)

    def call(first: Tensor, second: Tensor) -> Tensor:
        for tensor in (first, second):
            torch._dynamo.maybe_mark_dynamic(tensor, 0)  # noqa: SLF001 - torch documents it
        return compiled(first, second)

    return call


def _moved(given: list[Arguments], device: torch.device) -> list[Arguments]:
    """Move all tensors to a device, and what layers share once."""
    moved: dict[int, Tensor] = {}
    result: list[Arguments] = tree_map_only(
        Tensor, lambda tensor: moved.setdefault(id(tensor), tensor.to(device)), given
    )
    return result


def own_compile_cache() -> None:
    """Have torch keep compiled code in a folder of the user, unless a variable names another.

    By default it uses a folder among the temporary files, under a name that any user of the machine can take first, and
    sets the variable to it when some module is imported; files there are executed and unpickled.
    """
    chosen = os.environ.get(COMPILE_CACHE)
    shared = (
        chosen and Path(chosen).parent == Path(tempfile.gettempdir()) and Path(chosen).name.startswith(SHARED_CACHE)
    )
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")  # noqa: PTH111 - fails for no user
    if (not chosen or shared) and Path(base).is_absolute():
        os.environ[COMPILE_CACHE] = str(Path(base) / "skippipe" / "torchinductor")
