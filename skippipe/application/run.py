"""Run one command under Hydra."""

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra._internal.hydra import Hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import filter_overrides
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig

from skippipe.application.arguments import hydra_arguments
from skippipe.application.cluster_file import check_file_alone
from skippipe.application.configuration import FOLDER, checked_settings, compose, preset, register
from skippipe.application.hydra_errors import key_of, to_input_error
from skippipe.application.sweeps import jobs_apart
from skippipe.application.user_files import Location, UserFiles, checked_files
from skippipe.commands.command import Command
from skippipe.console.streams import STANDARD_OUTPUT, report_error
from skippipe.context import Context
from skippipe.errors import SUCCESS, UNUSABLE_INPUT, InputError, exit_status, in_file


class _JobFailedError(Exception):
    """A job of a sweep failed and has reported why; the argument is its exit status."""


class _JobFunction:
    """The function that Hydra calls for every job. In a sweep it may be pickled and run in another process."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.error: Exception | None = None

    def __call__(self, composed: DictConfig) -> float | None:
        context = _context()
        try:
            running = HydraConfig.get()
            settings = checked_settings(composed)
            check_file_alone(
                settings,
                filter_overrides(running.overrides.task),
                lambda: preset(self.command.name, running.runtime.choices.get("cluster")),
            )
            return self.command.load_run()(settings, context)
        except BrokenPipeError:  # the reader of our output is gone: handled by the command line
            raise
        except Exception as error:  # noqa: BLE001 - reported here, before Hydra can dress it up
            if context.label is None:
                self.error = error
                return None
            report_error(self.command.name, error, context.label)
            raise _JobFailedError(exit_status(error)) from None


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run `command` with Hydra's command line `arguments`; return the exit status."""
    task, files = _JobFunction(command), UserFiles()
    try:
        ordered = hydra_arguments(command, arguments)
        with checked_files() as files, jobs_apart(command.writes):
            _run_hydra(task, ordered)
    except _JobFailedError as failed:
        return int(failed.args[0])
    except SystemExit as stop:  # Hydra ends so after --help and the like, argparse after a wrong flag
        return stop.code if isinstance(stop.code, int) else UNUSABLE_INPUT
    except BrokenPipeError:
        raise
    except InputError as error:
        report_error(command.name, error)
        return UNUSABLE_INPUT
    except Exception as error:
        if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:  # what --help prints, for example
            raise
        location = _location(error, files, arguments) or _composed_location(error, files)
        report_error(command.name, _located(to_input_error(error, command.settings_type), location))
        return UNUSABLE_INPUT
    if task.error is not None:
        report_error(command.name, _located(task.error, _location(task.error, files, arguments)))
        return exit_status(task.error)
    return SUCCESS


def _located(error: Exception, location: Location | None) -> Exception:
    """The same error with its location, unless it has a file."""
    if isinstance(error, InputError) and error.file is None and location is not None:
        return in_file(error, *location)
    return error


def _location(error: Exception, files: UserFiles, arguments: Sequence[str]) -> Location | None:
    """File and line in a file of the user that sets the key of an error, unless the command line sets it."""
    key = key_of(error)
    if key is None or any(argument.lstrip("+~").startswith(f"{key}=") for argument in arguments):
        return None
    return files.location_of(key)


def _composed_location(error: Exception, files: UserFiles) -> Location | None:
    """File and line in a file of the user that requests a missing file, or cannot be composed."""
    match error:
        case MissingConfigException():
            return files.location_of_default(error.missing_cfg_file or "")
        case HydraException() | OSError():  # most likely caused by the command line
            return None
    return files.location_of_last() if key_of(error) is None else None


def _run_hydra(task: _JobFunction, arguments: Sequence[str]) -> None:
    """Call Hydra's main, with errors raised instead of printed."""
    shows_help = "--help" in arguments or "-h" in arguments
    groups = _without_config_groups() if shows_help else contextlib.nullcontext()
    mode = contextlib.nullcontext() if _may_set_mode(arguments) else _without_mode()
    with _replaced(sys, "argv", ["skippipe", *arguments]), _full_errors(), _without_job_notice(), groups, mode:
        hydra.main(config_path=f"pkg://{FOLDER}", config_name=register(task.command.name), version_base="1.3")(task)()


def _context() -> Context:
    """Make the context of this job from Hydra's."""
    running = HydraConfig.get()
    label = None
    if running.mode == RunMode.MULTIRUN:
        overrides = " ".join(filter_overrides(running.overrides.task))
        label = f"job {running.job.num} ({overrides}):"
    folders = [source.path for source in running.runtime.config_sources if source.provider == "command-line"]
    return Context(Path(running.runtime.output_dir), label, tuple(folders), compose)


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


def _without_config_groups() -> contextlib.AbstractContextManager[None]:
    """Hydra lists all configuration groups for any help, which takes it long; ours says itself what can be chosen."""
    return _replaced(Hydra, "format_config_groups", lambda *_: "")


def _may_set_mode(arguments: Sequence[str]) -> bool:
    """Whether a setting, or a file that Hydra is told to read, may set `hydra.mode`; ours do not."""
    return any("hydra" in argument or argument.startswith("--config-") for argument in arguments)


def _without_mode() -> contextlib.AbstractContextManager[None]:
    """Hydra composes everything once more to see whether `hydra.mode` is set: half of what a command takes to start."""
    return _replaced(Hydra, "get_mode", lambda *_, **__: None)


@contextlib.contextmanager
def _full_errors() -> Iterator[None]:
    """Have Hydra raise its errors unchanged, to be explained here."""
    before = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        yield
    finally:
        if before is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = before


class _Filtered:
    """Standard error without Hydra's line about a failed job, which has reported its own error."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        if not text.startswith("Error executing job with overrides:"):
            self._stream.write(text)
        return len(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextlib.contextmanager
def _without_job_notice() -> Iterator[None]:
    with _replaced(sys, "stderr", _Filtered(sys.stderr)):
        yield
