"""Which ranks keep copies of stages that they do not serve, so that a stage outlives all of its nodes. Pure."""

from collections.abc import Collection, Hashable, Mapping, Sequence

from skippipe.moves import Transfer


def copy_transfers(current: Mapping[int, Collection[int]], machines: Sequence[Hashable], copies: int) -> list[Transfer]:
    """The transfers that renew all copies, in an order that all ranks share.

    Each copy comes from a rank that has the stage, in turn. Transfers follow each other in rounds in which each rank
    has one part at most, so that none waits for a chain of others.

    Args:
        current: the ranks that have each stage's current weights.
        machines: of each rank.
        copies: of each stage.

    """
    kept = place_copies(current, machines, copies)
    waiting = [
        Transfer(stage, sorted(current[stage])[number % len(current[stage])], stage, keeper)
        for number in range(copies)
        for stage, keepers in sorted(kept.items())
        for keeper in keepers[number : number + 1]
    ]
    ordered: list[Transfer] = []
    while waiting:
        busy: set[int] = set()
        for transfer in [*waiting]:
            if busy.isdisjoint({transfer.sender, transfer.receiver}):
                busy |= {transfer.sender, transfer.receiver}
                waiting.remove(transfer)
                ordered.append(transfer)
    return ordered


def place_copies(
    current: Mapping[int, Collection[int]], machines: Sequence[Hashable], copies: int
) -> dict[int, list[int]]:
    """The ranks that keep the copies of each stage, as evenly as possible.

    None of them has the stage itself. Each is on a machine that has neither the stage nor another of its copies, where
    there is one left. Stage 0 has no copies: nobody else has the text, so nobody could take it over.

    Args:
        current: the ranks that have each stage's current weights.
        machines: of each rank.
        copies: of each stage; fewer where there are too few other ranks.

    """
    kept: dict[int, list[int]] = {stage: [] for stage, ranks in sorted(current.items()) if stage and ranks}
    load = [0] * len(machines)
    for _ in range(copies):
        for stage, keepers in kept.items():
            others = [rank for rank in range(len(machines)) if rank not in current[stage] and rank not in keepers]
            if not others:
                continue
            used = {machines[rank] for rank in (*current[stage], *keepers)}
            after = max(current[stage])
            keeper = min(others, key=lambda rank: (machines[rank] in used, load[rank], (rank - after) % len(machines)))
            keepers.append(keeper)
            load[keeper] += 1
    while _hand_over(kept, current, machines, load):
        pass
    return kept


def _hand_over(
    kept: Mapping[int, list[int]],
    current: Mapping[int, Collection[int]],
    machines: Sequence[Hashable],
    load: list[int],
) -> bool:
    """Move one copy to a rank that keeps at least two fewer and is as far away; whether there was one."""
    for stage, keepers in kept.items():
        for place, keeper in enumerate(keepers):
            others = {*current[stage], *keepers} - {keeper}
            used = {machines[rank] for rank in others}
            for rank in range(len(machines)):
                near = machines[rank] in used and machines[keeper] not in used
                if rank not in others and load[rank] < load[keeper] - 1 and not near:
                    keepers[place] = rank
                    load[rank] += 1
                    load[keeper] -= 1
                    return True
    return False
