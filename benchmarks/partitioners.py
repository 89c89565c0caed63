"""The graph partitioners METIS and KaHyPar as allocators, with blocks of given sizes.

Neither can say "slowest message within a block" or "bottleneck matching between blocks"; what they can say is the
weight of the pairs that they keep together. Near pairs in one block make the slowest message within a block short; far
pairs in one block leave near ones for the matchings between blocks. Which of both, which pairs count and by how much is
drawn anew for every partition that they make, so that many different ones come out; the surrogate then chooses.
"""

import itertools
import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

Stages = list[list[int]]
MOST_PAIRS = {"metis": 1_000_000, "kahypar": 30_000}
"""More pairs than this take a tool longer than it is given."""
KAHYPAR = """\
mode=direct
objective=cut
seed=-1
cmaxnet=-1
vcycles=0
p-use-sparsifier=false
p-detect-communities=false
c-type=ml_style
c-s=1
c-t=160
c-rating-score=heavy_edge
c-rating-use-communities=false
c-rating-heavy_node_penalty=no_penalty
c-rating-acceptance-criterion=best_prefer_unmatched
c-fixed-vertex-acceptance-criterion=fixed_vertex_allowed
i-bp-algorithm=worst_fit
i-mode=recursive
i-technique=multi
i-algo=pool
i-runs=20
i-c-type=ml_style
i-c-s=1
i-c-t=150
i-c-rating-score=heavy_edge
i-c-rating-use-communities=false
i-c-rating-heavy_node_penalty=no_penalty
i-c-rating-acceptance-criterion=best_prefer_unmatched
i-c-fixed-vertex-acceptance-criterion=fixed_vertex_allowed
i-r-type=twoway_fm
i-r-runs=-1
i-r-fm-stop=simple
i-r-fm-stop-i=50
r-type=kway_fm
r-runs=-1
r-fm-stop=adaptive_opt
r-fm-stop-alpha=1
r-fm-stop-i=350
"""
"""Direct k-way partitioning with local search; KaHyPar has no defaults of its own."""


@dataclass(frozen=True)
class Graph:
    """Graph whose edge weights favour keeping pairs of nodes together."""

    weight: NDArray[np.int64]
    """shape (N, N), symmetric; 0: no edge"""


def draw_graph(slower: NDArray[np.float64], rng: random.Random, most_pairs: int) -> Graph:
    """Draw edge weights that favour keeping pairs of nodes together.

    Args:
        slower: of each pair the slower direction, in seconds, shape (N, N).
        rng: what is drawn from.
        most_pairs: about so many pairs at most have an edge.

    """
    nodes = len(slower)
    pairs = nodes * (nodes - 1) // 2
    apart = slower if rng.random() < 0.5 else slower.max() - slower
    ordered = np.sort(apart[np.triu_indices(nodes, 1)])
    share = min(1.0, most_pairs / pairs) * rng.uniform(0.1, 1.0)
    threshold = ordered[int(share * (pairs - 1))]
    closeness = 1 - apart / (1.001 * ordered[-1]) if ordered[-1] > 0 else np.ones_like(slower)
    weight = np.maximum(1, np.rint(1000 * closeness.clip(0) ** rng.choice([0, 1, 2, 4]))).astype(np.int64)
    weight[apart > threshold] = 0
    np.fill_diagonal(weight, 0)
    return Graph(weight)


def metis_partitions(slower: NDArray[np.float64], sizes: Sequence[int], seed: int) -> Iterator[Stages]:
    """Partitions by METIS, an endless iterator. METIS balances blocks only approximately; sizes are corrected."""
    import pymetis  # noqa: PLC0415 - only whoever asks for it needs it

    rng = random.Random(seed)
    for number in itertools.count():
        graph = draw_graph(slower, rng, MOST_PAIRS["metis"])
        near = graph.weight > 0
        options = pymetis.Options(seed=number, ufactor=1)
        starts = np.concatenate([[0], np.cumsum(near.sum(axis=1))])
        adjacency = pymetis.CSRAdjacency(starts, np.nonzero(near)[1])
        _, blocks = pymetis.part_graph(
            len(sizes),
            adjacency,
            eweights=graph.weight[near].tolist(),
            tpwgts=[size / len(slower) for size in sizes],
            recursive=rng.random() < 0.5,
            options=options,
        )
        yield mended(blocks, sizes, graph)


def kahypar_partitions(slower: NDArray[np.float64], sizes: Sequence[int], seed: int) -> Iterator[Stages]:
    """Partitions by KaHyPar, an endless iterator; every pair is a net."""
    import kahypar  # noqa: PLC0415 - only whoever asks for it needs it

    rng, nodes, stages = random.Random(seed), len(slower), len(sizes)
    with tempfile.TemporaryDirectory() as folder:
        settings = Path(folder) / "kahypar.ini"
        settings.write_text(KAHYPAR, encoding="utf-8")
        for number in itertools.count():
            graph = draw_graph(slower, rng, MOST_PAIRS["kahypar"])
            pairs = np.argwhere(np.triu(graph.weight) > 0)
            weights = graph.weight[pairs[:, 0], pairs[:, 1]].tolist()
            context = kahypar.Context()
            context.loadINIconfiguration(str(settings))
            context.setK(stages)
            context.setSeed(number)
            context.suppressOutput(True)  # noqa: FBT003 - takes no names
            context.setCustomTargetBlockWeights(list(sizes))
            starts = list(range(0, 2 * len(pairs) + 1, 2))
            hypergraph = kahypar.Hypergraph(
                nodes, len(pairs), starts, pairs.ravel().tolist(), stages, weights, [1] * nodes
            )
            kahypar.partition(hypergraph, context)
            yield mended([hypergraph.blockID(node) for node in range(nodes)], sizes, graph)


def mended(blocks: Sequence[int], sizes: Sequence[int], graph: Graph) -> Stages:
    """Stages of exactly these sizes: while a block is too large, the node with the smallest loss moves."""
    block_of = np.array(blocks)
    while True:
        spare = np.bincount(block_of, minlength=len(sizes)) - np.array(sizes)
        if not spare.any():
            return [np.flatnonzero(block_of == stage).tolist() for stage in range(len(sizes))]
        kept = np.stack([graph.weight[:, block_of == stage].sum(axis=1) for stage in range(len(sizes))], axis=1)
        best = min(
            (int(kept[node, block_of[node]] - kept[node, to]), int(node), int(to))
            for node in np.flatnonzero(spare[block_of] > 0)
            for to in np.flatnonzero(spare < 0)
        )
        block_of[best[1]] = best[2]
