"""The allocator's surrogate as a model for OR-Tools' CP-SAT: exact, if small enough to be solved.

Identical nodes (same region, same speed) are one class, and a stage has so many nodes of each; where
every node is its own class that is the plain assignment. The matching between two stages is a flow between classes,
and a value of the bottleneck is at least the round trip of every pair of classes that the flow uses. The tour is a
circuit over the stages, or their own order where all but stage 0 have the same size (then numbers mean nothing else).
Time is whole microseconds.
"""

import itertools
import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ortools.sat.python import cp_model

from skippipe import Cluster

Stages = list[list[int]]
MICROSECOND = 1_000_000
MOST_FLOWS = 400_000
"""A model with more of them is not built within any of the time limits."""


@dataclass(frozen=True)
class Classes:
    """Classes of identical nodes, with times between and on them in integer microseconds."""

    members: list[list[int]]
    slower: list[list[int]]
    """between two different nodes of two classes, the slower direction; 0 within a class of one"""
    round_trip: list[list[int]]
    forward_s: list[float]


def classes_of(cluster: Cluster) -> Classes:
    """Put nodes of the same region and speed together; without regions every node is by itself."""
    groups: dict[tuple[int, float], list[int]] = defaultdict(list)
    regions = cluster.region_of
    for node, forward_s in enumerate(cluster.forward_s.tolist()):
        groups[node if regions is None else int(regions[node]), forward_s].append(node)
    members = list(groups.values())
    transfer = cluster.transfer_matrix()

    def micro(seconds: float) -> int:
        return round(seconds * MICROSECOND)

    def pair(one: list[int], other: list[int]) -> tuple[int, int]:
        return one[0], other[-1]  # two different nodes of a class that has two

    def matrix(value: Callable[[float, float], float]) -> list[list[int]]:
        pairs = [[pair(one, other) for other in members] for one in members]
        return [[micro(value(transfer[i, j], transfer[j, i])) for i, j in row] for row in pairs]

    return Classes(members, matrix(max), matrix(lambda x, y: x + y), [float(cluster.forward_s[x[0]]) for x in members])


class Model:
    """Variables and constraints for one cluster and the sizes of its stages."""

    def __init__(self, cluster: Cluster, sizes: Sequence[int]) -> None:
        self.classes, self.sizes = classes_of(cluster), list(sizes)
        self.model = cp_model.CpModel()
        self.own_order = len(set(self.sizes[1:])) <= 1
        kinds, stages = range(len(self.classes.members)), range(len(self.sizes))
        self.edges = self._edges()
        if len(self.edges) * len(kinds) ** 2 > MOST_FLOWS:
            raise ValueError(f"{len(kinds)} classes and {len(self.edges)} pairs of stages are too many")
        self.longest = 2 * max(map(max, self.classes.slower))
        self.count = {
            (kind, stage): self.model.new_int_var(0, min(len(self.classes.members[kind]), self.sizes[stage]), "")
            for kind in kinds
            for stage in stages
        }
        for kind in kinds:
            self.model.add(sum(self.count[kind, stage] for stage in stages) == len(self.classes.members[kind]))
        for stage in stages:
            self.model.add(sum(self.count[kind, stage] for kind in kinds) == self.sizes[stage])
        self.present = {position: self._at_least(count, 1) for position, count in self.count.items()}
        replica = self._replica()
        tour = [self._bottleneck(*edge, chosen) for edge, chosen in self.edges.items()]
        compute = [
            round(2 * MICROSECOND * self.classes.forward_s[kind] / self.sizes[stage]) * count
            for (kind, stage), count in self.count.items()
        ]
        self.model.minimize(replica + sum(tour) + sum(compute))

    def _edges(self) -> dict[tuple[int, int], cp_model.IntVar | None]:
        """Neighbours on the tour: None where they always are, else whether they are."""
        stages = len(self.sizes)
        if self.own_order:
            return {(stage, (stage + 1) % stages): None for stage in range(stages if stages > 1 else 0)}
        edges: dict[tuple[int, int], cp_model.IntVar | None] = {}
        arcs = []
        for one, other in itertools.combinations(range(stages), 2):
            ways = [self.model.new_bool_var("") for _ in range(2)]
            arcs += [(one, other, ways[0]), (other, one, ways[1])]
            edges[one, other] = chosen = self.model.new_bool_var("")
            # A tour over two stages goes there and back.
            self.model.add(sum(ways) == chosen * (2 if stages == 2 else 1))
        self.model.add_circuit(arcs)
        return edges

    def _at_least(self, count: cp_model.IntVar, least: int) -> cp_model.IntVar:
        literal = self.model.new_bool_var("")
        self.model.add(count >= least).only_enforce_if(literal)
        self.model.add(count < least).only_enforce_if(~literal)
        return literal

    def _replica(self) -> cp_model.IntVar:
        replica = self.model.new_int_var(0, self.longest, "replica")
        for stage in range(len(self.sizes)):
            for (one, row), other in itertools.product(enumerate(self.classes.slower), range(len(self.classes.slower))):
                if one < other:
                    both = [self.present[one, stage], self.present[other, stage]]
                    self.model.add(replica >= row[other]).only_enforce_if(both)
                elif one == other and len(self.classes.members[one]) > 1 and self.sizes[stage] > 1:
                    self.model.add(replica >= row[one]).only_enforce_if(self._at_least(self.count[one, stage], 2))
        return replica

    def _bottleneck(self, one: int, other: int, chosen: cp_model.IntVar | None) -> cp_model.IntVar:
        """Round trip between two stages, 0 where they are no neighbours."""
        small, large = sorted((one, other), key=lambda stage: self.sizes[stage])
        bottleneck = self.model.new_int_var(0, self.longest, "")
        kinds = range(len(self.classes.members))
        flows: dict[tuple[int, int], cp_model.IntVar] = {}
        for kind, partner in itertools.product(kinds, kinds):
            most = min(len(self.classes.members[kind]), len(self.classes.members[partner]), self.sizes[small])
            if kind == partner and len(self.classes.members[kind]) == 1:
                continue
            flow = flows[kind, partner] = self.model.new_int_var(0, most, "")
            used = flow if most == 1 else self.model.new_bool_var("")
            if most > 1:
                self.model.add(flow <= most * used)
            self.model.add(bottleneck >= self.classes.round_trip[kind][partner] * used)
        for kind in kinds:
            out = sum(flow for (begin, _), flow in flows.items() if begin == kind)
            matched = self.model.add(out == self.count[kind, small])
            if chosen is not None:
                matched.only_enforce_if(chosen)
            into = sum(flow for (_, end), flow in flows.items() if end == kind)
            self.model.add(into <= self.count[kind, large])
        return bottleneck

    def stages(self, value: Callable[[cp_model.IntVar], int]) -> Stages:
        """Read an allocation from the values of the variables."""
        stages: Stages = [[] for _ in self.sizes]
        for kind, members in enumerate(self.classes.members):
            left = iter(members)
            for stage, nodes in enumerate(stages):
                nodes.extend(itertools.islice(left, value(self.count[kind, stage])))
        return [sorted(nodes) for nodes in stages]


class _Reporter(cp_model.CpSolverSolutionCallback):
    def __init__(self, model: Model, offer: Callable[[Stages], None]) -> None:
        super().__init__()
        self._model, self._offer = model, offer

    def on_solution_callback(self) -> None:
        self._offer(self._model.stages(self.value))


def solve(
    cluster: Cluster, sizes: Sequence[int], seconds: float, workers: int, offer: Callable[[Stages], None]
) -> tuple[float | None, bool]:
    """Search, calling `offer` with every better allocation; return a lower bound in seconds, and whether it is met."""
    started = time.perf_counter()
    model = Model(cluster, sizes)
    solver = cp_model.CpSolver()
    solver.parameters.max_time_in_seconds = max(seconds - (time.perf_counter() - started), 0.0)
    solver.parameters.num_workers = workers
    status = solver.solve(model.model, _Reporter(model, offer))
    bound = solver.best_objective_bound / MICROSECOND
    # Each term may have been rounded up by half a microsecond.
    slack = (len(sizes) + 1 + len(cluster)) / MICROSECOND
    return (max(bound - slack, 0.0) if math.isfinite(bound) else None), status == cp_model.OPTIMAL
