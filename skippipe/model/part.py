"""One stage of a model: its decoder layers, and on stage 0 embedding, final norm and head as well."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from skippipe.model.families import Family
from skippipe.model.layers import LayerRunner, compiled_for_any_batch

if TYPE_CHECKING:
    from collections.abc import Callable

    from transformers import PretrainedConfig, PreTrainedModel

IGNORED_LABEL = -100
"""positions with this label take no part in the loss"""


class StageModule(nn.Module):
    """The part of a model that one stage holds.

    Parameters bear the names that they have in the whole model ("model.layers.3.self_attn.q_proj.weight"). The model
    class of transformers makes masks, positions and rotary embeddings, as the architecture has them.
    """

    def __init__(self, model: "PreTrainedModel", family: Family, *, stage: int, layers: range, first: bool) -> None:
        """Take a model of this stage's layers, and no others, apart.

        Args:
            model: of `len(layers)` layers; not to be used afterwards.
            family: its architecture.
            stage: number of the stage, for messages.
            layers: the numbers that its layers have in the whole model.
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
        own_layers = cast("nn.ModuleList", body.layers)
        held = nn.Module()
        for name in self._names_in_body():
            held.add_module(name, _numbered(own_layers, layers) if name == "layers" else body.get_submodule(name))
        self.add_module(family.body, held)
        if first:
            self.add_module(family.head, model.get_submodule(family.head))
        _hollow_out(body, family)
        self._run = LayerRunner(body, list(own_layers))

    def watch_routers(self, config: "PretrainedConfig") -> None:
        """Take the losses of the layers' routers, if the architecture has routers and `config` (the whole's) asks."""
        if self.family.router is None or not getattr(config, "output_router_logits", False):
            return
        self._router_loss_scale = float(config.router_aux_loss_coef) / int(config.num_hidden_layers)
        for layer in cast("nn.ModuleList", self.get_submodule(f"{self.family.body}.layers")):
            layer.get_submodule(self.family.router).register_forward_hook(self._note_router)

    def embed(self, tokens: Tensor) -> Tensor:
        """Embed tokens, (b, s) int64, on stage 0: (b, s, hidden)."""
        hidden = cast("Tensor", self.embedding(tokens))
        if self.family.embedding_dropout is not None:
            hidden = self._held(self.family.embedding_dropout)(hidden)
        return hidden if self._autocast is None else hidden.to(self._autocast)

    def forward(self, hidden: Tensor) -> tuple[Tensor, Tensor | None]:
        """Run the stage's layers under a causal mask.

        Args:
            hidden: (b, s, hidden), what the layer before gave, whichever it was.

        Returns:
            The hidden state after them, of the same shape; and the loss of these layers' routers, a scalar already
            multiplied with its coefficient, where the architecture has routers and the configuration asks for it.

        """
        self._router_logits.clear()
        with self._casting(hidden):
            output = self._run(hidden)
        return output, self._router_loss()

    def visit(self, hidden: Tensor, layers: Sequence[int]) -> Tensor:
        """Run some of the stage's layers on (b, s, hidden), by their numbers in the whole model, in the order given."""
        with self._casting(hidden):
            output = self._run(hidden, [number - self.layers.start for number in layers])
        self._router_logits.clear()
        return output

    def logits(self, hidden: Tensor) -> Tensor:
        """Final norm and head, on stage 0: (b, s, hidden) to (b, s, vocabulary)."""
        return cast("Tensor", self.head(self.norm(hidden)))

    def loss(self, hidden: Tensor, labels: Tensor) -> Tensor:
        """Sum of the token losses of one microbatch, on stage 0.

        Args:
            hidden: (b, s, hidden), what the last layer gave.
            labels: (b, s) int64, the token that follows at each position; `IGNORED_LABEL` where none counts.

        Returns:
            A scalar in nats, float32 (float64 where the model is): a sum, so that it can be divided by the tokens of
            the whole iteration.

        """
        with self._casting(hidden):
            return self._summed_losses(hidden, labels)

    def autocast_to(self, dtype: torch.dtype) -> None:
        """From now on have layers and head compute in `dtype` where torch's autocast says so; weights stay as they are.

        What stages hand each other is of that type too.
        """
        self._autocast = dtype

    def compile_parts(self) -> None:
        """From now on run layers and loss compiled, for any number of sequences.

        Layers of one kind share their code, so that a model of many takes no longer to compile.
        """
        self._run.compile()
        if self.first:
            self._summed_losses = compiled_for_any_batch(self._sum_losses)

    def _casting(self, hidden: Tensor) -> AbstractContextManager[object]:
        return nullcontext() if self._autocast is None else torch.autocast(hidden.device.type, self._autocast)

    def _sum_losses(self, hidden: Tensor, labels: Tensor) -> Tensor:
        logits = self.logits(hidden).flatten(0, 1)
        wide = torch.promote_types(logits.dtype, torch.float32)
        return functional.cross_entropy(logits.to(wide), labels.flatten(), ignore_index=IGNORED_LABEL, reduction="sum")

    def draw(self, module: nn.Module) -> None:
        """Give the parameters of one of its modules first values, as the architecture has it."""
        model: Any = self._model[0]
        model._init_weights(module)  # noqa: SLF001 - how an architecture draws its weights stands nowhere else

    def use_plain_experts(self) -> None:
        """Run experts one by one, where there are any: their grouped product is there up to float32 only."""
        if self.family.router is not None:
            self._model[0].set_experts_implementation("eager")

    @property
    def config(self) -> "PretrainedConfig":
        """Configuration of a model of this stage's layers alone."""
        config: PretrainedConfig = self._model[0].config
        return config

    @property
    def rotary(self) -> nn.Module:
        """The rotary embedding."""
        return self.get_submodule(f"{self.family.body}.rotary_emb")

    @property
    def embedding(self) -> nn.Module:
        """The embedding of stage 0."""
        return self._held(self.family.embedding)

    @property
    def norm(self) -> nn.Module:
        """The final norm of stage 0."""
        return self._held(self.family.norm)

    @property
    def head(self) -> nn.Module:
        """The head of stage 0."""
        assert self.first, f"stage {self.stage} has no head: it is on stage 0"
        return self.get_submodule(self.family.head)

    def _names_in_body(self) -> list[str]:
        """List what the stage holds of the model's body, in the order of transformers' state dict."""
        dropout = [self.family.embedding_dropout] if self.family.embedding_dropout else []
        before, after = ([self.family.embedding, *dropout], [self.family.norm]) if self.first else ([], [])
        return [*before, "layers", *after, "rotary_emb"]

    def _held(self, name: str) -> nn.Module:
        assert self.first, f"stage {self.stage} has no {name}: embedding, final norm and head are on stage 0"
        return self.get_submodule(f"{self.family.body}.{name}")

    def _note_router(self, _router: nn.Module, _given: object, output: tuple[Tensor, ...]) -> None:
        self._router_logits.append(output[0])

    def _router_loss(self) -> Tensor | None:
        """Sum over the layers of the load-balancing loss of each, scaled.

        Taken layer by layer, not over all layers' tokens at once as transformers does, so that it does not depend on
        how the model is cut; for a model of one layer both are the same.
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


def _numbered(layers: nn.ModuleList, numbers: range) -> nn.ModuleList:
    """Give layers the numbers that they have in the whole model, as names."""
    named = nn.ModuleList()
    for number, layer in zip(numbers, layers, strict=True):
        named.add_module(str(number), layer)
    return named


def _hollow_out(body: nn.Module, family: Family) -> None:
    """Leave a model's body nothing but the making of masks and positions."""
    setattr(body, family.embedding, None)
    setattr(body, family.norm, nn.Identity())
    if family.embedding_dropout is not None:  # applied to the embedding once, not at the entry of every stage
        setattr(body, family.embedding_dropout, nn.Identity())
