"""The models of the paper by their shape: parameters, operations and messages of a stage.

Where the figures come from: dimensions, heads, layers and sequence length of the models of 500 million and 1.5 billion
parameters stand in the paper's public code, as do the bytes of a message (2 per number) and of the gradients of stage 0
(1,346,446,748 for 1.5 billion: 4 bytes per parameter of four layers, embedding and head, if a feed-forward layer is
5,632 wide and there are 32,000 entries). The model of 8 billion parameters is Llama 3's.
"""

from dataclasses import dataclass

SEQUENCE = 4096
"""Tokens of a sequence."""
WIRE_BYTES, GRADIENT_BYTES = 2, 4
"""Per number of a message, and per parameter."""


@dataclass(frozen=True)
class ModelShape:
    """A Llama."""

    layers: int
    hidden: int
    intermediate: int
    """width of the feed-forward layers"""
    key_width: int
    """of keys, and of values"""
    vocabulary: int
    stages: int
    """in which it is trained"""

    @property
    def layer_parameters(self) -> int:
        """Parameters of a decoder layer."""
        return self._products + 2 * self.hidden

    @property
    def _products(self) -> int:
        """Weights of a layer that a token is multiplied by."""
        return 2 * self.hidden * (self.hidden + self.key_width) + 3 * self.hidden * self.intermediate

    @property
    def outer_parameters(self) -> int:
        """Parameters of embedding, head and last norm, which stage 0 owns."""
        return 2 * self.hidden * self.vocabulary + self.hidden

    @property
    def layer_flops(self) -> float:
        """Operations of a layer's forward pass per token, causal attention over a sequence included."""
        return 2.0 * self._products + 4.0 * self.hidden * (SEQUENCE + 1) / 2

    @property
    def head_flops(self) -> float:
        """Operations of the head's forward pass per token."""
        return 2.0 * self.hidden * self.vocabulary

    def message_bytes(self, tokens: int) -> float:
        """Bytes of the hidden states of a microbatch."""
        return float(WIRE_BYTES * tokens * self.hidden)

    def gradient_bytes(self, stages: int) -> list[float]:
        """Bytes that the replicas of each stage all-reduce."""
        inner = self.layers / stages * self.layer_parameters
        return [GRADIENT_BYTES * (inner + (0 if stage else self.outer_parameters)) for stage in range(stages)]


MODELS = {
    "500m": ModelShape(24, 1024, 2816, 1024, 32_000, 6),
    "1.5b": ModelShape(24, 2048, 5632, 2048, 32_000, 6),
    "8b": ModelShape(32, 4096, 14_336, 1024, 128_256, 8),
}
"""By the names that the paper gives them; in 32,000 entries the first has 374 million parameters, the second 1.36
billion."""
MEASURED = "1.5b"
"""The model to which the paper's node times belong."""
LAYER_S = 0.055
"""Forward pass of one layer for one sequence in the paper's public code, in seconds."""
BACKWARD = 1.5
"""A backward pass relative to a forward pass, there."""
FLOPS_PER_S = MODELS[MEASURED].layer_flops * SEQUENCE / LAYER_S
"""What its nodes reach in a forward pass."""
