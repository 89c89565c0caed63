"""Run one command under Hydra: configuration composed, checked and handed over as dataclasses, errors made readable.

Everything about Hydra and OmegaConf is in here and in `overrides.py`; the commands know neither.
"""

import contextlib
import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any

import hydra
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.utils import filter_overrides
from hydra.errors import HydraException, MissingConfigException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from skippipe import config
from skippipe.config import ClusterConfig
from skippipe.data.config import DataConfig, FetchJob, PrepareJob
from skippipe.errors import SUCCESS, UNUSABLE_INPUT, InputError, SchedulerError, exit_status, printable
from skippipe.evaluate.config import EvaluateJob
from skippipe.file_alone import check_file_alone
from skippipe.flags import settings_first
from skippipe.help import command_help
from skippipe.model.config import ExportJob
from skippipe.overrides import explain, key_of, with_names_quoted
from skippipe.own_yaml import OwnFiles, checked_files
from skippipe.streams import STANDARD_OUTPUT
from skippipe.study.config import StudyJob
from skippipe.sweeps import jobs_apart
from skippipe.train import config as training
from skippipe.validate import validate


@dataclass(frozen=True)
class Context:
    """Where a job runs."""

    folder: Path
    """relative output files go here: the current folder, or the job's own in a sweep"""
    label: str | None
    """number and overrides of the job in a sweep; None for a single run"""
    config_folders: tuple[str, ...] = ()
    """those that --config-dir has named"""

    def output(self, name: str | None) -> Path | None:
        """Where an `output` setting points to."""
        return None if name is None else self.folder / name

    def shown(self, output: Path) -> str:
        """How to name an output file to somebody in the current folder."""
        return printable(min(str(output), os.path.relpath(output), key=len))


@dataclass(frozen=True)
class Command:
    """A command line such as `skippipe plan`: how it is called, its settings, and what it does."""

    words: str
    """as typed, e.g. `bench planner`"""
    run: Callable[[Any, Context], float]
    """does the work; what it returns is what a Hydra sweeper may minimise"""
    rewrite: Callable[[str], str] = str
    """makes of an argument what Hydra takes"""
    writes: Mapping[str, str | None] = field(default_factory=lambda: {"output": None})
    """settings that name a file or folder that is written, each with the name that null stands for, if any"""

    @property
    def config_name(self) -> str:
        """Name of the primary configuration in `skippipe/conf`."""
        return self.words.replace(" ", "_")

    @property
    def job(self) -> type[Any]:
        """Dataclass of its settings."""
        return JOBS[self.config_name]


class _JobFailedError(Exception):
    """A job of a sweep failed and has said why; the argument is its exit status."""


class _Task:
    """What Hydra calls for every job. In a sweep it may be pickled and run in another process."""

    def __init__(self, command: Command) -> None:
        self.command = command
        self.error: Exception | None = None

    def __call__(self, composed: DictConfig) -> float | None:
        context = _context()
        try:
            running = HydraConfig.get()
            settings = _settings(composed)
            check_file_alone(
                settings,
                filter_overrides(running.overrides.task),
                lambda: _preset(self.command.words, running.runtime.choices.get("cluster")),
            )
            return self.command.run(settings, context)
        except BrokenPipeError:  # who reads our output has gone: for the command line to settle
            raise
        except Exception as error:  # noqa: BLE001 - reported here, before Hydra can dress it up
            if context.label is None:
                self.error = error
                return None
            report_error(self.command.words, error, context.label)
            raise _JobFailedError(exit_status(error)) from None


def run_command(command: Command, arguments: Sequence[str]) -> int:
    """Run `command` with Hydra's command line `arguments`; return the exit status."""
    task, own = _Task(command), OwnFiles()
    try:
        ordered = settings_first([command.rewrite(argument) for argument in arguments])
        with checked_files() as own, jobs_apart(command.writes):
            _run_hydra(task, [with_names_quoted(argument) for argument in ordered])
    except _JobFailedError as failed:
        return int(failed.args[0])
    except SystemExit as stop:  # Hydra ends so after --help and the like, argparse after a wrong flag
        return stop.code if isinstance(stop.code, int) else UNUSABLE_INPUT
    except BrokenPipeError:
        raise
    except InputError as error:
        report_error(command.words, error)
        return UNUSABLE_INPUT
    except Exception as error:
        if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:  # what --help prints, for example
            raise
        place = _place(error, own, arguments) or _composed_place(error, own)
        report_error(command.words, InputError(place + explain(error, command.job)))
        return UNUSABLE_INPUT
    if task.error is not None:
        reason = task.error
        if isinstance(reason, InputError):
            reason = type(reason)(f"{_place(reason, own, arguments)}{reason}")
        report_error(command.words, reason)
        return exit_status(reason)
    return SUCCESS


def _place(error: Exception, own: OwnFiles, arguments: Sequence[str]) -> str:
    """`FILE:LINE: ` where a file of the user's own, and not the command line, gives the key that an error speaks of."""
    key = key_of(error)
    if key is None or any(argument.lstrip("+~").startswith(f"{key}=") for argument in arguments):
        return ""
    place = own.place_of(key)
    return "" if place is None else f"{place}: "


def _composed_place(error: Exception, own: OwnFiles) -> str:
    """`FILE:LINE: ` where a file of the user's own asks for one that is not there, or cannot be composed."""
    match error:
        case MissingConfigException():
            place = own.place_of_default(error.missing_cfg_file or "")
        case HydraException() | OSError():  # most likely the command line
            place = None
        case _:
            place = own.place_of_last() if key_of(error) is None else None
    return "" if place is None else f"{place}: "


def report_error(words: str, error: Exception, label: str | None = None) -> None:
    """Print one message on standard error; a traceback only for what is a defect of ours.

    Raises `OSError` again where it is standard output that cannot be written: for the command line to report.
    """
    if isinstance(error, OSError) and error.filename == STANDARD_OUTPUT:
        raise error
    if not isinstance(error, (SchedulerError, OSError)):
        traceback.print_exception(error)
    job = "" if label is None else f" {label}"
    text = "\n".join(map(printable, (str(error) or type(error).__name__).split("\n")))
    sys.stderr.write(f"skippipe {words}:{job} {text}\n")


def _run_hydra(task: _Task, arguments: Sequence[str]) -> None:
    """Call Hydra's main with errors raised instead of printed."""
    with _replaced(sys, "argv", [f"skippipe {task.command.words}", *arguments]), _full_errors(), _without_job_notice():
        hydra.main(config_path="pkg://skippipe.conf", config_name=task.command.config_name, version_base="1.3")(task)()


def _context() -> Context:
    """Read from Hydra where this job runs."""
    running = HydraConfig.get()
    label = None
    if running.mode == RunMode.MULTIRUN:
        overrides = " ".join(filter_overrides(running.overrides.task))
        label = f"job {running.job.num} ({overrides}):"
    folders = [source.path for source in running.runtime.config_sources if source.provider == "command-line"]
    return Context(Path(running.runtime.output_dir), label, tuple(folders))


def compose(words: str, overrides: Sequence[str]) -> Any:
    """Give the settings that the command `words` would have with these overrides; raises `InputError`."""
    with contextlib.ExitStack() as stack:
        if not GlobalHydra.instance().is_initialized():
            stack.enter_context(hydra.initialize_config_module("skippipe.conf", version_base="1.3"))
        try:
            composed = hydra.compose(config_name=words.replace(" ", "_"), overrides=list(overrides))
        except (HydraException, OmegaConfBaseException) as error:
            raise InputError(explain(error, JOBS[words.replace(" ", "_")])) from None
    settings = _settings(composed)
    check_file_alone(settings, overrides, None)
    return settings


def _preset(words: str, name: str | None) -> ClusterConfig | None:
    """A cluster as the package has it; None where `name` is the user's own."""
    if name is None or not resources.files("skippipe.conf").joinpath("cluster", f"{name}.yaml").is_file():
        return None
    cluster: ClusterConfig = compose(words, [f"cluster={name}"]).cluster
    return cluster


def _settings(composed: DictConfig) -> Any:
    """Turn what was composed into dataclasses with every value in range."""
    try:
        settings = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise InputError(explain(error, OmegaConf.get_type(composed))) from None
    validate(settings)
    return settings


@contextlib.contextmanager
def _replaced(holder: Any, name: str, value: Any) -> Iterator[None]:
    before = getattr(holder, name)
    setattr(holder, name, value)
    try:
        yield
    finally:
        setattr(holder, name, before)


@contextlib.contextmanager
def _full_errors() -> Iterator[None]:
    """Have Hydra raise its errors as they are, for us to explain."""
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
    """Standard error without the line that Hydra writes about a failed job, which has spoken for itself."""

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


def _register() -> None:
    """Tell Hydra the types of all settings, and how to make the text of `--help`."""
    store = ConfigStore.instance()
    for name, job in JOBS.items():
        store.store(name=f"{name}_schema", node=job)
    for group, name, node in (
        ("cluster", "sites_schema", config.SitesConfig),
        ("cluster", "regions_schema", config.RegionsConfig),
        ("cluster", "synthetic_schema", config.SyntheticConfig),
        ("schedule", "schedule_schema", config.ScheduleConfig),
        ("planner", "planner_schema", config.PlannerConfig),
        ("data", "data_schema", DataConfig),
        ("runtime", "runtime_schema", training.RuntimeConfig),
        ("train", "train_schema", training.TrainConfig),
    ):
        store.store(group=group, name=name, node=node)
    OmegaConf.register_new_resolver("skippipe.help", lambda name: command_help(name, JOBS[name]), replace=True)


JOBS: dict[str, type[Any]] = {
    "plan": config.PlanJob,
    "simulate": config.SimulateJob,
    "report": config.ReportJob,
    "bench_simulator": config.BenchSimulatorJob,
    "bench_planner": config.BenchPlannerJob,
    "bench_allocator": config.BenchAllocatorJob,
    "train": training.TrainJob,
    "evaluate": EvaluateJob,
    "study": StudyJob,
    "export": ExportJob,
    "data_prepare": PrepareJob,
    "data_fetch": FetchJob,
}

_register()
