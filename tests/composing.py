"""Compositions of settings that are remembered: of the same files, Hydra makes the same.

A composition takes an eighth of a second, and tests make thousands. Hydra finds the list of files, which depends on the
choices of the command line; then it merges them; then it applies what else the command line sets. The first two are
done once for the same choices, where all files are those of the package or of Hydra, or types that are registered.
Settings of a user's own are composed each time, but files of the package are read once. Programs started anew do as
always.
"""

import pickle
from typing import Any

import pytest
from hydra._internal import defaults_list
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import IConfigRepository
from hydra._internal.core_plugins.importlib_resources_config_source import ImportlibResourcesConfigSource
from hydra._internal.defaults_list import Overrides
from hydra.core.config_store import ConfigStore
from hydra.core.default_element import ResultDefault

from skippipe.application.configuration import FOLDER

UNCHANGING = {("pkg", "hydra.conf"), ("pkg", FOLDER), ("structured", "")}
"""Sources by scheme and path; of what is registered, `ConfigStore` tells when it changes."""

STEPS: tuple[tuple[Any, str], ...] = (
    (defaults_list, "_create_defaults_list"),
    (ConfigLoaderImpl, "_compose_config_from_defaults_list"),
    (ConfigStore, "store"),
    (ImportlibResourcesConfigSource, "_read_config"),
)
OF_HYDRA = tuple(vars(owner)[name] for owner, name in STEPS)


def compose_as_hydra_does(patch: pytest.MonkeyPatch) -> None:
    """Nothing is remembered."""
    for (owner, name), step in zip(STEPS, OF_HYDRA, strict=True):
        patch.setattr(owner, name, step)


def remember_compositions(patch: pytest.MonkeyPatch) -> None:
    """Have Hydra do once what gives the same again."""
    lists: dict[str, bytes] = {}
    merged: dict[str, bytes] = {}
    files: dict[str, bytes] = {}
    find, merge, register, read = (getattr(owner, name) for owner, name in STEPS)

    def find_once(repo: IConfigRepository, name: str | None, overrides: Overrides, **rest: bool) -> Any:
        if not _never_changes(repo):
            return find(repo, name, overrides, **rest)
        values = overrides.config_overrides  # which are applied later
        state = vars(overrides)
        state["config_overrides"] = []
        key = repr((name, state, rest))
        try:
            if key not in lists:
                lists[key] = pickle.dumps((find(repo, name, overrides, **rest), state))
            found, changed = pickle.loads(lists[key])
            state.update(changed)
        finally:
            state["config_overrides"] = values
        return found

    def merge_once(self: ConfigLoaderImpl, defaults: list[ResultDefault], repo: IConfigRepository) -> Any:
        if not _never_changes(repo):
            return merge(self, defaults, repo)
        key = repr([vars(default) for default in defaults])
        if key not in merged:
            merged[key] = pickle.dumps(merge(self, defaults, repo))
        return pickle.loads(merged[key])

    def forget(self: ConfigStore, *arguments: Any, **named: Any) -> None:
        lists.clear()
        merged.clear()
        register(self, *arguments, **named)

    def read_once(self: ImportlibResourcesConfigSource, res: Any) -> Any:
        if (self.scheme(), self.path) not in UNCHANGING:
            return read(self, res)
        key = f"{self.provider} {res}"
        if key not in files:
            files[key] = pickle.dumps(read(self, res))
        return pickle.loads(files[key])

    for (owner, name), step in zip(STEPS, (find_once, merge_once, forget, read_once), strict=True):
        patch.setattr(owner, name, step)
    # A composition copies the list of its sources lest it change that, and with it the whole store.
    patch.setattr(ConfigStore, "__deepcopy__", lambda store, _: store, raising=False)


def _never_changes(repo: IConfigRepository) -> bool:
    return {(source.scheme(), source.path) for source in repo.get_sources()} <= UNCHANGING
