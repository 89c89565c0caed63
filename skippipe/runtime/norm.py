"""The norm of gradients, on the device that holds them."""

from collections.abc import Sequence

import torch
from torch import Tensor


def squared_norm(gradients: Sequence[Tensor]) -> Tensor:
    """The squared Euclidean norm of all values of some tensors of one device: a scalar, float64, on that device.

    On a CPU all of it is computed in float64, tensor by tensor. A GPU takes the norms in float32, many tensors to a
    kernel, and squares and adds them in float64.
    """
    if not gradients:
        return torch.zeros((), dtype=torch.float64)
    if gradients[0].is_cuda:
        dtype = torch.promote_types(gradients[0].dtype, torch.float32)  # of the norms: bfloat16 would round them
        norms = torch._foreach_norm(list(gradients), 2, dtype)  # noqa: SLF001 - as torch's own clipping has it
        return torch.stack(norms).double().square().sum()
    zero = torch.zeros((), dtype=torch.float64)
    return sum((torch.linalg.vector_norm(g, dtype=torch.float64).square() for g in gradients), start=zero)
