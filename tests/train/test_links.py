"""Which way messages travel, and which GPU a process takes."""

from typing import Literal

import pytest
import torch

from skippipe.devices import find_device
from skippipe.errors import InputError
from skippipe.train.connect.links import ON_CPU, choose_backend

OBSTACLES = [
    (["a", ON_CPU], "rank 1 computes on its CPU"),
    ([ON_CPU], "rank 0 computes on its CPU"),
    (["a", "b", "a"], "ranks 0 and 2 share a GPU"),
    (["a"], "there is one rank only"),
]


@pytest.mark.parametrize(("devices", "reason"), OBSTACLES)
def test_where_nccl_cannot_be_used(devices: list[str], reason: str) -> None:
    assert choose_backend("auto", devices) == choose_backend("gloo", devices) == "gloo"
    with pytest.raises(InputError, match=f"runtime.backend: expected auto or gloo, got nccl.*{reason}"):
        choose_backend("nccl", devices)


@pytest.mark.parametrize(("wanted", "chosen"), [("auto", "nccl"), ("nccl", "nccl"), ("gloo", "gloo")])
def test_a_gpu_for_each_rank(
    wanted: Literal["auto", "gloo", "nccl"], chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert choose_backend(wanted, ["a", "b", "c"]) == chosen


def test_without_nccl_messages_go_by_gloo(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: False)
    assert choose_backend("auto", ["a", "b"]) == "gloo"
    with pytest.raises(InputError, match="this torch has no NCCL"):
        choose_backend("nccl", ["a", "b"])


def test_gpus_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 3)
    found = [find_device(name, "runtime.device", process) for name in ("auto", "cuda") for process in range(5)]
    assert found == [torch.device("cuda", number) for number in (0, 1, 2, 0, 1)] * 2
    assert find_device("cuda:1", "runtime.device", 2) == torch.device("cuda:1")
    assert find_device("cpu", "runtime.device", 2) == torch.device("cpu")
