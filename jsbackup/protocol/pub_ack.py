"""The answer of a stream to a message that was published to it."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.errors import ApiError
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields, read_object

__all__ = ["PubAck", "decode_ack"]


@dataclass(frozen=True, slots=True)
class PubAck:
    """`stream` has the message as `sequence`. With `duplicate` it had stored one with the same message id before."""

    stream: str
    sequence: int
    duplicate: bool


def decode_ack(payload: bytes, subject: str) -> PubAck:
    """Decode the answer to a message on `subject`. Raises ApiError if it was not stored, and FormatError."""
    what = one_line(f"answer to a message on {subject}", 200)
    answer = Fields(read_object(payload, what), what)
    if (error := answer.optional("error")) is not None:
        text = one_line(error.text("description", "")) or "no description"
        err_code = error.number("err_code", default=0)
        raise ApiError(f"{text} ({err_code})", code=error.number("code", default=0), err_code=err_code)
    return PubAck(answer.name("stream"), answer.number("seq", low=1), answer.flag("duplicate"))
