from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats.header_block import exchange, fields

BLOCK = b"NATS/1.0 503 No\r\nA: x\r\nB:y \t\r\na:\r\nA:  z:z\r\n\r\n"


def values(block: bytes) -> list[tuple[bytes, bytes]]:
    return [(name, block[start:stop]) for name, start, stop in fields(block)]


def test_fields_are_found_without_the_space_around_them() -> None:
    assert values(BLOCK) == [(b"A", b"x"), (b"B", b"y"), (b"a", b""), (b"A", b"z:z")]
    assert values(b"NATS/1.0\r\n\r\n") == []


def test_what_is_exchanged_leaves_all_else_as_it_was() -> None:
    assert exchange(BLOCK, lambda name, value: None) is BLOCK
    changed = exchange(BLOCK, lambda name, value: b"<" + value + b">" if name == b"A" else None)
    assert changed == b"NATS/1.0 503 No\r\nA: <x>\r\nB:y \t\r\na:\r\nA:  <z:z>\r\n\r\n"
    assert exchange(b"NATS/1.0\r\nA:   \r\n\r\n", lambda *_: b"v") == b"NATS/1.0\r\nA:   v\r\n\r\n"


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"NATS/1.0",
        b"NATS/1.0\r\n",
        b"NATS/1.0x\r\n\r\n",
        b"HTTP/1.1\r\n\r\n",
        b"NATS/1.0\r\nA: x\r\n",
        b"NATS/1.0\r\nA x\r\n\r\n",
        b"NATS/1.0\r\n: x\r\n\r\n",
        b"NATS/1.0\r\nA: x\r\n y: z\r\n\r\n",
        b"NATS/1.0\r\nA: x\n\r\n\r\n",
        b"NATS/1.0\r\nA: x\nB: y\r\n\r\n",
        b"NATS/1.0\r\nA: \rx\r\n\r\n",
        b"NATS/1.0\r\n\r\nA: x\r\n\r\n",
    ],
)
def test_what_readers_could_read_differently_is_no_block(block: bytes) -> None:
    with pytest.raises(FormatError):
        list(fields(block))


def test_every_cut_of_a_block_is_refused() -> None:
    for at in range(len(BLOCK)):
        with pytest.raises(FormatError):
            list(fields(BLOCK[:at]))


def test_a_value_cannot_bring_a_line_of_its_own() -> None:
    with pytest.raises(FormatError):
        exchange(BLOCK, lambda *_: b"x\r\nC: y")


@settings(deadline=None)
@given(st.binary(max_size=60).map(lambda b: b"NATS/1.0\r\n" + b + b"\r\n\r\n") | st.binary(max_size=40))
def test_any_bytes_are_a_block_or_a_format_error(block: bytes) -> None:
    try:
        found = values(block)
    except FormatError:
        return
    assert exchange(block, lambda name, value: value) == block
    assert all(b"\n" not in value and b"\r" not in value for _, value in found)
