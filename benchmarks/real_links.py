"""Real TCP links of set delay and bandwidth: what `skippipe measure` makes of them, and what is predicted from that.

Four network namespaces, each with one rank, that is started with the variables that torchrun sets. All delays and
bandwidths differ, and the two directions of a link differ in bandwidth. Links are slow and the model is small, so that
four processes can share the cores of a small machine: what is tested is the prediction of transfers, not of tasks.

    python benchmarks/real_links.py
"""

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path

from output import Row, markdown, note, percent, save

from skippipe.cli import main as skippipe

sys.path.append(str(Path(__file__).parent.parent / "tests"))
from rig.network import Direction, Network, missing
from rig.ranks import ranks

HOSTS = ("a", "b", "c", "d")
LINKS = {
    # delay of both directions, as a round trip cannot tell them apart; bandwidth there and back
    ("a", "b"): (0.015, 1.6e6, 1.2e6),
    ("a", "c"): (0.030, 1.0e6, 1.5e6),
    ("a", "d"): (0.060, 0.8e6, 1.0e6),
    ("b", "c"): (0.020, 2.0e6, 0.7e6),
    ("b", "d"): (0.080, 0.5e6, 0.9e6),
    ("c", "d"): (0.020, 2.5e6, 1.8e6),
}
MODEL = [
    "model.hidden_size=32", "model.intermediate_size=64", "model.num_hidden_layers=3", "model.num_attention_heads=2",
    "model.num_key_value_heads=2", "model.max_position_embeddings=64", "data.sequence=64", "train.microbatch_size=32",
]  # fmt: skip
STAGES, SIZES = 3, "[2,1,1]"
RUNS = ((0.0, 1), (0.0, 3), (0.33, 3))
"""Skip ratio and microbatches of each source: with one, messages hardly meet on a link."""
ITERATIONS, LEFT_OUT = 8, 2
"""TCP has not grown to the links in the first of them."""
PATIENCE_S = 300.0


def directions() -> dict[tuple[str, str], Direction]:
    """All links, by sender and receiver."""
    found = {}
    for (a, b), (delay_s, there, back) in LINKS.items():
        found[a, b], found[b, a] = Direction(delay_s, there), Direction(delay_s, back)
    return found


def on_all_hosts(network: Network, folder: Path, command: str, *arguments: str) -> None:
    """Run a command to its end."""
    with ranks(network, folder, command, *arguments) as running:
        statuses = running.end(PATIENCE_S)
        if any(statuses.values()) or None in statuses.values():
            raise RuntimeError("\n".join([str(statuses), *(running.err(host) for host in HOSTS)]))


def measured_links(cluster: Path) -> list[Row]:
    """What was set and what was measured, for each direction."""
    content = json.loads(cluster.read_text())
    rows: list[Row] = []
    for (sender, receiver), direction in directions().items():
        at = HOSTS.index(sender), HOSTS.index(receiver)
        latency_s, bandwidth = (content[key][at[0]][at[1]] for key in ("latency_s", "bandwidth"))
        rows.append(
            {
                "link": f"{sender} -> {receiver}",
                "latency set (ms)": 1e3 * direction.delay_s,
                "measured (ms)": 1e3 * latency_s,
                "latency off by": percent(latency_s / direction.delay_s - 1),
                "bandwidth set (MB/s)": direction.bandwidth / 1e6,
                "measured (MB/s)": bandwidth / 1e6,
                "bandwidth off by": percent(bandwidth / direction.bandwidth - 1),
            }
        )
    return rows


def trained(network: Network, folder: Path, ratio: float, microbatches: int) -> Row:
    """Plan for the measured cluster, and train by that plan."""
    plan, run = folder / f"plan-{ratio}-{microbatches}.json", f"run-{ratio}-{microbatches}"
    planning = [
        "cluster.file=mine.json", f"schedule.stages={STAGES}", f"allocate.sizes={SIZES}",
        f"schedule.skip_ratio={ratio}", f"schedule.microbatches_per_source={microbatches}", "planner.time_limit_s=5",
        f"output={plan}",
    ]  # fmt: skip
    if skippipe(["plan", *planning]):
        raise RuntimeError("no plan")
    settings = [
        *MODEL, f"plan={plan}", f"folder={run}", f"train.iterations={ITERATIONS}", "train.validate_every=null",
        "checkpoint.enabled=false",
    ]  # fmt: skip
    on_all_hosts(network, folder, "train", *settings)
    events = [json.loads(line) for line in (folder / run / "metrics.jsonl").read_text().splitlines()]
    (predicted_s,) = {event["predicted_s"] for event in events if event["event"] == "plan"}
    iterations = [event for event in events if event["event"] == "iteration"][LEFT_OUT:]
    times_s = [event["iteration_s"] for event in iterations]
    return {
        "skip ratio": ratio,
        "microbatches per source": microbatches,
        "predicted (s)": predicted_s,
        "measured (s)": statistics.median(times_s),
        "measured vs. predicted": percent(statistics.median(times_s) / predicted_s - 1),
        "least (s)": min(times_s),
        "most (s)": max(times_s),
        "tasks vs. predicted": statistics.median(event["task_ratio"] for event in iterations),
        "messages vs. predicted": statistics.median(event["message_ratio"] for event in iterations),
        "load": os.getloadavg()[0],
    }


def main() -> None:
    """Measure, train, and write both tables."""
    reason = missing()
    if reason is not None:
        sys.exit(reason)
    with tempfile.TemporaryDirectory() as name, Network(HOSTS, directions()) as network:
        folder = Path(name)
        os.environ["XDG_CONFIG_HOME"] = str(folder / "config")
        os.chdir(folder)
        note(f"measuring, load {os.getloadavg()[0]:.1f}")
        on_all_hosts(network, folder, "measure", *MODEL, f"stages={STAGES}", "output=mine.json")
        links = measured_links(folder / "mine.json")
        note(markdown(links))
        runs = []
        for ratio, microbatches in RUNS:
            note(f"skip ratio {ratio}, {microbatches} microbatches per source, load {os.getloadavg()[0]:.1f}")
            runs.append(trained(network, folder, ratio, microbatches))
    save(
        "real_links",
        {"links": {" ".join(pair): link for pair, link in LINKS.items()}, "model": MODEL, "sizes": SIZES},
        [*links, *runs],
        f"{markdown(links)}\n{markdown(runs)}",
    )


if __name__ == "__main__":
    main()
