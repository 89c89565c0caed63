"""Jobs of a sweep must write to different files: a sweep with conflicts is refused before its first job runs."""

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.plugins import Plugins
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from skippipe.errors import unexpected

Overrides = Sequence[str]
MOST_COMPOSED = 100
"""Configurations of jobs that are kept, each of some hundred kilobytes."""


@contextlib.contextmanager
def jobs_apart(writes: Mapping[str, str | None]) -> Iterator[None]:
    """Within: refuse sweeps whose jobs would write the same file or folder, by `InputError`.

    `writes` are the settings that name what a job writes, each with the name used for null, if any.
    """
    instantiate = Plugins.instantiate_sweeper

    def guarded(plugins: Plugins, **context: Any) -> Any:
        sweeper = instantiate(plugins, **context)
        taken: dict[Path, int] = {}
        loader = context["hydra_context"].config_loader
        loader.load_sweep_config = _ComposedOnce(loader)

        def check(jobs: Sequence[Overrides], first: int) -> None:
            composed = (loader.load_sweep_config(context["config"], list(job)) for job in jobs)
            check_apart(composed, first, writes, taken)

        if hasattr(sweeper, "split_arguments"):  # Hydra's own, which knows all jobs at once
            _before(sweeper, "sweep", lambda arguments: check(_jobs(sweeper, arguments), 0))
        elif getattr(sweeper, "launcher", None) is not None:  # others launch jobs in several batches
            _before(sweeper.launcher, "launch", check)
        return sweeper

    Plugins.instantiate_sweeper = guarded  # type: ignore[method-assign, assignment]
    try:
        yield
    finally:
        Plugins.instantiate_sweeper = instantiate  # type: ignore[method-assign]


class _ComposedOnce:
    """Composes a job of a sweep for a loader of Hydra's, whose sweeper and launcher ask for it again after our check.

    A launcher may send it to other processes, without what it has composed.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._composed: dict[tuple[str, ...], DictConfig] = {}

    def __call__(self, master_config: DictConfig, sweep_overrides: Overrides) -> DictConfig:
        job = tuple(sweep_overrides)
        found = self._composed.get(job)
        if found is None:
            found = type(self._loader).load_sweep_config(self._loader, master_config, list(job))
            if len(self._composed) < MOST_COMPOSED:
                self._composed[job] = found
        return copy.deepcopy(found)

    def __getstate__(self) -> dict[str, Any]:
        return {"_loader": self._loader, "_composed": {}}


def check_apart(
    composed: Iterator[DictConfig], first: int, writes: Mapping[str, str | None], taken: dict[Path, int]
) -> None:
    """Record in `taken` which job writes which path; raise `InputError` for the first path written by two.

    `composed` are the configurations of the jobs `first`, `first` + 1 and so on.
    """
    before = HydraConfig.instance().cfg
    try:
        for number, job in enumerate(composed, first):
            with open_dict(job):
                job.hydra.job.num = number
                job.hydra.job.id = str(number)
            HydraConfig.instance().set_config(job)
            for key, path in _written(job, writes):
                other = taken.setdefault(path, number)
                if other != number:
                    found = f"{path} for jobs {other} and {number}"
                    hint = "a relative path lies in the job's own folder"
                    raise unexpected(key, found, "a path of its own for each job of the sweep", hint=hint)
    finally:
        HydraConfig.instance().cfg = before


def _written(job: DictConfig, writes: Mapping[str, str | None]) -> Iterator[tuple[str, Path]]:
    """Setting and path of everything that a job would write; the job itself reports what cannot be resolved."""
    with contextlib.suppress(OmegaConfBaseException):
        folder = Path(str(OmegaConf.select(job, "hydra.sweep.dir")), str(OmegaConf.select(job, "hydra.sweep.subdir")))
        for key, default in writes.items():
            name = OmegaConf.select(job, key) or default
            if name is not None:
                with contextlib.suppress(OSError, RuntimeError, ValueError):
                    yield key, (folder / str(name)).resolve()


def _jobs(sweeper: Any, arguments: Overrides) -> list[list[str]]:
    (jobs,) = sweeper.split_arguments(OverridesParser.create().parse_overrides(list(arguments)), None)
    return list(jobs)


def _before(holder: Any, name: str, check: Callable[..., None]) -> None:
    """Call `check` before a method of an object, with the same arguments."""
    method = getattr(holder, name)

    def checked(*arguments: Any, **named: Any) -> Any:
        check(*arguments, *named.values())
        return method(*arguments, **named)

    setattr(holder, name, checked)
