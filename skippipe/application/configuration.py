"""Registration of a command with Hydra, and its settings as dataclasses with all values in range."""

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skippipe.application.cluster_file import check_file_alone
from skippipe.application.hydra_errors import to_input_error
from skippipe.commands import BY_NAME
from skippipe.commands.command import Command
from skippipe.commands.groups import options, schemas
from skippipe.commands.help import command_help
from skippipe.config import ClusterConfig
from skippipe.validate import validate

FOLDER = "skippipe.conf"


@functools.cache
def register(name: str) -> str:
    """Register a command with Hydra: its primary configuration, the types of its settings, its help.

    Returns the name of the primary configuration.
    """
    command = BY_NAME[name]
    store = ConfigStore.instance()
    primary, schema = f"skippipe_{command.key}", f"{command.key}_schema"
    store.store(name=schema, node=command.settings_type)
    for each in schemas(command):
        store.store(group=each.group, name=each.name, node=each.kind)
    store.store(name=primary, node=_primary(command, schema))
    OmegaConf.register_new_resolver("skippipe.help", lambda name: command_help(BY_NAME[name]), replace=True)
    return primary


def _primary(command: Command, schema: str) -> dict[str, Any]:
    """The primary configuration of a command."""
    in_place = {"override hydra/output": "in_place"}
    silent = [{f"override hydra/{kind}_logging": "none"} for kind in ("job", "hydra")]
    return {
        "defaults": [schema, *({group: name} for group, name in command.groups.items()), "_self_", in_place, *silent],
        "hydra": {
            "output_subdir": None,
            "job": {"name": f"skippipe {command.name}"},
            "help": {"template": f"${{skippipe.help:{command.name}}}"},
        },
    }


def compose(name: str, overrides: Sequence[str]) -> Any:
    """Settings of the command `name` with these overrides; raises `InputError`."""
    primary = register(name)
    with contextlib.ExitStack() as stack:
        if not GlobalHydra.instance().is_initialized():
            stack.enter_context(hydra.initialize_config_module(FOLDER, version_base="1.3"))
        try:
            composed = hydra.compose(config_name=primary, overrides=list(overrides))
        except (HydraException, OmegaConfBaseException, ValueError) as error:
            raise to_input_error(error, BY_NAME[name].settings_type) from None
    settings = checked_settings(composed)
    check_file_alone(settings, overrides, None)
    return settings


def preset(name: str, cluster: str | None) -> ClusterConfig | None:
    """A cluster preset of the package, as composed for the command `name`; None for a preset of the user."""
    if cluster is None or cluster not in options("cluster"):
        return None
    found: ClusterConfig = compose(name, [f"cluster={cluster}"]).cluster
    return found


def checked_settings(composed: DictConfig) -> Any:
    """Convert a composed configuration to dataclasses, and check all ranges."""
    try:
        settings = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise to_input_error(error, OmegaConf.get_type(composed)) from None
    validate(settings)
    return settings
