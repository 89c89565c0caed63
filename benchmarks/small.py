"""Small instances of the scheduling problem, drawn from seeds, and their optima, proved by CP-SAT.

    python benchmarks/small.py                     write the instances; proved results are kept
    python benchmarks/small.py --prove 60          solve each unsolved instance by CP-SAT for 60 s
    python benchmarks/small.py --prove 60 --again  at all of them anew; a proof stands until there is another

They lie in benchmarks/small, as `skippipe bench planner set=small` takes them. All durations are whole milliseconds.
"""

import argparse
import datetime as dt
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from random import Random
from typing import Any

from skippipe import Plan
from skippipe.bench import environment, load_case, violations
from skippipe.files import write_text

Json = dict[str, Any]
FOLDER = Path(__file__).parent / "small"
CHECKER = Path(__file__).parents[2] / "shared" / "anchors" / "check_plan.py"

HELD: Json = {"tc1": "held", "waves": 1, "max_swaps": 1, "max_stage_jump": None}
REFERENCE: Json = {"tc1": "routes", "waves": 2, "max_swaps": 2, "max_stage_jump": 4}
MESSAGE_BYTES = 12_000_000
"""Every bandwidth divides it into tenths of a second, so that all transfers are whole milliseconds."""


@dataclass(frozen=True)
class InstanceSpec:
    """Parameters and seed of one instance."""

    rules: Json
    sizes: tuple[int, ...]
    """nodes of each stage"""
    counts: tuple[int, ...]
    """microbatches of each source"""
    skip_ratio: float = 1 / 3
    memory: tuple[int, ...] = (1, 2, 3)
    """what the nodes' memories are drawn from"""
    speed_spread: float = 2.0
    """how many times faster the fastest node can be than the slowest"""
    allreduce: bool = False
    """whether replicas average gradients"""
    mark: str = ""
    """distinguishes it from others of the same size"""

    @property
    def name(self) -> str:
        """Rules, stages, nodes, microbatches, mark; also the seed of what is drawn."""
        rules = "held" if self.rules["tc1"] == "held" else "reference"
        numbers = f"{len(self.sizes)}s-{sum(self.sizes):02}n-{sum(self.counts):02}m"
        return f"{rules}-{numbers}" + (f"-{self.mark}" if self.mark else "")


def held(sizes: tuple[int, ...], counts: tuple[int, ...], **more: Any) -> InstanceSpec:
    """This project's rules: memory is what a node holds at one time, every microbatch has a route of its own."""
    return InstanceSpec({**HELD, **more.pop("rules", {})}, sizes, counts, **more)


def reference(sizes: tuple[int, ...], counts: tuple[int, ...], **more: Any) -> InstanceSpec:
    """The reference's rules: memory counts routes, two microbatches share one."""
    return InstanceSpec({**REFERENCE, **more.pop("rules", {})}, sizes, counts, **more)


SPECS = (
    # Three stages.
    held((2, 2, 2), (2, 2)),
    held((2, 2, 2), (3, 3), skip_ratio=0.25, mark="b"),
    held((3, 2, 1), (2, 2, 2), memory=(1, 2), allreduce=True),
    held((3, 2, 2), (2, 2, 1), speed_spread=4.0),
    held((3, 2, 2), (3, 2, 2), skip_ratio=0.3),
    held((4, 2, 2), (2, 2, 2, 2), memory=(1,)),
    held((4, 3, 2), (3, 2, 2, 2), skip_ratio=0.4, allreduce=True),
    held((4, 3, 3), (3, 3, 3, 3), speed_spread=4.0),
    reference((2, 2, 2), (2, 2)),
    reference((2, 2, 2), (4, 2), skip_ratio=0.25, memory=(2, 3), mark="b"),
    reference((3, 2, 1), (2, 2, 2), memory=(2, 3), allreduce=True),
    reference((3, 2, 2), (2, 2, 1), speed_spread=4.0),
    reference((3, 2, 2), (3, 2, 2), skip_ratio=0.3, memory=(2, 3)),
    reference((4, 2, 2), (4, 2, 2, 2), memory=(2, 3)),
    reference((4, 3, 2), (4, 3, 3, 2), skip_ratio=0.4, memory=(2, 3), allreduce=True),
    reference((4, 3, 3), (4, 4, 4, 4), memory=(2, 3), speed_spread=4.0),
    # Four stages.
    held((2, 2, 2, 2), (2, 2)),
    held((3, 2, 2, 1), (2, 2, 2), skip_ratio=0.5, speed_spread=4.0),
    held((3, 2, 2, 2), (2, 2, 2), skip_ratio=0.25, memory=(1, 2), allreduce=True),
    held((3, 3, 2, 2), (3, 3, 2), skip_ratio=0.4),
    held((4, 3, 3, 2), (2, 2, 2, 2), rules={"max_swaps": 0}, memory=(1, 2)),
    held((4, 3, 3, 2), (3, 3, 3, 3), skip_ratio=0.3, speed_spread=4.0),
    reference((2, 2, 2, 2), (2, 2)),
    reference((3, 2, 2, 1), (2, 2, 2), skip_ratio=0.5, speed_spread=4.0),
    reference((3, 2, 2, 2), (2, 2, 2), skip_ratio=0.25, allreduce=True),
    reference((3, 3, 2, 2), (4, 3, 2), skip_ratio=0.4, memory=(2, 3)),
    reference((4, 3, 3, 2), (3, 3, 2, 2), memory=(2, 3)),
    reference((4, 3, 3, 2), (4, 4, 4, 2), skip_ratio=0.3, memory=(2, 3), speed_spread=4.0),
    # Five stages.
    held((2, 2, 2, 2, 2), (2, 2), skip_ratio=0.4),
    held((3, 2, 2, 2, 2), (2, 1, 1), rules={"max_swaps": 2}, speed_spread=4.0),
    held((3, 2, 2, 2, 2), (2, 2, 2), skip_ratio=0.5, memory=(1, 2), allreduce=True),
    held((4, 2, 2, 2, 2), (2, 2, 2, 2), skip_ratio=0.4),
    held((3, 3, 3, 3, 3), (3, 3, 3), skip_ratio=0.5, speed_spread=4.0),
    held((5, 3, 3, 2, 2), (4, 4, 4, 3, 3)),
    reference((2, 2, 2, 2, 2), (2, 2), skip_ratio=0.4),
    reference((3, 2, 2, 2, 2), (2, 2, 1), rules={"max_stage_jump": 2}, speed_spread=4.0),
    reference((3, 2, 2, 2, 2), (2, 2, 2), skip_ratio=0.5, allreduce=True),
    reference((4, 2, 2, 2, 2), (2, 2, 2, 2), skip_ratio=0.4),
    reference((3, 3, 3, 3, 3), (4, 4, 4), skip_ratio=0.5, memory=(2, 3), speed_spread=4.0),
    reference((5, 3, 3, 2, 2), (4, 4, 4, 3, 3), memory=(3,)),
    # Hard for their size.
    held((3, 3, 2), (4, 3, 3), skip_ratio=0.2),
    held((4, 3, 3), (3, 3, 2, 2), skip_ratio=0.25, memory=(1, 2)),
    held((4, 3, 3, 2), (3, 3, 2, 2), skip_ratio=0.25),
    held((5, 3, 3, 3), (2, 2, 2, 2, 2), speed_spread=4.0, allreduce=True),
    held((4, 3, 2, 2, 2), (3, 2, 2, 2), skip_ratio=0.5),
    held((5, 3, 3, 2, 2), (2, 2, 2, 2, 2), skip_ratio=0.4, speed_spread=4.0),
    reference((5, 3, 3, 2, 2), (4, 4, 2, 2, 2), memory=(2, 3), speed_spread=4.0),
    reference((4, 3, 3, 3), (4, 4, 4, 4), skip_ratio=0.25, memory=(2, 3)),
    # These have no plan: a source, a stage, and jumps that leave no even share of visits.
    reference((2, 2, 2), (4, 2), memory=(1,), mark="impossible"),
    reference((4, 2, 1, 1), (2, 2, 2, 2), memory=(1,), skip_ratio=0.25, mark="impossible"),
    held((3, 2, 2, 1), (2, 2, 2), rules={"max_swaps": 0, "max_stage_jump": 1}, skip_ratio=0.5, mark="impossible"),
    reference((2, 2, 2, 2, 2), (4, 4), rules={"max_stage_jump": 2}, skip_ratio=0.6, memory=(2, 3), mark="impossible"),
)


def draw(spec: InstanceSpec) -> tuple[Json, Json]:
    """Make cluster and problem from a specification."""
    random = Random(spec.name)
    nodes = [_node(random, spec, i) for i in range(sum(spec.sizes))]
    numbers = list(range(len(nodes)))
    random.shuffle(numbers)
    stages, first = [], 0
    for size in spec.sizes:
        stages.append(sorted(numbers[first : first + size]))
        first += size
    positions = [(random.random(), random.random()) for _ in nodes]
    latency_s, bandwidth = [], []
    for here in positions:
        links = [_link(random, abs(here[0] - there[0]) + abs(here[1] - there[1])) for there in positions]
        latency_s.append([link[0] for link in links])
        bandwidth.append([link[1] for link in links])
    for i in range(len(nodes)):
        latency_s[i][i] = 0.0
    cluster: Json = {
        "format": "skippipe.cluster/1",
        "nodes": nodes,
        "latency_s": latency_s,
        "bandwidth": bandwidth,
        "overhead_s": 0.0,
        "activation_bytes": MESSAGE_BYTES,
    }
    if spec.allreduce:
        cluster["gradient_bytes"] = [random.choice([0, MESSAGE_BYTES, 2 * MESSAGE_BYTES]) * 6 // 5 for _ in stages]
    question = {
        "stages": stages,
        "skip_ratio": spec.skip_ratio,
        "microbatches_per_source": list(spec.counts),
        "rules": spec.rules,
    }
    return cluster, question


def _node(random: Random, spec: InstanceSpec, number: int) -> Json:
    speed = spec.speed_spread ** (random.random() - 0.5)
    forward_ms = round(400 * speed)
    return {
        "name": f"n{number}",
        "forward_s": forward_ms / 1000,
        "backward_s": round(forward_ms * random.uniform(1.3, 2.0)) / 1000,
        "loss_s": round(forward_ms * random.uniform(0.1, 0.4)) / 1000,
        "memory": random.choice(spec.memory),
    }


def _link(random: Random, distance: float) -> tuple[float, float]:
    """Latency and bandwidth of one direction; the other is drawn anew."""
    tenths = random.choice((1, 2, 3, 4, 5, 6) if distance < 0.6 else (4, 5, 6, 8, 10, 12, 15, 16, 20))
    return round(100 * distance * random.uniform(1.0, 1.5)) / 1000, MESSAGE_BYTES * 10 / tenths


def write_all() -> list[str]:
    """Write every instance, with its known results if its question is unchanged; returns their names."""
    FOLDER.mkdir(exist_ok=True)
    names = [spec.name for spec in SPECS]
    if len(set(names)) != len(names):
        raise ValueError(f"two specs of one name: {sorted(names)}")
    for spec, name in zip(SPECS, names, strict=True):
        cluster, question = draw(spec)
        files = {FOLDER / f"{name}.cluster.json": cluster, FOLDER / f"{name}.json": question}
        known = _found(FOLDER / f"{name}.json")
        same = _found(FOLDER / f"{name}.cluster.json") == cluster and all(
            known.get(key) == value for key, value in question.items()
        )
        for path, content in files.items():
            kept = known if same and path.name == f"{name}.json" else content
            write_text(path, _text(kept))
    return names


def _found(path: Path) -> Json:
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _text(content: Json) -> str:
    """JSON with one line for each entry of an outer list, to be read and compared by people."""
    lines = []
    for key, value in content.items():
        if isinstance(value, list) and value and isinstance(value[0], (list, dict)):
            inner = ",\n".join(f"  {json.dumps(entry)}" for entry in value)
            lines.append(f' "{key}": [\n{inner}\n ]')
        else:
            lines.append(f' "{key}": {json.dumps(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def prove(name: str, seconds: float) -> str:
    """Solve one instance by CP-SAT; write and print what was proved or found."""
    from cp_sat import solve  # noqa: PLC0415 - OR-Tools is needed for this alone

    case = load_case(FOLDER / f"{name}.cluster.json")
    answer = solve(case, seconds)
    if answer.plan is not None:
        broken = violations(Plan.from_json(json.dumps(answer.plan)), case, CHECKER if CHECKER.exists() else None)
        assert not broken, f"{name}: {broken}"
    path = FOLDER / f"{name}.json"
    content = _found(path)
    figures = {
        "iteration_s": _milliseconds(answer.iteration_s),
        "by": f"OR-Tools {version('ortools')} CP-SAT, one thread, cold",
        "status": answer.status,
        "seconds": round(answer.wall_s, 3),
        "cpu_s": round(answer.cpu_s, 3),
        "machine": environment()["machine"]["processor"],
        "date": dt.datetime.now(tz=dt.UTC).date().isoformat(),
    }
    if answer.status in ("OPTIMAL", "INFEASIBLE"):
        before = content.pop("proved", figures)["iteration_s"]
        assert before == figures["iteration_s"], f"{name}: {figures['iteration_s']} s, {before} s was proved before"
        content.pop("best_known", None)
        content["proved"] = figures
    elif "proved" not in content:
        content["best_known"] = figures | {"lower_bound_s": _milliseconds(answer.lower_bound_s)}
    write_text(path, _text(content))
    return f"{name}: {answer.status}, {answer.iteration_s} s, bound {answer.lower_bound_s} s, {answer.wall_s:.1f} s"


def _milliseconds(seconds: float | None) -> float | None:
    """Durations in integer milliseconds, and so are their sums."""
    return None if seconds is None else round(seconds, 3)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the instances, and solve open ones."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prove", type=float, metavar="SECONDS", help="of processor time for each instance")
    parser.add_argument("--again", action="store_true", help="also where something is known already")
    parser.add_argument("names", nargs="*", help="only these; all where none is named")
    options = parser.parse_args(arguments)
    names = write_all()
    for name in options.names or names:
        known = _found(FOLDER / f"{name}.json").keys()
        if options.prove and (options.again or not known & {"proved", "best_known"}):
            print(prove(name, options.prove), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
