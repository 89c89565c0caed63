"""Ranks prove to each other that they know the secret of checkpoints."""

import dataclasses
import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pool as pools
import pytest
from train.alone import EventDict, free_port, record_into
from train.at_once import at_once
from train.jobs import make_job

from skippipe.checkpoint.key import load_key
from skippipe.errors import InputError
from skippipe.train.config import TrainJob
from skippipe.train.connect.authentication import authenticate
from skippipe.train.connect.rank_spec import Launcher, RankSpec
from skippipe.train.connect.rendezvous import Rendezvous
from skippipe.train.connect.store import RendezvousError
from skippipe.train.rank import train_rank
from skippipe.train.resolve.resolve import resolve

NAMES = [("a",), ("b", "c"), ("d",)]


class Talking(Rendezvous):
    """Ranks that exchange texts within this process; `texts` holds them by key."""

    texts: Any

    def publish(self, key: str, text: str) -> None:
        with TOLD:
            self.texts[f"{key}/{self.rank}"] = text
            TOLD.notify_all()

    def receive(self, key: str, rank: int, extra_s: float = 0.0) -> str:
        with TOLD:
            if not TOLD.wait_for(lambda: f"{key}/{rank}" in self.texts, 5.0 + extra_s):
                raise RendezvousError(f"rank {rank} says nothing")
            return str(self.texts[f"{key}/{rank}"])


TOLD = threading.Condition()


class Texts(dict[str, str]):
    """By key; knows the secrets that ranks have sealed them with."""

    def __init__(self) -> None:
        super().__init__()
        self.secrets: list[bytes] = []

    def seal(self, secret: bytes) -> None:
        self.secrets.append(secret)


def three_ranks(store: Any = None, *, local: bool = False) -> list[Rendezvous]:
    """Three ranks with a store between them, and no process group."""
    texts: Any = Texts() if store is None else store
    group: Any = None
    return [
        Talking(
            RankSpec(r, 3, NAMES[r], "host", 1, launcher=Launcher.LOCAL if local else Launcher.TORCHRUN),
            NAMES,
            texts,
            group,
            5.0,
        )
        for r in range(3)
    ]


def together(ranks: list[Callable[[], object]]) -> list[str | None]:
    """Have all ranks act at the same time; what each of them raises."""
    got = at_once(*ranks)
    assert not [
        result
        for result in got
        if isinstance(result, Exception) and not isinstance(result, (InputError, RendezvousError))
    ]
    return [str(result) if isinstance(result, Exception) else None for result in got]


def prove(rendezvous: Rendezvous, key: str | None) -> Callable[[], None]:
    return lambda: authenticate(rendezvous, key)


@pytest.fixture
def key(tmp_path: Path) -> Callable[[str], str]:
    """Write a secret into a file of its own for each call."""
    count = iter(range(100))

    def call(secret: str) -> str:
        path = tmp_path / f"key-{next(count)}"
        path.write_text(f"{secret}, long enough\n")
        path.chmod(0o600)
        return str(path)

    return call


def test_all_ranks_know_it(key: Callable[[str], str]) -> None:
    ranks = three_ranks()
    assert together([prove(rendezvous, key("the same secret")) for rendezvous in ranks]) == [None] * 3
    reported = [ranks[0].receive("proofs", rank) for rank in range(3)]
    assert len(set(reported)) == 3, "nobody can pass on another's answer as his own"
    again = three_ranks()
    assert together([prove(rendezvous, key("the same secret")) for rendezvous in again]) == [None] * 3
    assert not {again[0].receive("proofs", rank) for rank in range(3)} & set(reported), "nor one of another meeting"
    secrets = [set(meeting[0].texts.secrets) for meeting in (ranks, again)]  # type: ignore[attr-defined]
    assert [len(shared) for shared in secrets] == [1, 1], "all ranks seal with the same secret"
    assert not secrets[0] & secrets[1]
    assert not {secret.hex() for secret in secrets[0]} & set(reported), "which nobody has published"


@pytest.mark.parametrize("wrong", [0, 1, 2])
def test_one_has_another(wrong: int, key: Callable[[str], str]) -> None:
    keys = [key("another" if rank == wrong else "the same") for rank in range(3)]
    got = together([prove(rendezvous, keys[rendezvous.rank]) for rendezvous in three_ranks()])
    named = wrong or 1
    title = {1: "node b, c (rank 1)", 2: "node d (rank 2)"}
    for rank, message in enumerate(got):
        assert message is not None
        other = rank if wrong == 0 and rank else named
        assert message == (
            f"checkpoint.key: expected that of node a (rank 0), got another secret on {title[other]}; copy {keys[0]} "
            f"of rank 0 to {keys[other]} of rank {other} (readable by its owner alone: chmod 600), or give all nodes "
            "the same file by checkpoint.key=FILE"
        )


@pytest.mark.parametrize("nonce", ["replayed", "{}", '{"path": "\\u001b[2J"}', "[" * 100_000, '{"path": 5}'])
def test_somebody_without_it(nonce: str, key: Callable[[str], str]) -> None:
    """One that has listened to another meeting, and one that says nonsense."""
    before = three_ranks()
    assert together([prove(rendezvous, key("the secret")) for rendezvous in before]) == [None] * 3
    ranks = three_ranks()

    def stranger() -> None:
        ranks[2].publish("nonces", before[0].receive("nonces", 2) if nonce == "replayed" else nonce)
        ranks[2].publish("proofs", before[0].receive("proofs", 2))
        ranks[2].publish("proofs read", "")

    got = together([prove(ranks[0], key("the secret")), prove(ranks[1], key("the secret")), stranger])
    for message in got[:2]:
        assert message is not None
        assert message.startswith(
            "checkpoint.key: expected that of node a (rank 0), got another secret on node d (rank 2);"
        )
        assert message.isprintable()


def test_a_store_that_turns_back_the_clock(key: Callable[[str], str]) -> None:
    """Old numbers of all ranks would make old answers right."""
    texts = Texts()
    assert together([prove(rendezvous, key("the secret")) for rendezvous in three_ranks(texts)]) == [None] * 3

    class Forged(Texts):
        def __setitem__(self, key: str, value: str) -> None:
            pass

    forged = Forged()
    forged.update(texts)
    (message,) = together([prove(three_ranks(forged)[0], key("the secret"))])
    assert message is not None
    assert "another text than this rank has published" in message


def rank_of_a_job(rank: int, job: TrainJob, keys: list[str], folder: Path, port: int) -> list[EventDict]:
    """In a warm worker: train as a rank that torchrun has started, with a secret of its own."""
    reported: list[EventDict] = []
    pools.leave()
    spec = resolve(dataclasses.replace(job, checkpoint=dataclasses.replace(job.checkpoint, key=keys[rank])))
    names = tuple(spec.layout.cluster.names)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASTER_ADDR", "127.0.0.1")
        patch.setenv("MASTER_PORT", str(port))
        train_rank(spec, RankSpec(rank, 2, names[rank::2], "127.0.0.1", port), folder, record_into(reported))
    pools.join(rank, 2, str(folder / f"back-{port}"))
    return reported


def test_real_ranks(key: Callable[[str], str], pool: pools.Pool, tmp_path: Path) -> None:
    job = make_job(train__iterations=1, train__validate_every=None)
    for number, secrets in enumerate([["the same", "the same"], ["one", "another"]]):
        keys, port, folder = [key(secret) for secret in secrets], free_port(), tmp_path / str(number)
        folder.mkdir()
        got = pool.attempt(rank_of_a_job, [(job, keys, folder, port)] * 2)
        if secrets[0] == secrets[1]:
            assert got[0][-1]["event"] == "summary"
            continue
        for result in got:
            assert isinstance(result, pools.Failure)
            assert result.kind == "InputError"
            assert result.message.startswith("checkpoint.key: expected that of node local-0")
            assert ", got another secret on node local-1, local-3 (rank 1); " in result.message
        assert not list(folder.iterdir()), "before anything is written"


def test_none_is_needed_on_one_machine(tmp_path: Path) -> None:
    missing = str(tmp_path / "nothing")
    assert together([prove(rendezvous, missing) for rendezvous in three_ranks(local=True)]) == [None] * 3
    group: Any = None
    nothing: Any = None
    alone = Rendezvous(RankSpec(0, 1, ("a",), "host", 1), [("a",)], nothing, group, 1.0)
    authenticate(alone, missing)


def test_the_secret_itself_is_never_told(key: Callable[[str], str]) -> None:
    ranks = three_ranks()
    path = key("the secret")
    assert together([prove(rendezvous, path) for rendezvous in ranks]) == [None] * 3
    reported = json.dumps([ranks[0].receive(name, rank) for name in ("nonces", "proofs") for rank in range(3)])
    assert load_key(path).decode() not in reported
