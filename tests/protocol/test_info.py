"""Infos are typed, exact to the nanosecond, and hostile ones are format errors."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError
from jsbackup.model import SequencePair, StreamState
from jsbackup.protocol.info import (
    AccountLimits,
    account_info,
    consumer_info,
    stored_message,
    stream_info,
)

STATE = {
    "messages": 2,
    "bytes": 70,
    "first_seq": 5,
    "first_ts": "2026-11-21T07:41:00.123456789Z",
    "last_seq": 9,
    "last_ts": "2026-11-21T07:41:00.123456791Z",
    "num_subjects": 2,
    "num_deleted": 3,
    "consumer_count": 1,
}
STREAM = {
    "type": "io.nats.jetstream.api.v1.stream_info_response",
    "total": 0,
    "offset": 0,
    "limit": 0,
    "config": {"name": "ORDERS", "a field of the future": [1]},
    "created": "2026-11-21T07:40:00.1Z",
    "state": STATE,
    "domain": "hub",
    "cluster": {
        "name": "c1",
        "raft_group": "S-R3F-x",
        "leader": "n1",
        "replicas": [
            {"name": "n2", "current": True, "active": 5, "peer": "x"},
            {"name": "n3", "current": False, "offline": True, "active": 7, "lag": 4, "peer": "y"},
        ],
    },
    "mirror": {"name": "ORIGIN", "lag": 3, "active": -1, "error": {"code": 404, "description": "gone\n"}},
    "sources": [{"name": "A", "lag": 0, "active": 9, "external": {"api": "$JS.hub.API", "deliver": ""}}],
    "ts": "2026-11-21T07:41:01Z",
}
CONSUMER = {
    "stream_name": "ORDERS",
    "name": "worker",
    "created": "2026-11-21T07:40:00Z",
    "config": {"durable_name": "worker", "ack_policy": "explicit"},
    "delivered": {"consumer_seq": 12, "stream_seq": 9, "last_active": "2026-11-21T07:41:00Z"},
    "ack_floor": {"consumer_seq": 7, "stream_seq": 5},
    "num_ack_pending": 5,
    "num_redelivered": 1,
    "num_pending": 100,
    "push_bound": True,
    "ts": "2026-11-21T07:41:01Z",
}
LIMITS = {
    "max_memory": -1,
    "max_storage": 1 << 40,
    "max_streams": -1,
    "max_consumers": -1,
    "max_ack_pending": -1,
    "memory_max_stream_bytes": -1,
    "storage_max_stream_bytes": 1 << 30,
    "max_bytes_required": True,
}
TIER = {"memory": 1, "storage": 2, "reserved_memory": 3, "reserved_storage": 4, "streams": 5, "consumers": 6}
ACCOUNT = {**TIER, "limits": LIMITS, "api": {"level": 3, "total": 9, "errors": 0}, "domain": "hub"}


def without(document: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in document.items() if k != key}


def test_a_stream() -> None:
    info = stream_info(STREAM)
    assert info.name == "ORDERS" and info.config["a field of the future"] == [1]
    assert info.created == "2026-11-21T07:40:00.1Z" and info.created_ns == 1795246800100000000
    assert info.state == StreamState(
        messages=2,
        bytes=70,
        first_seq=5,
        first_ns=1795246860123456789,
        last_seq=9,
        last_ns=1795246860123456791,
        consumers=1,
        deleted=3,
    )
    assert info.now_ns == 1795246861000000000
    assert info.mirror is not None and info.mirror.error == "gone" and info.mirror.active_ns == -1
    assert info.sources[0].external == {"api": "$JS.hub.API", "deliver": ""}


def test_a_cluster_is_ready_when_every_replica_is_current() -> None:
    cluster = stream_info(STREAM).cluster
    assert cluster is not None and cluster.leader == "n1" and not cluster.ready
    assert [(r.name, r.current, r.offline, r.lag) for r in cluster.replicas] == [
        ("n2", True, False, 0),
        ("n3", False, True, 4),
    ]
    for replicas, leader, ready in (
        ([{"name": "n2", "current": True, "active": 1}], "n1", True),
        ([{"name": "n2", "current": True, "active": 1}], "", False),
        ([{"name": "n2", "current": True, "active": 1, "lag": 1}], "n1", False),
        (None, "n1", True),
    ):
        found = stream_info({**STREAM, "cluster": {"leader": leader, "replicas": replicas}}).cluster
        assert found is not None and found.ready is ready


def test_a_stream_of_a_single_server_that_was_never_used() -> None:
    state = {**STATE, "messages": 0, "first_ts": "0001-01-01T00:00:00Z", "last_ts": "0001-01-01T00:00:00Z"}
    info = stream_info(
        {"config": {"name": "S"}, "created": "2026-11-21T07:40:00Z", "state": without(state, "num_deleted")}
    )
    assert info.state.first_ns == info.state.last_ns == 0
    assert info.deleted == () and info.subjects is None and info.lost == 0
    assert info.cluster is info.mirror is None and info.sources == ()


def test_deleted_sequences_are_known_only_where_they_were_asked_for() -> None:
    assert stream_info(STREAM).deleted is None
    assert stream_info({**STREAM, "state": {**STATE, "deleted": [8, 6, 7]}}).deleted == (6, 7, 8)


def test_subject_counts_and_lost_messages() -> None:
    state = {**STATE, "subjects": {"a": 1, "b": 1}, "lost": {"msgs": [7, 8], "bytes": 10}}
    info = stream_info({**STREAM, "state": state})
    assert info.subjects == {"a": 1, "b": 1} and info.lost == 2
    assert stream_info({**STREAM, "state": {**STATE, "lost": {"msgs": None, "bytes": 0}}}).lost == 0


def test_a_consumer() -> None:
    info = consumer_info(CONSUMER)
    assert (info.stream, info.name) == ("ORDERS", "worker")
    assert info.delivered == SequencePair(consumer=12, stream=9) and info.ack_floor == SequencePair(7, 5)
    assert (info.num_ack_pending, info.num_redelivered, info.num_pending) == (5, 1, 100)
    assert info.push_bound


@pytest.mark.parametrize("config", [{"durable_name": "worker"}, {"name": "worker"}])
def test_a_consumer_that_is_offline_is_listed_by_its_config(config: dict[str, str]) -> None:
    info = consumer_info({**CONSUMER, "name": "", "stream_name": "", "config": config}, stream="ORDERS")
    assert (info.stream, info.name) == ("ORDERS", "worker")


def test_an_account() -> None:
    info = account_info(ACCOUNT)
    assert info.usage.storage == 2 and info.usage.reserved_storage == 4 and info.tiers == {}
    assert info.usage.limits == AccountLimits(-1, 1 << 40, -1, -1, -1, -1, 1 << 30, True)
    assert info.domain == "hub" and info.api_level == 3


def test_an_account_with_tiers_on_a_server_without_api_levels() -> None:
    info = account_info({**ACCOUNT, "api": {"total": 9}, "tiers": {"R3": {**TIER, "limits": LIMITS}}})
    assert info.api_level == 0 and info.tiers["R3"].streams == 5


def test_a_reservation_that_wrapped_around_is_none() -> None:
    assert account_info({**ACCOUNT, "reserved_storage": (1 << 64) - 1}).usage.reserved_storage == 0


def test_a_message() -> None:
    document = {
        "subject": "a",
        "seq": 7,
        "time": "2026-11-21T07:41:00.000000001Z",
        "hdrs": "TkFUUy8xLjANCg0K",
        "data": "eA==",
    }
    message = stored_message({"message": document})
    assert message.headers == b"NATS/1.0\r\n\r\n" and message.data == b"x" and message.sequence == 7
    bare = stored_message({"message": {"subject": "a", "seq": 7, "time": "2026-11-21T07:41:00Z"}})
    assert bare.headers is None and bare.data == b""
    for damaged in ("eA=", "é", "e A=="):
        with pytest.raises(FormatError):
            stored_message({"message": {**document, "data": damaged}})


@pytest.mark.parametrize("time", [None, "", "0001-01-01T00:00:00Z", "0001-01-01T00:00:00+00:00"])
def test_a_message_without_a_time_is_refused(time: str | None) -> None:
    with pytest.raises(FormatError, match="time"):
        stored_message({"message": {"subject": "a", "seq": 7, "time": time}})
    at_epoch = {"subject": "a", "seq": 7, "time": "1970-01-01T00:00:00Z"}
    assert stored_message({"message": at_epoch}).timestamp_ns == 0


READERS = [(stream_info, STREAM), (consumer_info, CONSUMER), (account_info, ACCOUNT)]
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers() | st.text(max_size=3), max_size=3),
    st.dictionaries(st.text(max_size=5), st.integers() | st.none() | st.lists(st.none(), max_size=1), max_size=3),
)


@given(st.sampled_from(READERS), st.data())
def test_no_document_makes_another_error_than_a_format_error(reader: Any, data: st.DataObject) -> None:
    read, document = reader
    changed = dict(document)
    path = data.draw(st.sampled_from(sorted(changed)))
    if isinstance(changed[path], dict) and data.draw(st.booleans()):
        changed[path] = {**changed[path], data.draw(st.sampled_from(sorted(changed[path]))): data.draw(ODD)}
    else:
        changed[path] = data.draw(ODD)
    try:
        read(changed)
    except FormatError as error:
        assert error.message.isprintable()
