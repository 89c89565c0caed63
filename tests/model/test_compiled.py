"""Compiled parts compute what plain ones do, for any number of sequences, layers share what is compiled, and save what
is predicted.
"""

import os
import shutil
from functools import partial

import pytest
import torch
from model.compiling import one_compiler
from model.small import config_of, tokens
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir, default_cache_dir

from skippipe.model.build import build_stage_module
from skippipe.model.layers import own_compile_cache
from skippipe.model.memory import saved_bytes, stage_memory
from skippipe.model.stage_module import StageModule

SIZES, SEQUENCE = (3, 2, 5, 7), 16


def one_stage(*, compiled: bool) -> StageModule:
    config = config_of("llama-tied", num_hidden_layers=3)
    part = build_stage_module(config, stage=0, layers=range(3), first=True, seed=1)
    if compiled:
        part.enable_compile()
    return part


def gradients(part: StageModule, size: int) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of a batch of `size` sequences."""
    given = tokens(size, SEQUENCE, seed=size)
    part.zero_grad()
    loss = part.loss(part(part.embed(given))[0], given)
    loss.backward()  # type: ignore[no-untyped-call]
    return loss.item(), {name: p.grad.clone() for name, p in part.named_parameters() if p.grad is not None}


@pytest.mark.skipif(shutil.which("g++") is None and shutil.which("c++") is None, reason="no C++ compiler is here")
@pytest.mark.filterwarnings("ignore")  # of torch itself, while it compiles
@pytest.mark.timeout(300)
def test_compiled_parts_are_the_plain_ones() -> None:
    config, layers, size = config_of("llama-tied", num_hidden_layers=3), range(1, 3), 8
    predicted, eager = (
        stage_memory(
            config, stage=1, layers=layers, first=False, microbatch_size=size, sequence=SEQUENCE, compiled=compiled
        ).activation_bytes
        for compiled in (True, False)
    )  # fmt: skip
    counters.clear()
    plain, compiled = one_stage(compiled=False), one_stage(compiled=True)
    for batch in SIZES:
        loss, expected = gradients(plain, batch)
        with one_compiler():
            ours, found = gradients(compiled, batch)
        assert ours == pytest.approx(loss, rel=1e-5)
        assert found.keys() == expected.keys()
        for name, gradient in expected.items():
            torch.testing.assert_close(found[name], gradient, rtol=1e-3, atol=1e-4, msg=name)
    part = build_stage_module(config, stage=1, layers=layers, first=False, seed=0)
    part.enable_compile()
    hidden = torch.randn(size, SEQUENCE, 32, requires_grad=True)
    with one_compiler():
        kept = saved_bytes(partial(part, hidden), [*part.parameters(), hidden])
    assert predicted == pytest.approx(kept + 2 * hidden.nbytes, rel=0.05)
    assert predicted < 0.9 * eager
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
