"""Mutations of routes."""

from random import Random

from reference.instances import Json

from .plan_edits import reroute
from .registry import pick, rule


@rule
def route_elsewhere(rng: Random, plan: Json) -> None:
    """A route visits another replica of a stage; its tasks stay on their nodes."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["nodes"]))
    stage = pick(rng, [s for s in plan["stages"] if b["nodes"][i] in s])
    b["nodes"][i] = pick(rng, [x for x in stage if x != b["nodes"][i]])


@rule
def stages_wrong(rng: Random, plan: Json) -> None:
    """A microbatch's stage numbers do not match its nodes."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["stages"]))
    b["stages"][i] = (b["stages"][i] + 1) % len(plan["stages"])


@rule
def stages_shorter(rng: Random, plan: Json) -> None:
    """A microbatch's list of stages lacks its last entry."""
    pick(rng, plan["microbatches"])["stages"].pop()


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
    """Two hops of a route are swapped, correctly executed."""
    b = pick(rng, [b for b in plan["microbatches"] if len(b["nodes"]) > 1])
    nodes = b["nodes"][:]
    i, j = rng.sample(range(len(nodes)), 2)
    nodes[i], nodes[j] = nodes[j], nodes[i]
    reroute(plan, b, nodes)


@rule
def stage_twice(rng: Random, plan: Json) -> None:
    """A route visits another node of a stage that it has visited before."""
    b = pick(rng, plan["microbatches"])
    stage = pick(rng, [s for s in plan["stages"] if set(s) & set(b["nodes"])])
    reroute(plan, b, [*b["nodes"], rng.choice(stage)])


@rule
def node_for_node(rng: Random, plan: Json) -> None:
    """A hop goes to a node of any other stage: quotas, order or visited stages may break a rule."""
    b = pick(rng, plan["microbatches"])
    i = rng.randrange(len(b["nodes"]))
    serving = [x for stage in plan["stages"] for x in stage if x not in b["nodes"]]
    reroute(plan, b, [*b["nodes"][:i], pick(rng, serving), *b["nodes"][i + 1 :]])


@rule
def visit_less(rng: Random, plan: Json) -> None:
    """A route skips one of its stages."""
    b = pick(rng, [b for b in plan["microbatches"] if len(b["nodes"]) > 1])
    i = rng.randrange(len(b["nodes"]))
    reroute(plan, b, b["nodes"][:i] + b["nodes"][i + 1 :])


@rule
def visit_more(rng: Random, plan: Json) -> None:
    """A route visits an additional stage."""
    b = pick(rng, plan["microbatches"])
    free = [x for s, stage in enumerate(plan["stages"]) for x in stage if s not in b["stages"]]
    i = rng.randint(0, len(b["nodes"]))
    reroute(plan, b, [*b["nodes"][:i], pick(rng, free), *b["nodes"][i:]])


@rule
def moved_visit(rng: Random, plan: Json) -> None:
    """One route skips a stage and another visits an additional one: the total is unchanged."""
    visit_less(rng, plan)
    visit_more(rng, plan)


@rule
def empty_route(rng: Random, plan: Json) -> None:
    """A microbatch has an empty route."""
    b = pick(rng, plan["microbatches"])
    b["nodes"], b["stages"] = [], []


@rule
def node_outside(rng: Random, plan: Json) -> None:
    """A route visits a node that does not exist."""
    b = pick(rng, plan["microbatches"])
    b["nodes"][rng.randrange(len(b["nodes"]))] = len(plan["cluster"]["nodes"]) + rng.choice([0, 1, 1000])


@rule
def other_source(rng: Random, plan: Json) -> None:
    """A microbatch states another source."""
    b = pick(rng, plan["microbatches"])
    b["source"] = pick(rng, [x for x in range(len(plan["cluster"]["nodes"])) if x != b["source"]])
