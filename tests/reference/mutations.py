"""Named ways to damage a plan. Each takes (rng, plan) and changes the plan in place.

Some changes are harmless on some plans (a swap of equal entries, a longer memory): the tests ask the
independent checker. `RULES` keep the plan readable, `FORMAT` attack its form.
"""

import math
from collections.abc import Callable
from random import Random
from typing import Any

from .instances import Json

Mutation = Callable[[Random, Json], None]

RULES: dict[str, Mutation] = {}
FORMAT: dict[str, Mutation] = {}


class NothingToChangeError(Exception):
    """The plan has nothing that this mutation could change."""


def rule(mutate: Mutation) -> Mutation:
    """Registers a mutation that breaks (or bends) a rule."""
    RULES[mutate.__name__] = mutate
    return mutate


def form(mutate: Mutation) -> Mutation:
    """Registers a mutation that breaks the form."""
    FORMAT[mutate.__name__] = mutate
    return mutate


def pick(rng: Random, items: list[Any]) -> Any:
    """One of the items, if there is any."""
    if not items:
        raise NothingToChangeError
    return rng.choice(items)


def same_node_pair(rng: Random, plan: Json) -> tuple[Json, Json]:
    """Two tasks that follow each other on one node."""
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
    """What the task takes on its node."""
    name = {"F": "forward_s", "L": "loss_s", "B": "backward_s"}[t["kind"]]
    return float(plan["cluster"]["nodes"][t["node"]][name])


def repredict(plan: Json) -> None:
    """Makes the figures agree with the tasks again, so that only the rule can be what breaks."""
    ends = {(t["microbatch"], t["kind"], t["hop"]): t for t in plan["tasks"]}
    cluster, said = plan["cluster"], plan["predicted"]
    regions = cluster.get("region_of") or list(range(len(cluster["nodes"])))

    def back(i: int, j: int) -> float:
        a, b = regions[i], regions[j]
        if i == j:
            return 0.0
        if "transfer_s" in cluster:
            return float(cluster["transfer_s"][a][b])
        way = cluster["latency_s"][a][b] + cluster["activation_bytes"] / cluster["bandwidth"][a][b]
        return float(way + cluster.get("overhead_s", 0.0))

    homes = [
        ends[b["id"], "B", 0]["end_s"] + back(b["nodes"][0], b["source"])
        for b in plan["microbatches"]
        if (b["id"], "B", 0) in ends
    ]
    said["pipeline_s"] = max([0.0, *homes])
    done = [said["pipeline_s"]]
    for members, reduce in zip(plan["stages"], said["allreduce_s"], strict=True):
        last = [t["end_s"] for t in plan["tasks"] if t["kind"] == "B" and t["node"] in members]
        done.append(max(last, default=0.0) + reduce)
    said["iteration_s"] = max(done) + cluster.get("norm_s", 0.0) + max(cluster.get("step_s") or [0.0])
    said["lower_bound_s"] = min(said["lower_bound_s"], said["iteration_s"])
    low = said["lower_bound_s"]
    said["gap"] = (said["iteration_s"] - low) / low if low > 0 else 0.0


# -------------------------------------------------------------------------------- times of tasks


@rule
def nothing_at_all(rng: Random, plan: Json) -> None:
    """The plan as it is."""


@rule
def swapped_in_list(rng: Random, plan: Json) -> None:
    """Two neighbours of a node change places in the list, times unchanged."""
    a, b = same_node_pair(rng, plan)
    i, j = plan["tasks"].index(a), plan["tasks"].index(b)
    plan["tasks"][i], plan["tasks"][j] = b, a


@rule
def swapped_times(rng: Random, plan: Json) -> None:
    """Two tasks of a node exchange their places and starts."""
    a, b = same_node_pair(rng, plan)
    i, j = plan["tasks"].index(a), plan["tasks"].index(b)
    start = a["start_s"]
    b["start_s"], b["end_s"] = start, start + length(plan, b)
    a["start_s"] = b["end_s"]
    a["end_s"] = a["start_s"] + length(plan, a)
    plan["tasks"][i], plan["tasks"][j] = b, a
    repredict(plan)


@rule
def swapped_owners(rng: Random, plan: Json) -> None:
    """Two tasks of a node exchange their microbatch, kind and hop."""
    a, b = same_node_pair(rng, plan)
    for key in ("microbatch", "kind", "hop"):
        a[key], b[key] = b[key], a[key]


@rule
def shifted_task(rng: Random, plan: Json) -> None:
    """One task moves in time."""
    t = pick(rng, plan["tasks"])
    shift = rng.choice([-1.0, -0.1, -1e-3, -1e-5, -1e-8, 1e-8, 1e-5, 1e-3, 0.1, 1.0])
    t["start_s"] += shift
    t["end_s"] += shift
    repredict(plan)


@rule
def shifted_tail(rng: Random, plan: Json) -> None:
    """Everything from a moment on comes later, or earlier; figures follow."""
    moment = pick(rng, plan["tasks"])["start_s"]
    shift = rng.choice([-0.5, -1e-4, 1e-4, 0.5, 100.0])
    for t in plan["tasks"]:
        if t["start_s"] >= moment:
            t["start_s"] += shift
            t["end_s"] += shift
    repredict(plan)


@rule
def everything_shifted(rng: Random, plan: Json) -> None:
    """The whole plan begins later, or before zero."""
    shift = rng.choice([-2.0, -1e-3, 1e-3, 5.0])
    for t in plan["tasks"]:
        t["start_s"] += shift
        t["end_s"] += shift
    repredict(plan)


@rule
def lasts_longer(rng: Random, plan: Json) -> None:
    """One task takes more time than its node needs."""
    pick(rng, plan["tasks"])["end_s"] += rng.choice([1e-8, 1e-5, 1e-2, 1.0])
    repredict(plan)


@rule
def lasts_shorter(rng: Random, plan: Json) -> None:
    """One task takes less time than its node needs."""
    t = pick(rng, [t for t in plan["tasks"] if t["end_s"] > t["start_s"]])
    t["end_s"] -= rng.choice([1e-8, 1e-5, 0.5 * (t["end_s"] - t["start_s"]), t["end_s"] - t["start_s"]])
    repredict(plan)


@rule
def ends_before_start(rng: Random, plan: Json) -> None:
    """Start and end exchanged."""
    t = pick(rng, plan["tasks"])
    t["start_s"], t["end_s"] = t["end_s"], t["start_s"]


@rule
def overlap(rng: Random, plan: Json) -> None:
    """A task starts in the middle of the one before it."""
    a, b = same_node_pair(rng, plan)
    b["start_s"] = (a["start_s"] + a["end_s"]) / 2
    b["end_s"] = b["start_s"] + length(plan, b)
    repredict(plan)


@rule
def before_its_input(rng: Random, plan: Json) -> None:
    """A task starts together with the one that it waits for."""
    b = pick(rng, plan["microbatches"])
    row = sorted(tasks_of(plan, b["id"]), key=lambda t: t["start_s"])
    i = rng.randrange(1, len(row))
    row[i]["start_s"] = row[i - 1]["start_s"]
    row[i]["end_s"] = row[i]["start_s"] + length(plan, row[i])
    repredict(plan)


@rule
def idle_before_zero_length(rng: Random, plan: Json) -> None:
    """A node's task times become zero in the cluster, but the tasks still last."""
    node = pick(rng, plan["cluster"]["nodes"])
    node[rng.choice(["forward_s", "backward_s", "loss_s"])] = 0.0


# ------------------------------------------------------------------------------- which tasks


@rule
def dropped_task(rng: Random, plan: Json) -> None:
    """One task is missing."""
    plan["tasks"].remove(pick(rng, plan["tasks"]))


@rule
def doubled_task(rng: Random, plan: Json) -> None:
    """One task is there twice, the second time right behind or at the end."""
    t = pick(rng, plan["tasks"])
    copy = dict(t)
    if rng.random() < 0.5:
        copy["start_s"] = max(x["end_s"] for x in plan["tasks"])
        copy["end_s"] = copy["start_s"] + length(plan, t)
        plan["tasks"].append(copy)
    else:
        plan["tasks"].insert(plan["tasks"].index(t) + 1, copy)
    repredict(plan)


@rule
def no_tasks(rng: Random, plan: Json) -> None:
    """The list of tasks is empty."""
    plan["tasks"] = []


@rule
def task_elsewhere(rng: Random, plan: Json) -> None:
    """One task runs on another node."""
    t = pick(rng, plan["tasks"])
    t["node"] = pick(rng, [x for x in range(len(plan["cluster"]["nodes"])) if x != t["node"]])
    t["end_s"] = t["start_s"] + length(plan, t)
    plan["tasks"].sort(key=lambda t: t["start_s"])
    repredict(plan)


@rule
def wrong_hop(rng: Random, plan: Json) -> None:
    """One task's hop is another."""
    t = pick(rng, plan["tasks"])
    t["hop"] = pick(rng, [h for h in range(5) if h != t["hop"]])


@rule
def wrong_kind(rng: Random, plan: Json) -> None:
    """One task's kind is another."""
    t = pick(rng, plan["tasks"])
    t["kind"] = pick(rng, [k for k in "FLB" if k != t["kind"]])


@rule
def other_microbatch(rng: Random, plan: Json) -> None:
    """One task belongs to another microbatch."""
    t = pick(rng, plan["tasks"])
    t["microbatch"] = pick(rng, [b["id"] for b in plan["microbatches"] if b["id"] != t["microbatch"]])


# ------------------------------------------------------------------------------------ routes


@rule
def route_elsewhere(rng: Random, plan: Json) -> None:
    """A route leads over another replica of a stage; its tasks stay where they are."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["nodes"]))
    stage = pick(rng, [s for s in plan["stages"] if b["nodes"][i] in s])
    b["nodes"][i] = pick(rng, [x for x in stage if x != b["nodes"][i]])


@rule
def stages_wrong(rng: Random, plan: Json) -> None:
    """A microbatch's stage numbers do not fit its nodes."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["stages"]))
    b["stages"][i] = (b["stages"][i] + 1) % len(plan["stages"])


@rule
def stages_shorter(rng: Random, plan: Json) -> None:
    """A microbatch's list of stages lacks its last entry."""
    pick(rng, plan["microbatches"])["stages"].pop()


def reroute(plan: Json, b: Json, nodes: list[int]) -> None:
    """Gives a microbatch another route and runs it alone after all others."""
    serves = {node: s for s, stage in enumerate(plan["stages"]) for node in stage}
    b["nodes"], b["stages"] = nodes, [serves[x] for x in nodes]
    plan["tasks"] = [t for t in plan["tasks"] if t["microbatch"] != b["id"]]
    clock = max([t["end_s"] for t in plan["tasks"]], default=0.0) + 50.0
    ways = [("F", h, x) for h, x in enumerate(nodes)] + [("L", 0, b["source"])]
    ways += [("B", h, x) for h, x in reversed(list(enumerate(nodes)))]
    for kind, hop, node in ways:
        t = {"node": node, "microbatch": b["id"], "kind": kind, "hop": hop, "start_s": clock}
        t["end_s"] = clock + length(plan, t)
        plan["tasks"].append(t)
        clock = t["end_s"] + 50.0
    repredict(plan)


@rule
def rerouted(rng: Random, plan: Json) -> None:
    """A microbatch's node is exchanged for another replica, correctly executed."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["nodes"]))
    stage = pick(rng, [s for s in plan["stages"] if b["nodes"][i] in s])
    other = pick(rng, [x for x in stage if x != b["nodes"][i]])
    reroute(plan, b, [*b["nodes"][:i], other, *b["nodes"][i + 1 :]])


@rule
def stage_order_broken(rng: Random, plan: Json) -> None:
    """Two hops of a route change places, correctly executed."""
    b = pick(rng, [b for b in plan["microbatches"] if len(b["nodes"]) > 1])
    nodes = b["nodes"][:]
    i, j = rng.sample(range(len(nodes)), 2)
    nodes[i], nodes[j] = nodes[j], nodes[i]
    reroute(plan, b, nodes)


@rule
def stage_twice(rng: Random, plan: Json) -> None:
    """A route visits one more node of a stage that it has been on."""
    b = pick(rng, plan["microbatches"])
    stage = pick(rng, [s for s in plan["stages"] if set(s) & set(b["nodes"])])
    reroute(plan, b, [*b["nodes"], rng.choice(stage)])


@rule
def node_for_node(rng: Random, plan: Json) -> None:
    """A hop goes to a node of any other stage: quotas, order or stages visited may break."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["nodes"]))
    serving = [x for stage in plan["stages"] for x in stage if x not in b["nodes"]]
    reroute(plan, b, [*b["nodes"][:i], pick(rng, serving), *b["nodes"][i + 1 :]])


@rule
def visit_less(rng: Random, plan: Json) -> None:
    """A route leaves one of its stages out."""
    b = pick(rng, [b for b in plan["microbatches"] if len(b["nodes"]) > 1])
    i = rng.randrange(len(b["nodes"]))
    reroute(plan, b, b["nodes"][:i] + b["nodes"][i + 1 :])


@rule
def visit_more(rng: Random, plan: Json) -> None:
    """A route visits one stage more."""
    b = pick(rng, plan["microbatches"])
    free = [x for s, stage in enumerate(plan["stages"]) for x in stage if s not in b["stages"]]
    i = rng.randint(0, len(b["nodes"]))
    reroute(plan, b, [*b["nodes"][:i], pick(rng, free), *b["nodes"][i:]])


@rule
def moved_visit(rng: Random, plan: Json) -> None:
    """One route leaves a stage out and another visits one more: the total stays."""
    visit_less(rng, plan)
    visit_more(rng, plan)


@rule
def empty_route(rng: Random, plan: Json) -> None:
    """A microbatch goes nowhere."""
    b = pick(rng, plan["microbatches"])
    b["nodes"], b["stages"] = [], []


@rule
def node_outside(rng: Random, plan: Json) -> None:
    """A route leads over a node that does not exist."""
    b = pick(rng, plan["microbatches"])
    b["nodes"][rng.randrange(len(b["nodes"]))] = len(plan["cluster"]["nodes"]) + rng.choice([0, 1, 1000])


@rule
def other_source(rng: Random, plan: Json) -> None:
    """A microbatch says that it comes from another node."""
    b = pick(rng, plan["microbatches"])
    b["source"] = pick(rng, [x for x in range(len(plan["cluster"]["nodes"])) if x != b["source"]])


# --------------------------------------------------------------------- microbatches, routes, waves


@rule
def repeated_id(rng: Random, plan: Json) -> None:
    """Two microbatches have one id."""
    a, b = rng.sample(plan["microbatches"], 2) if len(plan["microbatches"]) > 1 else pick(rng, [])
    b["id"] = a["id"]


@rule
def renumbered_id(rng: Random, plan: Json) -> None:
    """A microbatch gets a number that is not used, with its tasks or without."""
    b = pick(rng, plan["microbatches"])
    new = rng.choice([len(plan["microbatches"]), 77, 100_000])
    if rng.random() < 0.7:
        for t in tasks_of(plan, b["id"]):
            t["microbatch"] = new
    b["id"] = new


@rule
def removed_microbatch(rng: Random, plan: Json) -> None:
    """A microbatch is gone, mostly together with its tasks."""
    b = pick(rng, plan["microbatches"])
    plan["microbatches"].remove(b)
    counts = plan["microbatches_per_source"]
    counts[str(b["source"])] -= 1
    if rng.random() < 0.7:
        plan["tasks"] = [t for t in plan["tasks"] if t["microbatch"] != b["id"]]
        repredict(plan)


@rule
def doubled_microbatch(rng: Random, plan: Json) -> None:
    """A microbatch is listed twice."""
    plan["microbatches"].append(dict(pick(rng, plan["microbatches"])))


@rule
def no_microbatches(rng: Random, plan: Json) -> None:
    """The plan runs nothing."""
    plan["microbatches"], plan["tasks"] = [], []
    plan["microbatches_per_source"] = dict.fromkeys(plan["microbatches_per_source"], 0)


@rule
def shared_route(rng: Random, plan: Json) -> None:
    """A microbatch takes another's route number."""
    b = pick(rng, plan["microbatches"])
    b["route"] = pick(rng, [x["route"] for x in plan["microbatches"] if x["route"] != b["route"]])


@rule
def shared_between_sources(rng: Random, plan: Json) -> None:
    """Two sources use one route number."""
    b = pick(rng, plan["microbatches"])
    other = pick(rng, [x for x in plan["microbatches"] if x["source"] != b["source"]])
    used = {x["wave"] for x in plan["microbatches"] if x["route"] == other["route"]}
    b["route"] = other["route"]
    b["wave"] = pick(rng, [w for w in range(plan["constraints"]["waves"]) if w not in used])


@rule
def renumbered_route(rng: Random, plan: Json) -> None:
    """A route gets a number that is not used."""
    number = pick(rng, plan["microbatches"])["route"]
    for b in plan["microbatches"]:
        if b["route"] == number:
            b["route"] = 1000


@rule
def split_route(rng: Random, plan: Json) -> None:
    """The last wave of a route becomes a route of its own."""
    b = pick(rng, [b for b in plan["microbatches"] if b["wave"] > 0])
    b["route"], b["wave"] = 1000, 0


@rule
def wrong_wave(rng: Random, plan: Json) -> None:
    """A microbatch's wave is another."""
    b = pick(rng, plan["microbatches"])
    b["wave"] = pick(rng, [w for w in range(5) if w != b["wave"]])


@rule
def waves_exchanged(rng: Random, plan: Json) -> None:
    """Two waves of a route exchange their numbers."""
    b = pick(rng, [b for b in plan["microbatches"] if b["wave"] > 0])
    other = pick(rng, [x for x in plan["microbatches"] if x["route"] == b["route"] and x is not b])
    b["wave"], other["wave"] = other["wave"], b["wave"]


@rule
def wave_too_early(rng: Random, plan: Json) -> None:
    """The first task of a later wave starts at zero, on an otherwise free node or not."""
    b = pick(rng, [b for b in plan["microbatches"] if b["wave"] > 0])
    t = pick(rng, [t for t in tasks_of(plan, b["id"]) if t["kind"] == "F" and t["hop"] == 0])
    shift = rng.choice([0.0, 0.3, 0.9]) * t["start_s"] - t["start_s"]
    t["start_s"] += shift
    t["end_s"] += shift
    plan["tasks"].sort(key=lambda t: t["start_s"])


@rule
def wave_on_other_route(rng: Random, plan: Json) -> None:
    """One wave of a route takes another replica, correctly executed."""
    b = pick(rng, [b for b in plan["microbatches"] if b["wave"] > 0])
    i = rng.randrange(len(b["nodes"]))
    stage = pick(rng, [s for s in plan["stages"] if b["nodes"][i] in s])
    other = pick(rng, [x for x in stage if x != b["nodes"][i]])
    reroute(plan, b, [*b["nodes"][:i], other, *b["nodes"][i + 1 :]])


# ------------------------------------------------------------------------- rules and the question


@rule
def rule_switched(rng: Random, plan: Json) -> None:
    """A rule that was off is on, or the other way round."""
    name = rng.choice(["cc1", "cc2", "cc3", "tc2"])
    plan["constraints"][name] = not plan["constraints"][name]


@rule
def rule_tightened(rng: Random, plan: Json) -> None:
    """Swaps, waves or jumps are allowed less, or more."""
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
    """A node of the cluster needs more time than its tasks take."""
    node = pick(rng, plan["cluster"]["nodes"])
    node[rng.choice(["forward_s", "backward_s", "loss_s"])] += rng.choice([1e-9, 1e-3, 1.0])


@rule
def slower_link(rng: Random, plan: Json) -> None:
    """A link takes more time than the tasks leave for it."""
    cluster = plan["cluster"]
    row = pick(rng, cluster["transfer_s" if "transfer_s" in cluster else "latency_s"])
    row[rng.randrange(len(row))] += rng.choice([1e-9, 0.01, 5.0])


@rule
def narrower_link(rng: Random, plan: Json) -> None:
    """A link's bandwidth is less."""
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
    """Optimizer or norm take longer than the figures say."""
    if rng.random() < 0.5:
        plan["cluster"]["norm_s"] = plan["cluster"].get("norm_s", 0.0) + 1.0
    else:
        steps = plan["cluster"].setdefault("step_s", [0.0] * len(plan["cluster"]["nodes"]))
        steps[rng.randrange(len(steps))] += 1.0


@rule
def longer_reduce(rng: Random, plan: Json) -> None:
    """A stage all-reduces more than the figures say."""
    sizes = plan["cluster"].get("gradient_bytes", [])
    pick(rng, sizes)
    sizes[rng.randrange(len(sizes))] += 1e4


# ------------------------------------------------------------------------------- allocation


@rule
def allocation_swapped(rng: Random, plan: Json) -> None:
    """Two nodes exchange their stages."""
    full = [stage for stage in plan["stages"] if stage]
    a, b = rng.sample(full, 2) if len(full) > 1 else pick(rng, [])
    i, j = rng.randrange(len(a)), rng.randrange(len(b))
    a[i], b[j] = b[j], a[i]


@rule
def allocation_moved(rng: Random, plan: Json) -> None:
    """A node goes to another stage."""
    a = pick(rng, [stage for stage in plan["stages"] if stage])
    b = pick(rng, [stage for stage in plan["stages"] if stage is not a])
    b.append(a.pop(rng.randrange(len(a))))


@rule
def allocation_reordered(rng: Random, plan: Json) -> None:
    """A stage lists its replicas in another order: the ring of its all-reduce may change."""
    rng.shuffle(pick(rng, [stage for stage in plan["stages"] if len(stage) > 2]))


@rule
def allocation_twice(rng: Random, plan: Json) -> None:
    """A node serves two stages."""
    b = pick(rng, plan["stages"])
    b.append(pick(rng, [x for stage in plan["stages"] if stage is not b for x in stage]))


@rule
def allocation_twice_in_one(rng: Random, plan: Json) -> None:
    """A node is listed twice in its stage."""
    b = pick(rng, [stage for stage in plan["stages"] if stage])
    b.append(rng.choice(b))


@rule
def allocation_forgets(rng: Random, plan: Json) -> None:
    """A node that no route uses serves no stage any more."""
    used = {x for b in plan["microbatches"] for x in [b["source"], *b["nodes"]]}
    stage = pick(rng, [stage for stage in plan["stages"] if set(stage) - used])
    stage.remove(pick(rng, [x for x in stage if x not in used]))


@rule
def node_left_out(rng: Random, plan: Json) -> None:
    """A node that no route uses serves no stage any more, and the plan says so: that is allowed."""
    allocation_forgets(rng, plan)
    serving = {x for stage in plan["stages"] for x in stage}
    plan["absent_nodes"] = [x for x in range(len(plan["cluster"]["nodes"])) if x not in serving]


@rule
def absent_nodes_edited(rng: Random, plan: Json) -> None:
    """Any nodes are called absent, one of them perhaps twice."""
    nodes = range(len(plan["cluster"]["nodes"]))
    plan["absent_nodes"] = [rng.choice(nodes) for _ in range(rng.randint(0, 2))]


@rule
def stage_emptied(rng: Random, plan: Json) -> None:
    """A stage has no node."""
    pick(rng, [stage for stage in plan["stages"] if stage]).clear()


@rule
def absent_edited(rng: Random, plan: Json) -> None:
    """Another stage, no stage or the same one twice is called absent."""
    if len(plan["stages"]) < 2:
        raise NothingToChangeError
    s = rng.randrange(1, len(plan["stages"]))
    plan["absent_stages"] = rng.choice([[], [s], [s, s], [*plan["absent_stages"], s], [0]])


@rule
def absent_unused(rng: Random, plan: Json) -> None:
    """An empty stage is added and called absent: a harmless change, where lists grow with it."""
    plan["stages"].append([])
    plan["absent_stages"].append(len(plan["stages"]) - 1)
    plan["predicted"]["allreduce_s"].append(0.0)
    if plan["layers"]:
        plan["layers"].append(4)
    if plan["cluster"].get("gradient_bytes"):
        plan["cluster"]["gradient_bytes"].append(0)


# ----------------------------------------------------------------------------------- figures


def _bent(rng: Random, value: float) -> float:
    return max(0.0, value + rng.choice([-1.0, -1e-2, -1e-3, 1e-3, 1e-2, 1.0]) * max(1.0, value))


@rule
def iteration_wrong(rng: Random, plan: Json) -> None:
    """The predicted iteration is not that of the tasks."""
    plan["predicted"]["iteration_s"] = _bent(rng, plan["predicted"]["iteration_s"])


@rule
def pipeline_wrong(rng: Random, plan: Json) -> None:
    """The predicted pipeline end is not that of the tasks."""
    plan["predicted"]["pipeline_s"] = _bent(rng, plan["predicted"]["pipeline_s"])


@rule
def allreduce_wrong(rng: Random, plan: Json) -> None:
    """The predicted all-reduce of a stage is not that of the formula."""
    values = plan["predicted"]["allreduce_s"]
    i = rng.randrange(len(values))
    values[i] = _bent(rng, values[i])


@rule
def gap_wrong(rng: Random, plan: Json) -> None:
    """The gap does not follow from bound and iteration."""
    plan["predicted"]["gap"] = max(0.0, plan["predicted"]["gap"] + rng.choice([-0.5, 1e-8, 1e-3, 0.5]))


@rule
def bound_too_high(rng: Random, plan: Json) -> None:
    """The lower bound is above the iteration; the gap, which cannot be negative, says 0."""
    said = plan["predicted"]
    said["lower_bound_s"] = said["iteration_s"] * rng.choice([1.0001, 1.5]) + 1e-3
    said["gap"] = 0.0


@rule
def bound_edited(rng: Random, plan: Json) -> None:
    """The bound changes, and the gap with it or not."""
    said = plan["predicted"]
    said["lower_bound_s"] *= rng.choice([0.5, 0.999])
    if rng.random() < 0.5 and said["lower_bound_s"] > 0:
        said["gap"] = (said["iteration_s"] - said["lower_bound_s"]) / said["lower_bound_s"]


@rule
def called_optimal(rng: Random, plan: Json) -> None:
    """The plan is called optimal, whatever its bound."""
    plan["solver"]["optimal"] = True


# --------------------------------------------------------------------------------------- form

WRONG: list[Any] = [
    None,
    True,
    "",
    "x",
    "1",
    [],
    {},
    [[]],
    -1,
    -0.5,
    1.5,
    2**31,
    2**40,
    math.nan,
    math.inf,
    -math.inf,
    1e308,
]


def walk(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Every path into a JSON value, the empty one left out."""
    items: list[tuple[Any, Any]] = []
    if isinstance(value, dict):
        items = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    found = []
    for key, inner in items:
        found.append((*path, key))
        found += walk(inner, (*path, key))
    return found


def _branch(rng: Random, plan: Json) -> tuple[Any, ...]:
    """A path drawn level by level, so that long lists do not take all the draws."""
    path: tuple[Any, ...] = ()
    value: Any = plan
    while isinstance(value, dict | list) and value:
        key = rng.choice(list(value)) if isinstance(value, dict) else rng.randrange(len(value))
        path, value = (*path, key), value[key]
        if rng.random() < 0.15:
            break
    return path


def _parent(plan: Json, path: tuple[Any, ...]) -> Any:
    value: Any = plan
    for key in path[:-1]:
        value = value[key]
    return value


@form
def replaced_value(rng: Random, plan: Json) -> None:
    """Anything anywhere is replaced by something of another type or range."""
    path = _branch(rng, plan)
    _parent(plan, path)[path[-1]] = rng.choice(WRONG)
    plan["_path"] = path


@form
def removed_entry(rng: Random, plan: Json) -> None:
    """Anything anywhere is taken away."""
    path = _branch(rng, plan)
    del _parent(plan, path)[path[-1]]
    plan["_path"] = path


@form
def doubled_entry(rng: Random, plan: Json) -> None:
    """An entry of any list is there twice."""
    lists = [path for path in walk(plan) if isinstance(_parent(plan, path), list)]
    path = pick(rng, lists)
    parent = _parent(plan, path)
    parent.insert(path[-1], parent[path[-1]])
    plan["_path"] = path


@form
def unknown_key(rng: Random, plan: Json) -> None:
    """A key that the format does not know."""
    path = pick(rng, [p for p in walk(plan) if isinstance(p[-1], str) and p[0] != "microbatches_per_source"])
    _parent(plan, path)["somebody_elses"] = rng.choice(WRONG[:-4])
    plan["_path"] = (*path[:-1], "somebody_elses")


@form
def integer_for_float(rng: Random, plan: Json) -> None:
    """A time is written without its point: the same number."""
    path = pick(rng, [p for p in walk(plan) if p[-1] in ("start_s", "end_s", "memory", "forward_s", "latency_s")])
    parent = _parent(plan, path)
    if isinstance(parent[path[-1]], list) or parent[path[-1]] != int(parent[path[-1]]):
        raise NothingToChangeError
    value = parent[path[-1]]
    parent[path[-1]] = float(value) if isinstance(value, int) else int(value)
    plan["_path"] = path


@form
def other_format(rng: Random, plan: Json) -> None:
    """An unknown version."""
    inner = rng.choice([plan, plan["cluster"]])
    inner["format"] = rng.choice(["skippipe.plan/2", "skippipe.cluster/2", "", "skippipe.plan", None])


@form
def both_link_forms(rng: Random, plan: Json) -> None:
    """Whole transfer times stand beside latency and bandwidth."""
    cluster = plan["cluster"]
    if "transfer_s" in cluster:
        side = len(cluster["transfer_s"])
        cluster["latency_s"] = cluster["bandwidth"] = [[1.0] * side] * side
        plan["_path"] = ("cluster", "latency_s")
    else:
        side = len(cluster["latency_s"])
        cluster["transfer_s"] = [[0.0] * side] * side
        plan["_path"] = ("cluster", "transfer_s")


@form
def gradients_without_links(rng: Random, plan: Json) -> None:
    """All-reduce sizes stand beside whole transfer times."""
    if "transfer_s" not in plan["cluster"]:
        raise NothingToChangeError
    plan["cluster"]["gradient_bytes"] = [0.0] * len(plan["stages"])


@form
def zero_bandwidth(rng: Random, plan: Json) -> None:
    """A link carries nothing."""
    matrix = plan["cluster"].get("bandwidth", [])
    row = pick(rng, matrix)
    i = rng.randrange(len(row))
    row[i] = rng.choice([0, 0.0, -1000.0])
    plan["_path"] = ("cluster", "bandwidth", matrix.index(row), i)


@form
def ragged_matrix(rng: Random, plan: Json) -> None:
    """A link matrix is not square."""
    name = pick(rng, [k for k in ("transfer_s", "latency_s", "bandwidth") if k in plan["cluster"]])
    matrix = plan["cluster"][name]
    if rng.random() < 0.5:
        rng.choice(matrix).append(1.0)
    else:
        matrix.append([1.0] * len(matrix))
    plan["_path"] = ("cluster", name)


@form
def repeated_name(rng: Random, plan: Json) -> None:
    """Two nodes have one name."""
    nodes = plan["cluster"]["nodes"]
    nodes[0]["name"] = nodes[-1]["name"]
    plan["_path"] = ("cluster", "nodes", 0, "name")
