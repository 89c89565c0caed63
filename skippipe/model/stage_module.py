"""The module of one stage: its decoder layers, and on stage 0 also embedding, final norm and head."""

import copy
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from skippipe.devices import autocast
from skippipe.model.families import Family, family_of
from skippipe.model.layers import LayerRunner, compiled_for_any_batch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from transformers import PretrainedConfig, PreTrainedModel

IGNORED_LABEL = -100
"""Positions with this label do not count in the loss."""


def stage_config(config: "PretrainedConfig", layers: range) -> "PretrainedConfig":
    """Configure a model of these layers of the full model alone."""
    own = copy.deepcopy(config)
    own.num_hidden_layers = len(layers)
    own.use_cache = False
    if getattr(own, "layer_types", None) is not None:
        own.layer_types = list(own.layer_types[layers.start : layers.stop])
    return own


class StageModule(nn.Module):
    """The part of a model that one stage holds.

    Parameters keep their names in the full model ("model.layers.3.self_attn.q_proj.weight"). Masks, positions and
    rotary embeddings are made by the model class of transformers, as the architecture has them.
    """

    def __init__(self, model: "PreTrainedModel", family: Family, *, stage: int, layers: range, first: bool) -> None:
        """Take over the submodules of a model that has this stage's layers alone.

        Args:
            model: of `len(layers)` layers; not to be used afterwards.
            family: its architecture.
            stage: number of the stage, for messages.
            layers: numbers of its layers in the full model.
            first: whether this is stage 0, with embedding, final norm and head.

        """
        super().__init__()
        self.family, self.stage, self.layers, self.first = family, stage, layers, first
        self._model = (model,)  # in a tuple: what this stage holds of it is registered below, once
        self._router_logits: list[Tensor] = []
        self._router_loss_scale = 0.0
        self._autocast: torch.dtype | None = None
        self._summed_losses: Callable[[Tensor, Tensor], Tensor] = self._sum_losses
        body = cast("nn.Module", getattr(model, family.body))
        own_layers = cast("nn.ModuleList", body.get_submodule(family.layers))
        own_body = nn.Module()
        for name in self._names_in_body():
            listed = name == family.layers
            own_body.add_module(name, _numbered(own_layers, layers) if listed else body.get_submodule(name))
        self.add_module(family.body, own_body)
        if first:
            self.add_module(family.head, model.get_submodule(family.head))
        _hollow_out(body, family)
        self._run = LayerRunner(body, family.layers, list(own_layers))
        self._in_use: Sequence[int] = range(len(layers))
        """indices of the layers that `forward` runs"""
        self._trained: dict[bool, list[nn.Parameter]] = {}
        """what `trained_parameters` has found, by its argument"""

    def parameters_of(self, layers: Collection[int]) -> dict[str, nn.Parameter]:
        """Parameters by name: those of some decoder layers, and all that are in none."""
        return {name: p for name, p in self.named_parameters() if self.family.layer_of(name) in {None, *layers}}

    def parameters_of_layer(self, layer: int) -> dict[str, nn.Parameter]:
        """Parameters of a decoder layer by name."""
        return {name: p for name, p in self.named_parameters() if self.family.layer_of(name) == layer}

    def use_layers(self, layers: Collection[int]) -> None:
        """From now on run only those of the stage's layers whose numbers in the full model are in `layers`."""
        self._in_use = [index for index, number in enumerate(self.layers) if number in layers]
        self._trained.clear()

    @property
    def layers_in_use(self) -> list[int]:
        """Numbers of the layers that `forward` runs."""
        return [self.layers[index] for index in self._in_use]

    def trained_parameters(self, *, layers: bool = True) -> list[nn.Parameter]:
        """Parameters that are trained: those of the layers in use, unless excluded, and of embedding, norm and head."""
        if layers not in self._trained:
            found = self.parameters_of(self.layers_in_use if layers else []).values()
            self._trained[layers] = [parameter for parameter in found if parameter.requires_grad]
        return self._trained[layers]

    def named_units(self) -> dict[str, nn.Module]:
        """Its decoder layers and its parts outside them, by name."""
        body = self.family.body
        units = {f"{body}.{name}": part for name, part in self.get_submodule(body).named_children()}
        layers = units.pop(f"{body}.{self.family.layers}")
        units |= {f"{body}.{self.family.layers}.{number}": layer for number, layer in layers.named_children()}
        return units | ({self.family.head: self.head} if self.first else {})

    def watch_routers(self, config: "PretrainedConfig") -> None:
        """Collect the routers' load-balancing losses if the configuration of the full model asks for them."""
        if self.family.router is None or not getattr(config, "output_router_logits", False):
            return
        self._router_loss_scale = float(config.router_aux_loss_coef) / int(config.num_hidden_layers)
        for layer in cast("nn.ModuleList", self.get_submodule(f"{self.family.body}.{self.family.layers}")):
            layer.get_submodule(self.family.router).register_forward_hook(self._record_router)

    def tie_head(self, config: "PretrainedConfig") -> None:
        """Share the embedding's weights with the head where `config` ties them; both are on stage 0."""
        if self.first and config.tie_word_embeddings:
            self.head.weight = self.embedding.weight

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens, (b, s) int64, on stage 0: (b, s, hidden)."""
        hidden = cast("Tensor", self.embedding(tokens))
        if self.family.positions is not None:
            places = torch.arange(tokens.shape[1], device=tokens.device)[None]
            hidden = hidden + self._of_body(self.family.positions)(places)
        if self.family.embedding_dropout is not None:
            hidden = self._of_body(self.family.embedding_dropout)(hidden)
        return hidden if self._autocast is None else hidden.to(self._autocast)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the stage's layers in use under a causal mask.

        Args:
            hidden: (b, s, hidden), the output of whichever layer came before.

        Returns:
            The hidden state after them, of the same shape; and the routers' load-balancing loss, a scalar with its
            coefficient, where the architecture has routers and the configuration asks for it.

        """
        self._router_logits.clear()
        with self._casting(hidden):
            output = self._run(hidden, self._in_use)
        return output, self._router_loss()

    def run_layers(self, hidden: Tensor, layers: Sequence[int]) -> Tensor:
        """Run some of the stage's layers on (b, s, hidden), by their numbers in the full model, in the given order."""
        with self._casting(hidden):
            output = self._run(hidden, [number - self.layers.start for number in layers])
        self._router_logits.clear()
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, on stage 0: (b, s, hidden) to (b, s, vocabulary)."""
        logits = cast("Tensor", self.head(self.norm(hidden)))
        cap = None if self.family.logit_cap is None else getattr(self.config, self.family.logit_cap)
        return logits if cap is None else torch.tanh(logits / cap) * cap

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sum of the token losses of one microbatch, on stage 0.

        Args:
            hidden: (b, s, hidden), the output of the last layer.
            labels: (b, s) int64, the next token at each position; `IGNORED_LABEL` where none counts.

        Returns:
            A scalar in nats, float32 (float64 if the model is): a sum, to be divided by the tokens of the full
            iteration.

        """
        with self._casting(hidden):
            return self._summed_losses(hidden, labels)

    def enable_autocast(self, dtype: torch.dtype) -> None:
        """From now on compute in `dtype` where torch's autocast does; weights keep their type, outputs are `dtype`."""
        self._autocast = dtype

    def enable_compile(self, backend: str = "inductor") -> None:
        """From now on run layers and loss compiled, for any batch size, by one of the backends of `torch.compile`.

        Layers of one kind share their code, so compile time does not grow with depth.
        """
        self._run.compile(backend)
        if self.first:
            self._summed_losses = compiled_for_any_batch(self._sum_losses, backend)

    def enable_activation_checkpointing(self, every: int) -> None:
        """From now on recompute every `every`-th layer of the full model in the backward pass; 0: none."""
        self._run.recompute(index for index, number in enumerate(self.layers) if every and (number + 1) % every == 0)

    def _casting(self, hidden: Tensor) -> AbstractContextManager[object]:
        return autocast(hidden.device, self._autocast)

    def _sum_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(hidden).flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")

    def init_weights(self, module: nn.Module) -> None:
        """Initialize the parameters of one of its submodules, as the architecture does it."""
        model: Any = self._model[0]
        model._init_weights(module)  # noqa: SLF001 - the only place that knows an architecture's initialization

    def use_plain_experts(self) -> None:
        """Run experts one by one, if any: the grouped product exists up to float32 only."""
        if self.family.router is not None:
            self._body.set_experts_implementation("eager")

    @property
    def config(self) -> "PretrainedConfig":
        """Configuration of a model of this stage's layers alone."""
        config: PretrainedConfig = self._body.config
        return config

    @property
    def embedding(self) -> nn.Module:
        """The embedding of stage 0."""
        return self._of_body(self.family.embedding)

    @property
    def norm(self) -> nn.Module:
        """The final norm of stage 0."""
        return self._of_body(self.family.norm)

    @property
    def head(self) -> nn.Module:
        """The head of stage 0."""
        assert self.first, f"stage {self.stage} has no head: it is on stage 0"
        return self.get_submodule(self.family.head)

    def _names_in_body(self) -> list[str]:
        """Names of the stage's submodules of the body, in the order of transformers' state dict."""
        family = self.family
        before = (family.embedding, family.positions, family.embedding_dropout) if self.first else ()
        after = (family.norm,) if self.first else ()
        return [name for name in (*before, family.layers, *after, family.rotary) if name is not None]

    @property
    def _body(self) -> Any:
        return getattr(self._model[0], self.family.body)

    def _of_body(self, name: str) -> nn.Module:
        assert self.first, f"stage {self.stage} has no {name}: embedding, final norm and head are on stage 0"
        return self.get_submodule(f"{self.family.body}.{name}")

    def _record_router(self, _router: nn.Module, _given: object, output: tuple[Tensor, ...]) -> None:
        self._router_logits.append(output[0])

    def _router_loss(self) -> Tensor | None:
        """Sum over the layers of the load-balancing loss of each, scaled.

        Computed layer by layer, not over all layers' tokens at once as in transformers, so that it does not depend on
        the partition; for a model of one layer both are the same.
        """
        if not self._router_logits:
            return None
        from transformers.models.mixtral.modeling_mixtral import load_balancing_loss_func  # noqa: PLC0415 - slow

        config: Any = self.config
        losses: list[Any] = [
            load_balancing_loss_func((logits,), config.num_local_experts, config.num_experts_per_tok)
            for logits in self._router_logits
        ]
        self._router_logits.clear()
        return torch.stack(losses).sum() * self._router_loss_scale


class _WithoutDrawing(TorchFunctionMode):
    """Leaves out what `torch.nn.init` draws, on this thread: on the meta device that takes longer than all else."""

    def __torch_function__(
        self,
        func: "Callable[..., Any]",
        types: Any,
        args: Sequence[Any] = (),
        kwargs: "Mapping[str, Any] | None" = None,
    ) -> Any:
        named = kwargs or {}
        if getattr(func, "__module__", None) == nn.init.__name__:
            return args[0] if args else named["tensor"]
        return func(*args, **named)


def empty_stage_module(config: "PretrainedConfig", *, stage: int, layers: range, first: bool) -> StageModule:
    """Build the module of one stage on the meta device: shapes without memory or weights."""
    family = family_of(config.model_type)
    assert layers.step == 1, "a stage is a run of layers"
    assert 0 <= layers.start <= layers.stop <= config.num_hidden_layers, f"no layers {layers}"
    with torch.device("meta"), _WithoutDrawing():
        model: PreTrainedModel = family.model_class()(stage_config(config, layers))
    model.config = copy.deepcopy(config)  # which initial weights depend on; the body keeps that of the stage
    module = StageModule(model, family, stage=stage, layers=layers, first=first)
    module.watch_routers(config)
    module.tie_head(config)
    return module


def _numbered(layers: nn.ModuleList, numbers: range) -> nn.ModuleList:
    """Name layers by their numbers in the full model."""
    named = nn.ModuleList()
    for number, layer in zip(numbers, layers, strict=True):
        named.add_module(str(number), layer)
    return named


class _NoPositions(nn.Module):
    """Replaces learned positions where the embedding is not: adds nothing."""

    def forward(self, positions: Tensor) -> Tensor:
        """Give a zero, whatever the positions."""
        return torch.zeros((), device=positions.device)


def _hollow_out(body: nn.Module, family: Family) -> None:
    """Strip a model's body of everything but masks and what depends on positions in every layer."""
    setattr(body, family.embedding, None)
    setattr(body, family.norm, nn.Identity())
    if family.positions is not None:  # added to the embedding once, not at the entry of every stage
        setattr(body, family.positions, _NoPositions())
    if family.embedding_dropout is not None:  # likewise
        setattr(body, family.embedding_dropout, nn.Identity())
