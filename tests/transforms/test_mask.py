from __future__ import annotations

import hashlib
import hmac
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import PlanRefused, UsageError
from jsbackup.formats.mask_rules import MaskPlace, MaskRule
from jsbackup.transforms.json_path import parse_path
from jsbackup.transforms.mask import Mask, MaskAction, MaskCount, Masks
from jsbackup.transforms.reshape import mask_batch
from tests.transforms.messages import Message, batch_of, messages_of

SECRET = b"sixteen bytes at least"


def keyed(value: str) -> str:
    return hmac.new(SECRET, value.encode(), hashlib.sha256).hexdigest()


def masked(masks: Masks, *messages: Message, secret: bytes = SECRET, count: MaskCount | None = None) -> list[Message]:
    return messages_of([mask_batch(masks, batch_of(messages), "S", secret, count=count or MaskCount())])


def message(data: bytes, headers: bytes | None = None, subject: str = "a.b", sequence: int = 1) -> Message:
    return Message(sequence, sequence, subject, headers, data)


def test_values_are_redacted_or_hashed_and_all_else_stays() -> None:
    masks = Masks.parse(["a.>:$.name=redact", "a.>:$.ids[*]=hash", "b:$..x=redact"])
    count = MaskCount()
    before = message(b'{ "name": {"first": "A"}, "n": 1.50, "ids":[7, 7.0, "7"], "x": 1 }\n')
    (after,) = masked(masks, before, count=count)
    seven = keyed("7").encode()
    assert after.data == (
        b'{ "name": "***", "n": 1.50, "ids":["%s", "%s", "%s"], "x": 1 }\n' % (seven, seven, keyed('"7"').encode())
    )
    assert count.values == {0: 1, 1: 3}


def test_equal_values_join_across_payloads_and_headers() -> None:
    masks = Masks.parse(["*.b:$=hash", "*.b:header(X-User)=hash"])
    headers = b"NATS/1.0\r\nx-user: \xc3\xa9va \r\nOther: x\r\nX-User:bob\r\n\r\n"
    (after,) = masked(masks, message(b' "\\u00e9va" ', headers))
    assert after.data == f' "{keyed(chr(34) + "éva" + chr(34))}" '.encode()
    assert after.headers == (
        b"NATS/1.0\r\nx-user: %s \r\nOther: x\r\nX-User:%s\r\n\r\n" % (keyed('"éva"').encode(), keyed('"bob"').encode())
    )


def test_masks_apply_in_order_each_to_what_those_before_left() -> None:
    (after,) = masked(Masks.parse(["a.b:$.u.mail=redact", "a.b:$.u=hash"]), message(b'{"u":{"mail":"m"}}'))
    assert json.loads(after.data) == {"u": keyed('{"mail":"***"}')}


def test_no_trick_of_writing_gets_a_value_through() -> None:
    masks = Masks.parse(["a.b:$..mail=redact"])
    for data in (
        b'{"mail":"SECRET","mail":"SECRET"}',
        b'{"\\u006dail":"SECRET"}',
        b'[[[{"x":{"mail" \n:\t ["SECRET",{"mail":"SECRET"}]}}]]]',
        b'{"mail":{"SECRET":1}}',
        b'{"a":NaN,"mail":"SECRET","big":' + b"9" * 6000 + b"}",
    ):
        (after,) = masked(masks, message(data))
        assert b"SECRET" not in after.data and b"***" in after.data


UNREADABLE = [
    b"mail=SECRET",
    b'{"mail":"SECRET"',
    b'{"mail":"SECRET"}{"mail":"SECRET"}',
    b"\xef\xbb\xbf" + b'{"mail":"SECRET"}',
    '{"mail":"SECRET"}'.encode("utf-16"),
    b"[" * 1000 + b'{"mail":"SECRET"}' + b"]" * 1000,
    b"[" * 1_000_000,
]


@pytest.mark.parametrize("data", UNREADABLE)
def test_what_cannot_be_read_stops_everything_unless_told_otherwise(data: bytes) -> None:
    before = message(data, sequence=4711)
    with pytest.raises(PlanRefused, match="message 4711 of stream S cannot be masked"):
        masked(Masks.parse(["a.b:$.mail=redact"]), before)
    count = MaskCount()
    assert masked(Masks.parse(["a.b:$.mail=redact"], "drop"), before, message(b"{}", sequence=4712), count=count) == [
        message(b"{}", sequence=4712)
    ]
    assert masked(Masks.parse(["a.b:$.mail=redact"], "keep"), before, count=count) == [before]
    assert (count.dropped, count.kept) == (1, 1)


def test_what_a_mask_had_to_look_at_is_counted_and_what_it_cannot_be_for_is_not() -> None:
    masks = Masks.parse(["a.b:$.mail=redact", "a.b:header(X)=redact", "b:$.mail=redact"], "keep")
    count = MaskCount()
    masked(masks, message(b'{"mail":1}'), message(b"{}", sequence=2), message(b"", sequence=3), count=count)
    assert (count.values, count.seen) == ({0: 1}, {0: 2, 1: 3})
    masked(masks, message(b"?"), count=count)  # kept, and nobody knows what is in it
    assert (count.kept, count.seen) == (1, {0: 3, 1: 4})
    masked(masks, message(b"{}", subject="c"), message(b"{}", subject="b", sequence=2), count=count)
    masked(masks, message(b"{}", subject="c"), message(b"", subject="c.d", sequence=2), count=count)
    assert count.unmasked == 3
    more = MaskCount({0: 1, 2: 5}, 1, 2, {0: 1, 2: 5}, 0, {0: 1, 2: 4}, 7)
    assert count.plus(more) == MaskCount({0: 2, 2: 5}, 1, 3, {0: 4, 1: 4, 2: 6}, 3, {0: 2, 2: 4}, 7)


def test_a_hash_needs_a_secret_worth_the_name() -> None:
    with pytest.raises(UsageError, match="16 bytes or more, not 0"):
        masked(Masks.parse(["a.b:$.x=hash"]), message(b"{}"), secret=b"")
    assert masked(Masks.parse(["a.b:$.x=redact"]), message(b"{}"), secret=b"") == [message(b"{}")]


@pytest.mark.parametrize(
    ("text", "mask"),
    [
        ("a.>:$.b=redact", Mask("a.>", "$.b", MaskRule(MaskPlace.PATH, MaskAction.REDACT, parse_path("$.b")))),
        ("a:b.*:$=hash", Mask("a:b.*", "$", MaskRule(MaskPlace.PATH, MaskAction.HASH, parse_path("$")))),
        (
            "$KV.x.>:$['a=b:$.c']=hash",
            Mask("$KV.x.>", "$['a=b:$.c']", MaskRule(MaskPlace.PATH, MaskAction.HASH, parse_path("$['a=b:$.c']"))),
        ),
        (
            ">:header(Nats-Msg-Id)=hash",
            Mask(">", "header(Nats-Msg-Id)", MaskRule(MaskPlace.HEADER, MaskAction.HASH, name=b"nats-msg-id")),
        ),
        (">:payload=zero", Mask(">", "payload", MaskRule(MaskPlace.PAYLOAD, MaskAction.ZERO))),
        ("a:payload=b.>:payload=drop", Mask("a:payload=b.>", "payload", MaskRule(MaskPlace.PAYLOAD, MaskAction.DROP))),
        (
            "a:payload=zero:$.b=hash",
            Mask("a:payload=zero", "$.b", MaskRule(MaskPlace.PATH, MaskAction.HASH, parse_path("$.b"))),
        ),
    ],
)
def test_masks_are_understood(text: str, mask: Mask) -> None:
    assert Mask.parse(text) == mask and str(mask) == text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not understood"),
        ("a:$.b", "not understood"),
        (":$.b=redact", "not understood"),
        ("a.b=redact", "not understood"),
        ("a:b=redact", "not understood"),
        ("a..b:$.b=redact", "not a subject"),
        ("a:$.b=encrypt", "neither redact nor hash"),
        ("a:$.b=", "neither redact nor hash"),
        ("a:$[1:2]=hash", "not supported from"),
        ("a:header()=hash", "not a header's name"),
        ("a:header(a b)=hash", "not a header's name"),
        ("a:header(a:b)=hash", "not a header's name"),
        ("a:payload=redact", "neither drop nor zero: 'redact'"),
        ("a:payload=", "neither drop nor zero"),
        ("a:$.b=zero", "neither redact nor hash: 'zero'"),
        ("a:header(X)=drop", "neither redact nor hash"),
        ("a:payloads=zero", "not understood"),
        ("a:payload.x=zero", "not understood"),
        ("a:header(NATS-incr)=redact", "servers count with the header NATS-incr"),
        ("a:header(Nats-Counter-Sources)=hash", "servers count with"),
    ],
)
def test_no_mask_is_a_usage_error(text: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        Mask.parse(text)
    with pytest.raises(UsageError, match="not refuse, drop or keep"):
        Masks.parse([], "ignore")


@settings(deadline=None)
@given(
    st.one_of(
        st.text(max_size=30),
        st.from_regex(
            r"[a.>:$]{0,6}:(\$[.\[\]'a0]{0,8}|header\([a-z:]{0,5}\)|payload)=(redact|hash|zero)", fullmatch=True
        ),
    )
)
def test_any_text_is_a_mask_or_a_usage_error(text: str) -> None:
    try:
        mask = Mask.parse(text)
    except UsageError:
        return
    assert str(mask) == text and Mask.parse(str(mask)) == mask


@pytest.mark.parametrize(
    "masks",
    [
        ("a.>:payload=zero", "a.b:$.x=hash"),
        ("*.b:$=redact", "a.>:payload=drop"),
        ("a.>:payload=zero", "a.b:payload=drop"),
        ("a:payload=zero", "a:payload=zero"),
        ("x:$.a=hash", "a.b:payload=drop", ">:payload=zero"),
    ],
)
def test_two_masks_for_the_same_payloads_are_a_usage_error(masks: tuple[str, ...]) -> None:
    with pytest.raises(UsageError, match=r"are for the same payloads"):
        Masks.parse(masks)
