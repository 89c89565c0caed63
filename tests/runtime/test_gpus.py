"""Gradients over two GPUs equal those of a plain loop over the full model on one, whichever way messages travel.

Replicas of a stage sum in another order: float64 agrees to 1e-10, float32 to 2e-5 of the largest value.
"""

from random import Random

import numpy as np
import pytest
import torch
from pool import Pool
from runtime.connecting import connect_alone
from runtime.machine import random_ranks
from runtime.models import LLAMA, Training, make_plan, train, train_plain

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="two GPUs are needed")


@pytest.mark.parametrize("graphs", [False, True], ids=["kernels", "graphs"])
@pytest.mark.parametrize("links", ["peer", "nccl", "staged"])
@pytest.mark.parametrize(
    ("stages", "layers", "skip_ratio", "dtype"),
    [
        ([1, 1], (1, 2), 0.0, "float64"),
        ([1, 1], (1, 2), 0.0, "float32"),
        ([2, 2], (2, 1), 0.0, "float64"),
        ([2, 1, 1], (1, 2, 1), 1 / 3, "float64"),
        ([1, 1, 1, 1], (1, 2, 1, 1), 0.25, "float64"),
        ([2, 3, 1], (1, 1, 2), 0.3, "float64"),
        ([1, 4], (1, 1), 0.5, "float64"),
    ],
)
def test_gradients_over_gpus_are_exact(
    pool: Pool, links: str, graphs: bool, stages: list[int], layers: tuple[int, ...], skip_ratio: float, dtype: str
) -> None:
    rng = Random(sum(stages))
    plan = make_plan(rng, stages, skip_ratio, 4)
    tolerance = {"float64": 1e-10, "float32": 2e-5}[dtype]
    for _ in range(2):
        ranks = random_ranks(rng, sum(stages), 2, 2)
        training = Training(LLAMA, layers, plan, tuple(ranks), dtype=dtype, iterations=3, links=links, graphs=graphs)
        trained, plain = pool.run(train, [(training,)] * 2, 180.0), train_plain(training)
        wanted = plain.gradients[0]
        assert set(wanted) == {name for rank in trained for name in rank.gradients[0]}
        for name, gradient in [item for rank in trained for item in rank.gradients[0].items()]:
            scale = np.abs(wanted[name]).max()
            np.testing.assert_allclose(gradient, wanted[name], rtol=tolerance, atol=tolerance * scale, err_msg=name)
        for rank in trained:
            assert rank.norms == trained[0].norms
            np.testing.assert_allclose(rank.norms, plain.norms, rtol=1e-5)


@pytest.mark.parametrize("wire", ["int8", "float8_e4m3fn", "bfloat16"])
@pytest.mark.parametrize("links", ["peer", "nccl", "staged"])
def test_other_types_of_messages(pool: Pool, links: str, wire: str) -> None:
    rng = Random(7)
    plan = make_plan(rng, [1, 1, 1, 1], 0.25, 4)
    training = Training(LLAMA, (1, 2, 1, 1), plan, (0, 1, 0, 1), iterations=3, links=links, wire=wire)
    trained, plain = pool.run(train, [(training,)] * 2, 180.0), train_plain(training)
    for rank in trained:
        np.testing.assert_allclose(rank.norms, plain.norms, rtol=0.1)
    for found, wanted in zip(trained[0].losses, plain.losses, strict=True):
        assert found == pytest.approx(wanted, rel=0.01)


@pytest.mark.parametrize("links", ["emulated peer", "emulated nccl", "emulated staged"])
@pytest.mark.parametrize(("stages", "layers"), [([1, 1], (1, 2)), ([2, 1, 1], (1, 2, 1)), ([2, 2], (2, 1))])
def test_emulated_links_between_gpus(pool: Pool, links: str, stages: list[int], layers: tuple[int, ...]) -> None:
    """As in `test_gradients_over_gpus_are_exact`."""
    rng = Random(3)
    plan = make_plan(rng, stages, 0.0 if len(stages) == 2 else 1 / 3, 4)
    ranks = random_ranks(rng, sum(stages), 2, 2)
    training = Training(LLAMA, layers, plan, tuple(ranks), dtype="float64", iterations=3, links=links)
    trained, plain = pool.run(train, [(training,)] * 2, 180.0), train_plain(training)
    for name, gradient in [item for rank in trained for item in rank.gradients[0].items()]:
        wanted = plain.gradients[0][name]
        np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-10 * np.abs(wanted).max(), err_msg=name)


@pytest.mark.parametrize("interrupted", [False, True], ids=["late", "lost"])
@pytest.mark.parametrize("first", [0, 1])
def test_nobody_waits_for_a_rank_that_does_not_connect(pool: Pool, first: int, interrupted: bool) -> None:
    """The rank that has to be waited for serves the communicator's address, or asks for it."""
    outcomes = pool.run(connect_alone, [(first, interrupted)] * 2, 60.0)
    assert outcomes[1 - first] is None
    message, cause = outcomes[first]
    reason = "broken off" if interrupted else "timed out after 2 s"
    assert (message, cause) == (f"connecting GPUs by NCCL, with rank {1 - first}: {reason}", not interrupted)
