"""Compiled parts compute what plain ones do, for any number of sequences, and layers share what is compiled."""

import os
import shutil

import pytest
import torch
from model.compiling import one_compiler
from model.small import config_of, tokens
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from skippipe.model.build import build_stage_module
from skippipe.model.layers import own_compile_cache
from skippipe.model.stage_module import StageModule

SIZES = (3, 2, 5, 7)


def one_stage(*, compiled: bool) -> StageModule:
    config = config_of("llama-tied", num_hidden_layers=3)
    part = build_stage_module(config, stage=0, layers=range(3), first=True, seed=1)
    if compiled:
        part.enable_compile()
    return part


def gradients(part: StageModule, size: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a batch of `size` sequences."""
    given = tokens(size, 16, seed=size)
    part.zero_grad()
    loss = part.loss(part(part.embed(given))[0], given)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {name: p.grad.clone() for name, p in part.named_parameters() if p.grad is not None}


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="no C++ compiler is here")
@pytest.mark.filterwarnings("ignore")  # of torch itself, while it compiles
@pytest.mark.timeout(300)
def test_compiled_parts_are_the_plain_ones() -> None:
    counters.clear()
    plain, compiled = one_stage(compiled=False), one_stage(compiled=True)
    for size in SIZES:
        loss, expected = gradients(plain, size)
        with one_compiler():
            ours, found = gradients(compiled, size)
        assert ours == pytest.approx(loss, rel=1e-5)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)
    assert counters["stats"]["unique_graphs"] == 2, "one for all layers, one for the loss; none for each batch size"


def test_what_is_compiled_is_kept_where_nobody_else_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch runs and unpickles what it finds in its cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", "/mine/cache")
    for before, after in (
        (None, "/mine/cache/skippipe/torchinductor"),
        (default_cache_dir(), "/mine/cache/skippipe/torchinductor"),  # what torch itself chooses
        ("/chosen", "/chosen"),
    ):
        monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", before or "")
        own_compile_cache()
        assert cache_dir_of_torch() == after


def cache_dir_of_torch() -> str:
    """Where torch would look, without making it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "makedirs", lambda *_, **__: None)
        return cache_dir()
