from __future__ import annotations

from struct import unpack_from

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.formats.archive.archive_v1_writer import encode_sources


def _decode(data: bytes) -> tuple[int, list[tuple[str, int, str]]]:
    """As nats-server 2.15 reads it."""
    version, count, stamp = unpack_from("<BQQ", data)
    assert version == 1
    at = 17

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def text() -> str:
        nonlocal at
        size = number()
        at += size
        return data[at - size : at].decode()

    found = [(text(), number(), text()) for _ in range(count)]
    assert at == len(data)
    return stamp, found


def test_it_is_what_a_server_writes() -> None:
    """2.15.2, when a stream that had copied 200 messages was shut down."""
    written = "010100000000000000c900000000000000084f524947203e203ec801085152466867574538"
    assert encode_sources(200, [("ORIG > >", 200, "QRFhgWE8")]).hex() == written


@given(
    st.integers(0, (1 << 63) - 1),
    st.lists(st.tuples(st.text(max_size=200), st.integers(0, (1 << 64) - 1), st.text(max_size=9)), max_size=5),
)
def test_it_is_read_as_it_was_written(last_seq: int, sources: list[tuple[str, int, str]]) -> None:
    assert _decode(encode_sources(last_seq, sources)) == (last_seq + 1, sources)
