"""The devices that arms run on."""

from collections.abc import Sequence

from skippipe.errors import InputError


def find_devices(asked: Sequence[str] | None) -> list[str]:
    """Names of the devices: those asked for, else all GPUs, else the CPU.

    Raises:
        InputError: the list is empty, or a device is unknown or not there.

    """
    import torch  # noqa: PLC0415 - it takes seconds, and the page is made without

    from skippipe.train.efficiency import find_device  # noqa: PLC0415

    if asked is None:
        return [f"cuda:{number}" for number in range(torch.cuda.device_count())] or ["cpu"]
    if not asked:
        raise InputError("devices: expected at least one device, got []")
    for number, name in enumerate(asked):
        find_device(name, f"devices[{number}]")
    return list(asked)
