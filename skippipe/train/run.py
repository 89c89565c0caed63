"""Iterations and validations from where a run begins to its end, or to where it is asked to stop."""

import contextlib
import signal
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from skippipe.checkpoint.reading import WEIGHTS
from skippipe.checkpoint.saving import CheckpointContents, CheckpointSaver
from skippipe.checkpoint.state import TrainingState
from skippipe.model.build import module_seed
from skippipe.runtime.executor import Batches
from skippipe.train.config import TrainJob
from skippipe.train.efficiency import Gauge
from skippipe.train.events import Event, Report
from skippipe.train.keeper import Keeper
from skippipe.train.loop import Engine, Iteration, Optimization, Says, Station, check_finite, check_validation
from skippipe.train.start import OPTIMIZER, READING_S, Start
from skippipe.train.stopping import StopRequest
from skippipe.train.texts import ReadAhead, Texts
from skippipe.train.times import TaskTimes, merged, reasons

if TYPE_CHECKING:
    from skippipe.runtime.stage import StageGradient


@dataclass(frozen=True)
class Facts:
    """What a checkpoint says of a run beside how far it is."""

    text: str
    """hash of the text to train on"""
    model: dict[str, object]
    """settings"""
    tokenizer: str | None
    """tokenizer.json, on rank 0"""


@dataclass(frozen=True)
class Part:
    """A part of a run under one plan."""

    after: int
    """iterations before it"""
    planning: str
    """hash of what the plan was asked for"""
    engine: Engine
    """the rank's stages under the plan"""
    flops: float
    """operations of an iteration, over all ranks"""


class Run:
    """One rank's part of a run."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        job: TrainJob,
        station: Station,
        parts: Sequence[Part],
        *,
        device: torch.device,
        trace: Path | None,
        start: Start,
        texts: Texts | None,
        facts: Facts,
        saver: CheckpointSaver | None,
        tell: Report,
    ) -> None:
        """Take up the run where it begins.

        Args:
            job: the settings.
            station: what the rank works with.
            parts: of the run, by what is before them; all of them use as much text an iteration.
            device: where the stages compute.
            trace: the file for a trace of profiled iterations, on rank 0.
            start: where the run begins; weights and optimizer are read from there.
            texts: what is read, on ranks with a source.
            facts: for checkpoints.
            saver: saves them; None: nothing is saved.
            tell: is given the events.

        """
        self._config, self._threads = job.train, job.runtime.threads
        self._station, self._parts, self._start, self._texts = station, parts, start, texts
        self._facts, self._tell = facts, tell
        self._blocks = parts[0].engine.blocks
        self._optimization = Optimization(
            station.stages, job.train, parts[0].engine.tokens, done=start.iteration, seen=start.tokens
        )
        # A single process has all microbatches to read, and a GPU would wait for them.
        self._ahead = ReadAhead(self._all_batches) if station.team.world == 1 else None
        self._gauge = Gauge(device, job.runtime, trace, start.iteration)
        start.load(station, self._optimization)
        station.team.exchange("loaded", "", READING_S)  # from here on a rank that says nothing has failed
        self._keeper = None
        if saver is not None:
            self._keeper = Keeper(saver, job.checkpoint, self._snapshot, start.kept, tell)

    def go(self) -> signal.Signals | None:
        """Train and validate to the end, or until asked to stop; gives the signal that did.

        Raises:
            ActionError: a message did not come, or another rank is gone.
            DivergedError: the gradient or a loss is no number any more.
            SavingError: no checkpoint can be left at the end.

        """
        with StopRequest() as request, contextlib.ExitStack() as stack:
            if self._ahead is not None:
                stack.callback(self._ahead.close)
            if self._train(lambda: request.signal is not None):
                return None
            request.heeded = True
            return request.signal or signal.SIGTERM  # another rank was asked

    def _part(self, iteration: int) -> Part:
        """The part of the run that an iteration belongs to; the start, 0, to the first one."""
        return [part for part in self._parts if part.after < max(iteration, 1)][-1]

    def _train(self, asked: Callable[[], bool]) -> bool:
        """Train; whether it has come to its end."""
        config, keeper, gauge = self._config, self._keeper, self._gauge
        number = self._start.iteration
        if keeper is not None:
            keeper.finish(number)  # a run that is killed before its first checkpoint is to go on by the same plan
        losses = [self._validate(number)]
        part, times = self._part(number), Times()
        gauge.begin()
        while number < config.iterations:
            number += 1
            if part is not self._part(number):
                part, times = self._change(number), Times()
            engine = part.engine
            torch.manual_seed(iteration_seed(config.seed, number, self._station.team.rank))
            done = engine.iterate(
                self._batches(number),
                cast("StageGradient", config.stage_gradient),
                self._step,
                lambda: Says(stop=asked(), saving=keeper is not None and keeper.busy),
            )
            check_finite(done, number)
            if number > self._start.iteration + 1 or config.iterations == number:  # the first one is slower
                times.seconds.append(done.seconds)
                times.tasks.add(done.timings)
            self._tell_iteration(number, engine, done, *gauge.lap(part.flops))
            if done.says.stop and number < config.iterations:
                if keeper is not None:
                    keeper.finish(number)
                self._tell({"event": "stopped", "iteration": number, "saved": keeper is not None})
                return False
            if number == config.iterations or (config.validate_every and number % config.validate_every == 0):
                with gauge.aside():
                    losses.append(self._validate(number))
            gauge.profile(number)
            if keeper is not None and number < config.iterations:
                keeper.after(number, saving=done.says.saving)
        if keeper is not None:
            keeper.finish(number)
        self._tell(self._summary(part.engine, number, losses, times))
        return True

    def _tell_iteration(self, number: int, engine: Engine, done: Iteration, lap_s: float, mfu: float | None) -> None:
        """Tell of an iteration, which took `lap_s` with everything between it and the one before."""
        about = {"router_loss": done.router_loss, "predicted_s": engine.predicted_s, "mfu": mfu}
        self._tell(
            {
                "event": "iteration",
                "iteration": number,
                "loss": done.loss,
                "tokens": engine.tokens,
                "tokens_per_s": engine.tokens / lap_s,
                "iteration_s": done.seconds,
                "norm": done.norm,
                "learning_rate": self._optimization.rate,
                **{name: value for name, value in about.items() if value is not None},
            }
        )

    def _change(self, iteration: int) -> Part:
        """Go over to the part that an iteration belongs to."""
        part = self._part(iteration)
        plan = part.engine.plan
        about = {"iteration": iteration, "skip_ratio": plan.skip_ratio, "strategy": plan.strategy}
        self._tell({"event": "plan_changed", **about, "predicted_s": part.engine.predicted_s})
        return part

    def _summary(self, engine: Engine, iterations: int, losses: Sequence[float], times: "Times") -> Event:
        """What came of the run, and how good the prediction was for its last part."""
        measured = merged(self._station.team.exchange("task times", times.tasks.to_json()))
        measured_s = statistics.median(times.seconds) if times.seconds else None
        if measured_s is None:
            why = ["nothing was left to train"]
        elif engine.predicted_s is None:
            why = []
        else:
            processors = self._station.team.world * self._threads
            why = reasons(engine.plan, measured, measured_s, engine.rank_of, processors)
        return {
            "event": "summary",
            "iterations": iterations,
            "loss_before": losses[0],
            "loss_after": losses[-1],
            "predicted_s": engine.predicted_s,
            "measured_s": measured_s,
            "reasons": why,
            **self._gauge.summary(),
        }

    def _step(self, norm: float) -> None:
        if self._keeper is not None:
            self._keeper.settle()
        self._optimization.step(norm)

    def _validate(self, iteration: int) -> float:
        def batches(microbatch: int) -> tuple[Tensor, Tensor]:
            assert self._texts is not None, "only a source reads"
            return self._texts.validation_batch(microbatch)

        def trained_on(microbatch: int) -> tuple[Tensor, Tensor]:
            assert self._texts is not None, "only a source reads"
            return self._texts.training_batch(microbatch * self._texts.size)

        engine = self._part(iteration).engine
        loss = engine.validate(batches)
        event = {"event": "validation", "iteration": iteration, "loss": loss, "tokens": engine.validation_tokens}
        losses = {"the validation text": loss}
        if self._config.validate_training:
            event["training_loss"] = losses["training text"] = engine.validate(trained_on)
        self._tell(event)
        for text, taken in losses.items():
            check_validation(taken, iteration, text)
        return loss

    def _position(self, iterations: int) -> int:
        """Blocks of text used after so many iterations of the run."""
        return self._start.position + (iterations - self._start.iteration) * self._blocks

    def _batches(self, number: int) -> Batches:
        if self._ahead is not None:
            read = self._ahead.get(number)
            return lambda microbatch: read[microbatch]
        first = self._position(number - 1)

        def batches(microbatch: int) -> tuple[Tensor, Tensor]:
            assert self._texts is not None, "only a source reads"
            return self._texts.training_batch(first + microbatch * self._texts.size)

        return batches

    def _all_batches(self, number: int) -> list[tuple[Tensor, Tensor]]:
        """All microbatches of an iteration, by their place."""
        assert self._texts is not None, "a single process reads"
        return self._texts.training_batches(self._position(number - 1), self._blocks // self._texts.size)

    def _snapshot(self, iteration: int) -> tuple[Mapping[str, Tensor], CheckpointContents]:
        """What this rank gives to a checkpoint: each stage is given by the lowest rank that serves it."""
        part = self._part(iteration)
        tensors: dict[str, Tensor] = {}
        for number, stage in self._station.stages.items():
            if self._station.owner(number, part.engine.plan.stages) == self._station.team.rank:
                tensors |= {f"{WEIGHTS}/{name}": tensor for name, tensor in stage.module.named_parameters()}
                kept = self._optimization.tensors(number)
                tensors |= {f"{OPTIMIZER}/{name}": tensor for name, tensor in kept.items()}
        state = TrainingState(
            iteration=iteration,
            tokens=self._optimization.seen,
            position=self._position(iteration),
            seed=self._config.seed,
            text=self._facts.text,
            model=self._facts.model,
            planning=part.planning,
        )
        return tensors, CheckpointContents(state, part.engine.plan.to_json(), self._facts.tokenizer)


@dataclass
class Times:
    """What was measured under one plan."""

    seconds: list[float] = field(default_factory=list)
    """of each iteration"""
    tasks: TaskTimes = field(default_factory=TaskTimes)


def iteration_seed(seed: int, iteration: int, rank: int) -> int:
    """Seed of the random numbers that a rank draws in an iteration, for dropout and the like: 63 bits of a hash."""
    return module_seed(seed, f"{iteration}:{rank}")
