"""What a stream takes is known from its configuration and state before anything is written."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.errors import TargetConflict
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from jsbackup.putting_back.plan import (
    blocked_by_config,
    blocked_by_limits,
    crowded_reason,
    keeps_one,
    subject_limit,
    takes_not,
)
from tests.planning.test_plan import existing

KIB = 1024


def info(name: str = "S", *, state: StreamState | None = None, **config: Any) -> StreamInfo:
    there = existing(name, "s.>")
    return replace(there, config={**there.config, **config}, state=state or there.state)


def refused(subject: str = "s.a", size: int = 10, *, block: int = 0, payload: int = 64 * KIB, **config: Any) -> str:
    return takes_not(info(**config), subject, size, block_bytes=block, max_payload=payload)


@pytest.mark.parametrize(
    ("config", "blocks"),
    [
        ({}, 0),
        ({"sealed": True}, 1),
        ({"mirror": {"name": "O"}, "subjects": []}, 1),
        ({"retention": "workqueue"}, 1),
        ({"retention": "interest"}, 1),
        ({"allow_msg_counter": True, "no_ack": True}, 2),
        ({"subjects": []}, 1),
    ],
)
def test_some_streams_take_nothing(config: dict[str, Any], blocks: int) -> None:
    assert len(list(blocked_by_config(info(**config)))) == blocks


def test_the_description_of_a_file_needs_a_stream_that_replaces_it() -> None:
    assert list(blocked_by_config(info(allow_rollup_hdrs=True), rolls_up=True)) == []
    assert len(list(blocked_by_config(info(), rolls_up=True))) == 1
    assert len(list(blocked_by_config(info(allow_rollup_hdrs=True, deny_purge=True), rolls_up=True))) == 1


def test_a_message_has_a_subject_that_the_stream_listens_to_and_does_not_rename() -> None:
    assert refused() == ""
    assert "does not listen" in refused("other")
    assert "cannot be published" in refused("s. ")
    assert "subject_transform" in refused(subject_transform={"src": "s.*", "dest": "t.{{wildcard(1)}}"})
    assert refused(subject_transform={"src": "x.*", "dest": "t.{{wildcard(1)}}"}) == ""


def test_a_message_fits_with_what_is_added_to_it() -> None:
    assert refused(size=400, max_msg_size=KIB) == ""
    assert "max_msg_size" in refused(size=500, max_msg_size=KIB)
    assert "max_payload" in refused(size=60 * KIB, payload=60 * KIB)
    assert "headers" in refused(block=64 * KIB)


def test_a_full_stream_is_a_conflict_and_one_that_drops_the_oldest_is_one_unless_that_is_accepted() -> None:
    state = StreamState(messages=9, bytes=900)
    for discard, overwrite, conflicts in (("new", False, 1), ("new", True, 1), ("old", False, 1), ("old", True, 0)):
        full = info(state=state, max_msgs=10, discard=discard)
        assert len(list(blocked_by_limits(full, 2, 10, overwrite=overwrite))) == conflicts
        assert list(blocked_by_limits(full, 1, 10, overwrite=overwrite)) == []
    assert all(
        isinstance(one, TargetConflict)
        for one in blocked_by_limits(info(state=state, max_bytes=1000), 1, 101, overwrite=False)
    )


def test_the_messages_of_a_subject_may_be_limited() -> None:
    limited = info(max_msgs_per_subject=2)
    assert subject_limit(limited) == 2 and subject_limit(info()) <= 0
    assert crowded_reason(limited, 1, overwrite=False) == crowded_reason(limited, 2, overwrite=True) == ""
    assert crowded_reason(limited, 2, overwrite=False)
    refusing = info(max_msgs_per_subject=2, discard="new", discard_new_per_subject=True)
    assert crowded_reason(refusing, 2, overwrite=True)


def test_a_bucket_keeps_one_value_of_each_key() -> None:
    assert keeps_one(info("KV_b", max_msgs_per_subject=5)) and keeps_one(info(max_msgs_per_subject=1))
    assert not keeps_one(info(max_msgs_per_subject=2))
