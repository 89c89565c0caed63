"""Agreement of those that are left on who goes on: one text in the store, which the first to propose one decides.

There is one store, outside of all ranks, and it keeps the first proposal: two groups of ranks cannot both go on.
Whoever cannot reach the store, or is not in the text, stops.
"""

import json
import time
from collections.abc import Collection, Sequence

from skippipe.train.connect.attempt import LeftBehindError
from skippipe.train.connect.store import LEAST_PAUSE_S, MOST_PAUSE_S, StoreClient, reached
from skippipe.train.membership.heartbeat import Monitor, call_key

LEFT = "the other ranks have gone on without this one"


def decision_key(attempt: str, generation: int) -> str:
    """Key of the members of a generation, as they were agreed on."""
    return f"{call_key(attempt, generation)}/decided"


def agree(  # noqa: PLR0913 - by keyword
    client: StoreClient,
    monitor: Monitor,
    *,
    generation: int,
    members: Collection[int],
    own: int,
    standing: str,
    patience_s: float,
    newcomers: Sequence[int] = (),
) -> dict[int, str]:
    """Call all members to a generation, and agree with those that come on who they are.

    Args:
        client: the store.
        monitor: knows who is lost.
        generation: the next one.
        members: of the generation before.
        own: this member.
        standing: what the others have to know of it.
        patience_s: how long a member that lives may take to come; then it is left behind.
        newcomers: whom the members have agreed to admit; nobody waits for them.

    Returns:
        The standings of those that go on, by member; empty ones of those that join.

    Raises:
        LeftBehindError: this member is not one of them.
        RendezvousError: the store is gone.

    """
    key = call_key(monitor.attempt, generation)
    with reached():
        client.set(f"{key}/{own}", standing)
        client.set(key, "")
        deadline, pause_s = time.monotonic() + patience_s, LEAST_PAUSE_S
        while True:
            decided = client.get(decision_key(monitor.attempt, generation))
            if decided is None:
                excluded = monitor.excluded(client)
                if own in excluded:
                    raise LeftBehindError(f"{LEFT}: {excluded[own]}")
                here = [m for m in sorted(members) if m not in excluded and client.get(f"{key}/{m}") is not None]
                missing = set(members) - set(here) - set(excluded) - monitor.lost_among(members)
                if not missing or time.monotonic() > deadline:
                    # One that came and died since is found missing when the others connect.
                    decided = client.propose(decision_key(monitor.attempt, generation), json.dumps([*here, *newcomers]))
            if decided is not None:
                break
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, MOST_PAUSE_S)
        chosen: list[int] = json.loads(decided)
        if own not in chosen:
            reason = monitor.excluded(client).get(own, "they took it for lost")
            raise LeftBehindError(f"{LEFT}: {reason}")
        return {member: client.get(f"{key}/{member}") or "" for member in chosen}
