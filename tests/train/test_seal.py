"""Texts in the store of a job that others have changed are not read."""

import contextlib
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch import distributed as dist

from skippipe.train.connect.activity import announce_death, announce_leaving, beat_key, presence_key, ranks_that_died
from skippipe.train.connect.seal import HASH_LENGTH, ForgedTextError, Seal
from skippipe.train.connect.store import StoreClient

SEAL = Seal(b"the secret", "a")
KEYS = st.text(st.characters(codec="utf-8"), max_size=20).map(lambda text: f"a/{text}")
TEXTS = st.text(st.characters(codec="utf-8"), max_size=50)
Connect = Callable[[Seal | None], StoreClient]


@pytest.fixture
def connect() -> Iterator[Connect]:
    """Connect to one store, with a seal or without."""
    with contextlib.ExitStack() as stack:
        store: Any = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]

        def call(seal: Seal | None) -> StoreClient:
            client = StoreClient(lambda: dist.TCPStore("127.0.0.1", store.port, wait_for_workers=False), 5.0)  # type: ignore[attr-defined]
            stack.enter_context(contextlib.closing(client))
            client.seal = client.seal if seal is None else seal
            return client

        yield call


@given(KEYS, TEXTS)
def test_a_text_is_read_as_written(key: str, text: str) -> None:
    assert SEAL.open(key, SEAL.seal(key, text)) == text


@given(KEYS, KEYS, TEXTS, TEXTS, st.binary(max_size=10))
def test_nothing_else_is_read(key: str, other: str, text: str, forged: str, secret: bytes) -> None:
    """Not under another key, not changed, not sealed with another secret, not for another attempt."""
    stored = SEAL.seal(key, text)
    if other != key:
        with pytest.raises(ForgedTextError):
            SEAL.open(other, stored)
    if forged != text:
        with pytest.raises(ForgedTextError):
            SEAL.open(key, stored[:HASH_LENGTH] + forged)
    for unsealed in (text, Seal(secret, "a").seal(key, text), ""):
        with pytest.raises(ForgedTextError):
            SEAL.open(key, unsealed)


def test_ranks_talk_and_strangers_are_not_heard(connect: Connect) -> None:
    one, other, stranger = connect(SEAL), connect(SEAL), connect(None)
    one.set("a/plan", "routes")
    assert other.get("a/plan") == "routes"
    assert other.propose("a/decided", "[0, 1]") == one.propose("a/decided", "[0]") == "[0, 1]"
    assert other.get_all(["a/plan", "a/decided"]) == ["routes", "[0, 1]"]
    stranger.set("a/plan", "other routes")
    with pytest.raises(ForgedTextError, match=r"a text that no rank of this job has written \(a/plan\)"):
        one.get("a/plan")
    stranger.set("a/plan", stranger.get("a/decided") or "")
    with pytest.raises(ForgedTextError):
        one.get_all(["a/decided", "a/plan"])
    assert stranger.propose("a/next", "[7]") == "[7]"
    with pytest.raises(ForgedTextError):
        one.propose("a/next", "[0]")


def test_what_is_not_of_the_ranks_is_open(connect: Connect) -> None:
    """Signs of life, deaths and the begin of an attempt, which parents, services and newcomers read and write."""
    rank, service = connect(SEAL), connect(None)
    service.set("attempt", "a")
    assert rank.get("attempt") == "a"
    rank.set(beat_key("a", 3), "17")
    assert service.get(beat_key("a", 3)) == "17"
    service.set(presence_key(2), json.dumps(["process.token", "a", ["n"], "", None]))
    announce_death(service, 2, "process")
    assert ranks_that_died(rank, "a") == {2}
    announce_leaving(rank, "a", 0, in_order=False)
    assert service.get("a/away/0") == ""
