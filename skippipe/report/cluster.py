"""A measured cluster, for the terminal."""

import json
from typing import Any

import numpy as np

from skippipe._scheduler import Cluster
from skippipe.console.output import Console, plain_table
from skippipe.report.format import percent
from skippipe.workload import workload_of

HEADINGS = ("node", "layers", "forward", "backward", "loss", "spread", "samples", "fits")

UNSTEADY = 0.3
"""Spread, as a fraction of the median, from which on times say little about the machine."""


def show_cluster(cluster: Cluster, console: Console) -> None:
    """Print times and memory of the nodes of a measured cluster, and the range of its links."""
    measured: dict[str, Any] = json.loads(cluster.measured or "{}")
    layers = workload_of(cluster).node_layers
    rows, spreads = [], []
    for number, (name, about) in enumerate(zip(cluster.names, measured["nodes"], strict=True)):
        times = [float(column[number]) for column in (cluster.forward_s, cluster.backward_s, cluster.loss_s)]
        spreads.append((about["forward_spread_s"] + about["backward_spread_s"]) / sum(times[:2]))
        rows.append(
            [
                name, str(layers[number]), *map(milliseconds, times), percent(spreads[-1]),
                str(about["samples"]), f"{cluster.memory[number]} microbatches",
            ]
        )  # fmt: skip
    console.print(plain_table(HEADINGS, rows, unbroken=(0,), gap=3))
    if max(spreads) >= UNSTEADY:
        console.write_line(
            f"times spread by up to {percent(max(spreads))}: other work was running, or more processes than there are "
            "cores; measure again if that can be avoided"
        )
    apart = ~np.eye(len(cluster), dtype=bool)
    transfer_s = cluster.transfer_matrix()[apart]
    if transfer_s.size:
        mebibytes = cluster.activation_bytes / 2**20
        console.write_line(
            f"messages of {mebibytes:.3g} MiB take {milliseconds(transfer_s.min())} to "
            f"{milliseconds(transfer_s.max())}, median {milliseconds(np.median(transfer_s))}"
        )


def milliseconds(seconds: float) -> str:
    """Format a short time with its unit."""
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
