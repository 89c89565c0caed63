"""Messages in every number type of the wire."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from skippipe.devices import WIRE_DTYPES, wire_bytes
from skippipe.runtime.message import MessageSpec

RELATIVE_ERROR = {
    "float64": 0.0, "float32": 0.0, "float16": 2**-11, "bfloat16": 2**-8, "float8_e4m3fn": 2**-4, "int8": None,
}  # fmt: skip
"""Half a unit in the last place; int8 has steps of equal size."""


def spec(wire: str, hidden: int = 24) -> MessageSpec:
    return MessageSpec(2, 3, hidden, torch.float32, wire_dtype=getattr(torch, wire))


def encoded(message_spec: MessageSpec, hidden: torch.Tensor) -> torch.Tensor:
    """A payload, in a buffer that held another."""
    payload = message_spec.empty_payload()
    payload.view(torch.uint8).fill_(85)
    message_spec.encode(hidden, payload)
    return payload


@pytest.mark.parametrize("wire", WIRE_DTYPES)
@given(seed=st.integers(0, 2**32), exponent=st.integers(-12, 3))
def test_what_arrives_is_within_half_a_step(wire: str, seed: int, exponent: int) -> None:
    message_spec = spec(wire)
    hidden = torch.randn(message_spec.shape, generator=torch.Generator().manual_seed(seed)) * 2.0**exponent
    payload = encoded(message_spec, hidden)
    assert payload.is_contiguous()
    assert payload.nbytes == message_spec.payload_bytes == 6 * wire_bytes(wire, 24)
    decoded = message_spec.decode(payload)
    payload.zero_()  # the buffer is used again
    assert decoded.dtype == torch.float32
    largest = hidden.abs().amax(-1, keepdim=True)
    relative = RELATIVE_ERROR[wire]
    # Below the normal range of the type, steps no longer shrink with the number.
    allowed = largest / 254 if relative is None else hidden.abs() * relative + largest * 2**-15 * (relative > 0)
    assert ((decoded - hidden).abs() <= allowed * 1.001 + (2**-25 if wire == "float16" else 0)).all()


@pytest.mark.parametrize("wire", WIRE_DTYPES)
def test_zeros_stay_zeros(wire: str) -> None:
    message_spec = spec(wire)
    assert not message_spec.decode(encoded(message_spec, torch.zeros(message_spec.shape))).any()


@pytest.mark.parametrize("wire", ["int8", "float8_e4m3fn"])
@pytest.mark.parametrize("bad", [float("inf"), float("nan")])
def test_what_is_not_finite_is_not_hidden(wire: str, bad: float) -> None:
    message_spec = spec(wire)
    hidden = torch.ones(message_spec.shape)
    hidden[1, 2, 3] = bad
    decoded = message_spec.decode(encoded(message_spec, hidden))
    assert not decoded[1, 2].isfinite().all()
    assert decoded[0].isfinite().all()


@pytest.mark.parametrize("wire", ["int8", "float8_e4m3fn"])
def test_a_token_with_a_large_number_does_not_cost_the_others_their_precision(wire: str) -> None:
    message_spec = spec(wire)
    hidden = torch.full(message_spec.shape, 0.01)
    hidden[0, 0, 0] = 1000.0
    decoded = message_spec.decode(encoded(message_spec, hidden))
    torch.testing.assert_close(decoded[0, 1:], hidden[0, 1:], rtol=1e-6, atol=0)


def test_another_shape_is_refused() -> None:
    with pytest.raises(ValueError, match=r"result: expected shape \(2, 3, 24\), got \(2, 3, 5\)"):
        encoded(spec("float32"), torch.zeros(2, 3, 5))
