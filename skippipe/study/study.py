"""A study: runs its arms and writes records, page and plots."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from skippipe.data.corpus import open_corpus
from skippipe.errors import unwritable
from skippipe.files import locked, write_bytes, write_text
from skippipe.study.arms import Arm, StepKind, StudyStep, next_step
from skippipe.study.collect import read_arm
from skippipe.study.command_lines import CommandLines
from skippipe.study.config import StudyJob
from skippipe.study.markdown import millions, study_page
from skippipe.study.plots import draw_figures
from skippipe.study.records import ArmKey, ArmRecord, Records, load_records, merged, save_records
from skippipe.study.runner import Runner, RunnerCallbacks, StepResult
from skippipe.study.time_to_loss import Times

PrintLine = Callable[[str], None]


class Study:
    """The arms of a study on this machine."""

    def __init__(
        self, job: StudyJob, arms: Sequence[Arm], folder: Path, config_folders: Sequence[str], print_line: PrintLine
    ) -> None:
        """Load a study.

        Args:
            job: the settings.
            arms: composed from them.
            folder: base of relative file names.
            config_folders: additional folders of experiments.
            print_line: prints a line for each event.

        Raises:
            InputError: unusable files, or records or runs of other settings.

        """
        self._job, self._arms, self._print_line = job, arms, print_line
        self._runs, self._file = (folder / job.folder).absolute(), folder / job.records
        prepared = (folder / job.prepared).absolute()
        self._text = open_corpus(prepared).sha256 if prepared.exists() else None
        key = None if job.key is None else Path(job.key).absolute()
        self._commands = CommandLines(
            self._runs, prepared, job.overrides, job.omit, job.evaluation, key, config_folders
        )
        self._started: set[tuple[ArmKey, StepKind]] = set()
        self._failures: dict[ArmKey, str] = {}
        self._finished_here: set[ArmKey] = set()
        """arms trained to the end on this machine, which can be evaluated"""
        self._saved: Callable[[], None] = lambda: None
        self.records: Records = {}
        self._refresh()

    def plan(self, devices: Sequence[str]) -> list[tuple[str, StudyStep]]:
        """Steps that would start at once with their devices, then the later ones with an empty device."""
        started: set[tuple[ArmKey, StepKind]] = set()
        steps = []
        while (step := self._next(started)) is not None:
            started.add((step.arm.key, step.kind))
            steps.append(step)
        return [(devices[index] if index < len(devices) else "", step) for index, step in enumerate(steps)]

    def run(self, devices: Sequence[str], stop: Callable[[], bool], saved: Callable[[], None]) -> None:
        """Run unfinished arms until the time limit, the end or `stop`, updating the records continuously.

        `saved` is called each time they were.

        Raises:
            InputError: the corpus is missing, or another study runs in the same folder.

        """
        self._saved = saved
        if self._text is None:
            open_corpus(self._commands.prepared)
        callbacks = RunnerCallbacks(started=self._on_start, ended=self._on_end, running=self._on_progress)
        runner = Runner(devices, self._choose, self._commands.line, self.log, callbacks)
        seconds = None if self._job.minutes is None else self._job.minutes * 60
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise unwritable(self._job.folder, error, "folder") from None
        with locked(self._runs, unwritable(self._job.folder, "another study runs there", "folder")):
            runner.run(seconds, self._job.grace_s, stop)

    def write(self, times: Times | None = None) -> list[Path]:
        """Write records, page and plots, with predicted `times` if there are any; returns their paths."""
        self._save()
        entries = self.entries
        name, written = self._file.stem, [self._file]
        figures = draw_figures(entries, times)
        for figure, content in figures.items():
            written.append(self._file.with_name(f"{name}_{figure}.png"))
            write_bytes(written[-1], content)
        written.append(self._file.with_suffix(".md"))
        write_text(written[-1], study_page(name, entries, self._job.baseline, list(figures), times))
        return written

    def log(self, step: StudyStep) -> Path:
        """Log file of a step."""
        folder = self._runs / step.arm.folder
        return folder.with_name(f"{folder.name}.{step.kind}.log")

    def _next(self, started: Collection[tuple[ArmKey, StepKind]]) -> StudyStep | None:
        return next_step(self._arms, self.records, started, finished_here=self._finished_here, omit=self._job.omit)

    def _choose(self) -> StudyStep | None:
        step = self._next(self._started)
        if step is not None:
            self._started.add((step.arm.key, step.kind))
        return step

    def _refresh(self) -> None:
        """Reload the records, and merge the state of this machine."""
        for key, entry in load_records(self._file).items():
            own = self.records.get(key)
            self.records[key] = entry if own is None else merged(entry, own)
        for arm in self._arms:
            entry = read_arm(arm, self._runs, self._text, self._failures.get(arm.key))
            if entry.finished:
                self._finished_here.add(arm.key)
            self.records[arm.key] = merged(self.records.get(arm.key), entry)

    @property
    def entries(self) -> list[ArmRecord]:
        """All records: those of the file first, then new arms in order."""
        return list(self.records.values())

    def _save(self) -> None:
        self._refresh()
        save_records(self._file, self.entries)
        self._saved()

    def _on_start(self, step: StudyStep, device: str) -> None:
        done = self.records[step.arm.key].tokens_done
        training = f"train, {millions(done)} of {millions(step.arm.tokens)} million tokens done"
        self._print_line(f"{device}: {step.arm.key.title}: {training if step.kind == 'train' else 'evaluate'}")

    def _on_end(self, ended: StepResult) -> None:
        key = ended.step.arm.key
        if ended.how == "failed":
            self._failures[key] = f"{ended.step.kind}: {ended.message}"
        elif ended.how == "killed":
            self._failures[key] = f"{ended.step.kind}: killed after {self._job.grace_s:g} s (grace_s)"
        self._save()
        entry = self.records[key]
        latest = "" if entry.latest is None else f", validation loss {entry.latest.loss:.4f}"
        done = f"{millions(entry.tokens_done)} of {millions(entry.tokens)} million tokens done{latest}"
        why = f": {self._failures[key]} (log: {self.log(ended.step)})" if key in self._failures else ""
        self._print_line(f"{ended.device}: {key.title}: {ended.step.kind} {ended.how}, {done}{why}")

    def _on_progress(self) -> None:
        self._save()
        for arm in self._arms:
            entry = self.records[arm.key]
            if (arm.key, "train") in self._started and not entry.finished:
                rate = "" if entry.tokens_per_s is None else f", {entry.tokens_per_s:,.0f} tokens/s"
                self._print_line(
                    f"{arm.key.title}: {millions(entry.tokens_done)} of {millions(entry.tokens)} million{rate}"
                )
