"""Ranks that meet prove to each other that they know the secret that checkpoints are signed with, without telling it.

Nothing of the rendezvous is encrypted or authenticated by torch: whoever reaches its port can take the place of a
rank. Here each rank draws a number, and answers with a keyed hash over the numbers of all ranks, which nobody else can
compute, and which is of no use in any other meeting. What is sent later is not protected by it.
"""

import contextlib
import hashlib
import hmac
import json
import secrets

from skippipe.checkpoint.key import default_path, load_key
from skippipe.errors import InputError
from skippipe.train.rendezvous import MeetingError
from skippipe.train.team import Team

PURPOSE = "skippipe.proof/1"
"""keeps these hashes apart from those of manifests, which are made with the same secret"""
LONGEST_PATH = 300


def prove_key(team: Team, key: str | None) -> None:
    """Prove to all ranks that this one knows the secret, and have all prove it.

    The processes that `skippipe train` starts itself are of one user on one machine, and skip it.

    Args:
        team: all ranks, met.
        key: the file with the secret, `checkpoint.key`; None: the user's own.

    Raises:
        InputError: a rank has another secret than rank 0; the message names it, and both files.
        MeetingError: a rank did not answer, or the store does not keep what it is told.

    """
    if team.place.local or team.world == 1:
        return
    secret, path = load_key(key), key or str(default_path())
    mine = json.dumps({"nonce": secrets.token_hex(32), "path": path})
    stated = team.exchange("nonces", mine)
    if stated[team.rank] != mine:  # else old answers would do for old numbers
        raise MeetingError("the rendezvous gives back other text than this rank has told it: expected its own")
    meeting = json.dumps([PURPOSE, team.names_by_rank, stated])
    proofs = team.exchange("proofs", _proof(secret, meeting, team.rank))
    wrong = [
        rank
        for rank, proof in enumerate(proofs)
        if not hmac.compare_digest(proof.encode(), _proof(secret, meeting, rank).encode())
    ]
    with contextlib.suppress(MeetingError):
        team.exchange("proved", "")  # nobody leaves, and takes the store along, before all have read
    if wrong:
        other = team.rank if wrong[0] == 0 else wrong[0]  # rank 0 is the one to compare with
        raise InputError(
            f"{team.title(other)}: expected the checkpoint.key of {team.title(0)}, got another secret; copy "
            f"{_path(stated[0])} of rank 0 to {_path(stated[other])} of rank {other} (readable by its owner alone: "
            "chmod 600), or give all nodes the same file by checkpoint.key=FILE"
        )


def _proof(secret: bytes, meeting: str, rank: int) -> str:
    """What only a rank that knows the secret can answer in this meeting, and only as this rank."""
    return hmac.new(
        secret, f"{hashlib.sha256(meeting.encode()).hexdigest()} {rank}".encode(), hashlib.sha256
    ).hexdigest()


def _path(stated: str) -> str:
    """Where a rank says that its secret lies; as it may be anybody's, only what can be shown."""
    try:
        path = json.loads(stated)["path"]
    except (ValueError, TypeError, KeyError, RecursionError):
        path = None
    if isinstance(path, str) and path.isprintable() and len(path) <= LONGEST_PATH:
        return path
    return "the file of checkpoint.key"
