"""Signs of life in the store: of the ranks of an attempt, for themselves and for whoever waits for its end.

Ranks go by their number at the start of the attempt, which stays when others are lost; those that join it have the
numbers after these, in the order in which they have asked. Such a number is a *member*.
"""

import json
import time

from skippipe.train.connect.store import StoreClient

IN_ORDER = "in order"
BEAT, AWAY = "beat", "away"
"""Parts of keys that each rank has of its own."""


def presence_key(rank: int) -> str:
    """Key of what the latest process of a rank has published about itself (`skippipe.train.connect.attempt`)."""
    return f"here/{rank}"


def beat_key(attempt: str, rank: int) -> str:
    """Key of the counter by which a rank shows that it lives."""
    return f"{attempt}/{BEAT}/{rank}"


def died_key(attempt: str) -> str:
    """Key under which the parents of ranks list those that have died."""
    return f"{attempt}/died"


def excluded_key(attempt: str) -> str:
    """Key under which a rank says which others are taken for lost, and why."""
    return f"{attempt}/excluded"


def ranks_key(attempt: str) -> str:
    """Key of the ranks with which an attempt has begun."""
    return f"{attempt}/ranks"


def knocks_key(attempt: str) -> str:
    """Key of the number of processes that have asked to join an attempt."""
    return f"{attempt}/knocks"


def admitted_key(attempt: str) -> str:
    """Key under which those that have joined an attempt list themselves."""
    return f"{attempt}/admitted"


def admitted(client: StoreClient, attempt: str) -> dict[int, str]:
    """Members that have joined an attempt since its start, with the tokens of their processes."""
    entries = (entry.split("@") for entry in (client.get(admitted_key(attempt)) or "").split())
    return {int(member): token for member, token in entries}


def announce_admission(client: StoreClient, attempt: str, member: int, token: str) -> None:
    """List a process among those that have joined an attempt."""
    client.append(admitted_key(attempt), f"{member}@{token} ")


def ranks_that_died(client: StoreClient, attempt: str) -> frozenset[int]:
    """Ranks of an attempt that are known to have died."""
    return frozenset(map(int, (client.get(died_key(attempt)) or "").split()))


def announce_death(client: StoreClient, rank: int, process_token: str) -> None:
    """List a process among those of the open attempt that have died, if it takes part in it: else nobody waits for it.

    Args:
        client: the store.
        rank: with which the process was started.
        process_token: its own; the open attempt may be a later one, of other processes.

    """
    attempt = client.get("attempt")
    if attempt is None:
        return
    text = client.get(presence_key(rank))
    token, takes_part_in, *_ = ("", None) if text is None else json.loads(text)
    present = {rank: token} if takes_part_in == attempt else {}
    for member, token in (present | admitted(client, attempt)).items():
        if token.startswith(f"{process_token}."):
            announce_member_lost(client, attempt, member)


def failure_key(attempt: str, member: int) -> str:
    """Key under which a member without which the others go on says what it has failed by."""
    return f"{attempt}/failed/{member}"


def announce_failure(client: StoreClient, attempt: str, member: int, reason: str) -> None:
    """List a member among those that have died, and say by which error of its own."""
    client.set(failure_key(attempt, member), reason)
    announce_member_lost(client, attempt, member)


def announce_member_lost(client: StoreClient, attempt: str, member: int) -> None:
    """List a member of an attempt among those that have died."""
    client.append(died_key(attempt), f"{member} ")


def announce_leaving(client: StoreClient, attempt: str, rank: int, *, in_order: bool) -> None:
    """Say that a rank needs the store no more: since the run has ended `in_order`, or for an error."""
    client.set(_left_key(attempt, rank), IN_ORDER if in_order else "")


def is_open_key(attempt: str, key: str) -> bool:
    """Whether processes other than ranks, which prove nothing, read or write what is stored under a key."""
    named = {ranks_key(attempt), died_key(attempt), knocks_key(attempt), admitted_key(attempt)}
    return key in named or key.startswith((f"{attempt}/{BEAT}/", f"{attempt}/{AWAY}/"))


class Activity:
    """Whether ranks of the open attempt may still train, as seen by a process that does not."""

    def __init__(self, client: StoreClient, silence_s: float) -> None:
        """Take ranks for lost that show no sign of life for `silence_s`."""
        self._client, self._silence_s = client, silence_s
        self._beats: list[str | None] = []
        self.ended_in_order = False
        """whether the run has ended in order, as far as the latest look has shown"""
        self._changed_at = time.monotonic()

    def is_over(self) -> bool:
        """Look; true once no rank is left that may go on. To be called again and again."""
        attempt = self._client.get("attempt")
        joined = None if attempt is None else self._client.get(ranks_key(attempt))
        if attempt is None or joined is None:
            return True  # all that have come still wait for the others
        tokens = [presence[0] for presence in json.loads(joined)]
        failed = self._client.get("left")
        if failed is not None and not set(tokens).isdisjoint(json.loads(failed)["tokens"]):
            return True
        dead = ranks_that_died(self._client, attempt)
        everybody = [*range(len(tokens)), *admitted(self._client, attempt)]
        ranks = [rank for rank in everybody if rank not in dead]
        away = {rank: self._client.get(_left_key(attempt, rank)) for rank in ranks}
        self.ended_in_order = IN_ORDER in away.values()
        ranks = [rank for rank, left in away.items() if left is None]
        beats = [self._client.get(beat_key(attempt, rank)) for rank in ranks]
        if beats != self._beats:
            self._beats, self._changed_at = beats, time.monotonic()
        return not ranks or time.monotonic() - self._changed_at > self._silence_s


def _left_key(attempt: str, rank: int) -> str:
    return f"{attempt}/{AWAY}/{rank}"
