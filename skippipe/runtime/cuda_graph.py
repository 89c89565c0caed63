"""An iteration's work on a GPU, recorded once and launched at once from then on.

Small layers are over before the host has launched the next kernel; a CUDA graph launches all of them together.
"""

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from skippipe.runtime.stage import Stage, StageResults

EAGER_ITERATIONS = 2
"""Before the recording: the first iterations compile, and allocate what stays."""

Texts = Sequence[tuple[Tensor, Tensor]]
"""Tokens and labels of each group of microbatches."""


class GraphedIteration:
    """Calls a function of the tokens, and then what it has recorded of it.

    The function must issue the same work each time, never wait for the GPU, and leave its results in the stages. Until
    the next call, losses and gradients stay in the memory that the graph writes to.
    """

    def __init__(self, compute: Callable[[Texts], Tensor], stages: Collection[Stage], device: torch.device) -> None:
        self._compute, self._stages = compute, stages
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._calls = 0
        self._recorded: tuple[torch.cuda.CUDAGraph, Texts, Tensor, list[StageResults]] | None = None

    def __call__(self, texts: Texts) -> Tensor:
        """Compute on tokens and labels of the device, in the same sizes each time; gives what the function gives."""
        if self._recorded is not None:
            graph, inputs, output, results = self._recorded
            for own, given in zip(inputs, texts, strict=True):
                torch._foreach_copy_(list(own), list(given))
            graph.replay()
            for stage, found in zip(self._stages, results, strict=True):
                stage.restore(found)
            return output
        self._calls += 1
        if self._calls > EAGER_ITERATIONS:
            self._record(texts)
            return self(texts)
        # On the stream of the recording: gradients are added on the stream on which they were first used.
        current = torch.cuda.current_stream(self._stream.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            output = self._compute(texts)
        current.wait_stream(self._stream)
        return output

    def _record(self, texts: Texts) -> None:
        inputs = [(tokens.clone(), labels.clone()) for tokens, labels in texts]
        graph = torch.cuda.CUDAGraph()
        # Other threads, which read text and write checkpoints, may allocate meanwhile.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            output = self._compute(inputs)
        self._recorded = graph, inputs, output, [stage.results() for stage in self._stages]

    def release(self) -> None:
        """Free the memory of the recording; the next calls record anew."""
        self._recorded, self._calls = None, 0
