"""Mutations of tasks: their times, and which there are."""

from random import Random

from reference.instances import Json

from .plan_edits import length, repredict, same_node_pair, tasks_of
from .registry import pick, rule


@rule
def nothing_at_all(rng: Random, plan: Json) -> None:
    """The plan as it is."""


@rule
def swapped_in_list(rng: Random, plan: Json) -> None:
    """Two consecutive tasks of a node are swapped in the list, times unchanged."""
    a, b = same_node_pair(rng, plan)
    i, j = plan["tasks"].index(a), plan["tasks"].index(b)
    plan["tasks"][i], plan["tasks"][j] = b, a


@rule
def swapped_times(rng: Random, plan: Json) -> None:
    """Two consecutive tasks of a node are swapped, in the list and in time."""
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
    """Everything from some time on is shifted; the predictions are updated."""
    moment = pick(rng, plan["tasks"])["start_s"]
    shift = rng.choice([-0.5, -1e-4, 1e-4, 0.5, 100.0])
    for t in plan["tasks"]:
        if t["start_s"] >= moment:
            t["start_s"] += shift
            t["end_s"] += shift
    repredict(plan)


@rule
def everything_shifted(rng: Random, plan: Json) -> None:
    """The complete plan is shifted, possibly to before zero."""
    shift = rng.choice([-2.0, -1e-3, 1e-3, 5.0])
    for t in plan["tasks"]:
        t["start_s"] += shift
        t["end_s"] += shift
    repredict(plan)


@rule
def lasts_longer(rng: Random, plan: Json) -> None:
    """One task takes longer than on its node."""
    pick(rng, plan["tasks"])["end_s"] += rng.choice([1e-8, 1e-5, 1e-2, 1.0])
    repredict(plan)


@rule
def lasts_shorter(rng: Random, plan: Json) -> None:
    """One task takes less time than on its node."""
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


@rule
def dropped_task(rng: Random, plan: Json) -> None:
    """One task is missing."""
    plan["tasks"].remove(pick(rng, plan["tasks"]))


@rule
def doubled_task(rng: Random, plan: Json) -> None:
    """One task is listed twice: again right after itself, or at the end."""
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
