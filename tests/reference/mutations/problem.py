"""Mutations of the problem: constraints, cluster, skip ratio."""

from random import Random

from reference.instances import Json

from .registry import NothingToChangeError, pick, rule


@rule
def rule_switched(rng: Random, plan: Json) -> None:
    """A rule is switched on or off."""
    name = rng.choice(["cc1", "cc2", "cc3", "tc2"])
    plan["constraints"][name] = not plan["constraints"][name]


@rule
def rule_tightened(rng: Random, plan: Json) -> None:
    """The limit on swaps, waves or jumps, or the memory rule, is another."""
    rules = plan["constraints"]
    name = rng.choice(["max_swaps", "waves", "max_stage_jump", "tc1"])
    rules[name] = {
        "max_swaps": rng.choice([0, 1, 2, 9]),
        "waves": rng.choice([1, 2, 3, 9]),
        "max_stage_jump": rng.choice([None, 1, 1, 2, 5]),
        "tc1": rng.choice(["held", "routes", "off"]),
    }[name]


@rule
def memory_lowered(rng: Random, plan: Json) -> None:
    """A node's memory is one less, or every node's is 1."""
    nodes = plan["cluster"]["nodes"]
    if rng.random() < 0.3:
        for node in nodes:
            node["memory"] = 1
    else:
        node = pick(rng, [node for node in nodes if node["memory"] > 1])
        node["memory"] -= 1


@rule
def memory_held_then_lowered(rng: Random, plan: Json) -> None:
    """Under rule `held` every node's memory is 1."""
    plan["constraints"]["tc1"] = "held"
    for node in plan["cluster"]["nodes"]:
        node["memory"] = 1


@rule
def memory_exceeded_by_routes(rng: Random, plan: Json) -> None:
    """Under rule `routes` every node's memory is 1."""
    plan["constraints"]["tc1"] = "routes"
    for node in plan["cluster"]["nodes"]:
        node["memory"] = rng.choice([1, 1, 2])


@rule
def skip_ratio_edited(rng: Random, plan: Json) -> None:
    """The skip ratio is a little or a lot different."""
    most = (len(plan["stages"]) - 1) / len(plan["stages"])
    change = rng.choice([-0.5, -0.1, -1e-3, -1e-8, 1e-8, 1e-3, 0.1, 0.5])
    plan["skip_ratio"] = min(most, max(0.0, plan["skip_ratio"] + change))


@rule
def slower_node(rng: Random, plan: Json) -> None:
    """A node of the cluster takes longer than its tasks."""
    node = pick(rng, plan["cluster"]["nodes"])
    node[rng.choice(["forward_s", "backward_s", "loss_s"])] += rng.choice([1e-9, 1e-3, 1.0])


@rule
def slower_link(rng: Random, plan: Json) -> None:
    """A link takes longer than the tasks allow for."""
    cluster = plan["cluster"]
    row = pick(rng, cluster["transfer_s" if "transfer_s" in cluster else "latency_s"])
    row[rng.randrange(len(row))] += rng.choice([1e-9, 0.01, 5.0])


@rule
def narrower_link(rng: Random, plan: Json) -> None:
    """A link's bandwidth is lower."""
    row = pick(rng, plan["cluster"].get("bandwidth", []))
    row[rng.randrange(len(row))] *= rng.choice([0.5, 0.9, 0.999])


@rule
def more_overhead(rng: Random, plan: Json) -> None:
    """Every transfer takes a little longer."""
    if "transfer_s" in plan["cluster"]:
        raise NothingToChangeError
    plan["cluster"]["overhead_s"] = plan["cluster"].get("overhead_s", 0.0) + rng.choice([0.01, 1.0])


@rule
def other_region(rng: Random, plan: Json) -> None:
    """A node lies in another region."""
    regions = plan["cluster"].get("region_of", [])
    matrix = plan["cluster"]["transfer_s" if "transfer_s" in plan["cluster"] else "latency_s"]
    pick(rng, regions)
    regions[rng.randrange(len(regions))] = rng.randrange(len(matrix))


@rule
def longer_step(rng: Random, plan: Json) -> None:
    """Optimizer or norm take longer than predicted."""
    if rng.random() < 0.5:
        plan["cluster"]["norm_s"] = plan["cluster"].get("norm_s", 0.0) + 1.0
    else:
        steps = plan["cluster"].setdefault("step_s", [0.0] * len(plan["cluster"]["nodes"]))
        steps[rng.randrange(len(steps))] += 1.0


@rule
def longer_reduce(rng: Random, plan: Json) -> None:
    """A stage all-reduces more bytes than predicted."""
    sizes = plan["cluster"].get("gradient_bytes", [])
    pick(rng, sizes)
    sizes[rng.randrange(len(sizes))] += 1e4
