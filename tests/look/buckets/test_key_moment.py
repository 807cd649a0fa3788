"""What is said of a key by what two backups have of it, case by case."""

from __future__ import annotations

from dataclasses import replace

import pytest

from jsbackup.look.buckets.key_states import Continued, KeyRecord, KeyState, Removals, Unknown, state_since, state_then
from jsbackup.model import JsonObject
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.transforms.filters.key_marker import KeyOperation
from tests.harness.backups import CREATED, FIRST
from tests.look.streams import bucket_stream

UNKNOWN = Unknown.UNKNOWN
ORDERED = Removals(history=1, oldest_first=True, max_age_ns=0, by_size=False, copied=False)
WITH_TTL = replace(ORDERED, history=3, oldest_first=False)
CONTINUED = Continued(moment_ns=1000, first_seq=5)


def _put(revision: int, *, expires: bool = False) -> KeyState:
    return KeyState("k", revision, revision * 10, KeyOperation.PUT, expires)


def _gone(revision: int, operation: KeyOperation = KeyOperation.DELETE) -> KeyState:
    return KeyState("k", revision, revision * 10, operation)


@pytest.mark.parametrize(
    ("record", "removals", "last_gap", "verdict"),
    [
        (KeyRecord(), ORDERED, 0, None),
        (KeyRecord(first_later=_put(30), later=1), ORDERED, 0, None),
        (KeyRecord(first_later=_put(30), later=1), ORDERED, 7, UNKNOWN),
        (KeyRecord(_put(6), 1), ORDERED, 7, _put(6)),
        (KeyRecord(_put(6), 1), WITH_TTL, 7, UNKNOWN),
        (KeyRecord(_put(6), 2), WITH_TTL, 7, UNKNOWN),
        (KeyRecord(_put(6), 3), WITH_TTL, 7, _put(6)),
        (KeyRecord(_put(8), 1), WITH_TTL, 7, _put(8)),
        (KeyRecord(_gone(6), 1), WITH_TTL, 7, UNKNOWN),
        (KeyRecord(_put(6), 9), replace(WITH_TTL, history=0), 7, UNKNOWN),
    ],
)
def test_by_one_backup(record: KeyRecord, removals: Removals, last_gap: int, verdict: object) -> None:
    assert state_then(record, removals, last_gap) == verdict


LATER = KeyRecord(first_later=_put(30), later=1)


@pytest.mark.parametrize(
    ("record", "base", "changed", "verdict"),
    [
        # Nothing is left from before, and one later value pushed it out.
        (LATER, _put(6), {}, _put(6)),
        (LATER, None, {}, None),
        (LATER, _gone(6), {}, _gone(6)),
        # It is still there.
        (KeyRecord(_put(6), 1), _put(6), {"history": 3, "oldest_first": False}, _put(6)),
        # One more was kept then: it was not pushed out, and nobody knows when it went.
        (LATER, _put(6), {"history": 2}, UNKNOWN),
        (LATER, _put(6), {"history": 0}, UNKNOWN),
        (KeyRecord(), _put(6), {}, UNKNOWN),
        # It was purged later, and the marker is there.
        (replace(LATER, first_later=_gone(30, KeyOperation.PURGE)), _put(6), {"history": 5}, _put(6)),
        (replace(LATER, first_later=_gone(30)), _put(6), {"history": 5}, UNKNOWN),
        # It may have gone by itself before the moment.
        (LATER, _put(6, expires=True), {}, UNKNOWN),
        (LATER, _put(6), {"max_age_ns": 940}, UNKNOWN),
        (LATER, _put(6), {"max_age_ns": 941}, _put(6)),
        (LATER, _put(6), {"by_size": True}, _put(6)),
        (LATER, _put(4), {"by_size": True}, UNKNOWN),
    ],
)
def test_by_an_earlier_backup_and_all_that_came_since(
    record: KeyRecord, base: KeyState | None, changed: dict[str, int], verdict: object
) -> None:
    removals = replace(ORDERED, **changed)
    assert state_since(record, removals, 7, base=base, earlier=CONTINUED) == verdict
    # Where something may have come in between, the earlier backup says nothing.
    assert state_since(record, removals, 7, base=base, earlier=None) == state_then(record, removals, 7)
    # What came in between is what counts.
    came = replace(record, last=_put(20), count=1)
    assert state_since(came, removals, 7, base=base, earlier=CONTINUED) == _put(20)


_CLIENTS = {"max_msgs_per_subject": 5, "discard": "new", "deny_delete": True}


@pytest.mark.parametrize(
    ("config", "more", "expected"),
    [
        ({}, {}, {}),
        ({"allow_msg_ttl": True}, {}, {"oldest_first": False}),
        ({"deny_delete": False}, {}, {"oldest_first": False}),
        ({"retention": "workqueue"}, {}, {"oldest_first": False}),
        ({"max_age": 7}, {}, {"max_age_ns": 7}),
        ({"max_bytes": 7}, {}, {}),
        ({"max_bytes": 7, "discard": "old"}, {}, {"by_size": True}),
        ({"max_bytes": -1, "max_msgs": -1, "max_age": 0, "discard": "old"}, {}, {}),
        ({"max_msgs_per_subject": -1}, {}, {"history": 0}),
        ({"mirror": {"name": "KV_other"}}, {}, {"oldest_first": False, "history": 0, "copied": True}),
        ({"sources": [{"name": "KV_other"}]}, {}, {"oldest_first": False, "history": 0, "copied": True}),
        ({}, {"transformed": {}}, {"oldest_first": False, "history": 0, "copied": True}),
    ],
)
def test_how_messages_may_have_gone(config: JsonObject, more: JsonObject, expected: JsonObject) -> None:
    stream = bucket_stream({**_CLIENTS, **config})
    manifest = Manifest(FIRST, CREATED, "tests", Source("2.15.1", **more), BackupResult.COMPLETE, (stream,))
    usual = Removals(history=5, oldest_first=True, max_age_ns=0, by_size=False, copied=False)
    assert Removals.of(manifest, stream) == replace(usual, **expected)
