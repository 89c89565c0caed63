"""The scheduling problem as a model for OR-Tools' CP-SAT: optima independent of our own planner.

    python benchmarks/cp_sat.py FOLDER NAME [--seconds 60] [--workers 1] [--output plan.json]

FOLDER holds NAME.cluster.json and NAME.json, as `skippipe bench planner data=FOLDER` takes them. Printed are status,
iteration, lower bound and seconds as JSON; the plan is one that the checkers can judge (`skippipe.plan/1`).

Time is whole multiples of the greatest common divisor of all durations, which are first rounded up to nanoseconds as
plans are. The model is the problem itself: an optional interval for every possible forward, backward and holding, and a
circuit over the nodes for every route.
"""

import argparse
import contextlib
import itertools
import json
import math
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ortools.sat.python import cp_model

from skippipe.bench import Case, load_case

Json = dict[str, Any]
NANOSECOND = 1_000_000_000
SOURCE = -1
"""Stands for the source in a route's circuit, where it begins and ends."""


@dataclass(frozen=True)
class Durations:
    """All durations of an instance, as integers."""

    unit_s: float
    """seconds of one unit"""
    forward: list[int]
    backward: list[int]
    loss: list[int]
    transfer: list[list[int]]
    """row = sender"""
    allreduce: list[int]
    """of each stage"""
    epilogue: int
    """norm and the longest step, once after everything"""


@dataclass(frozen=True)
class Answer:
    """Result of CP-SAT; times in seconds."""

    status: str
    """OPTIMAL, FEASIBLE, INFEASIBLE or UNKNOWN"""
    iteration_s: float | None
    lower_bound_s: float
    wall_s: float
    cpu_s: float
    """of the search alone, all threads"""
    plan: Json | None
    """`skippipe.plan/1`"""


def durations_of(case: Case) -> Durations:
    """Resolve all durations of a case.

    Raises:
        ValueError: a task takes no time. CP-SAT lets such a task overlap another one, the problem does not.

    """
    cluster = case.problem.cluster
    tasks = [[_nanoseconds(x) for x in row] for row in (cluster.forward_s, cluster.backward_s, cluster.loss_s)]
    if min(map(min, tasks)) <= 0:
        raise ValueError(f"{case.name}: a task takes no time, more is expected")
    transfer = [[_nanoseconds(x) for x in row] for row in cluster.transfer_matrix()]
    allreduce = [_nanoseconds(x) for x in _allreduce_s(case)]
    epilogue = _nanoseconds(cluster.norm_s) + max(map(_nanoseconds, cluster.step_s), default=0)
    unit = math.gcd(*itertools.chain(*tasks, *transfer), *allreduce, epilogue)
    forward, backward, loss = ([x // unit for x in row] for row in tasks)
    return Durations(
        unit / NANOSECOND,
        forward,
        backward,
        loss,
        [[x // unit for x in row] for row in transfer],
        [x // unit for x in allreduce],
        epilogue // unit,
    )


def _nanoseconds(seconds: float) -> int:
    """Round up, apart from floating-point errors of decimal seconds."""
    exact = float(seconds) * NANOSECOND
    return round(exact) if abs(exact - round(exact)) < 1e-6 else math.ceil(exact)


def _allreduce_s(case: Case) -> list[float]:
    cluster, stages = case.problem.cluster, case.problem.stages
    reduces = []
    for members, size in zip(stages, cluster.gradient_bytes or [0.0] * len(stages), strict=True):
        count = len(members)
        ring = zip(members, [*members[1:], *members[:1]], strict=True)
        if count < 2 or not cluster.gradient_bytes:
            reduces.append(0.0)
        else:
            edges = cluster.transfer_matrix(size / count)
            reduces.append(2 * (count - 1) * max(float(edges[i, j]) for i, j in ring))
    return reduces


@dataclass(frozen=True)
class MicrobatchVariables:
    """Variables of one microbatch, by node."""

    start_forward: dict[int, cp_model.IntVar]
    start_backward: dict[int, cp_model.IntVar]
    start_loss: cp_model.IntVar
    completion: cp_model.IntVar


@dataclass(frozen=True)
class Route:
    """Variables of one route."""

    source: int
    visits: dict[int, cp_model.IntVar]
    """whether it visits a node"""
    arcs: dict[tuple[int, int], cp_model.IntVar]
    """whether the second node (or SOURCE) follows the first (or SOURCE)"""
    waves: list[MicrobatchVariables]


class Model:
    """The variables and constraints of one case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rules = case.schedule
        if not self.rules.cc2 and self.rules.max_stage_jump is not None:
            raise ValueError(f"{case.name}: max_stage_jump without CC2 is not modelled")
        self.times = durations_of(case)
        self.stages = case.problem.stages
        self.stage_of = {node: stage for stage, members in enumerate(self.stages) for node in members}
        self.present = [stage for stage, members in enumerate(self.stages) if members]
        self.horizon = self._horizon()
        self.shortest = shortest_times(self.times.transfer)
        self.model = cp_model.CpModel()
        self.iteration = self._time("iteration")
        self.on_node: dict[int, list[cp_model.IntervalVar]] = {node: [] for node in self.stage_of}
        self.held_by: dict[int, list[cp_model.IntervalVar]] = {node: [] for node in self.stage_of}
        self.routes = [self._route(source, waves) for source, waves in route_owners(case)]
        self._resources()
        self._visits()
        self._symmetry()
        for reduce in self.times.allreduce:
            self.model.add(self.iteration >= reduce)
        self.model.minimize(self.iteration)

    def _horizon(self) -> int:
        """One microbatch after the other, each over the slowest nodes and links there are."""
        longest = max(map(max, self.times.transfer))
        slowest = max(self.times.forward) + max(self.times.backward) + 2 * longest
        trip = len(self.present) * slowest + 2 * longest + max(self.times.loss)
        return sum(self.case.problem.microbatches) * trip + max(self.times.allreduce, default=0)

    def _time(self, name: str) -> cp_model.IntVar:
        return self.model.new_int_var(0, self.horizon, name)

    # ----------------------------------------------------------------------------------- one route

    def _route(self, source: int, waves: int) -> Route:
        nodes = [node for node, stage in self.stage_of.items() if stage != 0 or not self.rules.cc1 or node == source]
        visits = {node: self.model.new_bool_var(f"visit {node}") for node in nodes}
        arcs = self._circuit(source, visits)
        for stage in self.present:
            self.model.add_at_most_one(visits[node] for node in nodes if self.stage_of[node] == stage)
        if self.rules.cc2:
            self._swaps(arcs)
        if self.rules.max_stage_jump is not None:
            self._jumps(arcs, self.rules.max_stage_jump)
        microbatches = [self._microbatch(source, visits, arcs) for _ in range(waves)]
        for before, after in itertools.pairwise(microbatches):
            for node in nodes:
                if (SOURCE, node) in arcs:
                    out = self.times.transfer[source][node]
                    self.model.add(after.start_forward[node] >= before.completion + out).only_enforce_if(
                        arcs[SOURCE, node]
                    )
        return Route(source, visits, arcs, microbatches)

    def _circuit(self, source: int, visits: dict[int, cp_model.IntVar]) -> dict[tuple[int, int], cp_model.IntVar]:
        """From the source over the visited nodes and back, in an order that CC2 may allow."""
        arcs = {}
        for node in visits:
            if not self.rules.cc1 or node == source:
                arcs[SOURCE, node] = self.model.new_bool_var(f"first {node}")
            arcs[node, SOURCE] = self.model.new_bool_var(f"last {node}")
        for i, j in itertools.permutations(visits, 2):
            if self._may_follow(self.stage_of[i], self.stage_of[j]):
                arcs[i, j] = self.model.new_bool_var(f"{i} then {j}")
        index = {node: number for number, node in enumerate([SOURCE, *visits])}
        loops = [(index[node], index[node], ~visited) for node, visited in visits.items()]
        self.model.add_circuit([*((index[i], index[j], arc) for (i, j), arc in arcs.items()), *loops])
        return arcs

    def _may_follow(self, stage: int, following: int) -> bool:
        if self.rules.cc1 and following == 0:
            return False
        if not self.rules.cc2:
            return following != stage
        return following > stage or (following == stage - 1 and self.rules.max_swaps > 0)

    def _swaps(self, arcs: dict[tuple[int, int], cp_model.IntVar]) -> None:
        """CC2: a step to a lower stage is a swap; swaps are disjoint and limited in number."""
        down: dict[int, list[cp_model.IntVar]] = {stage: [] for stage in range(-1, len(self.stages))}
        for (i, j), arc in arcs.items():
            if SOURCE not in (i, j) and self.stage_of[j] < self.stage_of[i]:
                down[self.stage_of[j]].append(arc)
        for stage in range(len(self.stages)):
            self.model.add(sum(down[stage - 1]) + sum(down[stage]) <= 1)
        self.model.add(sum(itertools.chain.from_iterable(down.values())) <= self.rules.max_swaps)

    def _jumps(self, arcs: dict[tuple[int, int], cp_model.IntVar], most: int) -> None:
        """No jump beyond the furthest visited stage exceeds `most`; after a swap that stage is one further."""
        for (i, j), arc in arcs.items():
            if j == SOURCE:
                continue
            step = self.stage_of[j] - (0 if i == SOURCE else self.stage_of[i])
            if step > most + 1 or (step > most and i == SOURCE):
                self.model.add(arc == 0)
            elif step > most:
                swapped = [
                    earlier
                    for (k, to), earlier in arcs.items()
                    if to == i and k != SOURCE and self.stage_of[k] > self.stage_of[i]
                ]
                self.model.add(arc <= sum(swapped))

    # ----------------------------------------------------------------------------- one microbatch

    def _microbatch(
        self, source: int, visits: dict[int, cp_model.IntVar], arcs: dict[tuple[int, int], cp_model.IntVar]
    ) -> MicrobatchVariables:
        """Intervals on the nodes, and the precedences of the forward and backward pass."""
        times, model = self.times, self.model
        forward = {node: self._time(f"F {node}") for node in visits}
        backward = {node: self._time(f"B {node}") for node in visits}
        loss, completion = self._time("L"), self._time("completion")
        for node, visited in visits.items():
            end_forward, end_backward = forward[node] + times.forward[node], backward[node] + times.backward[node]
            least = times.forward[node] + times.loss[source] + times.backward[node]
            least += self.shortest[node][source] + self.shortest[source][node]
            holding = model.new_int_var(least, self.horizon, "held")
            for start, size, end, target in (
                (forward[node], times.forward[node], end_forward, self.on_node),
                (backward[node], times.backward[node], end_backward, self.on_node),
                (forward[node], holding, end_backward, self.held_by),
            ):
                target[node].append(model.new_optional_interval_var(start, size, end, visited, ""))
            model.add(end_forward <= loss).only_enforce_if(visited)
            model.add(loss + times.loss[source] <= backward[node]).only_enforce_if(visited)
            model.add(end_backward <= completion).only_enforce_if(visited)
            reduce = times.allreduce[self.stage_of[node]]
            model.add(self.iteration >= end_backward + reduce).only_enforce_if(visited)
        self.on_node[source].append(model.new_fixed_size_interval_var(loss, times.loss[source], ""))
        for (i, j), arc in arcs.items():
            outward = times.transfer[source if i == SOURCE else i][source if j == SOURCE else j]
            back = times.transfer[source if j == SOURCE else j][source if i == SOURCE else i]
            ready = 0 if i == SOURCE else forward[i] + times.forward[i]
            model.add((loss if j == SOURCE else forward[j]) >= ready + outward).only_enforce_if(arc)
            turned = loss + times.loss[source] if j == SOURCE else backward[j] + times.backward[j]
            model.add((completion if i == SOURCE else backward[i]) >= turned + back).only_enforce_if(arc)
        model.add(self.iteration >= completion)
        return MicrobatchVariables(forward, backward, loss, completion)

    # -------------------------------------------------------------------------- all of them together

    def _resources(self) -> None:
        """TC2 and TC1."""
        memory = self.case.problem.cluster.memory
        for node in self.stage_of:
            self.model.add_no_overlap(self.on_node[node])
            if self.rules.tc1 == "held":
                held = self.held_by[node]
                self.model.add_cumulative(held, [1] * len(held), int(memory[node]))
            elif self.rules.tc1 == "routes":
                self.model.add(sum(x.visits[node] for x in self.routes if node in x.visits) <= int(memory[node]))

    def _visits(self) -> None:
        """Lengths of the routes, and CC3."""
        count, present = len(self.routes), len(self.present)
        total = math.floor(count * present * (1 - self.rules.skip_ratio) + 0.5 + 1e-6)
        for route in self.routes:
            self.model.add_linear_constraint(sum(route.visits.values()), total // count, -(-total // count))
        self.model.add(sum(x for route in self.routes for x in route.visits.values()) == total)
        if self.rules.cc3:
            least = self.model.new_int_var(0, count, "quota")
            for stage in self.present[1:]:
                on = sum(route.visits[node] for route in self.routes for node in self.stages[stage])
                self.model.add(on >= least)
                self.model.add(on <= least + 1)

    def _symmetry(self) -> None:
        """Routes of one source with equally many waves are interchangeable: the first one starts first."""
        if not self.rules.cc1:
            return
        for a, b in itertools.pairwise(self.routes):
            if a.source == b.source and len(a.waves) == len(b.waves):
                first, second = (route.waves[0].start_forward[a.source] for route in (a, b))
                self.model.add(first + self.times.forward[a.source] <= second)


def shortest_times(transfer: list[list[int]]) -> list[list[int]]:
    """Least time from each node to each other, over any nodes between: more hops can be faster than a slow link."""
    least = [row[:] for row in transfer]
    nodes = range(len(least))
    for via, i, j in itertools.product(nodes, repeat=3):
        least[i][j] = min(least[i][j], least[i][via] + least[via][j])
    return least


def route_owners(case: Case) -> list[tuple[int, int]]:
    """Source and number of microbatches of every route, filled in turn."""
    waves = case.schedule.waves
    return [
        (source, min(waves, count - first))
        for source, count in zip(case.problem.stages[0], case.problem.microbatches, strict=True)
        for first in range(0, count, waves)
    ]


def solve(case: Case, seconds: float, workers: int = 1, log: Callable[[str], None] | None = None) -> Answer:
    """Search the optimum by CP-SAT, without a start solution, within a limit of CPU time in seconds."""
    model = Model(case)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = workers
    if log is not None:
        solver.parameters.log_search_progress = True
        solver.log_callback = log
    began, worked = time.perf_counter(), time.process_time()
    with _stopped_after(solver, seconds):
        status = solver.solve(model.model)
    wall_s, cpu_s = time.perf_counter() - began, time.process_time() - worked
    if status == cp_model.MODEL_INVALID:
        raise ValueError(f"{case.name}: {model.model.validate()}")
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    unit_s, after = model.times.unit_s, model.times.epilogue
    iteration_s = (round(solver.objective_value) + after) * unit_s if found else None
    # Without a plan, CP-SAT's bound means nothing where it has proved that there is none.
    bound = 0.0 if status == cp_model.INFEASIBLE else solver.best_objective_bound
    lower_bound_s = (max(math.ceil(bound - 1e-6), 0) + after) * unit_s
    plan = None
    if iteration_s is not None:
        plan = _plan(model, _solution(model, solver), iteration_s, lower_bound_s, wall_s)
    return Answer(solver.status_name(status), iteration_s, lower_bound_s, wall_s, cpu_s, plan)


@contextlib.contextmanager
def _stopped_after(solver: cp_model.CpSolver, seconds: float) -> Iterator[None]:
    """Stop a search after a CPU time: CP-SAT's own limit is wall time, which depends on other load."""
    ended = threading.Event()
    until = time.process_time() + seconds

    def watch() -> None:
        while not ended.wait(0.05):
            if time.process_time() > until:
                solver.stop_search()

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@dataclass(frozen=True)
class Solution:
    """The values of the variables, in the form of a plan file."""

    microbatches: list[Json]
    tasks: list[Json]
    """by start"""
    pipeline_s: float


def _solution(model: Model, solver: cp_model.CpSolver) -> Solution:
    times = model.times
    microbatches: list[Json] = []
    tasks: list[Json] = []
    pipeline = 0
    for number, route in enumerate(model.routes):
        nodes = _route_of(route, solver)
        for wave, variables in enumerate(route.waves):
            microbatch = len(microbatches)
            microbatches.append({
                "id": microbatch, "source": route.source, "nodes": nodes, "stages": [model.stage_of[x] for x in nodes],
                "route": number, "wave": wave,
            })  # fmt: skip
            for kind, hop, node, variable, duration in _task_variables(nodes, route.source, variables, times):
                start = solver.value(variable)
                tasks.append({
                    "node": node, "microbatch": microbatch, "kind": kind, "hop": hop,
                    "start_s": start * times.unit_s, "end_s": (start + duration) * times.unit_s,
                })  # fmt: skip
            last = solver.value(variables.start_backward[nodes[0]]) + times.backward[nodes[0]]
            pipeline = max(pipeline, last + times.transfer[nodes[0]][route.source])
    tasks.sort(key=lambda task: (task["start_s"], task["end_s"]))
    return Solution(microbatches, tasks, pipeline * times.unit_s)


def _task_variables(
    nodes: Sequence[int], source: int, variables: MicrobatchVariables, times: Durations
) -> Iterator[tuple[str, int, int, cp_model.IntVar, int]]:
    """Kind, hop, node, start and duration of a microbatch's tasks along its route."""
    yield "L", 0, source, variables.start_loss, times.loss[source]
    for hop, node in enumerate(nodes):
        yield "F", hop, node, variables.start_forward[node], times.forward[node]
        yield "B", hop, node, variables.start_backward[node], times.backward[node]


def _plan(model: Model, solution: Solution, iteration_s: float, lower_bound_s: float, wall_s: float) -> Json:
    """Write a solution as a plan file."""
    case, rules = model.case, model.rules
    return {
        "format": "skippipe.plan/1",
        "cluster": json.loads(case.problem.cluster.to_json()),
        "constraints": {
            key: getattr(rules, key)
            for key in ("cc1", "cc2", "cc3", "tc1", "tc2", "max_swaps", "waves", "max_stage_jump")
        },
        "skip_ratio": rules.skip_ratio,
        "strategy": "skippipe",
        "stages": model.stages,
        "layers": list(case.problem.layers),
        "absent_stages": list(case.problem.absent_stages),
        "model": None,
        "microbatches_per_source": {
            str(source): count for source, count in zip(model.stages[0], case.problem.microbatches, strict=True)
        },
        "microbatches": solution.microbatches,
        "tasks": solution.tasks,
        "predicted": {
            "iteration_s": iteration_s,
            "pipeline_s": solution.pipeline_s,
            "allreduce_s": [x * model.times.unit_s for x in model.times.allreduce],
            "lower_bound_s": lower_bound_s,
            "gap": (iteration_s - lower_bound_s) / lower_bound_s if lower_bound_s > 0 else 0.0,
        },
        "solver": {"wall_s": wall_s, "seed": 0, "optimal": iteration_s <= lower_bound_s * (1 + 1e-9)},
    }


def _route_of(route: Route, solver: cp_model.CpSolver) -> list[int]:
    follows = {i: j for (i, j), arc in route.arcs.items() if solver.value(arc)}
    nodes, node = [], follows[SOURCE]
    while node != SOURCE:
        nodes.append(node)
        node = follows[node]
    return nodes


def main(arguments: Sequence[str] | None = None) -> int:
    """Solve one instance and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name")
    parser.add_argument("--seconds", type=float, default=60.0, help="of processor time")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--log", action="store_true", help="CP-SAT's own log, on standard error")
    parser.add_argument("--output", type=Path, help="file for the plan")
    options = parser.parse_args(arguments)
    case = load_case(options.folder / f"{options.name}.cluster.json")
    log = (lambda line: print(line, file=sys.stderr)) if options.log else None
    answer = solve(case, options.seconds, options.workers, log)
    if options.output is not None and answer.plan is not None:
        options.output.write_text(json.dumps(answer.plan), encoding="utf-8")
    print(json.dumps({key: value for key, value in vars(answer).items() if key != "plan"}, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
