"""Iterations and validations from where a run begins to its end, or to where it is asked to stop."""

import signal
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from skippipe.checkpoint.reading import WEIGHTS
from skippipe.checkpoint.saving import Contents, Saver
from skippipe.checkpoint.state import State
from skippipe.model.build import module_seed
from skippipe.runtime.executor import Batches
from skippipe.train.config import TrainJob
from skippipe.train.events import Report
from skippipe.train.keeper import Keeper
from skippipe.train.loop import Engine, Optimization, Says, Station, check_finite
from skippipe.train.start import OPTIMIZER, READING_S, Start
from skippipe.train.stopping import StopRequest
from skippipe.train.texts import Texts
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
    planning: str
    """hash of what the plan was asked for"""
    tokenizer: str | None
    """tokenizer.json, on rank 0"""


class Run:
    """One rank's part of a run under one plan."""

    def __init__(  # noqa: PLR0913 - by keyword
        self,
        job: TrainJob,
        station: Station,
        engine: Engine,
        *,
        start: Start,
        texts: Texts | None,
        facts: Facts,
        saver: Saver | None,
        tell: Report,
    ) -> None:
        """Take up the run where it begins.

        Args:
            job: the settings.
            station: what the rank works with.
            engine: its stages under the plan.
            start: where the run begins; weights and optimizer are read from there.
            texts: what is read, on ranks with a source.
            facts: for checkpoints.
            saver: saves them; None: nothing is saved.
            tell: is given the events.

        """
        self._config, self._threads = job.train, job.runtime.threads
        self._station, self._engine, self._start, self._texts = station, engine, start, texts
        self._facts, self._tell = facts, tell
        self._optimization = Optimization(
            engine.stages, job.train, engine.tokens, done=start.iteration, seen=start.tokens
        )
        start.load(station, self._optimization)
        station.team.exchange("loaded", "", READING_S)  # from here on a rank that says nothing has failed
        self._keeper = None
        if saver is not None:
            self._keeper = Keeper(saver, job.checkpoint, self._snapshot, start.kept, tell)

    def go(self) -> signal.Signals | None:
        """Train and validate to the end, or until asked to stop; gives the signal that did.

        Raises:
            ActionError: a message did not come, or another rank is gone.
            DivergedError: the gradient is no number any more.
            SavingError: no checkpoint can be left at the end.

        """
        with StopRequest() as request:
            if self._train(lambda: request.signal is not None):
                return None
            return request.signal or signal.SIGTERM  # another rank was asked

    def _train(self, asked: Callable[[], bool]) -> bool:
        """Train; whether it has come to its end."""
        config, engine, keeper = self._config, self._engine, self._keeper
        predicted_s = engine.plan.predicted.iteration_s
        seconds, tasks = [], TaskTimes()
        number = self._start.iteration
        if keeper is not None:
            keeper.finish(number)  # a run that is killed before its first checkpoint is to go on by the same plan
        losses = [self._validate(number)]
        while number < config.iterations:
            number += 1
            torch.manual_seed(iteration_seed(config.seed, number, self._station.team.rank))
            done = engine.iterate(
                self._batches(number),
                cast("StageGradient", config.stage_gradient),
                self._step,
                lambda: Says(stop=asked(), saving=keeper is not None and keeper.busy),
            )
            check_finite(done, number)
            if number > self._start.iteration + 1 or config.iterations == number:  # the first one is slower
                seconds.append(done.seconds)
                tasks.add(done.timings)
            self._tell(
                {
                    "event": "iteration",
                    "iteration": number,
                    "loss": done.loss,
                    **({} if done.router_loss is None else {"router_loss": done.router_loss}),
                    "tokens": engine.tokens,
                    "tokens_per_s": engine.tokens / done.seconds,
                    "iteration_s": done.seconds,
                    "predicted_s": predicted_s,
                    "norm": done.norm,
                    "learning_rate": self._optimization.rate,
                }
            )
            if done.says.stop and number < config.iterations:
                if keeper is not None:
                    keeper.finish(number)
                self._tell({"event": "stopped", "iteration": number, "saved": keeper is not None})
                return False
            if number == config.iterations or (config.validate_every and number % config.validate_every == 0):
                losses.append(self._validate(number))
            if keeper is not None and number < config.iterations:
                keeper.after(number, saving=done.says.saving)
        if keeper is not None:
            keeper.finish(number)
        measured = merged(self._station.team.exchange("task times", tasks.to_json()))
        if seconds:
            measured_s = statistics.median(seconds)
            processors = self._station.team.world * self._threads
            why = reasons(engine.plan, measured, measured_s, engine.rank_of, processors)
        else:
            measured_s, why = None, ["nothing was left to train"]
        self._tell(
            {
                "event": "summary",
                "iterations": number,
                "loss_before": losses[0],
                "loss_after": losses[-1],
                "predicted_s": predicted_s,
                "measured_s": measured_s,
                "reasons": why,
            }
        )
        return True

    def _step(self, norm: float) -> None:
        if self._keeper is not None:
            self._keeper.settle()
        self._optimization.step(norm)

    def _validate(self, iteration: int) -> float:
        def batches(microbatch: int) -> tuple[Tensor, Tensor]:
            assert self._texts is not None, "only a source reads"
            return self._texts.validation_batch(microbatch)

        loss = self._engine.validate(batches)
        tokens = self._engine.validation_tokens
        self._tell({"event": "validation", "iteration": iteration, "loss": loss, "tokens": tokens})
        return loss

    def _position(self, iterations: int) -> int:
        """Blocks of text used after so many iterations of the run."""
        return self._start.position + (iterations - self._start.iteration) * self._engine.blocks

    def _batches(self, number: int) -> Batches:
        first = self._position(number - 1)

        def batches(microbatch: int) -> tuple[Tensor, Tensor]:
            assert self._texts is not None, "only a source reads"
            return self._texts.training_batch(first + microbatch * self._texts.size)

        return batches

    def _snapshot(self, iteration: int) -> tuple[Mapping[str, Tensor], Contents]:
        """What this rank gives to a checkpoint: each stage is given by the lowest rank that serves it."""
        tensors: dict[str, Tensor] = {}
        for number, stage in self._station.stages.items():
            if self._station.owner(number, self._engine.plan.stages) == self._station.team.rank:
                tensors |= {f"{WEIGHTS}/{name}": tensor for name, tensor in stage.module.named_parameters()}
                kept = self._optimization.tensors(number)
                tensors |= {f"{OPTIMIZER}/{name}": tensor for name, tensor in kept.items()}
        state = State(
            iteration=iteration,
            tokens=self._optimization.seen,
            position=self._position(iteration),
            seed=self._config.seed,
            text=self._facts.text,
            model=self._facts.model,
            planning=self._facts.planning,
        )
        return tensors, Contents(state, self._engine.plan.to_json(), self._facts.tokenizer)


def iteration_seed(seed: int, iteration: int, rank: int) -> int:
    """Seed of the random numbers that a rank draws in an iteration, for dropout and the like: 63 bits of a hash."""
    return module_seed(seed, f"{iteration}:{rank}")
