"""JSON messages between ranks: limited in size and validated."""

import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from pool import Failure, Pool
from torch import distributed as dist

from skippipe.checkpoint.exchange import LIMIT_BYTES, ExchangeError, gather_json


def world() -> dist.ProcessGroup:
    group = dist.group.WORLD
    assert group is not None
    return group


def gather(rank: int, value: Any) -> list[Any]:
    """In a warm worker: gather a value of every rank."""
    del rank
    return gather_json(value, world())


def test_gather_json_gives_all_values_by_rank(pool: Pool) -> None:
    values = [{"a": [1, 2.5, None]}, "é" * 5000, []]
    assert pool.run(gather, [(value,) for value in values]) == [values] * 3
    assert pool.run(gather, [(None,)]) == [[None]]


def test_a_message_above_the_limit_is_refused(pool: Pool) -> None:
    results = pool.attempt(gather, [("x",), ("x" * LIMIT_BYTES,)])
    assert [(r.kind, r.message) for r in results] == [
        ("ExchangeError", f"rank 1: expected at most {LIMIT_BYTES} bytes, got {LIMIT_BYTES + 2}")
    ] * 2


class Malice:
    """Unpickling it leaves a trace."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


def send_raw(rank: int, texts: list[bytes | None], length: int | None) -> list[Any]:
    """In a warm worker: say bytes that are no JSON, as somebody would who has joined the group; None: play fair."""
    text = texts[rank]
    if text is None:
        return gather_json("fair", world())
    counts = [torch.zeros(1, dtype=torch.int64) for _ in texts]
    dist.all_gather(counts, torch.tensor([len(text) if length is None else length]))
    if length is not None:
        return []
    longest = max(int(count) for count in counts)
    parts = [torch.zeros(longest, dtype=torch.uint8) for _ in texts]
    dist.all_gather(parts, torch.frombuffer(bytearray(text.ljust(longest)), dtype=torch.uint8))
    return []


@pytest.mark.parametrize("text", ["pickle", b"{", b"\xff\xfe", b"[" * 100_000, b""])
def test_invalid_json_is_refused_and_not_executed(text: bytes | str, pool: Pool, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    records = pickle.dumps(Malice(trace)) if isinstance(text, str) else text
    texts = [None, records, None]
    results = pool.attempt(send_raw, [(texts, None)] * 3)
    for result in (results[0], results[2]):
        assert isinstance(result, Failure)
        assert result.kind == ExchangeError.__name__
        assert result.message.startswith("rank 1: expected JSON, got b")
    assert not trace.exists()
    pickle.loads(pickle.dumps(Malice(trace)))
    assert trace.exists()


@pytest.mark.parametrize("length", [-1, 2**62])
def test_an_excessive_length_is_refused(length: int, pool: Pool) -> None:
    results = pool.attempt(send_raw, [([None, b"x"], length)] * 2)
    assert results[0].message == f"rank 1: expected at most {LIMIT_BYTES} bytes, got {length}"
