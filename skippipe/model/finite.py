"""Whether tensors are finite."""

import torch
from torch import Tensor


def is_finite(tensor: Tensor) -> bool:
    """Whether a floating-point tensor holds neither NaN nor infinity.

    One pass at the speed of memory and without a mask as large as the tensor: least and greatest are NaN where any is.
    """
    if not tensor.is_floating_point() or tensor.numel() == 0:
        return True
    least, greatest = torch.aminmax(tensor.detach())
    return bool(least.isfinite() and greatest.isfinite())


def describe_non_finite(tensor: Tensor) -> str:
    """What a tensor holds that is not finite, and where it first does, for messages."""
    bad = tensor.detach().reshape(-1).isfinite().logical_not()
    first = int(bad.int().argmax())
    return f"{tensor.detach().reshape(-1)[first].item()} at {first} ({int(bad.sum())} of {tensor.numel()} values)"
