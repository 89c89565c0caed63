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
from collections.abc import Sequence

from skippipe.checkpoint.key import default_path, load_key
from skippipe.errors import unexpected
from skippipe.ranks import node_title
from skippipe.train.connect.rank_spec import Launcher
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.connect.seal import ForgedTextError, Seal
from skippipe.train.connect.store import RendezvousError, StoreClient

PURPOSE = "skippipe.proof/1"
"""Separates these hashes from those of manifests, which use the same secret."""
KEY, SESSION, NONCES = "checkpoint.key", "session", "nonces"
SETTINGS = "settings"
"""Key under which all ranks then state what has to be equal."""
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
    stated = rendezvous.all_gather(NONCES, mine)
    if stated[rendezvous.rank] != mine:  # else old proofs would do for old nonces
        raise RendezvousError("the rendezvous returns another text than this rank has published")
    transcript = _transcript(rendezvous.names_by_rank, stated)
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
        raise unexpected(KEY, found, expected, hint=_advice(_path(stated[0]), _path(stated[other]), f"rank {other}"))
    rendezvous.texts.seal(_keyed(secret, transcript, SESSION))


def seal_of_attempt(client: StoreClient, attempt: str, names_by_rank: Sequence[Sequence[str]], key: str | None) -> Seal:
    """The seal of an attempt that is under way, for a process that asks to join: the same secret gives the same seal.

    Nothing is proved by that: whoever then writes a text that the ranks can open has proved itself, and so have they.

    Args:
        client: the store.
        attempt: its name.
        names_by_rank: of its nodes, as it began.
        key: the file with the secret, `checkpoint.key`; None: the user's own.

    Raises:
        InputError: this process has another secret.
        RendezvousError: the store is gone.

    """
    secret, path = load_key(key), key or str(default_path())
    found = [client.get(f"{attempt}/{NONCES}/{rank}") for rank in range(len(names_by_rank))]
    stated = [text or "" for text in found]
    seal = Seal(_keyed(secret, _transcript(names_by_rank, stated), SESSION), attempt)
    sealed = f"{attempt}/{SETTINGS}/0"  # the first text that is
    stored = client.get(sealed)
    try:
        seal.open(sealed, stored or "")
    except ForgedTextError:
        expected, hint = f"that of {node_title(names_by_rank[0], 0)}", _advice(_path(stated[0]), path, "this machine")
        raise unexpected(KEY, f"another secret in {path}", expected, hint=hint) from None
    return seal


def _transcript(names_by_rank: Sequence[Sequence[str]], stated: Sequence[str]) -> str:
    return json.dumps([PURPOSE, names_by_rank, stated])


def _advice(theirs: str, own: str, machine: str) -> str:
    return (
        f"copy {theirs} of rank 0 to {own} of {machine} (readable by its owner alone: chmod 600), or give all nodes "
        "the same file by checkpoint.key=FILE"
    )


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
