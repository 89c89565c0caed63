"""The figure from its settings to its rows: which searches there are, in which order, and what is executed."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from skippipe.bench.figure3.config import BenchFigure3Job, CompanionConfig
from skippipe.bench.figure3.networks import SIZES, Setting, default_sizes, settings_of
from skippipe.bench.figure3.search import STRAIGHT, Cell, Effort, PlanStore, SettingPlanner
from skippipe.bench.figure3.shapes import MODELS, SEQUENCE
from skippipe.console.progress import ProgressDisplay
from skippipe.errors import unexpected

RATIOS = (1 / 12, 1 / 6, 1 / 4, 1 / 3, 5 / 12, 1 / 2, 7 / 12, 2 / 3)
"""Of the companion over skip ratios; with the largest, routes visit one of six stages beside stage 0."""


@dataclass(frozen=True)
class Part:
    """What is planned for one setting."""

    setting: Setting
    skipping: tuple[tuple[str, float], ...]
    """strategies that skip, each with a skip ratio"""

    @property
    def cells(self) -> int:
        """Strategies and skip ratios."""
        return len(STRAIGHT) + len(self.skipping)


@dataclass(frozen=True)
class Parts:
    """The figure and its companions."""

    figure: Sequence[Part]
    straight: Sequence[Part]
    ratios: Sequence[Part]


def parts_of(job: BenchFigure3Job) -> Parts:
    """What the settings ask for.

    Raises:
        InputError: settings that leave nothing to plan, or tokens that are not whole sequences.

    """
    for key in ("networks", "models", "tokens", "all_reduce"):
        if not getattr(job, key):
            raise unexpected(key, [], "at least one")
    for key, tokens in (
        *((f"tokens[{i}]", n) for i, n in enumerate(job.tokens)),
        ("companion.tokens", job.companion.tokens),
    ):
        if tokens % SEQUENCE:
            raise unexpected(key, tokens, f"a multiple of {SEQUENCE}, the tokens of a sequence")
    stages = min(MODELS[model].stages for model in job.models)
    for i, ratio in enumerate(job.skip_ratios):
        if not 0 < ratio <= (stages - 1) / stages:
            raise unexpected(f"skip_ratios[{i}]", ratio, f"more than 0 and at most {(stages - 1) / stages:.4g}")
    skipping = tuple((name, ratio) for ratio in job.skip_ratios for name in job.strategies if name not in STRAIGHT)
    settings = settings_of(job.networks, job.models, job.tokens, job.all_reduce)
    return Parts([Part(setting, skipping) for setting in settings], *_companions(job.companion))


def _companions(companion: CompanionConfig) -> tuple[list[Part], list[Part]]:
    def setting(sizes: tuple[int, ...]) -> Setting:
        return Setting(companion.network, companion.model, companion.tokens, all_reduce=False, sizes=sizes)

    over = tuple((strategy, ratio) for ratio in RATIOS for strategy in ("skippipe-no-tc2", "skippipe"))
    straight = [Part(setting(SIZES[4]), ())] if "straight" in companion.kinds else []
    ratios = [Part(setting(default_sizes(companion.model)), over)] if "ratios" in companion.kinds else []
    return straight, ratios


def plan_all(job: BenchFigure3Job, parts: Parts, store: PlanStore, progress: ProgressDisplay) -> list[list[Cell]]:
    """Plan the figure and its companions: the cells of each of the three.

    Raises:
        SchedulerError: a plan breaks a rule.

    """
    effort = Effort(job.searches, job.work_limit, job.seed, job.threads)
    groups = [parts.figure, parts.straight, parts.ratios]
    total = sum(part.cells for group in groups for part in group)
    steps = itertools.count()
    progress.begin("planning", total)

    def cells_of(part: Part) -> list[Cell]:
        def begin(strategy: str) -> None:
            progress.update(number := next(steps), f"{number} of {total}: {part.setting.title}: {strategy}")

        planner = SettingPlanner(part.setting, job.flops_per_s, job.microbatches, effort, store)
        return planner.plan(part.skipping, begin)

    found = [[cell for part in group for cell in cells_of(part)] for group in groups]
    progress.update(total, f"{total} of {total}")
    return found
