"""What becomes of whole batches: payloads that have to stay valid, messages that cannot be read, limits."""

from __future__ import annotations

import base64
import functools
import hashlib
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused
from jsbackup.formats import kernels
from jsbackup.transforms.mask import MaskCount, Masks
from jsbackup.transforms.reshape import mask_batch
from tests.transforms.messages import Message, batch_of, messages_of

SECRET = b"sixteen bytes at least"
COUNTER = b"NATS/1.0\r\nNats-Incr: +1\r\n\r\n"


def masked(masks: Masks, *messages: Message, count: MaskCount | None = None) -> list[Message]:
    return messages_of([mask_batch(masks, batch_of(messages), "S", SECRET, count=count or MaskCount())])


def meta(size: object = 300, digest: str = "SHA-256=AAAA", nuid: str = "N1") -> bytes:
    return json.dumps({"name": "f", "bucket": "b", "nuid": nuid, "size": size, "digest": digest}).encode()


def digest_of_zeros(size: int) -> str:
    return "SHA-256=" + base64.urlsafe_b64encode(hashlib.sha256(bytes(size)).digest()).decode()


def test_counters_keep_their_values_under_a_mask_of_payloads() -> None:
    count = MaskCount()
    messages = [
        Message(1, 1, "a", COUNTER, b'{"val":"7"}'),
        Message(2, 2, "a", None, b"else"),
        Message(3, 3, "a", COUNTER, b""),
        Message(4, 4, "a", b"NATS/1.0\r\nX-Nats-Incr: +1\r\nnats-incr: 1\r\n\r\n", b"no counter"),
    ]
    after = masked(Masks.parse([">:payload=zero", "a:header(x)=redact"]), *messages, count=count)
    assert [one.data for one in after] == [b'{"val":"7"}', bytes(4), b"", bytes(10)]
    assert (count.values, count.seen, count.spared) == ({0: 2, 1: 0}, {0: 2, 1: 4}, 1)


@pytest.mark.parametrize("unmaskable", ["refuse", "drop", "keep"])
def test_a_path_that_would_change_a_counter_is_refused_in_any_case(unmaskable: str) -> None:
    messages = [Message(1, 1, "a", None, b'{"val":1}'), Message(4711, 2, "a", COUNTER, b'{"val":"7"}')]
    with pytest.raises(PlanRefused, match="message 4711 of stream S is a counter, and a mask would change its value"):
        masked(Masks.parse(["a:$.val=redact"], unmaskable), *messages)
    assert masked(Masks.parse(["a:$.other=redact"], unmaskable), *messages) == messages


def test_descriptions_of_objects_follow_contents_that_become_zeros() -> None:
    count = MaskCount()
    messages = [
        Message(1, 1, "$O.b.C.N1", None, b"x" * 300),
        Message(2, 2, "$O.b.M.Zg==", None, meta()),
        Message(3, 3, "$O.c.M.Zg==", None, meta(digest="sha-256=AAAA")),
        Message(4, 4, "$O.b.M.aA==", None, b"not JSON"),
    ]
    after = masked(Masks.parse(["$O.b.>:payload=zero"]), *messages, count=count)
    assert after[0].data == bytes(300)
    assert after[1].data == meta(digest=digest_of_zeros(300))
    assert after[2:] == messages[2:]  # of another bucket; and one that no client can read
    assert (count.values, count.spared, count.unmasked) == ({0: 1}, 2, 1)
    # The description follows its chunks, whatever mask is for itself.
    after = masked(Masks.parse(["$O.*.C.>:payload=zero"]), *messages)
    assert after[2].data == meta(digest="sha-256=" + digest_of_zeros(300)[8:])
    after = masked(Masks.parse(["$O.b.M.>:payload=zero"]), *messages)
    assert after == messages
    after = masked(Masks.parse(["$O.b.C.N2:payload=zero"]), *messages)
    assert after == messages


@pytest.mark.parametrize(
    ("size", "digest"),
    [
        (0, "SHA-256=A"),
        (-1, "SHA-256=A"),
        (1 << 62, "SHA-256=A"),
        ("1", "SHA-256=A"),
        (True, "SHA-256=A"),
        (5, "MD5=A"),
    ],
)
def test_descriptions_without_a_known_digest_stay(size: object, digest: str) -> None:
    before = Message(1, 1, "$O.b.M.x", None, meta(size, digest))
    assert masked(Masks.parse([">:payload=zero"]), before) == [before]


@pytest.mark.parametrize("size", [1, (16 << 20) - 1, 16 << 20, (32 << 20) + 5])
def test_digests_of_zeros_are_right_for_every_size(size: int) -> None:
    (after,) = masked(Masks.parse([">:payload=zero"]), Message(1, 1, "$O.b.M.x", None, meta(size)))
    assert json.loads(after.data)["digest"] == digest_of_zeros(size)


def test_of_several_masks_one_that_finds_too_much_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """With small limits: the real ones are a million values, and 64 MiB."""
    monkeypatch.setattr(kernels, "Masker", functools.partial(kernels.Masker, max_values=2, max_bytes=100))
    count = MaskCount()
    many = Message(2, 2, "a", b"NATS/1.0\r\nX: v\r\n\r\n", b'{"m":1,"n":[1,2,3]}')
    others = [Message(n, n, "a", None, b'{"m":1}') for n in (1, 3)]
    masks = Masks.parse(["a:$.n[*]=redact", "a:$.m=redact", "a:header(x)=redact"], "keep")
    after = masked(masks, others[0], many, others[1], count=count)
    assert [one.data for one in after] == [b'{"m":"***"}', b'{"m":"***","n":[1,2,3]}', b'{"m":"***"}']
    assert after[1].headers == b"NATS/1.0\r\nX: ***\r\n\r\n"
    assert (count.kept, count.values, count.seen) == (1, {0: 0, 1: 3, 2: 1}, {0: 3, 1: 3, 2: 3})
    large = Message(1, 1, "a", None, b'["1","2"]')
    with pytest.raises(PlanRefused, match="it would become larger than a message can be"):
        masked(Masks.parse(["a:$[*]=hash"]), large)


@settings(deadline=None, max_examples=50)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a.b", "c", "$O.b.C.N1", "$O.b.M.x", "$KV.a.k"]),
            st.none() | st.sampled_from([COUNTER, b"\r\nNats-Incr:", b"NATS/1.0\r\n\r\n"]),
            st.binary(max_size=20) | st.sampled_from([meta(), b'{"val":"1"}', b"[1]"]),
        ),
        max_size=6,
    ),
    st.sampled_from(["zero", "drop"]),
    st.sampled_from(["refuse", "drop", "keep"]),
)
def test_whole_payloads_are_masked_whatever_they_are(
    rows: list[tuple[str, bytes | None, bytes]], action: str, unmaskable: str
) -> None:
    messages = [Message(n, n, *row) for n, row in enumerate(rows, start=1)]
    count = MaskCount()
    after = masked(Masks.parse([f">:payload={action}"], unmaskable), *messages, count=count)
    assert len(after) == len(messages)
    for old, new in zip(messages, after, strict=True):
        if old.subject == "$O.b.M.x":  # at most its digest changes
            assert new._replace(data=b"") == old._replace(data=b"")
            assert new.data == old.data or b'"name": "f"' in new.data
        elif b"\r\nNats-Incr:" in (old.headers or b""):
            assert new == old
        else:
            assert new == old._replace(data=bytes(len(old.data)) if action == "zero" else b"")
    assert count.values.get(0, 0) + count.spared == sum(bool(one.data) for one in messages)
