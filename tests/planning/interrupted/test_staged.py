"""The copy of an interrupted replacement is recognized, and known to be needed or not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.config import parse_glob
from jsbackup.model import StreamState
from jsbackup.planning.interrupted import (
    StagedCopy,
    find_copies,
    is_left_out,
    needed_by,
    replaced_by,
    staged_config,
    staging_prefix,
    useless_copies,
    with_marker,
)
from jsbackup.protocol.info import StreamInfo
from tests.planning.test_plan import NOW, existing

CONFIG = staged_config("ORDERS", "0a1b2c3d", "2026-01-01T00:00:00Z", "host.jsbackup-at-work")
NAME = CONFIG["name"]
STATE = StreamState(messages=10, first_seq=1, last_seq=10, first_ns=100, last_ns=900)


def info(config: dict[str, Any], state: StreamState = STATE, created: str = NOW) -> StreamInfo:
    return replace(existing(config["name"]), config=config, state=state, created=created)


COPY = info(CONFIG)


def test_a_copy_is_recognized_by_its_name_and_its_subject_together() -> None:
    assert replaced_by(NAME, CONFIG) == "ORDERS"
    assert replaced_by(NAME, {**CONFIG, "subjects": ["orders.>"]}) is None
    assert replaced_by("ORDERS", CONFIG) is None
    assert replaced_by(NAME, {**CONFIG, "description": "somebody's own"}) == "ORDERS"


def test_the_name_of_a_copy_fits_a_server_however_long_that_of_the_stream_is() -> None:
    long = "ü" * 127  # 254 bytes
    config = staged_config(long, "0a1b2c3d", None, "host.jsbackup-at-work")
    assert len(config["name"].encode()) <= 255 and replaced_by(config["name"], config) == long
    assert config["name"].startswith(staging_prefix(long))


@pytest.mark.parametrize(
    ("original", "needed"),
    [
        (None, True),  # it was deleted: the copy is all there is
        (info({"name": "ORDERS"}, created="2026-01-01T00:00:00Z"), False),  # the one to replace, still there
        (info({"name": "ORDERS"}, created=NOW), False),  # the one that was made from the copy
        (info({"name": "ORDERS"}, created="2027-01-01T00:00:00Z"), False),  # has all of it
        (info({"name": "ORDERS"}, StreamState(), created="2027-01-01T00:00:00Z"), True),
        (info({"name": "ORDERS"}, replace(STATE, first_ns=901), created="2027-01-01T00:00:00Z"), True),
        (info(with_marker({"name": "ORDERS"}, "B1")), True),  # half-restored
    ],
)
def test_a_copy_is_needed_unless_the_stream_has_what_it_has(original: StreamInfo | None, needed: bool) -> None:
    streams = {NAME: COPY, **({} if original is None else {"ORDERS": original})}
    (found,) = find_copies(streams)
    assert (found.name, found.original, found.messages, found.needed) == (NAME, "ORDERS", 10, needed)
    assert useless_copies(streams) == (set() if needed else {NAME})


def test_a_copy_that_is_itself_half_made_is_of_no_use() -> None:
    assert not find_copies({NAME: info(with_marker(CONFIG, "B1"))})[0].needed


def test_only_the_subject_of_a_command_is_asked_whether_it_runs() -> None:
    assert needed_by(CONFIG) == "host.jsbackup-at-work"
    for text in ("$JS.API.STREAM.DELETE.ORDERS", "a b.jsbackup-at-work", "*.jsbackup-at-work", 5):
        assert needed_by({**CONFIG, "metadata": {"jsbackup.needed-by": text}}) == ""


def test_a_backup_leaves_out_copies_unless_they_are_needed_or_named() -> None:
    copy = StagedCopy(NAME, "ORDERS", 10, needed=False)
    orders, itself = parse_glob("ORDERS"), parse_glob(NAME)
    assert is_left_out(copy, (), ()) and is_left_out(copy, (orders,), ())
    assert not is_left_out(copy, (itself,), ())
    needed = replace(copy, needed=True)
    assert not is_left_out(needed, (), ()) and is_left_out(needed, (), (orders,))
