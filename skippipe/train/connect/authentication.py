"""Ranks authenticate each other: each proves that it knows the secret that checkpoints are signed with.

torch neither encrypts nor authenticates a rendezvous: whoever reaches its port can impersonate a rank. Here each
rank draws a nonce, and answers with a keyed hash over the nonces of all ranks, which only a holder of the secret can
compute and which is useless in any other run. From then on the texts that ranks exchange through the store are sealed
(`seal.py`); the connections of Gloo and NCCL are not protected.
"""

import hashlib
import hmac
import json
import secrets

from skippipe.checkpoint.key import default_path, load_key
from skippipe.errors import unexpected
from skippipe.train.connect.rank_spec import Launcher
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.connect.store import RendezvousError

PURPOSE = "skippipe.proof/1"
"""Separates these hashes from those of manifests, which use the same secret."""
LONGEST_PATH = 300


def authenticate(rendezvous: Rendezvous, key: str | None) -> None:
    """Prove to all ranks that this one knows the secret, have all prove it, and seal what they store from here on.

    Processes that `skippipe train` starts itself belong to one user on one machine, and skip this.

    Args:
        rendezvous: all ranks.
        key: the file with the secret, `checkpoint.key`; None: the user's own.

    Raises:
        InputError: a rank has another secret than rank 0; the message names it, and both files.
        RendezvousError: a rank did not answer, or the store does not keep what is published.

    """
    if rendezvous.rank_spec.launcher is Launcher.LOCAL or rendezvous.world == 1:
        return
    secret, path = load_key(key), key or str(default_path())
    mine = json.dumps({"nonce": secrets.token_hex(32), "path": path})
    stated = rendezvous.all_gather("nonces", mine)
    if stated[rendezvous.rank] != mine:  # else old proofs would do for old nonces
        raise RendezvousError("the rendezvous returns another text than this rank has published")
    transcript = json.dumps([PURPOSE, rendezvous.names_by_rank, stated])
    proofs = rendezvous.all_gather("proofs", _keyed(secret, transcript, str(rendezvous.rank)).hex())
    wrong = [
        rank
        for rank, proof in enumerate(proofs)
        if not hmac.compare_digest(proof.encode(), _keyed(secret, transcript, str(rank)).hex().encode())
    ]
    if wrong:
        rendezvous.await_readers("proofs")
        other = rendezvous.rank if wrong[0] == 0 else wrong[0]  # rank 0 is the one to compare with
        expected, found = f"that of {rendezvous.title(0)}", f"another secret on {rendezvous.title(other)}"
        hint = (
            f"copy {_path(stated[0])} of rank 0 to {_path(stated[other])} of rank {other} (readable by its owner "
            "alone: chmod 600), or give all nodes the same file by checkpoint.key=FILE"
        )
        raise unexpected("checkpoint.key", found, expected, hint=hint)
    rendezvous.texts.seal(_keyed(secret, transcript, "session"))


def _keyed(secret: bytes, transcript: str, purpose: str) -> bytes:
    """What only a holder of the secret can compute, in this run and for this purpose: as the answer of a rank."""
    text = f"{hashlib.sha256(transcript.encode()).hexdigest()} {purpose}"
    return hmac.new(secret, text.encode(), hashlib.sha256).digest()


def _path(stated: str) -> str:
    """Path of a rank's secret as it states it, if it is printable: anybody may have sent it."""
    try:
        path = json.loads(stated)["path"]
    except (ValueError, TypeError, KeyError, RecursionError):
        path = None
    if isinstance(path, str) and path.isprintable() and len(path) <= LONGEST_PATH:
        return path
    return "the file of checkpoint.key"
