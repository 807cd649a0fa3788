"""Rows become messages, or are refused: what breaks those who read it after a restore. No Spark is needed."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from jsbackup.errors import UsageError
from jsbackup.pipeline.tasks.row_storing import (
    OddRows,
    SinkRules,
    StoredPartition,
    as_messages,
    count_rows,
    store_messages,
)
from jsbackup.repository import layout
from jsbackup.repository.objects import PlainSealing
from jsbackup.times import ZERO_TIME
from tests.harness.batches import Message, batch_of, messages_of
from tests.pipeline.places import keep

GOOD = [
    b"",  # as none
    b"NATS/1.0\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\n",
    b"NATS/1.0 204 Some Status\r\nAfter: status\r\n\r\n",
]
# Servers store these, and clients read on after them: what can be read of them is up to each.
ODD = [
    b"NATS/1.0\r\nno colon at all\r\n\r\n",
    b"NATS/1.0\r\nA: b\nc: d\r\n\r\n",
    b"NATS/1.0\r\nA b: c\r\n: d\r\n e\r\n\r\n",
    b"NATS/1.0\r\nA\x00: \x00\xff\r\n\r\n",
    b"NATS/1.0\r\nA: b\r\n\r\nC: d\r\n\r\n",
]
NO_BEGINNING = [
    b"x",
    b"A: b",
    b'{"A": "b"}',
    b"NATS/1.0",
    b"NATS/1.0\nA: b\n\n",
    b"NATS/2.0\r\n\r\n",
    b"\r\n\r\n",
    b"\xff",
]
NO_END = [b"NATS/1.0\r\n", b"NATS/1.0\r\nA: b", b"NATS/1.0\r\nA: b\r\n", b"NATS/1.0\r\nA: b\r\n\r\nmore"]
_FOLDER = PlainSealing().folder("S", layout.incarnation("", "", "S", ZERO_TIME))


def _messages(block: bytes) -> list[Message]:
    return [Message(3, 0, "a", None, b""), Message(7, 0, "a", block, b"x"), Message(8, 0, "a", GOOD[2], b"")]


@pytest.mark.parametrize("block", [*GOOD, *ODD], ids=repr)
def test_blocks_of_headers_that_clients_live_with_are_taken(block: bytes) -> None:
    assert messages_of([as_messages(batch_of(_messages(block)))]) == _messages(block)


@pytest.mark.parametrize(
    ("block", "said"),
    [(block, r"do not begin with 'NATS/1.0\\r\\n'") for block in NO_BEGINNING]
    + [(block, r"do not end with '\\r\\n\\r\\n'") for block in NO_END],
    ids=repr,
)
def test_blocks_that_are_none_are_refused_unless_any_is_wanted(block: bytes, said: str) -> None:
    batch = batch_of(_messages(block))
    with pytest.raises(UsageError, match=f"^message 7 has headers that {said}: ") as caught:
        as_messages(batch)
    assert repr(block)[:40] in caught.value.message and "headers_base64" in (caught.value.hint or "")
    assert messages_of([as_messages(batch, any_headers=True)]) == _messages(block)


@pytest.mark.parametrize("blank", ["\r", "\x0b", "\x0c"], ids=repr)
def test_subjects_that_cut_clients_off_are_refused_unless_a_server_had_them(blank: str) -> None:
    rows = [Message(3, 0, "a", None, b""), Message(7, 0, f"a{blank}b", None, b""), Message(8, 0, blank, None, b"")]
    with pytest.raises(UsageError, match=r"^message 7 has the subject 'a\\\S+b', which cuts clients off: "):
        as_messages(batch_of(rows))
    assert messages_of([as_messages(batch_of(rows), any_headers=True)]) == rows


@pytest.mark.parametrize("wrong", ["", " ", "a b", "\t", "a\nb"], ids=repr)
def test_subjects_that_no_server_takes_are_always_refused(wrong: str) -> None:
    with pytest.raises(UsageError, match=r"^message 3 has the subject .*, which no server takes: "):
        as_messages(batch_of([Message(3, 0, wrong, None, b"")]), any_headers=True)


def test_what_clients_may_not_read_is_counted() -> None:
    """Of headers only where any are taken: else such are refused."""
    blocks = [None, *GOOD, *ODD, *NO_BEGINNING, *NO_END]
    rows = batch_of([Message(number, 0, "a", block, b"") for number, block in enumerate(blocks, 5)])
    found = count_rows(rows, SinkRules(any_headers=True))
    assert found.headers == OddRows(len(NO_BEGINNING) + len(NO_END), 6 + len(GOOD) + len(ODD))
    assert (found.subjects, count_rows(rows, SinkRules()).headers) == (OddRows(), OddRows())
    subjects: list[str | bytes] = ["a", "\x00\x1f\x7f", "a\x0bb", "ü", "\x0c", "a\r"]
    for more, odd in (([], OddRows(3, 7)), ([b"\xff", b"\xff\r"], OddRows(5, 7))):
        named = enumerate([*subjects, *more], 5)
        assert count_rows(batch_of([Message(n, 0, one, None, b"") for n, one in named]), SinkRules()).subjects == odd
    assert OddRows(2, 7) + OddRows() + OddRows(1, 3) == OddRows(3, 3)


def test_a_long_block_is_shortened() -> None:
    with pytest.raises(UsageError) as caught:
        as_messages(batch_of(_messages(b"x" * 5000)))
    assert len(caught.value.message) < 200


@pytest.mark.parametrize(
    ("subjects", "others"),
    [
        ((), 0),
        (("S",), 9),
        (("$KV.b.>",), 7),
        (("$O.b.C.>", "$O.b.M.>"), 10),
        (("$KV.b.>", "$KV.other.>"), 6),
    ],
)
def test_messages_that_a_made_up_configuration_does_not_take_are_counted(
    tmp_path: Path, subjects: tuple[str, ...], others: int
) -> None:
    """Of `S` and the keys of a bucket; servers match no empty tokens, and take wildcards as they are."""
    kept = keep(tmp_path, {})
    named: list[str | bytes] = [
        "S",
        "$KV.b.x",
        "$KV.b.x.y",
        "$KV.b.*",
        "$KV.b",
        "$KV.b.",
        "$KV.b..x",
        "$KV.other.x",
        "$O.b.M",
    ]
    named.append(b"$KV\xff")
    rows = batch_of([Message(number, 0, subject, None, b"") for number, subject in enumerate(named, 1)])
    rows = rows.set_column(2, "subject", rows["subject"].view(pa.string()))  # as Spark has them
    found = store_messages(kept.place, _FOLDER, iter([rows[:4], rows[4:]]), SinkRules(subjects=subjects))
    assert isinstance(found, StoredPartition), found
    assert (found.counts.others, sum(ref.messages for ref in found.segments.refs)) == (others, len(named))
