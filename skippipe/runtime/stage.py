"""One stage on one rank: forward, loss and backward of microbatches, and the activations saved in between."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from skippipe.model.stage_module import StageModule

EVALUATED_TOKENS = 2048
"""Most tokens whose logits stand at one time in a validation."""
StageGradient = Literal["exact", "per_visit"]
"""exact: derivative of the mean loss, whatever the stage saw; per_visit: that times microbatches / visits"""


class SavedActivation(NamedTuple):
    """Autograd state of a microbatch on a node, from its forward to its backward."""

    leaf: Tensor
    """the stage's input; its gradient is sent back"""
    output: GradientEdge
    """where the graph of the stage's output begins; the output itself is not needed any more"""
    local_loss: Tensor | None
    """auxiliary loss of the stage's layers, if any"""


class StageResults(NamedTuple):
    """What an iteration leaves in a stage: tensors of its device."""

    factors: tuple[float, ...]
    """on losses and gradients, as `begin` was told"""
    gradients: list[Tensor]
    """of the parameters reached, complete"""
    losses: dict[int, Tensor]
    """sums of token losses by microbatch"""
    local_losses: dict[int, Tensor]
    """sums of router losses by microbatch"""


ReadyGradients = Callable[[Sequence[Tensor]], None]
"""Takes the gradients of a layer, once no backward will add to them."""


class Stage:
    """The layers of one stage on one rank, shared by all nodes of that stage that the rank serves.

    An iteration runs from `begin` to `gradients`. Losses are divided by the iteration's valid tokens before their
    backward, and gradients are summed over microbatches and replicas: the sum is the exact derivative of the mean loss
    over those tokens, whichever microbatches visited. Not thread-safe.

    Args:
        module: the stage's layers.
        loss_chunk: most tokens in one pass through final norm, head and loss; None: all of a microbatch.

    """

    def __init__(self, module: StageModule, loss_chunk: int | None = None) -> None:
        self.module = module
        self._loss_chunk = loss_chunk
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        """in module order, the same on every replica; tied weights once"""
        self._reached = self.parameters
        self._saved: dict[int, SavedActivation] = {}
        self._embedded: dict[int, Tensor] = {}
        self._losses: dict[int, Tensor] = {}
        self._local_losses: dict[int, Tensor] = {}
        self._valid_tokens = 0
        self._scale = 1.0
        self._loss_scale = 1.0
        self._finished = False
        self._evaluating = False

    def begin(self, valid_tokens: int, *, scale: float = 1.0, loss_scale: float = 1.0, visited: bool = True) -> None:
        """Start an iteration: drop gradients, losses and leftovers of a failed iteration.

        Args:
            valid_tokens: unmasked labels, over all microbatches of all sources.
            scale: final factor on this stage's gradients, from `gradient_scale`.
            loss_scale: factor on the loss, and so on all gradients until they are complete; the same on all ranks.
            visited: whether any microbatch visits the stage, here or at another replica. If none does, its layers have
                no gradient, so that an optimizer leaves weights, moments and step counts as they are.

        """
        if valid_tokens < 1:
            raise ValueError(f"an iteration of {valid_tokens} valid tokens has no mean loss")
        self._valid_tokens, self._scale, self._finished = valid_tokens, scale / loss_scale, False
        self._loss_scale = loss_scale
        self._reached = self.module.trained_parameters(layers=visited)
        self._drop()
        for parameter in self.parameters:
            parameter.grad = None

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Embed tokens on stage 0: (b, s) int64 to (b, s, hidden)."""
        with torch.set_grad_enabled(not self._evaluating):
            embedded = self.module.embed(tokens)
        if not self._evaluating:
            self._embedded[microbatch] = embedded
        return embedded.detach()

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Run the layers on (b, s, hidden); the result is detached, its graph is saved for `backward`."""
        if self._evaluating:
            with torch.no_grad():
                output: Tensor = self.module(hidden.detach())[0]
            return output
        assert microbatch not in self._saved, f"microbatch {microbatch} visits stage {self.module.stage} twice"
        output, self._saved[microbatch] = self.run_layers(hidden)
        return output

    def run_layers(self, hidden: Tensor) -> tuple[Tensor, SavedActivation]:
        """Run the layers on (b, s, hidden); gives the result, detached, and what its backward needs."""
        leaf = hidden.detach().requires_grad_()
        output, local_loss = self.module(leaf)
        return output.detach(), SavedActivation(leaf, get_gradient_edge(output), local_loss)

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Run final norm, head and loss on stage 0, forward and backward.

        Args:
            microbatch: its number; `take_losses` returns the sum of its token losses.
            hidden: (b, s, hidden).
            labels: (b, s) int64.

        Returns:
            The gradient of the mean loss with respect to `hidden`, of its shape, times the loss scale; an empty tensor
            while evaluating.

        """
        summed, gradient = self.run_head(hidden, labels, 1.0 if self._evaluating else self.loss_factor)
        self.keep_loss(microbatch, summed)
        return gradient

    def run_head(self, hidden: Tensor, labels: Tensor, factor: float | Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the token losses, and the gradient of `factor` times that sum; see `loss`."""
        chunks = [
            self._chunk_loss(hidden_chunk, labels_chunk, factor)
            for hidden_chunk, labels_chunk in _chunks(hidden.detach(), labels, self._most_tokens)
        ]
        summed = torch.stack([summed for summed, _ in chunks]).sum()
        gradients = [gradient for _, gradient in chunks]
        if self._evaluating:
            return summed, hidden.new_empty(0)
        return summed, gradients[0] if len(gradients) == 1 else torch.cat(gradients).view_as(hidden)

    @property
    def _most_tokens(self) -> int | None:
        """Of a chunk. What graphs hold is no room for the logits of a validation."""
        if not self._evaluating:
            return self._loss_chunk
        return min(self._loss_chunk or EVALUATED_TOKENS, EVALUATED_TOKENS)

    @property
    def loss_factor(self) -> float:
        """What the sum of token losses is multiplied by: the loss scale over the iteration's valid tokens."""
        return self._loss_scale / self._valid_tokens

    def keep_loss(self, microbatch: int, summed: Tensor) -> None:
        """Keep the sum of a microbatch's token losses for `take_losses`."""
        self._losses[microbatch] = summed

    def _chunk_loss(self, leaf: Tensor, labels: Tensor, factor: float | Tensor) -> tuple[Tensor, Tensor]:
        """Sum of the token losses of a chunk, and the gradient with respect to `leaf`, if training."""
        if self._evaluating:
            with torch.no_grad():
                return self.module.loss(leaf, labels).detach(), leaf
        leaf.requires_grad_()
        summed = self.module.loss(leaf, labels)
        torch.autograd.backward(summed * factor)
        return summed.detach(), _gradient(leaf)

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        """Run the layers backward from (b, s, hidden) and free the microbatch's saved activation.

        Args:
            microbatch: its number.
            gradient: of the stage's output.
            ready: on the stage's last backward of an iteration: called for one layer after the other, in the same order
                on every replica, while the layers before it still run.

        Returns:
            The gradient of the stage's input, of the same shape.

        """
        leaf, output, local_loss = self._saved.pop(microbatch)
        roots, gradients = [output], [gradient]
        if local_loss is not None:
            tokens = leaf.shape[0] * leaf.shape[1]
            self._local_losses[microbatch] = local_loss.detach() * tokens
            roots.append(get_gradient_edge(local_loss))
            gradients.append(torch.full_like(local_loss, self._loss_scale * tokens / self._valid_tokens))
        if ready is None:
            torch.autograd.backward(roots, gradients)
        else:
            with self._watching(ready):
                torch.autograd.backward(roots, gradients)
        return _gradient(leaf)

    @contextmanager
    def _watching(self, ready: ReadyGradients) -> Iterator[None]:
        """Within a backward: give the gradients of each layer to `ready`, the last layer first."""
        pending = self._layer_parameters()
        missing = [len(parameters) for parameters in pending]

        def accumulated(index: int, _parameter: Tensor) -> None:
            missing[index] -= 1
            while pending and not missing[len(pending) - 1]:
                ready([_gradient(parameter) for parameter in pending.pop()])

        handles = [
            parameter.register_post_accumulate_grad_hook(partial(accumulated, index))  # type: ignore[no-untyped-call]
            for index, parameters in enumerate(pending)
            for parameter in parameters
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        while pending:  # this microbatch reached no parameter of some expert
            ready([_filled(parameter) for parameter in pending.pop()])

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Run the embedding of stage 0 backward from (b, s, hidden)."""
        torch.autograd.backward([self._embedded.pop(microbatch)], [gradient])

    def gradient_parts(self) -> list[list[Tensor]]:
        """Gradients for in-place all-reduce: of each layer, the last one first, then of what is in none.

        Zeros if microbatches visited other replicas only. These are the parameters' own tensors.
        """
        self._fill()
        reached = {id(parameter) for parameter in self._reached}
        outside = self.module.trained_parameters(layers=False)
        parts = [*self._layer_parameters()[::-1], outside]
        return [
            [_gradient(parameter) for parameter in part]
            for part in parts
            if part and all(id(parameter) in reached for parameter in part)
        ]

    def gradients(self) -> list[Tensor]:
        """Gradient of every parameter that the iteration reaches, in the order of `parameters`, after the all-reduce.

        Zeros if microbatches visited other replicas only. The first call of an iteration applies its scale.
        """
        self._fill()
        found = [_gradient(parameter) for parameter in self._reached]
        if not self._finished:
            self._finished = True
            if found and self._scale != 1.0:
                torch._foreach_mul_(found, self._scale)
        return found

    @property
    def reached(self) -> Sequence[nn.Parameter]:
        """The parameters that the iteration gives a gradient."""
        return self._reached

    @property
    def _factors(self) -> tuple[float, ...]:
        return self._valid_tokens, self._scale, self._loss_scale

    def results(self) -> StageResults:
        """What the iteration has left here; its tensors are the stage's own."""
        return StageResults(self._factors, self.gradients(), dict(self._losses), dict(self._local_losses))

    def restore(self, results: StageResults) -> None:
        """Take over what an iteration that began with the same arguments left, as if it had run since `begin`."""
        assert results.factors == self._factors, f"{results.factors} became {self._factors}"
        for parameter, gradient in zip(self._reached, results.gradients, strict=True):
            parameter.grad = gradient
        self._losses, self._local_losses = dict(results.losses), dict(results.local_losses)
        self._finished = True

    def _fill(self) -> None:
        """Give a gradient to all parameters that the iteration reaches."""
        assert not self._saved, f"stage {self.module.stage}: no backward of microbatches {sorted(self._saved)}"
        assert not self._embedded, f"no backward of the embeddings of microbatches {sorted(self._embedded)}"
        for parameter in self._reached:
            _filled(parameter)

    def _layer_parameters(self) -> list[list[nn.Parameter]]:
        """The trained parameters of each layer in use."""
        of_layers = (self.module.parameters_of_layer(layer).values() for layer in self.module.layers_in_use)
        return [[parameter for parameter in parameters if parameter.requires_grad] for parameters in of_layers]

    def take_losses(self) -> dict[int, float]:
        """Return and clear the sums of token losses, in nats, of the microbatches whose loss was computed here.

        The mean loss of an iteration is the sum over all sources, divided by its valid tokens.
        """
        losses, self._losses = self._losses, {}
        return _numbers(losses)

    def take_local_losses(self) -> dict[int, float]:
        """Return and clear the sums over tokens of this stage's router losses, by microbatch.

        They include the coefficient, and enter the gradient as token losses do: divided by the valid tokens.
        """
        losses, self._local_losses = self._local_losses, {}
        return _numbers(losses)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Context without gradients, saved activations and dropout; `take_losses` returns the losses.

        Gradients are left unchanged; untaken losses of the previous iteration are dropped.
        """
        self._drop()
        self._evaluating = True
        self.module.eval()
        try:
            yield
        finally:
            self.module.train()
            self._evaluating = False

    def _drop(self) -> None:
        for kept in (self._saved, self._embedded, self._losses, self._local_losses):
            kept.clear()


def gradient_scale(mode: StageGradient, *, visits: int, microbatches: int) -> float:
    """Factor on a stage's gradients.

    Args:
        mode: `exact`, or `per_visit`: as if the stage had seen every microbatch.
        visits: microbatches that visit the stage, over all its replicas.
        microbatches: microbatches per iteration.

    """
    return microbatches / visits if mode == "per_visit" and visits else 1.0


def _chunks(hidden: Tensor, labels: Tensor, most: int | None) -> list[tuple[Tensor, Tensor]]:
    """Cut (b, s, hidden) and (b, s) into chunks of at most `most` tokens, each (tokens, 1, hidden) and (tokens, 1)."""
    if most is None or labels.numel() <= most:
        return [(hidden, labels)]
    rows = hidden.flatten(0, 1)[:, None], labels.flatten()[:, None]
    return list(zip(*(torch.split(tensor, most) for tensor in rows), strict=True))


def _numbers(scalars: Mapping[int, Tensor]) -> dict[int, float]:
    """Values of scalars of one device, in one transfer to the host."""
    return dict(zip(scalars, torch.stack([*scalars.values()]).tolist(), strict=True)) if scalars else {}


def _filled(parameter: nn.Parameter) -> Tensor:
    """The gradient of a parameter; zeros if nothing has added to it."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, "no gradient"
    return tensor.grad
