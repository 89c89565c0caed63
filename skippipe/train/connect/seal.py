"""Texts in the store, sealed: each with a keyed hash that only a rank which has proved itself can compute."""

import hashlib
import hmac
from dataclasses import dataclass

from skippipe.train.connect.activity import is_open_key
from skippipe.train.connect.store import RendezvousError

HASH_LENGTH = hashlib.sha256().digest_size * 2
LONGEST_TEXT = 2**28
"""Characters of a text that is read: a plan for a thousand nodes has some millions."""


class ForgedTextError(RendezvousError):
    """The store holds a text that no rank of this job has written."""


@dataclass(frozen=True)
class Seal:
    """Seals texts under the keys of an attempt, but for those that are written or read by processes other than ranks.

    The hash is over key and text, so a text does for no other key; the secret belongs to one attempt, so an old text
    does not do for a new attempt. Of one key an older text may be shown again, which is no worse than showing none.
    """

    secret: bytes
    attempt: str

    def seal(self, key: str, text: str) -> str:
        """The text as it is stored under a key."""
        return f"{self._hash(key, text)}{text}" if self._covers(key) else text

    def open(self, key: str, stored: str) -> str:
        """The text that is stored under a key.

        Raises:
            ForgedTextError: no holder of the secret has written it.

        """
        if not self._covers(key):
            return stored
        found, text = stored[:HASH_LENGTH], stored[HASH_LENGTH:]
        if len(text) > LONGEST_TEXT or not hmac.compare_digest(found.encode(), self._hash(key, text).encode()):
            raise ForgedTextError(f"the rendezvous holds a text that no rank of this job has written ({key})")
        return text

    def _covers(self, key: str) -> bool:
        return key.startswith(f"{self.attempt}/") and not is_open_key(self.attempt, key)

    def _hash(self, key: str, text: str) -> str:
        return hmac.new(self.secret, f"{len(key)} {key}{text}".encode(), hashlib.sha256).hexdigest()
