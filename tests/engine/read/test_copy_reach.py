"""How far a copy has come is only taken from its origin if it has heard from that since its last message."""

from __future__ import annotations

from typing import Any

import pytest

from jsbackup.engine.read.mirrors import reach_of
from jsbackup.protocol.info import StreamInfo, stream_info
from jsbackup.times import format_time

BEGAN_NS = 1_780_000_000 * 10**9


def at(seconds: float) -> str:
    return format_time(BEGAN_NS + int(seconds * 1e9))


def stream(name: str, *, last: float, now: float, config: dict[str, Any] | None = None, **more: Any) -> StreamInfo:
    state = {"messages": 5, "bytes": 100, "first_seq": 1, "last_seq": 5, "consumer_count": 0}
    state |= {"first_ts": at(0), "last_ts": at(last)}
    return stream_info(
        {"config": {"name": name, **(config or {})}, "created": at(0), "state": state, "ts": at(now), **more}
    )


@pytest.mark.parametrize(
    ("last", "heard_ago", "known"),
    [
        (90, 0.5, True),
        (50, 20, True),
        (98, 0.5, False),  # the origin is not quiet yet
        (90, 15, False),  # it had its last message since: the copy may have lost the connection before
        (90, 9.5, False),  # by clocks that may be apart
        (50, 40, False),
        (50, -1e-9, False),  # never
    ],
)
def test_a_copy_has_all_that_a_quiet_origin_has_if_it_heard_from_it_since(
    last: float, heard_ago: float, known: bool
) -> None:
    origin = stream("ORIGIN", last=last, now=100)
    sources = [{"name": "ORIGIN", "lag": 0, "active": round(heard_ago * 1e9)}]
    copy = stream("COPY", last=last, now=100, config={"sources": [{"name": "ORIGIN"}]}, sources=sources)
    assert [one.sequence for one in reach_of(copy, {"ORIGIN": origin})] == ([5] if known else [])
