"""A study at work: its arms, what is known of them, and what is written about it."""

from collections.abc import Callable, Collection, Sequence
from pathlib import Path

from skippipe.data.corpus import open_corpus
from skippipe.errors import InputError
from skippipe.files import locked, write_bytes, write_text
from skippipe.study.arms import Arm, Kind, Step, next_step
from skippipe.study.collect import read_arm
from skippipe.study.command_lines import CommandLines
from skippipe.study.config import StudyJob
from skippipe.study.markdown import millions, study_page
from skippipe.study.plots import draw_figures
from skippipe.study.records import ArmKey, ArmRecord, Records, load_records, merged, save_records
from skippipe.study.runner import Runner, RunnerCallbacks, StepResult

PrintLine = Callable[[str], None]


class Study:
    """The arms of a study on this machine."""

    def __init__(
        self, job: StudyJob, arms: Sequence[Arm], folder: Path, config_folders: Sequence[str], print_line: PrintLine
    ) -> None:
        """Take up a study.

        Args:
            job: the settings.
            arms: composed of them.
            folder: where relative names of files begin.
            config_folders: where experiments are found beside those that ship.
            print_line: prints a line for each event.

        Raises:
            InputError: files that cannot be used, or records or runs of other settings.

        """
        self._job, self._arms, self._print_line = job, arms, print_line
        self._runs, self._file = (folder / job.folder).absolute(), folder / job.records
        prepared = (folder / job.prepared).absolute()
        self._text = open_corpus(prepared).sha256 if prepared.exists() else None
        key = None if job.key is None else Path(job.key).absolute()
        self._commands = CommandLines(
            self._runs, prepared, job.overrides, job.omit, job.evaluation, key, config_folders
        )
        self._begun: set[tuple[ArmKey, Kind]] = set()
        self._failures: dict[ArmKey, str] = {}
        self._finished_here: set[ArmKey] = set()
        """arms whose runs on this machine have come to their end: these can be evaluated"""
        self._saved: Callable[[], None] = lambda: None
        self.records: Records = {}
        self._refresh()

    def plan(self, devices: Sequence[str]) -> list[tuple[str, Step]]:
        """Say what would run where at once; what is open beyond that comes later, without a device."""
        begun: set[tuple[ArmKey, Kind]] = set()
        steps = []
        while (step := self._next(begun)) is not None:
            begun.add((step.arm.key, step.kind))
            steps.append(step)
        return [(devices[place] if place < len(devices) else "", step) for place, step in enumerate(steps)]

    def run(self, devices: Sequence[str], stop: Callable[[], bool], saved: Callable[[], None]) -> None:
        """Run open arms until the time is over, none is left, or `stop` says so; the records are kept up all along.

        `saved` is called each time they were.

        Raises:
            InputError: the text is not there, or another study is at work in the same folder.

        """
        self._saved = saved
        if self._text is None:
            open_corpus(self._commands.prepared)
        watch = RunnerCallbacks(began=self._tell_began, ended=self._take_end, running=self._tell_running)
        runner = Runner(devices, self._choose, self._commands.line, self.log, watch)
        seconds = None if self._job.minutes is None else self._job.minutes * 60
        try:
            self._runs.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"folder={self._job.folder} cannot be written: {error.strerror or error}") from None
        with locked(self._runs, f"folder={self._job.folder} is in use: another study is at work there"):
            runner.run(seconds, self._job.grace_s, stop)

    def write(self) -> list[Path]:
        """Write records, page and figures; gives what was written."""
        self._save()
        entries = self.entries
        name, written = self._file.stem, [self._file]
        figures = draw_figures(entries)
        for figure, content in figures.items():
            written.append(self._file.with_name(f"{name}_{figure}.png"))
            write_bytes(written[-1], content)
        written.append(self._file.with_suffix(".md"))
        write_text(written[-1], study_page(name, entries, self._job.baseline, list(figures)))
        return written

    def log(self, step: Step) -> Path:
        """Where a step's output goes."""
        folder = self._runs / step.arm.folder
        return folder.with_name(f"{folder.name}.{step.kind}.log")

    def _next(self, begun: Collection[tuple[ArmKey, Kind]]) -> Step | None:
        return next_step(self._arms, self.records, begun, here=self._finished_here, omit=self._job.omit)

    def _choose(self) -> Step | None:
        step = self._next(self._begun)
        if step is not None:
            self._begun.add((step.arm.key, step.kind))
        return step

    def _refresh(self) -> None:
        """Read anew what stands in the records, and what is known here."""
        for key, entry in load_records(self._file).items():
            ours = self.records.get(key)
            self.records[key] = entry if ours is None else merged(entry, ours)
        for arm in self._arms:
            entry = read_arm(arm, self._runs, self._text, self._failures.get(arm.key))
            if entry.finished:
                self._finished_here.add(arm.key)
            self.records[arm.key] = merged(self.records.get(arm.key), entry)

    @property
    def entries(self) -> list[ArmRecord]:
        """What is known, in the order of the file; what is new there in that of the arms."""
        return list(self.records.values())

    def _save(self) -> None:
        self._refresh()
        save_records(self._file, self.entries)
        self._saved()

    def _tell_began(self, step: Step, device: str) -> None:
        done = self.records[step.arm.key].tokens_done
        what = f"trains, {millions(done)} of {millions(step.arm.tokens)} million tokens done"
        self._print_line(f"{device}: {step.arm.key.title} {what if step.kind == 'train' else 'is evaluated'}")

    def _take_end(self, ended: StepResult) -> None:
        key = ended.step.arm.key
        if ended.how == "failed":
            self._failures[key] = f"{ended.step.kind}: {ended.message}"
        elif ended.how == "killed":
            self._failures[key] = f"{ended.step.kind}: did not end within {self._job.grace_s:g} s, and was killed"
        self._save()
        entry = self.records[key]
        latest = "" if entry.latest is None else f", validation loss {entry.latest.loss:.4f}"
        done = f"{millions(entry.tokens_done)} of {millions(entry.tokens)} million tokens done{latest}"
        why = f": {self._failures[key]} (all of it is in {self.log(ended.step)})" if key in self._failures else ""
        self._print_line(f"{ended.device}: {key.title}: {ended.step.kind} {ended.how}, {done}{why}")

    def _tell_running(self) -> None:
        self._save()
        for arm in self._arms:
            entry = self.records[arm.key]
            if (arm.key, "train") in self._begun and not entry.finished:
                rate = "" if entry.tokens_per_s is None else f", {entry.tokens_per_s:,.0f} tokens/s"
                self._print_line(
                    f"{arm.key.title}: {millions(entry.tokens_done)} of {millions(entry.tokens)} million{rate}"
                )
