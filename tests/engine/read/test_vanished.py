"""Messages that a server loses without a word while a backup is made, and those that it removes as it should."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.engine.backup.stream_backup import vanished
from jsbackup.model import StreamState
from jsbackup.protocol.info import StreamInfo
from tests.planning.test_plan import existing


def info(first: int, last: int, deleted: tuple[int, ...] | None = (), *, messages: int | None = None) -> StreamInfo:
    gone = len(deleted or ())
    count = last - first + 1 - gone if messages is None else messages
    state = StreamState(messages=count, first_seq=first, last_seq=last, deleted=last - first + 1 - count)
    return replace(existing("S", "s.>"), state=state, deleted=deleted)


def spans(
    before: StreamInfo, after: StreamInfo, *, suspected: bool = False
) -> list[tuple[int, int | None, int | None]]:
    found = vanished(before, after, suspected=suspected).spans
    assert not any(one.certain for one in found)
    return [(one.first_seq, one.last_seq, one.messages) for one in found]


@pytest.mark.parametrize(
    ("after", "gone"),
    [
        (info(1, 300), []),
        (info(1, 320), []),
        (info(1, 200), [(201, 300, 100)]),
        (info(1, 300, tuple(range(201, 301))), [(201, 300, 100)]),
        (info(1, 305, (5, 6, 9, 303)), [(5, 6, 2), (9, 9, 1)]),
        (info(101, 300), [(1, 100, 100)]),
        (info(301, 300, messages=0), [(1, 300, 300)]),
        (info(0, 0, messages=0), [(1, 300, 300)]),
        (info(1, 300, None, messages=290), [(1, 300, 10)]),
    ],
)
def test_what_is_gone_is_named(after: StreamInfo, gone: list[tuple[int, int, int]]) -> None:
    assert spans(info(1, 300), after, suspected=True) == gone
    long = [one for one in gone if one[0] > 1 and one[2] >= 10]
    assert spans(info(1, 300), after) == (long if after.deleted is not None else [])


def test_where_sequences_were_missing_only_the_number_is_known() -> None:
    before = info(1, 300, (7,))
    assert spans(before, info(1, 310, (7,)), suspected=True) == []
    assert spans(before, info(1, 310, (7, 8, 9)), suspected=True) == [(1, 300, 2)]
    assert spans(before, info(1, 310, (7, 8, 9))) == []


@pytest.mark.parametrize(
    "config",
    [{"max_age": 1}, {"max_msgs": 9}, {"retention": "workqueue"}, {"allow_msg_ttl": True}, {"max_msgs_per_subject": 1}],
)
def test_limits_are_no_loss_unless_damage_is_suspected(config: dict[str, Any]) -> None:
    before = info(1, 300)
    before = replace(before, config={**before.config, **config})
    assert spans(before, info(101, 300)) == []
    assert spans(before, info(101, 300), suspected=True) == [(1, 100, 100)]


def test_another_stream_of_the_name_is_none_of_it() -> None:
    assert spans(info(1, 300), replace(info(1, 1), created="2026-01-01T00:00:00Z")) == []
