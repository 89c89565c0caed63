"""What mutations of a plan share: its tasks, its predictions, another route for a microbatch."""

from random import Random

from reference.instances import Json

from .registry import pick


def same_node_pair(rng: Random, plan: Json) -> tuple[Json, Json]:
    """Two consecutive tasks of one node."""
    rows: dict[int, list[Json]] = {}
    for t in plan["tasks"]:
        rows.setdefault(t["node"], []).append(t)
    row = pick(rng, [row for row in rows.values() if len(row) > 1])
    i = rng.randrange(len(row) - 1)
    return row[i], row[i + 1]


def tasks_of(plan: Json, microbatch: int) -> list[Json]:
    """All tasks of one microbatch."""
    return [t for t in plan["tasks"] if t["microbatch"] == microbatch]


def length(plan: Json, t: Json) -> float:
    """Duration of the task on its node."""
    name = {"F": "forward_s", "L": "loss_s", "B": "backward_s"}[t["kind"]]
    return float(plan["cluster"]["nodes"][t["node"]][name])


def repredict(plan: Json) -> None:
    """Make the predictions agree with the tasks again, so that only the rule can be broken."""
    ends = {(t["microbatch"], t["kind"], t["hop"]): t for t in plan["tasks"]}
    cluster, predicted = plan["cluster"], plan["predicted"]
    regions = cluster.get("region_of") or list(range(len(cluster["nodes"])))

    def transfer_s(i: int, j: int) -> float:
        a, b = regions[i], regions[j]
        if i == j:
            return 0.0
        if "transfer_s" in cluster:
            return float(cluster["transfer_s"][a][b])
        time_s = cluster["latency_s"][a][b] + cluster["activation_bytes"] / cluster["bandwidth"][a][b]
        return float(time_s + cluster.get("overhead_s", 0.0))

    completions = [
        ends[b["id"], "B", 0]["end_s"] + transfer_s(b["nodes"][0], b["source"])
        for b in plan["microbatches"]
        if (b["id"], "B", 0) in ends
    ]
    predicted["pipeline_s"] = max([0.0, *completions])
    done = [predicted["pipeline_s"]]
    for members, reduce in zip(plan["stages"], predicted["allreduce_s"], strict=True):
        last = [t["end_s"] for t in plan["tasks"] if t["kind"] == "B" and t["node"] in members]
        done.append(max(last, default=0.0) + reduce)
    predicted["iteration_s"] = max(done) + cluster.get("norm_s", 0.0) + max(cluster.get("step_s") or [0.0])
    predicted["lower_bound_s"] = min(predicted["lower_bound_s"], predicted["iteration_s"])
    low = predicted["lower_bound_s"]
    predicted["gap"] = (predicted["iteration_s"] - low) / low if low > 0 else 0.0


def reroute(plan: Json, b: Json, nodes: list[int]) -> None:
    """Give a microbatch another route and run it alone after all others."""
    serves = {node: s for s, stage in enumerate(plan["stages"]) for node in stage}
    b["nodes"], b["stages"] = nodes, [serves[x] for x in nodes]
    plan["tasks"] = [t for t in plan["tasks"] if t["microbatch"] != b["id"]]
    clock = max([t["end_s"] for t in plan["tasks"]], default=0.0) + 50.0
    visits = [("F", h, x) for h, x in enumerate(nodes)] + [("L", 0, b["source"])]
    visits += [("B", h, x) for h, x in reversed(list(enumerate(nodes)))]
    for kind, hop, node in visits:
        t = {"node": node, "microbatch": b["id"], "kind": kind, "hop": hop, "start_s": clock}
        t["end_s"] = clock + length(plan, t)
        plan["tasks"].append(t)
        clock = t["end_s"] + 50.0
    repredict(plan)
