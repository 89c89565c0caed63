"""Host time per action of the executor, without computing and without a network.

    python benchmarks/host_time.py [PRESET]

Plans a preset with one rank per node, and runs each rank's program in this process: stages return what they are
given, and transfers complete at once. What remains is the executor itself: bookkeeping, buffers, and the encoding of
messages of one number.
"""

import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from torch import Tensor

from skippipe.plan_file import load_plan
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor
from skippipe.runtime.links.collectives import RingSums
from skippipe.runtime.lower import lower
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import ReadyGradients

REPETITIONS = 20
TOKEN = torch.zeros(1, 1, dtype=torch.int64)
HIDDEN = torch.zeros(1, 1, 1)


class NoStage:
    """A stage that does nothing."""

    def embed(self, microbatch: int, tokens: Tensor) -> Tensor:
        """Give some hidden state."""
        del microbatch, tokens
        return HIDDEN

    def forward(self, microbatch: int, hidden: Tensor) -> Tensor:
        """Give back what is given."""
        del microbatch
        return hidden

    def loss(self, microbatch: int, hidden: Tensor, labels: Tensor) -> Tensor:
        """Give back what is given."""
        del microbatch, labels
        return hidden

    def backward(self, microbatch: int, gradient: Tensor, ready: ReadyGradients | None = None) -> Tensor:
        """Give back what is given."""
        del microbatch, ready
        return gradient

    def embed_backward(self, microbatch: int, gradient: Tensor) -> None:
        """Do nothing."""

    def gradient_parts(self) -> list[list[Tensor]]:
        """Give the same as `gradients`."""
        return [self.gradients()]

    def gradients(self) -> list[Tensor]:
        """Give one gradient."""
        return [HIDDEN]


class Finished:
    """A transfer that is over."""

    def wait(self, timeout_s: float) -> None:
        """Return at once."""


class NoLink(RingSums):
    """Transfers that complete at once."""

    def isend(self, tensor: Tensor, to_rank: int, tag: int) -> Finished:
        """Complete at once."""
        del tensor, to_rank, tag
        return Finished()

    def irecv(self, tensor: Tensor, from_rank: int, tag: int) -> Finished:
        """Complete at once, with zeros."""
        del from_rank, tag
        tensor.zero_()
        return Finished()


def main() -> None:
    """Print the median over repetitions, over all ranks."""
    preset = sys.argv[1] if len(sys.argv) > 1 else "geo20"
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        subprocess.run(
            ["skippipe", "plan", f"cluster={preset}", f"output={path}", "planner.work_limit=100000"],
            check=True, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        plan = load_plan(path)
    programs = lower(plan, range(len(plan.cluster)))
    buffers = min_recv_buffers(programs, 2, 2)
    assert buffers is not None, "plans do not deadlock"
    stages = {stage: NoStage() for stage in range(len(plan.stages))}
    seconds: list[float] = []
    for program in programs:
        executor = Executor(
            program,
            stages,
            NoLink(),
            buffers=MessageBuffers(MessageSpec(1, 1, 1)),
            recv_buffers=buffers,
            sends_in_flight=2,
        )
        times = []
        for _ in range(REPETITIONS):
            begin = time.perf_counter()
            executor.run(lambda _: (TOKEN, TOKEN), lambda _: None, 1.0)
            times.append(time.perf_counter() - begin)
        seconds.append(statistics.median(times))
    actions = sum(len(program.actions) for program in programs)
    print(f"{preset}: {1e6 * sum(seconds) / actions:.1f} us per action, {actions} actions on {len(programs)} ranks")


if __name__ == "__main__":
    main()
