"""What `backup.json` may say, and what it may not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, JsBackupError, UnsupportedError, UsageError
from jsbackup.exchange.folder import Folder
from jsbackup.exchange.importing import ImportSource, archive_in, decode_meta, encode_meta
from jsbackup.model import StreamState
from jsbackup.server_state import MAX_SEQUENCE

CONFIG = {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file"}
STATE = {"messages": 3, "bytes": 99, "first_seq": 4, "last_seq": 9, "first_ts": "2026-11-21T08:00:00.123456789Z"}


def meta(**fields: Any) -> bytes:
    return json.dumps({"config": CONFIG, "state": STATE, **fields}).encode()


def test_config_and_state_are_read_and_other_blocks_passed_over() -> None:
    plain = decode_meta(meta(), "backup.json")
    assert plain.name == "ORDERS"
    assert plain.config == CONFIG
    assert plain.state == StreamState(
        messages=3, bytes=99, first_seq=4, last_seq=9, first_ns=1795248000_123456789, last_ns=0
    )
    assert decode_meta(meta(later=[1], edit=None, source=7), "backup.json") == plain


@pytest.mark.parametrize(
    ("block", "said"),
    [
        ({"edit": {"options": ["a=\x1b[31m", 7]}}, ["it was edited with 'nats backup edit'"]),
        ({"edit": {"options": "x", "obfuscated": False}}, ["it was edited with 'nats backup edit'"]),
        ({"edit": {"obfuscated": True}}, ["it was edited with 'nats backup edit': names, subjects, "]),
        ({"source": {"dropped": 0}}, ["it was recorded with 'nats sub --backup': it has no consumers"]),
        ({"source": {"dropped": 12}}, ["it was recorded with 'nats sub --backup', which missed 12 messages: "]),
        ({"edit": {}, "source": {}}, ["it was edited", "it was recorded"]),
    ],
)
def test_what_did_not_come_from_a_server_is_called_so(block: dict[str, Any], said: list[str]) -> None:
    made = decode_meta(meta(**block), "backup.json").made
    assert len(made) == len(said) and all(one.startswith(start) for one, start in zip(made, said, strict=True))


def test_what_is_written_is_read_back() -> None:
    state = StreamState(7, 8, 9, 10**18, 11, 10**18 + 1, 2, 3)
    found = decode_meta(encode_meta({**CONFIG, "description": "größe"}, state), "backup.json")
    assert (found.config, found.state) == ({**CONFIG, "description": "größe"}, state)


def test_an_interrupted_backup_is_called_so() -> None:
    for data in (b"", b" \n"):
        with pytest.raises(FormatError, match=r"S/backup.json is empty") as caught:
            decode_meta(data, "S/backup.json")
        assert caught.value.hint is not None
        assert "interrupted" in caught.value.hint


def test_configuration_backups_of_old_are_unsupported() -> None:
    data = b'{"type":"stream","time":"2022","configuration":"e30=","checksum":"00"}'
    with pytest.raises(UnsupportedError, match="configuration backup"):
        decode_meta(data, "backup.json")


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b"null",
        b"\xff",
        b"{}",
        b"[" * 100_000,
        b'{"config":{"name":"A"}}',
        b'{"state":{}}',
        b'{"config":[],"state":{}}',
        b'{"config":{},"state":{}}',
        b'{"config":{"name":7},"state":{}}',
        b'{"config":{"name":""},"state":{}}',
        b'{"config":{"name":".."},"state":{}}',
        b'{"config":{"name":"../../etc"},"state":{}}',
        b'{"config":{"name":"a\\u0000b"},"state":{}}',
        b'{"config":{"name":"\\ud800"},"state":{}}',
        b'{"config":{"name":"A"},"state":{"messages":-1}}',
        b'{"config":{"name":"A"},"state":{"messages":1.5}}',
        b'{"config":{"name":"A"},"state":{"messages":true}}',
        b'{"config":{"name":"A"},"state":{"messages":NaN}}',
        b'{"config":{"name":"A"},"state":{"first_ts":"yesterday"}}',
        b'{"config":{"name":"A"},"state":{"first_seq":%d}}' % (MAX_SEQUENCE + 2),
        b'{"config":{"name":"A"},"state":{"last_seq":%d}}' % (MAX_SEQUENCE + 1),
        b'{"config":{"name":"A"},"state":{"last_seq":%s}}' % (b"9" * 5000),
    ],
)
def test_anything_else_is_a_format_error_that_names_the_file(data: bytes) -> None:
    with pytest.raises(FormatError, match=r"^S/backup.json"):
        decode_meta(data, "S/backup.json")


@given(
    st.binary(max_size=60)
    | st.recursive(st.none() | st.integers() | st.text(), st.lists).map(lambda v: json.dumps(v).encode())
)
def test_noise_is_refused_without_an_accident(data: bytes) -> None:
    with pytest.raises(JsBackupError):
        decode_meta(data, "backup.json")


def test_a_huge_description_is_not_swallowed(tmp_path: Path) -> None:
    with (tmp_path / "backup.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(FormatError, match=r"backup.json has more than"), ImportSource.open(tmp_path):
        pass


def test_an_archive_has_either_name_but_not_both(tmp_path: Path) -> None:
    with Folder.open(tmp_path) as root:
        with pytest.raises(FormatError, match=r"has no stream.tar.s2 or stream.arc.s2 beside it"):
            archive_in(root, root.entries())
        for name in ("stream.tar.s2", "stream.arc.s2"):
            (tmp_path / name).write_bytes(b"")
            if name == "stream.tar.s2":
                assert archive_in(root, root.entries()) == name
        with pytest.raises(UsageError, match=r"holds both stream.tar.s2 and stream.arc.s2"):
            archive_in(root, root.entries())
        (tmp_path / "stream.tar.s2").unlink()
        assert archive_in(root, root.entries()) == "stream.arc.s2"


@pytest.mark.parametrize("value", [float("nan"), {1, 2}])
def test_a_config_that_is_no_json_is_not_written(value: Any) -> None:
    with pytest.raises(FormatError, match="the config of stream ORDERS cannot be written as JSON"):
        encode_meta({**CONFIG, "x": value}, StreamState())
