from __future__ import annotations

import hashlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats import kernels
from jsbackup.formats.digest import Digester, StreamDigest, encode_rows
from tests.harness.batches import Message, batch_of, cut_anywhere, message_lists, some_messages


def digest_of(messages: list[Message]) -> Digester:
    digester = Digester()
    digester.update(batch_of(messages))
    return digester


def test_no_messages_have_the_digest_of_zeros() -> None:
    for digester in (Digester(), digest_of([])):
        assert digester.stream_digest.hex == "0" * 64
        assert digester.segment_digest == hashlib.sha256().hexdigest()
        assert (digester.messages, digester.raw_bytes) == (0, 0)


def test_the_encoding_is_the_published_one() -> None:
    message = Message(300, -1, "a.b", b"NATS/1.0\r\n\r\n", b"payload")
    expected = b"\x03\x01\xac\x02\x0c\x07a.bNATS/1.0\r\n\r\npayload"
    digester = digest_of([message])
    assert bytes(encode_rows(batch_of([message])).encoded) == expected
    assert digester.segment_digest == hashlib.sha256(expected).hexdigest()
    hasher = kernels.HighwayHash(b"jsbackup stream digest, version1")
    hasher.update(expected)
    assert digester.stream_digest.hex == hasher.digest256().hex()
    assert (digester.messages, digester.raw_bytes) == (1, len(expected))


def test_the_digests_are_pinned() -> None:
    """Golden values: whatever runs underneath may change, these may not."""
    digester = digest_of(some_messages(20, 30))
    assert digester.segment_digest == "4bbd2c657f9243c7e325b4774aea606838c419e4a8eb29752431cd7a4118dcc5"
    assert digester.stream_digest.hex == "ebd1f8b9857ae0198468bf4c39abd20fcae6410cbc8ee33f609e8f6f891fdb97"


@settings(max_examples=50, deadline=None)
@given(message_lists(), st.randoms(use_true_random=False))
def test_both_digests_do_not_depend_on_the_batches(messages: list[Message], chance: object) -> None:
    whole = digest_of(messages)
    pieces = Digester()
    for piece in cut_anywhere(batch_of(messages), chance):  # type: ignore[arg-type]
        pieces.update(piece)
    assert pieces.segment_digest == whole.segment_digest
    assert pieces.stream_digest == whole.stream_digest
    assert (pieces.messages, pieces.raw_bytes) == (whole.messages, whole.raw_bytes)


@settings(max_examples=50, deadline=None)
@given(message_lists(), st.data())
def test_stream_digests_add_up_and_give_back(messages: list[Message], data: st.DataObject) -> None:
    chosen = {m.sequence for m in messages if data.draw(st.booleans())}
    gone = digest_of([m for m in messages if m.sequence in chosen]).stream_digest
    kept = digest_of([m for m in messages if m.sequence not in chosen]).stream_digest
    whole = digest_of(messages).stream_digest
    assert gone + kept == kept + gone == whole
    assert whole - gone == kept
    assert kept - whole + gone == StreamDigest()


@pytest.mark.parametrize(
    "change", [{"sequence": 8}, {"timestamp_ns": 1}, {"subject": "t"}, {"data": b"x"}, {"headers": b"h"}]
)
def test_every_part_of_a_message_counts(change: dict[str, object]) -> None:
    message = Message(7)
    changed = message._replace(**change)  # type: ignore[arg-type]
    before, after = digest_of([message]), digest_of([changed])
    assert before.segment_digest != after.segment_digest
    assert before.stream_digest != after.stream_digest


def test_subjects_as_text_and_as_bytes_are_the_same_content() -> None:
    assert digest_of([Message(1, subject="a")]).segment_digest == digest_of([Message(1, subject=b"a")]).segment_digest


def test_sequences_that_do_not_rise_are_refused() -> None:
    for sequences in ([1, 1], [2, 1], [0], [-1]):
        with pytest.raises(FormatError):
            digest_of([Message(sequence) for sequence in sequences])


def test_hex_forms_are_strict() -> None:
    text = "0123456789abcdef" * 4
    assert StreamDigest.from_hex(text).hex == text
    for bad in ("", text[:-1], text + "0", text.upper(), " " + text[1:], "g" + text[1:], "٠" * 64):
        with pytest.raises(FormatError):
            StreamDigest.from_hex(bad)
