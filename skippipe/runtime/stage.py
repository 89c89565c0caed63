"""One stage at work on one rank: forward, loss and backward of single microbatches, and what is held between them."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from skippipe.model.stage_module import StageModule

StageGradient = Literal["exact", "per_visit"]
"""exact: the derivative of the mean loss, whatever the stage saw; per_visit: that times microbatches / visits"""


class Held(NamedTuple):
    """What a microbatch keeps on a node from its forward to its backward."""

    leaf: Tensor
    """the stage's input, where the gradient that goes back ends"""
    output: Tensor
    """what the stage gave, with the graph that leads to it"""
    local_loss: Tensor | None
    """the stage's own loss for this microbatch, if its layers have one"""


class Stage:
    """The layers of one stage on one rank, shared by all nodes of that stage that the rank serves.

    An iteration runs from `begin` to `gradients`. Losses are divided by the iteration's valid tokens before their
    backward, and gradients add up over microbatches and replicas: their sum is the exact derivative of the mean loss
    over those tokens, whichever microbatches came by. Not for several threads.

    Args:
        module: the stage's part of the model.

    """

    def __init__(self, module: StageModule) -> None:
        self.module = module
        self.parameters = [parameter for parameter in module.parameters() if parameter.requires_grad]
        """in the order of the module, which is the same on every replica; tied weights once"""
        self._held: dict[int, Held] = {}
        self._embedded: dict[int, Tensor] = {}
        self._losses: dict[int, Tensor] = {}
        self._local_losses: dict[int, Tensor] = {}
        self._valid_tokens = 0
        self._scale = 1.0
        self._finished = False
        self._evaluating = False

    def begin(self, valid_tokens: int, *, scale: float = 1.0) -> None:
        """Start an iteration: gradients, losses and whatever a failed iteration left are dropped.

        Args:
            valid_tokens: labels that count, over all microbatches of all sources.
            scale: what the gradients of this stage are multiplied with at the end, by `gradient_scale`.

        """
        if valid_tokens < 1:
            raise ValueError(f"an iteration of {valid_tokens} valid tokens has no mean loss")
        self._valid_tokens, self._scale, self._finished = valid_tokens, scale, False
        self._drop()
        self.module.zero_grad(set_to_none=True)

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Embed tokens on stage 0: (b, s) int64 to (b, s, hidden)."""
        with torch.set_grad_enabled(not self._evaluating):
            embedded = self.module.embed(tokens)
        if not self._evaluating:
            self._embedded[microbatch] = embedded
        return embedded.detach()

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Run the layers on (b, s, hidden); the result is free of the graph, which is held until `backward`."""
        leaf = hidden.detach()
        if self._evaluating:
            with torch.no_grad():
                output: Tensor = self.module(leaf)[0]
            return output
        assert microbatch not in self._held, f"microbatch {microbatch} visits stage {self.module.stage} twice"
        leaf.requires_grad_()
        held = Held(leaf, *self.module(leaf))
        self._held[microbatch] = held
        return held.output.detach()

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Final norm, head and loss on stage 0, and back again.

        Args:
            microbatch: its number; the sum of its token losses is kept under it, for `take_losses`.
            hidden: (b, s, hidden).
            labels: (b, s) int64.

        Returns:
            The gradient of the mean loss by `hidden`, of its shape; nothing (no elements) while evaluating.

        """
        leaf = hidden.detach()
        if self._evaluating:
            with torch.no_grad():
                self._losses[microbatch] = self.module.loss(leaf, labels).detach()
            return leaf.new_empty(0)
        leaf.requires_grad_()
        summed = self.module.loss(leaf, labels)
        self._losses[microbatch] = summed.detach()
        torch.autograd.backward(summed / self._valid_tokens)
        return _gradient(leaf)

    def backward(self, microbatch: int, gradient: Tensor) -> Tensor:
        """Run the layers backward from (b, s, hidden) and free what the microbatch held.

        Returns:
            The gradient of the stage's input, of the same shape.

        """
        leaf, output, local_loss = self._held.pop(microbatch)
        if local_loss is None:
            torch.autograd.backward([output], [gradient])
        else:
            tokens = leaf.shape[0] * leaf.shape[1]
            self._local_losses[microbatch] = local_loss.detach() * tokens
            torch.autograd.backward([output, local_loss * (tokens / self._valid_tokens)], [gradient, None])
        return _gradient(leaf)

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Run the embedding of stage 0 backward from (b, s, hidden)."""
        torch.autograd.backward([self._embedded.pop(microbatch)], [gradient])

    def gradients(self) -> list[Tensor]:
        """Gradient of every parameter in the order of `parameters`: zeros where no microbatch came by.

        They are the parameters' own, so that replicas can add them up in place. The first call of an iteration is
        after its last backward: it multiplies with the iteration's scale.
        """
        if not self._finished:
            self._finish()
        return [_gradient(parameter) for parameter in self.parameters]

    def take_losses(self) -> dict[int, float]:
        """Sums of token losses, in nats, by microbatch, of those whose loss was taken here; they are handed out once.

        The mean loss of an iteration is the sum over all sources, divided by its valid tokens.
        """
        losses, self._losses = self._losses, {}
        return {microbatch: loss.item() for microbatch, loss in losses.items()}

    def take_local_losses(self) -> dict[int, float]:
        """Sums of the losses of this stage's routers over tokens, by microbatch that came back; handed out once.

        The coefficient is in them. They count for the gradient as token losses do: divided by the valid tokens.
        """
        losses, self._local_losses = self._local_losses, {}
        return {microbatch: loss.item() for microbatch, loss in losses.items()}

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within: no gradients, nothing held, no dropout; `take_losses` gives the losses. Gradients stay as they are.

        The losses of the iteration before are to be taken first: they are dropped.
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
        for kept in (self._held, self._embedded, self._losses, self._local_losses):
            kept.clear()

    def _finish(self) -> None:
        assert not self._held, f"stage {self.module.stage} still holds microbatches {sorted(self._held)}"
        assert not self._embedded, f"embeddings of microbatches {sorted(self._embedded)} got no gradient"
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            elif self._scale != 1.0:
                parameter.grad.mul_(self._scale)
        self._finished = True


def gradient_scale(mode: StageGradient, *, visits: int, microbatches: int) -> float:
    """Give what the gradients of a stage are multiplied with.

    Args:
        mode: `exact`, or `per_visit` as if the stage had seen every microbatch.
        visits: microbatches whose routes lead over the stage, over all its replicas.
        microbatches: all of the iteration.

    """
    return microbatches / visits if mode == "per_visit" and visits else 1.0


def _gradient(tensor: Tensor) -> Tensor:
    assert tensor.grad is not None, "no gradient has reached it"
    return tensor.grad
