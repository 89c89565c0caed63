"""Mutations of the allocation."""

from random import Random

from reference.instances import Json

from .registry import NothingToChangeError, pick, rule


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
    """A stage lists its replicas in another order, which may change the ring of its all-reduce."""
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
    """A node that no route visits no longer serves a stage."""
    used = {x for b in plan["microbatches"] for x in [b["source"], *b["nodes"]]}
    stage = pick(rng, [stage for stage in plan["stages"] if set(stage) - used])
    stage.remove(pick(rng, [x for x in stage if x not in used]))


@rule
def unused_node(rng: Random, plan: Json) -> None:
    """A node that no route visits no longer serves a stage, and is listed as absent: that is allowed."""
    allocation_forgets(rng, plan)
    serving = {x for stage in plan["stages"] for x in stage}
    plan["absent_nodes"] = [x for x in range(len(plan["cluster"]["nodes"])) if x not in serving]


@rule
def absent_nodes_edited(rng: Random, plan: Json) -> None:
    """Random nodes are listed as absent, possibly one of them twice."""
    nodes = range(len(plan["cluster"]["nodes"]))
    plan["absent_nodes"] = [rng.choice(nodes) for _ in range(rng.randint(0, 2))]


@rule
def stage_emptied(rng: Random, plan: Json) -> None:
    """A stage has no node."""
    pick(rng, [stage for stage in plan["stages"] if stage]).clear()


@rule
def absent_edited(rng: Random, plan: Json) -> None:
    """Another stage, no stage or the same one twice is listed as absent."""
    if len(plan["stages"]) < 2:
        raise NothingToChangeError
    s = rng.randrange(1, len(plan["stages"]))
    plan["absent_stages"] = rng.choice([[], [s], [s, s], [*plan["absent_stages"], s], [0]])


@rule
def absent_unused(rng: Random, plan: Json) -> None:
    """An empty stage is added and listed as absent: harmless if the other lists grow with it."""
    plan["stages"].append([])
    plan["absent_stages"].append(len(plan["stages"]) - 1)
    plan["predicted"]["allreduce_s"].append(0.0)
    if plan["layers"]:
        plan["layers"].append(4)
    if plan["cluster"].get("gradient_bytes"):
        plan["cluster"]["gradient_bytes"].append(0)
