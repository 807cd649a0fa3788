"""Requests: the right subject, no field too many, and bodies that the public schemas accept."""

from __future__ import annotations

import json

import pytest

from jsbackup.errors import FormatError, UsageError
from jsbackup.model import JsonObject, StreamState
from jsbackup.protocol import api
from jsbackup.protocol.api import ApiPrefix, Request
from tests.protocol.schemas import follows, schema

P = ApiPrefix()
STREAM: JsonObject = {
    "name": "ORDERS",
    "subjects": ["orders.>"],
    "retention": "limits",
    "max_consumers": -1,
    "max_msgs": -1,
    "max_bytes": -1,
    "max_age": 0,
    "storage": "file",
    "num_replicas": 1,
}
CONSUMER: JsonObject = {
    "durable_name": "worker",
    "deliver_policy": "all",
    "ack_policy": "explicit",
    "replay_policy": "instant",
}
STATE = StreamState(messages=3, bytes=300, first_seq=1, first_ns=1795246860123456789, last_seq=4, last_ns=0, deleted=1)
SNAPSHOT = {"chunk_size": 131072, "window_size": 8388608, "include_consumers": True, "check": False}


def body(request: Request) -> JsonObject:
    document: JsonObject = json.loads(request.payload)
    return document


@pytest.mark.parametrize(
    ("request_", "subject", "answer", "payload"),
    [
        (api.account_info(P), "INFO", "account_info", b""),
        (api.stream_names(P), "STREAM.NAMES", "stream_names", b""),
        (api.stream_names(P, 1024, "a.>"), "STREAM.NAMES", "stream_names", b'{"offset":1024,"subject":"a.>"}'),
        (api.stream_list(P), "STREAM.LIST", "stream_list", b""),
        (api.stream_list(P, 256), "STREAM.LIST", "stream_list", b'{"offset":256}'),
        (api.stream_info(P, "S"), "STREAM.INFO.S", "stream_info", b""),
        (api.stream_info(P, "S", deleted_details=True), "STREAM.INFO.S", "stream_info", b'{"deleted_details":true}'),
        (
            api.stream_info(P, "S", subjects_filter="a.>", offset=5),
            "STREAM.INFO.S",
            "stream_info",
            b'{"offset":5,"subjects_filter":"a.>"}',
        ),
        (api.stream_create(P, {"name": "Ö"}), "STREAM.CREATE.Ö", "stream_create", '{"name":"Ö"}'.encode()),
        (api.stream_update(P, {"name": "S"}), "STREAM.UPDATE.S", "stream_update", b'{"name":"S"}'),
        (api.stream_delete(P, "S"), "STREAM.DELETE.S", "stream_delete", b""),
        (api.message_delete(P, "S", 7), "STREAM.MSG.DELETE.S", "stream_msg_delete", b'{"seq":7,"no_erase":true}'),
        (api.message_get(P, "S", 7), "STREAM.MSG.GET.S", "stream_msg_get", b'{"seq":7}'),
        (
            api.message_get_next(P, "S", 7),
            "STREAM.MSG.GET.S",
            "stream_msg_get",
            b'{"seq":7,"next_by_subj":">"}',
        ),
        (api.consumer_list(P, "S", 256), "CONSUMER.LIST.S", "consumer_list", b'{"offset":256}'),
        (api.consumer_info(P, "S", "c"), "CONSUMER.INFO.S.c", "consumer_info", b""),
        (api.consumer_delete(P, "S", "c"), "CONSUMER.DELETE.S.c", "consumer_delete", b""),
    ],
)
def test_subject_body_and_answer(request_: Request, subject: str, answer: str, payload: bytes) -> None:
    assert request_.subject == f"$JS.API.{subject}"
    assert request_.response_type == f"io.nats.jetstream.api.v1.{answer}_response"
    assert request_.payload == payload


def test_a_snapshot_request_follows_the_schema() -> None:
    request = api.stream_snapshot(P, "ORDERS", "_INBOX.a", **SNAPSHOT)  # type: ignore[arg-type]
    assert request.subject == "$JS.API.STREAM.SNAPSHOT.ORDERS"
    assert body(request) == {"deliver_subject": "_INBOX.a", "chunk_size": 131072, "window_size": 8388608}
    follows(request.payload, "stream_snapshot_request")
    request = api.stream_snapshot(
        P, "ORDERS", "_INBOX.a", chunk_size=1024, window_size=1024, include_consumers=False, check=True
    )
    assert body(request)["no_consumers"] is True and body(request)["jsck"] is True
    follows(request.payload, "stream_snapshot_request")


def test_a_snapshot_request_for_servers_before_2_12_5_has_no_window() -> None:
    request = api.stream_snapshot(
        P, "ORDERS", "_INBOX.a", chunk_size=1024, window_size=None, include_consumers=True, check=False
    )
    assert "window_size" not in body(request)


def test_a_restore_request_follows_the_schema() -> None:
    request = api.stream_restore(P, STREAM, STATE)
    assert request.subject == "$JS.API.STREAM.RESTORE.ORDERS"
    assert body(request) == {
        "config": STREAM,
        "state": {
            "messages": 3,
            "bytes": 300,
            "first_seq": 1,
            "first_ts": "2026-11-21T07:41:00.123456789Z",
            "last_seq": 4,
            "last_ts": "0001-01-01T00:00:00Z",
            "consumer_count": 0,
        },
    }
    follows(request.payload, "stream_restore_request")


def test_stream_and_consumer_configurations_follow_the_schemas() -> None:
    follows(api.stream_create(P, STREAM).payload, "stream_create_request")
    follows(api.stream_update(P, STREAM).payload, "stream_update_request")
    request = api.consumer_create(P, "ORDERS", CONSUMER)
    assert request.subject == "$JS.API.CONSUMER.CREATE.ORDERS.worker"
    assert body(request) == {"stream_name": "ORDERS", "config": CONSUMER, "action": "create"}
    follows(request.payload, "consumer_create_request")


def test_a_consumer_without_a_durable_name_keeps_its_name() -> None:
    assert api.consumer_create(P, "ORDERS", {"name": "e1"}).subject == "$JS.API.CONSUMER.CREATE.ORDERS.e1"


def test_the_answers_we_wait_for_are_those_the_schemas_describe() -> None:
    for request in (
        api.account_info(P),
        api.stream_names(P),
        api.stream_list(P),
        api.stream_info(P, "S"),
        api.stream_create(P, STREAM),
        api.stream_delete(P, "S"),
        api.stream_snapshot(P, "S", "_INBOX.a", **SNAPSHOT),  # type: ignore[arg-type]
        api.stream_restore(P, STREAM, STATE),
        api.consumer_list(P, "S"),
        api.consumer_info(P, "S", "c"),
        api.consumer_create(P, "S", CONSUMER),
    ):
        rules = schema(request.response_type.rpartition(".")[2])
        assert rules is not None
        assert rules["properties"]["type"]["const"] == request.response_type


@pytest.mark.parametrize("name", ["", "a.b", "a b", "*", ">", "a\r\nPUB x 0"])
def test_names_that_would_change_the_subject_are_refused(name: str) -> None:
    for ask in (
        lambda: api.stream_info(P, name),
        lambda: api.stream_delete(P, name),
        lambda: api.stream_create(P, {"name": name}),
        lambda: api.stream_restore(P, {"name": name}, STATE),
        lambda: api.consumer_info(P, "S", name),
        lambda: api.consumer_info(P, name, "c"),
        lambda: api.consumer_create(P, "S", {"durable_name": name}),
        lambda: api.message_get(P, name, 1),
    ):
        with pytest.raises(UsageError):
            ask()


@pytest.mark.parametrize("config", [{}, {"name": None}, {"name": 7}, {"name": []}])
def test_a_configuration_without_a_usable_name_is_refused(config: JsonObject) -> None:
    with pytest.raises(UsageError):
        api.stream_create(P, config)
    with pytest.raises(UsageError):
        api.consumer_create(P, "S", config)


def test_a_configuration_that_is_no_json_is_a_format_error() -> None:
    with pytest.raises(FormatError):
        api.stream_create(P, {"name": "S", "max_age": float("nan")})


def test_a_deliver_subject_with_a_wildcard_is_refused() -> None:
    with pytest.raises(UsageError):
        api.stream_snapshot(P, "S", "_INBOX.*", **SNAPSHOT)  # type: ignore[arg-type]


def test_prefixes() -> None:
    assert ApiPrefix().subject("INFO") == "$JS.API.INFO"
    assert ApiPrefix("$JS.hub.API").subject("INFO") == "$JS.hub.API.INFO"
