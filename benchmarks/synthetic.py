"""Clusters of any size for the studies, drawn from a seed: stages at random, equally many microbatches per source."""

from dataclasses import replace
from random import Random

from skippipe import Problem
from skippipe.allocation import Allocation, even_sizes
from skippipe.application import compose
from skippipe.config import ScheduleConfig, SyntheticConfig
from skippipe.planning import state_problem
from skippipe.presets import preset_spec


def preset() -> SyntheticConfig:
    """The settings of the preset `synthetic`."""
    found = compose("bench planner", []).instances["synthetic"]
    assert isinstance(found, SyntheticConfig)
    return found


def draw(config: SyntheticConfig, stages: int, microbatches: int, schedule: ScheduleConfig) -> Problem:
    """State a problem: a random allocation (fixed by the seed), so that none is favoured, and so many microbatches."""
    cluster = preset_spec(config).cluster(config)
    order = Random(config.seed).sample(range(config.nodes), config.nodes)
    members, first = [], 0
    for size in even_sizes(config.nodes, stages):
        members.append(sorted(order[first : first + size]))
        first += size
    sources = len(members[0])
    counts = [microbatches // sources + (i < microbatches % sources) for i in range(sources)]
    return state_problem(cluster, Allocation(members), replace(schedule, microbatches_per_source=counts))
