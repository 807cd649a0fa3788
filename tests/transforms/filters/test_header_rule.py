"""Header rules against a plain reading of blocks, line by line, as nats.go reads them."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import UsageError
from jsbackup.transforms.filters.filters import HeaderRule


def headers_of(block: bytes) -> list[tuple[str, bytes]]:
    """Return names and values, in order. Lines that are none are passed over."""
    found = []
    first, _, rest = block.partition(b"\n")
    if not first.startswith(b"NATS/1.0"):
        return []
    for line in rest.split(b"\n")[:-1]:
        line = line.removesuffix(b"\r")
        if not line:
            break
        name, colon, value = line.partition(b":")
        if name and colon:
            found.append((name.decode("utf-8", "surrogateescape"), value.lstrip(b" \t")))
    return found


def has(block: bytes | None, rule: HeaderRule) -> bool:
    value = None if rule.value is None else rule.value.encode("utf-8", "surrogateescape")
    return block is not None and any(
        name.casefold() == rule.name.casefold() and value in (None, its) for name, its in headers_of(block)
    )


names = st.sampled_from(["\u212a", "A", "a", "B", "A-B", "k", "K", "ſ", "S", "É", "é", "A ", "a.b", ""])
values = st.sampled_from([b"", b"1", b" 1", b"1 ", b"\t1", b"2", b"A: 1", b"\xff", "é".encode(), b"\r"])
line = st.tuples(names, st.sampled_from([b":", b": ", b":\t", b""]), values, st.sampled_from([b"\r\n", b"\n"]))


@st.composite
def blocks(draw: st.DrawFn) -> bytes | None:
    if draw(st.booleans()) and draw(st.booleans()):
        return None
    version = draw(st.sampled_from([b"NATS/1.0", b"NATS/1.0", b"HTTP/1.0"]))
    status = draw(st.sampled_from([b"\r\n", b" 503 none\r\n", b"?\r\n"]))
    lines = (name.encode() + colon + value + end for name, colon, value, end in draw(st.lists(line, max_size=5)))
    return version + status + b"".join(lines) + b"\r\n"


@settings(deadline=None)
@given(
    st.lists(blocks(), max_size=8),
    st.sampled_from(["A", "a", "B", "a-b", "K", "s", "S", "é", "a.b"]),
    st.none() | st.sampled_from(["", "1", "1 ", "2", "A: 1", "\udcff", "é"]),
)
def test_the_rows_are_those_with_the_header(blocks: list[bytes | None], name: str, value: str | None) -> None:
    rule = HeaderRule(name, value)
    assert rule.rows(pa.array(blocks, pa.binary())).to_pylist() == [has(block, rule) for block in blocks]


def test_a_rule_is_a_name_or_a_name_with_a_value() -> None:
    assert HeaderRule.parse("--header", "X-Batch") == HeaderRule("X-Batch")
    assert HeaderRule.parse("--header", "X-Batch:7:8") == HeaderRule("X-Batch", "7:8")
    assert HeaderRule.parse("--header", "X-Batch:") == HeaderRule("X-Batch", "")
    for text in ("X-Batch", "X-Batch:", "X-Batch:a b "):
        assert str(HeaderRule.parse("--header", text)) == text


@pytest.mark.parametrize("text", ["", ":7", "X Batch", "X\tBatch", "X-Batch=7", "X\r\nY", "X:7\r\nY"])
def test_what_is_no_header_is_refused_by_its_option(text: str) -> None:
    with pytest.raises(UsageError, match="--header: not a header") as caught:
        HeaderRule.parse("--header", text)
    assert caught.value.hint == "Write --header NAME or NAME:VALUE."
