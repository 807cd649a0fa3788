"""Masks and subjects of the compiled kernel and of its twin in Python, against each other and against plain rules.

`test_json_text.py` judges how the twin reads JSON.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import struct
from array import array
from collections.abc import Sequence
from itertools import pairwise
from types import ModuleType
from typing import Any, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.formats import _kernels_py
from jsbackup.formats.batch import Columns, columns_from_batch
from jsbackup.formats.json_text import MAX_TEXT_DEPTH, canonical
from jsbackup.formats.mask_rules import MaskAction, MaskedRows, MaskPlace, MaskRule, ShapedColumn, Step, StepKind
from jsbackup.transforms.json_path import parse_path
from jsbackup.transforms.subject_map import SubjectMap, SubjectMaps
from tests.formats.test_json_text import documents, space, steps
from tests.formats.test_kernels import compiled_kernel, damaged
from tests.harness.servers import EXPLORE
from tests.transforms.messages import Message, batch_of, literals, patterns
from tests.transforms.test_subject_map import maps
from tests.transforms.test_subjects import by_the_rule

SECRET = b"sixteen bytes at least"


@pytest.fixture(params=["python", "compiled"])
def kernel(request: pytest.FixtureRequest) -> ModuleType:
    return _kernels_py if request.param == "python" else compiled_kernel()


def rule(text: str) -> MaskRule:
    """`$.path=hash`, `header(NAME)=redact`, `payload=zero`."""
    what, _, action = text.rpartition("=")
    if what == "payload":
        return MaskRule(MaskPlace.PAYLOAD, MaskAction(action))
    if what.startswith("header"):
        return MaskRule(MaskPlace.HEADER, MaskAction(action), name=what[7:-1].lower().encode())
    return MaskRule(MaskPlace.PATH, MaskAction(action), parse_path(what))


class Content(NamedTuple):
    """Headers and payload of a message."""

    headers: bytes | None
    data: bytes


def columns_of(contents: Sequence[Content]) -> Columns:
    return columns_from_batch(batch_of([Message(n, 1, "s", *one) for n, one in enumerate(contents, start=1)]))


def numbers(*values: int) -> bytes:
    return array("i", values).tobytes()


def plain(masked: MaskedRows) -> MaskedRows:
    """With bytes, whatever kind of buffers there are."""
    columns = [one and ShapedColumn(bytes(one.offsets), bytes(one.values)) for one in (masked.headers, masked.data)]
    return masked._replace(headers=columns[0], data=columns[1])


def pieces(column: ShapedColumn | None, before: Sequence[bytes | None]) -> list[bytes]:
    """The values of a column, those before if it was left out."""
    if column is None:
        return [one or b"" for one in before]
    ends = memoryview(column.offsets).cast("i").tolist()
    return [bytes(column.values)[start:stop] for start, stop in pairwise(ends)]


def mask(kernel: ModuleType, rules: Sequence[str], *contents: Content, secret: bytes = SECRET) -> list[Content]:
    """Messages after all rules, which can be applied."""
    masker = kernel.Masker([rule(one) for one in rules], secret)
    masked = masker.mask(columns_of(contents), [tuple(range(len(rules)))], numbers(*[0] * len(contents)), False)
    assert not any(masked.faults)
    blocks = pieces(masked.headers, [one.headers for one in contents])
    return [
        Content(None if one.headers is None else block, data)
        for one, block, data in zip(contents, blocks, pieces(masked.data, [one.data for one in contents]), strict=True)
    ]


def keyed(value: str, secret: bytes = SECRET) -> bytes:
    return hmac.new(secret, value.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest().encode()


# --- kernel and twin ----------------------------------------------------------------------------------------------

actions = st.sampled_from([MaskAction.REDACT, MaskAction.HASH])
in_paths = st.builds(
    lambda some, action: MaskRule(MaskPlace.PATH, action, tuple(some)), st.lists(steps, max_size=3), actions
)
in_headers = st.builds(
    lambda name, action: MaskRule(MaskPlace.HEADER, action, name=name), st.sampled_from([b"x", b"x-user"]), actions
)
payloads = st.tuples(space, documents(), space).map(lambda parts: f"{parts[0]}{parts[1].text}{parts[2]}".encode())
fields = st.tuples(
    st.sampled_from([b"X", b"x-USER", b" Z", b"Z", b"y "]),
    st.sampled_from(
        [b"", b" ", b"v", b" \tv\t ", "éva".encode(), b"\xff\xed\xa0\x80", b'q"\\\x01\x7f', b"\xe2\x82", b":"]
    ),
).map(lambda field: b"%s:%s\r\n" % field)
blocks = st.builds(
    lambda status, some: b"NATS/1.0%s\r\n%s\r\n" % (status, b"".join(some)),
    st.sampled_from([b"", b" 100", b"x"]),
    st.lists(fields, max_size=3),
)


@st.composite
def contents(draw: st.DrawFn) -> Content:
    data = draw(st.data())
    headers = draw(st.none() | blocks)
    return Content(None if headers is None else damaged(data, headers), damaged(data, draw(payloads | st.just(b""))))


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(
    st.lists(in_paths | in_headers, min_size=1, max_size=5), st.lists(contents(), max_size=4), st.booleans(), st.data()
)
def test_kernel_and_twin_mask_alike(
    rules: list[MaskRule], messages: list[Content], apart: bool, data: st.DataObject
) -> None:
    every = range(len(rules))
    sets = [tuple(every), tuple(sorted(data.draw(st.sets(st.sampled_from(every)))))]
    rows = [data.draw(st.sampled_from([-1, 0, 0, 1])) for _ in messages]
    secret = data.draw(st.sampled_from([bytes(16), SECRET, bytes(range(64)), bytes(range(65)), b"k" * 200]))
    call = (columns_of(messages), sets, numbers(*rows), apart)
    compiled, twin = compiled_kernel().Masker(rules, secret), _kernels_py.Masker(rules, secret)
    masked = plain(compiled.mask(*call))
    assert masked == plain(twin.mask(*call))
    for row, (before, fault) in enumerate(zip(messages, masked.faults, strict=True)):
        if fault and not apart:
            chosen = sets[rows[row]]
            reason = compiled.reason(chosen, before.headers, before.data)
            assert reason == twin.reason(chosen, before.headers, before.data) != ""


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(
    st.lists(in_paths | in_headers | st.sampled_from([rule("payload=drop"), rule("payload=zero")]), max_size=4),
    st.lists(contents(), max_size=3),
    st.booleans(),
    st.tuples(st.integers(1, 3), st.sampled_from([0, 20, 70, 200])),
)
def test_kernel_and_twin_agree_where_limits_are_reached(
    rules: list[MaskRule], messages: list[Content], apart: bool, limits: tuple[int, int]
) -> None:
    whole = [number for number, one in enumerate(rules) if one.place is MaskPlace.PAYLOAD]
    some = tuple(number for number in range(len(rules)) if number not in whole[1:])
    call = (columns_of(messages), [some], numbers(*[0] * len(messages)), apart)
    masked = [plain(one.Masker(rules, SECRET, *limits).mask(*call)) for one in (compiled_kernel(), _kernels_py)]
    assert masked[0] == masked[1]


# --- hashes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instructions", [True, False])
def test_hashes_are_those_of_the_library_for_every_length(instructions: bool) -> None:
    compiled = compiled_kernel()
    if compiled.use_sha256_instructions(instructions) != instructions:
        pytest.skip("the processor has no instructions for SHA-256")
    try:
        for secret in (bytes(range(16)), bytes(range(64)), bytes(range(65)), bytes(200)):
            texts = [json.dumps("x" * size) for size in (*range(150), 1000, 5000)]
            after = mask(compiled, ["$=hash"], *[Content(None, text.encode()) for text in texts], secret=secret)
            assert [one.data for one in after] == [b'"%s"' % keyed(text, secret) for text in texts]
    finally:
        compiled.use_sha256_instructions(True)


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(documents(depth=4))
def test_hashes_are_over_the_canonical_form(document: Any) -> None:
    (after,) = mask(compiled_kernel(), ["$=hash"], Content(None, document.text.encode("utf-8", "surrogatepass")))
    assert after.data == b'"%s"' % keyed(canonical(document.text))


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(
    st.from_regex(r"-?(0|[1-9][0-9]{0,45})(\.[0-9]{1,45})?([eE][+-]?[0-9]{1,20})?", fullmatch=True)
    | st.builds("{}{}e-{}".format, st.integers(1, 99), st.just("0" * 5), st.integers(30, 50))
)
def test_numbers_have_one_form_by_their_value(number: str) -> None:
    assert mask(compiled_kernel(), ["$=hash"], Content(None, number.encode()))[0].data == b'"%s"' % keyed(
        canonical(number)
    )


# --- what is not JSON ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        *[" ", "{", "[1,]", "[1 2]", '{"a":}', '{"a":1 "b":2}', "{1:2}", "01", '"a', '"\\x"', '"\n"', "nul", "1."],
        *["[1]]", "\ufeff{}", "{}{}", '"\\u12g4"', "1e+", "[}", "{]", "\x00", '{"a":1]', "\u00a01"],
    ],
)
@pytest.mark.parametrize("path", ["$", "$.a", "$..b", "$[7].x"])
def test_what_is_not_json_is_a_fault_whatever_is_looked_for(kernel: ModuleType, text: str, path: str) -> None:
    masker = kernel.Masker([rule(f"{path}=hash")], SECRET)
    masked = masker.mask(columns_of([Content(None, text.encode())]), [(0,)], numbers(0), False)
    assert masked.faults == b"\1" and bytes(masked.data.values) == text.encode()


@pytest.mark.parametrize("bad", [b"\xff", b"\x80", b"\xc0\x80", b"\xe0\x80\x80", b"\xed\xa0\x80", b"\xf4\x90\x80\x80"])
@pytest.mark.parametrize("before", [0, 15, 16, 40])
def test_what_is_not_utf8_is_a_fault_wherever_it_is(kernel: ModuleType, bad: bytes, before: int) -> None:
    masker = kernel.Masker([rule("$.a=redact")], SECRET)
    good = b'{"a":1,"%s\xf4\x8f\xbf\xbf\xed\x9f\xbf":"%s"}' % (b"x" * before, b"y" * before)
    for at in (good.index(b"\xf4"), len(good) - 2):
        for text, fault in ((good, 0), (good[:at] + bad + good[at:], 1), (good[:at] + bad[:-1] + good[at:], 1)):
            if fault and len(bad) == 1 and text == good:
                continue
            masked = masker.mask(columns_of([Content(None, text)]), [(0,)], numbers(0), False)
            assert masked.faults == bytes((fault,)), text


@pytest.mark.parametrize("opening", ["[", '{"a":', '[{"a":'])
@pytest.mark.parametrize("path", ["$..b", "$", "$.x", "$..a..a..a"])
def test_text_may_be_nested_so_deeply_and_no_deeper(kernel: ModuleType, opening: str, path: str) -> None:
    closing = {"[": "]", '{"a":': "}", '[{"a":': "}]"}[opening]
    levels = MAX_TEXT_DEPTH // len(closing)
    masker = kernel.Masker([rule(f"{path}=hash"), rule("$..b=redact")], SECRET)
    for deep, fault in ((levels, 0), (levels + 1, 1), (100_000, 1)):
        texts = [opening * deep + "1" + closing * deep, opening * deep + '{"b":1}' + closing * deep]
        for text, broken in zip(texts, (fault, fault or int(deep == levels)), strict=True):
            masked = masker.mask(columns_of([Content(None, text.encode())]), [(0, 1)], numbers(0), False)
            assert masked.faults[0] == broken
    brackets = json.dumps(["[" * 1000, '\\"{' * 1000]).encode()
    assert masker.mask(columns_of([Content(None, brackets)]), [(1,)], numbers(0), False).faults == b"\0"


# --- whole payloads, sets, buffers --------------------------------------------------------------------------------


def test_whole_payloads_are_dropped_or_become_zeros_whatever_they_are(kernel: ModuleType) -> None:
    messages = [Content(None, b"\xff not JSON"), Content(b"anything", b""), Content(None, b'{"a":1}')]
    rules = [rule("payload=drop"), rule("payload=zero"), rule("$.a=redact")]
    masker = kernel.Masker(rules, SECRET)
    for number, after in ((0, [b"", b"", b""]), (1, [bytes(10), b"", bytes(7)])):
        masked = masker.mask(columns_of(messages), [(number,)], numbers(0, 0, 0), False)
        assert (masked.headers, masked.faults) == (None, bytes(3)) and pieces(masked.data, []) == after
        assert masked.counts[number] == (2, 2, 2, 2, 0)
    masked = masker.mask(columns_of(messages), [(1, 2)], numbers(0, 0, 0), True)
    assert pieces(masked.data, []) == [bytes(10), b"", bytes(7)] and masked.faults == b"\1\0\0"
    assert masked.counts[1:] == ((2, 2, 2, 2, 0), (2, 1, 1, 1, 1))


def test_paths_of_many_steps_and_many_rules_fit() -> None:
    """More places than one word has bits for."""
    deep = tuple(Step(StepKind.ANYWHERE if n % 3 else StepKind.MEMBER, "a") for n in range(64))
    rules = [MaskRule(MaskPlace.PATH, MaskAction.REDACT, deep[:n]) for n in range(64, 0, -1)]
    text = '{"a":' * 64 + "1" + "}" * 64
    for some in (tuple(range(64)), (0,), (0, 1, 63), (31,)):
        call = (columns_of([Content(None, text.encode())]), [some], numbers(0), False)
        masked = plain(compiled_kernel().Masker(rules, SECRET).mask(*call))
        assert masked == plain(_kernels_py.Masker(rules, SECRET).mask(*call))
        assert sum(masked.counts[n].values for n in some) > 0


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        ("count", -1, "too short"),
        ("count", 4, "too short"),
        ("data_offsets", bytes(15), "too short"),
        ("header_offsets", bytes(15), "too short"),
        ("header_validity", b"", "too short"),
        ("data_offsets", struct.pack("<4i", 0, 1, 0, 0), "bad offsets in row 1"),
        ("data_offsets", struct.pack("<4i", 0, 0, 0, 1 << 30), "bad offsets in row 2"),
        ("header_offsets", struct.pack("<4i", -1, 0, 0, 0), "bad offsets in row 0"),
    ],
)
def test_a_batch_with_bad_buffers_is_not_masked(kernel: ModuleType, field: str, value: Any, words: str) -> None:
    columns = columns_of([Content(None, b'{"a":1}')] * 3)._replace(**{field: value})
    with pytest.raises(FormatError, match=words):
        kernel.Masker([rule("$.a=redact")], SECRET).mask(columns, [(0,)], numbers(0, 0, 0, 0), False)


@pytest.mark.parametrize("offsets", [(0, 1, 0, 0), (0, 0, 0, 1 << 30), (-1, 0, 0, 0)])
def test_subjects_with_bad_offsets_are_not_compared(kernel: ModuleType, offsets: tuple[int, ...]) -> None:
    columns = columns_of([Content(None, b"")] * 3)._replace(subject_offsets=struct.pack("<4i", *offsets))
    matcher, mapper = kernel.SubjectMatcher([b">"]), kernel.SubjectMapper([[(b">", [b"t", 1])]])
    for call in (matcher.first, matcher.sets, mapper.map):
        with pytest.raises(FormatError, match="bad offsets in row"):
            call(columns)


def test_a_sliced_batch_is_masked_as_its_slice(kernel: ModuleType) -> None:
    messages = [Content(b"NATS/1.0\r\nX: %d\r\n\r\n" % n if n % 3 else None, b'{"a":%d}' % n) for n in range(40)]
    batch = batch_of([Message(n + 1, 1, "s", *one) for n, one in enumerate(messages)])
    masker = kernel.Masker([rule("$.a=hash"), rule("header(x)=hash")], SECRET)
    whole = masker.mask(columns_from_batch(batch), [(0, 1)], bytes(160), False)
    for start, count in ((0, 40), (3, 20), (8, 1), (39, 1), (20, 0)):
        part = masker.mask(columns_from_batch(batch.slice(start, count)), [(0, 1)], bytes(4 * count), False)
        for found, all_of in ((part.data, whole.data), (part.headers, whole.headers)):
            assert pieces(found, []) == pieces(all_of, [])[start : start + count]


# --- subjects -----------------------------------------------------------------------------------------------------

odd = literals | st.sampled_from(["", ".", "a.", ".a", "a..b", "$KV.a.b", "$O.a", "$MQTT", "$KVs.a", "a.\udcff", "é.b"])


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(st.lists(odd, max_size=6), st.lists(patterns(), max_size=70))
def test_subjects_match_as_the_rule_says(subjects: list[str], wanted: list[str]) -> None:
    columns = columns_from_batch(batch_of([Message(n, 1, one, None, b"") for n, one in enumerate(subjects, start=1)]))
    call = [one.encode() for one in wanted]
    found = compiled_kernel().SubjectMatcher(call).sets(columns)
    assert found == _kernels_py.SubjectMatcher(call).sets(columns)
    first = compiled_kernel().SubjectMatcher(call).first(columns)
    assert first == _kernels_py.SubjectMatcher(call).first(columns)
    matching = [tuple(n for n, one in enumerate(wanted) if by_the_rule(one, subject)) for subject in subjects]
    assert [found[1][number] for number in memoryview(found[0]).cast("i")] == matching
    assert memoryview(first).cast("i").tolist() == [min(some, default=-1) for some in matching]


@settings(deadline=None, max_examples=200 if EXPLORE else 50)
@given(st.lists(odd, max_size=6), st.lists(st.lists(maps(), max_size=3), max_size=2))
def test_subjects_are_mapped_as_one_by_one(subjects: list[str], stages: list[list[SubjectMap]]) -> None:
    columns = columns_from_batch(batch_of([Message(n, 1, one, None, b"") for n, one in enumerate(subjects, start=1)]))
    call = [SubjectMaps(tuple(some)).stage for some in stages]
    mapped = compiled_kernel().SubjectMapper(call).map(columns)
    twin = _kernels_py.SubjectMapper(call).map(columns)
    expected = list(subjects)
    for some in stages:
        expected = [SubjectMaps(tuple(some)).map(subject) for subject in expected]
    for one in (mapped, twin):
        if expected == subjects:
            # A later stage may have undone what an earlier one did.
            assert one is None or [piece.decode("utf-8", "surrogateescape") for piece in pieces(one, [])] == subjects
        else:
            assert one is not None
            assert [piece.decode("utf-8", "surrogateescape") for piece in pieces(one, [])] == expected
