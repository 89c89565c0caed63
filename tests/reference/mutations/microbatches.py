"""Mutations of microbatches: their numbers, shared routes, waves."""

from random import Random

from reference.instances import Json

from .plan_edits import repredict, reroute, tasks_of
from .registry import pick, rule


@rule
def repeated_id(rng: Random, plan: Json) -> None:
    """Two microbatches have the same id."""
    a, b = rng.sample(plan["microbatches"], 2) if len(plan["microbatches"]) > 1 else pick(rng, [])
    b["id"] = a["id"]


@rule
def renumbered_id(rng: Random, plan: Json) -> None:
    """A microbatch gets an unused number, with its tasks or without."""
    b = pick(rng, plan["microbatches"])
    new = rng.choice([len(plan["microbatches"]), 77, 100_000])
    if rng.random() < 0.7:
        for t in tasks_of(plan, b["id"]):
            t["microbatch"] = new
    b["id"] = new


@rule
def removed_microbatch(rng: Random, plan: Json) -> None:
    """A microbatch is removed, mostly with its tasks."""
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
    """Two sources share a route number."""
    b = pick(rng, plan["microbatches"])
    other = pick(rng, [x for x in plan["microbatches"] if x["source"] != b["source"]])
    used = {x["wave"] for x in plan["microbatches"] if x["route"] == other["route"]}
    b["route"] = other["route"]
    b["wave"] = pick(rng, [w for w in range(plan["constraints"]["waves"]) if w not in used])


@rule
def renumbered_route(rng: Random, plan: Json) -> None:
    """A route gets an unused number."""
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
    """The first task of a later wave starts too early, on an idle node or not."""
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
