"""Bytes are JSON that can be written again, or one error that says where; whoever reads them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config.connection import read_context
from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.exchange.config_files import read_printed_configs
from jsbackup.exchange.importing import decode_meta
from jsbackup.planning.configs.overrides import parse_override
from jsbackup.protocol.responses import decode_response
from jsbackup.repository.document import decode_document, encode_document
from jsbackup.strict_json import MAX_DEPTH, MAX_JSON_BYTES, read_json, read_object, write_json

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
BAD = [
    b"",
    b"{",
    b"-ERR 'storage failure during restore'",
    b'{"a":NaN}',
    b'{"a":-Infinity}',
    b'{"a":1e999}',
    b'{"a":"\xff"}',
    b"\xef\xbb\xbf{}",
    '{"a":1}'.encode("utf-16"),
    rb'{"a":"\ud800"}',
    rb'{"\udfff":1}',
    b'{"a":' + b"9" * 5000 + b"}",
    b'{"a":' * 100_000,
    b'{"a":' + b"[" * 200_000 + b"]" * 200_000 + b"}",
    b'{"a":' + b"[" * 500 + b"]" * 500 + b"}",
]
NO_OBJECT = [b"[]", b"null", b"3", b'"text"']


def shown(payload: bytes) -> str:
    return repr(payload[:20])


@given(st.dictionaries(st.text(), JSON), st.booleans(), st.sampled_from([None, 2]))
def test_what_is_written_is_read(value: dict[str, object], plain: bool, indent: int | None) -> None:
    encoded = write_json(value, "it", ascii_only=plain, indent=indent)
    assert read_object(encoded, "it") == read_object(encoded.decode(), "it") == value


@pytest.mark.parametrize("payload", [*BAD, *NO_OBJECT], ids=shown)
def test_what_is_no_bounded_json_object_is_a_format_error(payload: bytes) -> None:
    with pytest.raises(FormatError, match=r"^the answer is not "):
        read_object(payload, "the answer")


@given(st.binary() | st.text().map(lambda text: text.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_json_or_one_error(data: bytes) -> None:
    is_json_or_one_error(data)


@given(JSON, st.data())
def test_damaged_json_is_json_or_one_error(value: object, draw: st.DataObject) -> None:
    data = bytearray(json.dumps(value, ensure_ascii=draw.draw(st.booleans())).encode())
    at = draw.draw(st.integers(0, len(data)))
    new = draw.draw(st.binary(max_size=3) | st.sampled_from([b"[", b'"', b"\\u"]))
    data[at : at + draw.draw(st.integers(0, 3))] = new
    is_json_or_one_error(bytes(data))


def is_json_or_one_error(data: bytes) -> None:
    try:
        value = read_json(data, "it")
    except FormatError as error:
        assert error.message.startswith("it ") and error.message.isprintable()
        assert error.__cause__ is error.__context__ is None
    else:
        assert read_json(write_json({"": value}, "it"), "it", max_depth=MAX_DEPTH + 1) == {"": value}


def test_an_error_says_where_and_quotes_nothing() -> None:
    with pytest.raises(UsageError, match=r"^it is not JSON: expecting ',' delimiter in line 2, column 9$") as caught:
        read_json('{"a": 1,\n "b": 2 hunter2}', "it", kind=UsageError)
    assert caught.value.__context__ is None


def test_of_a_name_that_is_there_twice_the_last_counts() -> None:
    assert read_json(b'{"a":1,"a":2}', "it") == {"a": 2}


@pytest.mark.parametrize("data", [b'{"a":1,"a":2}', b'[{"x":{"a":{},"b":1,"a":{}}}]'])
def test_names_that_are_there_twice_are_refused_where_people_write(data: bytes) -> None:
    with pytest.raises(UsageError, match=r'^it has the name "a" twice in one object$') as caught:
        read_json(data, "it", kind=UsageError, unique_names=True)
    assert caught.value.__cause__ is None and caught.value.__suppress_context__
    assert read_json(b'{"a":{"a":1},"b":[{"a":1},{"a":2}]}', "it", unique_names=True)


def test_a_name_that_is_there_twice_is_shown_short_and_printable() -> None:
    name = '"\\ud800\\n' + "x" * 1000 + '":1'
    with pytest.raises(FormatError) as caught:
        read_json(f"{{{name},{name}}}", "it", unique_names=True)
    assert caught.value.message.isprintable() and caught.value.message.isascii() and len(caught.value.message) < 120


def test_depth_is_bounded_and_width_is_not() -> None:
    deep = b'{"a":' + b"[" * (MAX_DEPTH - 1) + b"]" * (MAX_DEPTH - 1) + b"}"
    assert read_object(deep, "it")
    with pytest.raises(FormatError, match=f"nests deeper than {MAX_DEPTH} levels"):
        read_json(b"[" + deep + b"]", "it")
    assert read_json(b"[" + deep + b"]", "it", max_depth=MAX_DEPTH + 1)
    wide = json.dumps({"a": [{"b": []}] * 1000}).encode()
    assert len(read_object(wide, "it")["a"]) == 1000


def test_size_is_bounded() -> None:
    with pytest.raises(FormatError, match=f"it has more than {MAX_JSON_BYTES} bytes"):
        read_json(b" " * (MAX_JSON_BYTES + 1), "it")
    with pytest.raises(FormatError, match="it has more than 1 bytes"):
        read_json(b"{}", "it", max_bytes=1)


@pytest.mark.parametrize("value", [{"a": float("nan")}, {"a": {1, 2}}, {"a": "\ud800"}])
def test_what_is_no_json_is_not_written(value: dict[str, object]) -> None:
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        write_json(value, "config")


def test_a_value_that_contains_itself_is_not_written() -> None:
    value: dict[str, object] = {}
    value["a"] = value
    with pytest.raises(FormatError):
        write_json(value, "config")


def test_a_document_that_could_not_be_read_again_is_not_written() -> None:
    value: object = 0
    for _ in range(127):
        value = [value]
    assert decode_document(encode_document({"a": value}, "it"), "it").value == {"a": value}
    with pytest.raises(FormatError, match="it cannot be written as JSON: it nests deeper than 128 levels"):
        encode_document({"a": [value]}, "it")


# --- whoever reads ---


def _context(folder: Path, data: bytes) -> object:
    path = folder / "x.json"
    path.write_bytes(data)
    return read_context(str(path), {"HOME": str(folder)})


def _told(folder: Path, data: bytes) -> object:
    path = folder / "x.json"
    path.write_bytes(data)
    return read_printed_configs(path)


READERS: dict[str, Callable[[Path, bytes], object]] = {
    "document": lambda _, data: decode_document(data, "it"),
    "answer": lambda _, data: decode_response(data, "x", "it"),
    "backup.json": lambda _, data: decode_meta(data, "it"),
    "context": _context,
    "printed config": _told,
    "--set": lambda _, data: parse_override(f"metadata={data.decode('utf-8', 'surrogateescape')}"),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("data", [*BAD, b"3"], ids=shown)
def test_every_reader_has_one_error_for_bytes_that_are_no_json(reader: str, data: bytes, tmp_path: Path) -> None:
    with pytest.raises(JsBackupError) as caught:
        READERS[reader](tmp_path, data)
    assert isinstance(caught.value, FormatError | UsageError) and len(caught.value.message) < 500
