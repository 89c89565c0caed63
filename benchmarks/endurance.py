"""Hundreds of iterations, every few by another random plan: no hang, and no growth of memory.

    python benchmarks/endurance.py [--device cpu] [--links peer] [--processes 3] [--iterations 500] [--every 10]

Starts its own processes, with Gloo on CPUs and NCCL on GPUs. Each plan is for random stages, skips and ranks, and for
a new random model; memory is compared between the same plan at the first and at the last tenth of the run.
Writes out/endurance.json and out/endurance.md.
"""

import argparse
import gc
import json
import multiprocessing
import random
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from output import Row, markdown, save

from skippipe import Cluster, Plan
from skippipe.allocation import Allocation
from skippipe.config import PlannerConfig, ScheduleConfig
from skippipe.devices import on_device
from skippipe.model.build import build_stage_module, stage_layers
from skippipe.model.settings import model_config
from skippipe.planning import PlanningJob, make_plan, state_problem
from skippipe.runtime.deadlock import min_recv_buffers
from skippipe.runtime.executor import Executor
from skippipe.runtime.links import Link
from skippipe.runtime.links.gloo import GlooLink
from skippipe.runtime.links.gpu import GpuLink
from skippipe.runtime.links.peer import PeerEdges
from skippipe.runtime.lower import lower
from skippipe.runtime.message import MessageBuffers, MessageSpec
from skippipe.runtime.stage import Stage
from skippipe.train.loop.engine import connect
from skippipe.train.prepare.stages import warm_up

BATCH, SEQUENCE, HIDDEN, VOCABULARY = 2, 64, 128, 512
MODEL = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 256, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": VOCABULARY, "max_position_embeddings": SEQUENCE,
}  # fmt: skip
TIMEOUT_S = 60.0


def random_plan(seed: int, processes: int) -> tuple[Plan, list[int], list[int]]:
    """A plan, the rank of each node, and the layers of each stage."""
    rng = random.Random(seed)
    sizes = [rng.randint(1, 3), *(rng.randint(1, 2) for _ in range(rng.randint(1, 3)))]
    nodes = sum(sizes)
    while nodes < processes:
        sizes[0] += 1
        nodes += 1
    cluster = Cluster(
        [f"n{number}" for number in range(nodes)],
        [rng.uniform(1, 3) for _ in range(nodes)], [rng.uniform(2, 6) for _ in range(nodes)], [0.5] * nodes,
        [rng.randint(2, 4) for _ in range(nodes)], latency_s=[[0.1] * nodes] * nodes, bandwidth=[[1e6] * nodes] * nodes,
        activation_bytes=1e5,
    )  # fmt: skip
    order = rng.sample(range(nodes), nodes)
    stages = [[order.pop() for _ in range(size)] for size in sizes]
    layers = [rng.randint(1, 2) for _ in sizes]
    schedule = ScheduleConfig(skip_ratio=rng.choice([0.0, 0.25, 1 / 3]), microbatches_per_source=rng.randint(2, 4))
    problem = state_problem(cluster, Allocation(stages, layers=tuple(layers)), schedule)
    strategy = rng.choice(["skippipe", "random-skip"])
    plan = make_plan(PlanningJob(problem), strategy, PlannerConfig(work_limit=20_000, seed=seed))
    ranks = [*range(processes), *(rng.randrange(processes) for _ in range(nodes - processes))]
    rng.shuffle(ranks)
    return plan, ranks, layers


def work(rank: int, options: argparse.Namespace, store: str, results: Any) -> None:
    """Be one process."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=options.processes)
    device = torch.device("cpu" if options.device == "cpu" else f"cuda:{rank}")
    control = GlooLink()
    link: Link = control
    buffers = MessageBuffers(MessageSpec(BATCH, SEQUENCE, HIDDEN, device=device))
    if device.type == "cuda":
        torch.cuda.set_device(device)
        peers = PeerEdges(rank, device, buffers.message_spec.payload_bytes, exchange)
        link = GpuLink(rank, device, peers if options.links == "peer" else None)
    rows = []
    plans = options.iterations // options.every
    for number in range(plans):
        # The last plans are the first ones again: the same work, so memory can be compared.
        seed = number if number < plans - plans // 10 else number - (plans - plans // 10)
        begin = time.perf_counter()
        norm = train(rank, random_plan(seed, options.processes), options.every, link, control, buffers)
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        rows.append({"seed": seed, "norm": norm, "resident": pages * resource.getpagesize(), **gpu_bytes(device)})
        if rank == 0:
            sys.stderr.write(f"plan {number + 1} of {plans}: {time.perf_counter() - begin:.2f} s, norm {norm:.4f}\n")
    results.put((rank, rows))
    dist.barrier()
    dist.destroy_process_group()


def exchange(text: str) -> list[str]:
    """Give a text to all processes."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, text)
    return found


def gpu_bytes(device: torch.device) -> dict[str, int]:
    """Bytes of a GPU that are in use, by torch and altogether."""
    if device.type == "cpu":
        return {}
    free, total = torch.cuda.mem_get_info(device)
    return {"allocated": torch.cuda.memory_allocated(device), "used": total - free}


def train(  # noqa: PLR0913, PLR0917 - a script
    rank: int,
    drawn: tuple[Plan, list[int], list[int]],
    iterations: int,
    link: Link,
    control: Link,
    buffers: MessageBuffers,
) -> float:
    """Train a new model by a plan, and give the last norm of its gradient."""
    plan, ranks, layers = drawn
    config, device = model_config({**MODEL, "num_hidden_layers": sum(layers)}), buffers.message_spec.device
    of_stages = stage_layers(layers, config)
    served = [s for s, nodes in enumerate(plan.stages) if rank in {ranks[node] for node in nodes}]
    stages = {
        s: Stage(build_stage_module(config, stage=s, layers=of_stages[s], first=s == 0, seed=1, device=device))
        for s in served
    }
    programs = lower(plan, ranks)
    receives = min_recv_buffers(programs, 1, 2)
    assert receives is not None, "plans do not deadlock"
    connect(link, programs)
    for stage in stages.values():
        warm_up(stage, buffers.message_spec, VOCABULARY)
    executor = Executor(
        programs[rank], stages, link, control=control, buffers=buffers, recv_buffers=receives, sends_in_flight=2
    )
    optimizer = torch.optim.AdamW([p for stage in stages.values() for p in stage.parameters], lr=1e-3)
    norms: list[float] = []

    def step(norm: float) -> None:
        norms.append(norm)
        optimizer.step()

    def batch(microbatch: int) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(microbatch)
        text = torch.randint(VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
        return on_device((text[:, :-1].contiguous(), text[:, 1:].contiguous()), device)

    visited = {stage for microbatch in plan.microbatches for stage in microbatch.stages}
    for _ in range(iterations):
        for number, stage in stages.items():
            stage.begin(BATCH * SEQUENCE * len(plan.microbatches), visited=number in visited)
        executor.run(batch, step, TIMEOUT_S)
    return norms[-1]


def main() -> None:
    """Run, and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--links", default="peer", choices=["peer", "nccl"], help="between GPUs of this machine")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=500)
    parser.add_argument("--every", type=int, default=10)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    results: Any = context.Queue()
    with tempfile.TemporaryDirectory() as folder:
        store = str(Path(folder) / "store")
        workers = [
            context.Process(target=work, args=(r, options, store, results), daemon=True)
            for r in range(options.processes)
        ]
        for worker in workers:
            worker.start()
        by_rank = dict(results.get() for _ in workers)
        for worker in workers:
            worker.join()
    norms = {json.dumps([row["norm"] for row in rows]) for rows in by_rank.values()}
    assert len(norms) == 1, "all ranks have the same norms"
    table: list[Row] = []
    for rank, rows in sorted(by_rank.items()):
        last = len(rows) - len(rows) // 10
        for kind in ("resident", "allocated", "used"):
            if kind in rows[0] and last < len(rows):
                early, late = (max(row[kind] for row in part) for part in (rows[: len(rows) // 10], rows[last:]))
                table.append({"rank": rank, "memory": kind, "first MiB": early / 2**20, "last MiB": late / 2**20})
    save("endurance", vars(options), table, markdown(table))


if __name__ == "__main__":
    main()
