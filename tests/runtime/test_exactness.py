"""Gradients across processes equal those of a plain loop over the full model, bit for bit wherever possible.

The plain loop runs transformers' own model, its layers put in the order of each microbatch's route, one microbatch
after the other. Where one rank serves each stage, gradients, norm, losses and the weights after three steps are
bit-equal; sums over replicas take another order, so there float64 agrees to 1e-10.
"""

from random import Random
from typing import Any

import numpy as np
import pytest
from effort import cases
from pool import Pool
from runtime.machine import random_ranks
from runtime.models import LLAMA, Trained, Training, initial_weights, make_plan, swaps, train, train_plain

TIED = {**LLAMA, "tie_word_embeddings": True}
QWEN3 = {**LLAMA, "model_type": "qwen3", "head_dim": 8}
QWEN2 = {**LLAMA, "model_type": "qwen2"}
MIXTRAL = {**LLAMA, "model_type": "mixtral", "num_local_experts": 4, "num_experts_per_tok": 2}
NEOX = {**{key: value for key, value in LLAMA.items() if key != "num_key_value_heads"}, "model_type": "gpt_neox"}


def run(pool: Pool, training: Training) -> tuple[list[Trained], Trained]:
    world = max(training.ranks) + 1
    return pool.run(train, [(training,)] * world), train_plain(training)


def equal(ranks: list[Trained], plain: Trained) -> None:
    """Assert that everything is bit-equal and complete."""
    for iteration, wanted in enumerate(plain.gradients):
        seen = set()
        for rank in ranks:
            for name, gradient in rank.gradients[iteration].items():
                seen.add(name)
                np.testing.assert_array_equal(gradient, wanted[name], err_msg=f"{name}, iteration {iteration}")
        assert seen == set(wanted)
        losses = {b: loss for rank in ranks for b, loss in rank.losses[iteration].items()}
        assert losses == plain.losses[iteration]
    for rank in ranks:
        assert rank.norms == plain.norms
        for name, weight in rank.weights.items():
            np.testing.assert_array_equal(weight, plain.weights[name], err_msg=name)
    assert any(np.abs(gradient).max() > 1e-4 for gradient in plain.gradients[0].values())


def close(ranks: list[Trained], plain: Trained) -> None:
    """Assert that gradients agree to 1e-10 and that replicas hold the same bits."""
    seen: dict[str, Any] = {}
    for rank in ranks:
        for name, gradient in rank.gradients[0].items():
            wanted = plain.gradients[0][name]
            scale = np.abs(wanted).max()
            np.testing.assert_allclose(gradient, wanted, rtol=1e-10, atol=1e-10 * scale, err_msg=name)
            np.testing.assert_array_equal(seen.setdefault(name, gradient), gradient)
        assert rank.norms == ranks[0].norms
        np.testing.assert_allclose(rank.norms, plain.norms, rtol=1e-10)
    assert set(seen) == set(plain.gradients[0])


ONE_EACH: tuple[tuple[dict[str, Any], tuple[int, ...], float, dict[str, bool]], ...] = (
    (LLAMA, (1, 2), 0.0, {}),
    (LLAMA, (1, 2), 0.25, {}),
    (LLAMA, (2, 1, 1), 0.0, {}),
    (TIED, (1, 1, 2), 1 / 3, {}),
    (LLAMA, (1, 2, 1, 1), 0.25, {"cc2": False}),
    (QWEN3, (1, 1, 1, 2, 1), 0.2, {}),
    (TIED, (1, 1, 2, 1, 1), 0.0, {"cc1": False}),
    (LLAMA, (1, 1, 1, 1, 1, 2), 0.0, {}),
    (LLAMA, (1, 2, 1, 1, 1, 1), 1 / 3, {}),
    (QWEN2, (2, 1, 1), 0.3, {}),
    (MIXTRAL, (1, 1, 2), 0.3, {}),
    (NEOX, (1, 2, 1), 0.3, {}),
    (LLAMA, (1, 1, 1, 1), 0.4, {"cc1": False, "cc2": False, "cc3": False}),
)
"""Settings of a model, layers of each stage, share of the stages that is skipped, and rules that do not hold."""


@pytest.mark.parametrize(("settings", "layers", "skip_ratio", "rules"), cases(ONE_EACH, ONE_EACH[::2]))
def test_one_rank_per_stage_is_bit_equal(
    pool: Pool, settings: dict[str, Any], layers: tuple[int, ...], skip_ratio: float, rules: dict[str, Any]
) -> None:
    plan = make_plan(Random(len(layers)), [1] * len(layers), skip_ratio, 5, **rules)
    assert len(layers) < 4 or swaps(plan)
    training = Training(settings, layers, plan, tuple(range(len(layers))), iterations=3)
    equal(*run(pool, training))


@pytest.mark.parametrize(
    ("ranks", "stages", "skip_ratio"),
    [
        # Several nodes of one stage on one rank share its weights, and nodes of several stages can be one rank.
        ("stages", [2, 1, 2], 1 / 3),
        ("stages", [3, 2], 0.0),
        ("pairs", [1, 1, 1, 1], 0.25),
        ("pairs", [2, 2, 1, 1], 0.0),
        ("one", [2, 1, 1], 1 / 3),
    ],
)
def test_several_nodes_per_rank_are_bit_equal(pool: Pool, ranks: str, stages: list[int], skip_ratio: float) -> None:
    plan = make_plan(Random(7), stages, skip_ratio, 3)
    layers = (1, 2, 1, 1)[: len(stages)]
    stage_of = Training(LLAMA, layers, plan, ()).stage_of_node()
    stages_per_rank = {"stages": 1, "pairs": 2, "one": len(stages)}[ranks]
    training = Training(LLAMA, layers, plan, tuple(s // stages_per_rank for s in stage_of), iterations=3)
    equal(*run(pool, training))


@pytest.mark.parametrize(
    ("stages", "layers", "skip_ratio"),
    [
        ([2, 1, 1], (1, 2, 1), 1 / 3),
        ([2, 2], (2, 1), 0.0),
        ([3, 3], (1, 2), 0.25),
        ([2, 3, 1], (1, 1, 2), 0.3),
        ([1, 4], (1, 1), 0.5),
    ],
)
def test_replicas_sum_to_the_exact_gradient(
    pool: Pool, stages: list[int], layers: tuple[int, ...], skip_ratio: float
) -> None:
    """Whatever each replica saw; with one node per rank, and with nodes assigned to ranks at random."""
    rng = Random(sum(stages))
    plan = make_plan(rng, stages, skip_ratio, 2)
    for ranks in (list(range(sum(stages))), random_ranks(rng, sum(stages), 4)):
        training = Training(TIED, layers, plan, tuple(ranks), dtype="float64")
        close(*run(pool, training))


def test_sums_in_parts_are_exact(pool: Pool) -> None:
    """Ranks serve several stages, so that sums could begin in another order on each of them; some replicas idle."""
    rng = Random(5)
    for stages, count in (([2, 2, 2], 2), ([2, 3, 1], 2), ([3, 2, 2], 1)):
        plan = make_plan(rng, stages, 0.25, count)
        ranks = tuple(random_ranks(rng, sum(stages), 3, 3))
        close(*run(pool, Training(TIED, (1, 1, 2), plan, ranks, dtype="float64", links="parts")))


def test_parts_without_a_gradient_are_summed(pool: Pool) -> None:
    """Experts that the last microbatch does not reach; of two replicas, parts add up as the whole does, bit for bit."""
    plan = make_plan(Random(6), [2, 2], 0.25, 2)
    settings = {**MIXTRAL, "num_local_experts": 8, "num_experts_per_tok": 1}
    parts, whole = (
        pool.run(train, [(Training(settings, (1, 2), plan, (0, 1, 0, 1), iterations=2, links=links),)] * 2)
        for links in ("parts", "gloo")
    )
    for ours, theirs in zip(parts, whole, strict=True):
        assert ours.norms == theirs.norms
        for found, wanted in zip(ours.gradients, theirs.gradients, strict=True):
            for name, gradient in wanted.items():
                np.testing.assert_array_equal(found[name], gradient, err_msg=name)


def test_unvisited_replicas_add_zeros_and_unvisited_stages_nothing(pool: Pool) -> None:
    """One microbatch, so that replicas stay idle; every stage but the first is skipped."""
    plan = make_plan(Random(2), [2, 2], 0.5, 1)
    training = Training(LLAMA, (1, 1), plan, (0, 1, 2, 3), dtype="float64")
    ranks, plain = run(pool, training)
    close(ranks, plain)
    assert any("layers.0." in name for name in plain.gradients[0])
    assert not any("layers.1." in name for name in plain.gradients[0])
    for trained in (*ranks, plain):
        left_out = {name: weight for name, weight in trained.weights.items() if "layers.1." in name}
        assert all(np.array_equal(weight, initial_weights(training)[name]) for name, weight in left_out.items())
