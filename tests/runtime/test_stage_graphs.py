"""Slots of the CUDA graphs of a stage; that graphs compute the same is tested on GPUs (test_gpus.py)."""

from random import Random

import pytest
from runtime.machine import random_ranks
from runtime.models import LLAMA, Training, make_plan

from skippipe.runtime.actions import Task
from skippipe.runtime.executor import early_sums
from skippipe.runtime.stage_graphs import slots_needed


@pytest.mark.parametrize("seed", range(8))
def test_every_microbatch_finds_a_slot_and_no_slot_is_spare(seed: int) -> None:
    rng = Random(seed)
    sizes = [rng.randint(1, 2), *(rng.randint(1, 3) for _ in range(rng.randint(1, 3)))]
    ranks = random_ranks(rng, sum(sizes), 2, 2)
    training = Training(LLAMA, (1,) * len(sizes), make_plan(rng, sizes, rng.choice([0.0, 0.3]), 4), tuple(ranks))
    for program in training.programs:
        watched = early_sums(program.actions)
        for stage in range(len(sizes)):
            left_out = {task.microbatch for task in watched if task.stage == stage}
            tasks = [a for a in program.actions if isinstance(a, Task) and a.stage == stage and a.kind in "FB"]
            held, most = set[int](), 0
            for task in tasks:
                if task.microbatch not in left_out:
                    (held.add if task.kind == "F" else held.remove)(task.microbatch)
                    most = max(most, len(held))
            assert not held
            assert slots_needed(program.actions, stage, watched) == most
