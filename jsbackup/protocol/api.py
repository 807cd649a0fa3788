"""All requests to JetStream: subjects and JSON bodies.

Each function returns a `Request`: its subject, its body, and the `type` of a valid answer. Servers from 2.12
on refuse fields they do not know (strict JSON): bodies only have known fields whose values are not the default.
Behind a domain or an API prefix only these subjects change; snapshot acks and restore chunks keep `$JS.SNAPSHOT.…`.
Sources: `jetstream_api.go` of nats-server 2.10.26 to 2.15; ADR-2 and ADR-8 of the NATS architecture notes for prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from jsbackup.model import JsonObject, StreamState
from jsbackup.names import check_name, check_subject
from jsbackup.protocol.responses import TYPE_PREFIX
from jsbackup.server_state import stream_state_to_json
from jsbackup.strict_json import write_json

__all__ = [
    "ApiPrefix",
    "Request",
    "account_info",
    "consumer_create",
    "consumer_delete",
    "consumer_info",
    "consumer_list",
    "leader_step_down",
    "message_delete",
    "message_get",
    "message_get_last",
    "message_get_next",
    "stream_create",
    "stream_delete",
    "stream_info",
    "stream_list",
    "stream_names",
    "stream_purge",
    "stream_restore",
    "stream_snapshot",
    "stream_update",
]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to send, and the `type` of its answer for `responses.decode_response`."""

    subject: str
    payload: bytes
    response_type: str


@dataclass(frozen=True, slots=True)
class ApiPrefix:
    """The prefix of API subjects: `$JS.API`, `$JS.<domain>.API`, or the prefix under which an account imports it."""

    text: str = "$JS.API"

    def subject(self, *tokens: str) -> str:
        return ".".join((self.text, *tokens))


def _request(prefix: ApiPrefix, answer: str, tokens: tuple[str, ...], body: JsonObject | None = None) -> Request:
    payload = write_json(body, f"request {'.'.join(tokens[:2])}") if body else b""
    return Request(prefix.subject(*tokens), payload, f"{TYPE_PREFIX}{answer}")


def _page(offset: int, subject: str | None = None) -> JsonObject:
    body: JsonObject = {}
    if offset:
        body["offset"] = offset
    if subject:
        body["subject"] = subject
    return body


def account_info(prefix: ApiPrefix) -> Request:
    return _request(prefix, "account_info_response", ("INFO",))


def stream_names(prefix: ApiPrefix, offset: int = 0, subject: str | None = None) -> Request:
    """Request a page of up to 1024 names from `offset`, of streams that listen to `subject` if given."""
    return _request(prefix, "stream_names_response", ("STREAM", "NAMES"), _page(offset, subject))


def stream_list(prefix: ApiPrefix, offset: int = 0) -> Request:
    """Request a page of up to 256 infos from `offset`. In a cluster the answer may take four seconds (missing
    streams).
    """
    return _request(prefix, "stream_list_response", ("STREAM", "LIST"), _page(offset))


def stream_info(
    prefix: ApiPrefix,
    stream: str,
    *,
    deleted_details: bool = False,
    subjects_filter: str | None = None,
    offset: int = 0,
) -> Request:
    """Request a stream's info; `deleted_details` adds all deleted sequences, `subjects_filter` counts of 100,000
    subjects a page.
    """
    body = _page(offset)
    if deleted_details:
        body["deleted_details"] = True
    if subjects_filter:
        body["subjects_filter"] = subjects_filter
    return _request(prefix, "stream_info_response", ("STREAM", "INFO", check_name("stream", stream)), body)


def stream_create(prefix: ApiPrefix, config: JsonObject) -> Request:
    return _request(prefix, "stream_create_response", ("STREAM", "CREATE", _name_in(config)), config)


def stream_update(prefix: ApiPrefix, config: JsonObject) -> Request:
    return _request(prefix, "stream_update_response", ("STREAM", "UPDATE", _name_in(config)), config)


def stream_delete(prefix: ApiPrefix, stream: str) -> Request:
    return _request(prefix, "stream_delete_response", ("STREAM", "DELETE", check_name("stream", stream)))


def stream_snapshot(
    prefix: ApiPrefix,
    stream: str,
    deliver_subject: str,
    *,
    chunk_size: int,
    window_size: int | None,
    include_consumers: bool,
    check: bool,
) -> Request:
    """Request a snapshot. `window_size` None leaves the field out: servers before 2.12.5 do not know it.

    2.12.0 to 2.12.4 refuse the whole request because of it (10025, see `responses.is_unknown_field`).
    """
    body: JsonObject = {
        "deliver_subject": check_subject("deliver subject", deliver_subject),
        "chunk_size": chunk_size,
    }
    if window_size is not None:
        body["window_size"] = window_size
    if not include_consumers:
        body["no_consumers"] = True
    if check:
        body["jsck"] = True
    return _request(prefix, "stream_snapshot_response", ("STREAM", "SNAPSHOT", check_name("stream", stream)), body)


def stream_restore(prefix: ApiPrefix, config: JsonObject, state: StreamState) -> Request:
    body: JsonObject = {"config": config, "state": stream_state_to_json(replace(state, deleted=0))}
    return _request(prefix, "stream_restore_response", ("STREAM", "RESTORE", _name_in(config)), body)


def stream_purge(prefix: ApiPrefix, stream: str, subject: str) -> Request:
    """Remove all messages with this subject."""
    tokens = ("STREAM", "PURGE", check_name("stream", stream))
    return _request(prefix, "stream_purge_response", tokens, {"filter": subject})


def leader_step_down(prefix: ApiPrefix, stream: str) -> Request:
    """Make the leader of a stream step down; error 10010 without a cluster."""
    tokens = ("STREAM", "LEADER", "STEPDOWN", check_name("stream", stream))
    return _request(prefix, "stream_leader_stepdown_response", tokens)


def message_get(prefix: ApiPrefix, stream: str, sequence: int) -> Request:
    """Request the message with this sequence; error 10037 if there is none. Offline streams do not answer at all."""
    return _message_get(prefix, stream, {"seq": sequence})


def message_get_next(prefix: ApiPrefix, stream: str, sequence: int, subject: str = ">") -> Request:
    """Request the first message at or after `sequence` whose subject matches."""
    return _message_get(prefix, stream, {"seq": sequence, "next_by_subj": subject})


def message_get_last(prefix: ApiPrefix, stream: str, subject: str) -> Request:
    """Request the last message with this subject; error 10037 if there is none."""
    return _message_get(prefix, stream, {"last_by_subj": subject})


def message_delete(prefix: ApiPrefix, stream: str, sequence: int) -> Request:
    """Delete the message with this sequence, without overwriting its bytes; error 10043 or 10057 if there is none."""
    tokens = ("STREAM", "MSG", "DELETE", check_name("stream", stream))
    return _request(prefix, "stream_msg_delete_response", tokens, {"seq": sequence, "no_erase": True})


def _message_get(prefix: ApiPrefix, stream: str, body: JsonObject) -> Request:
    tokens = ("STREAM", "MSG", "GET", check_name("stream", stream))
    return _request(prefix, "stream_msg_get_response", tokens, body)


def consumer_list(prefix: ApiPrefix, stream: str, offset: int = 0) -> Request:
    """Request a page of up to 256 infos. Measured: for a missing stream a cluster lists nothing, without an error."""
    tokens = ("CONSUMER", "LIST", check_name("stream", stream))
    return _request(prefix, "consumer_list_response", tokens, _page(offset))


def consumer_info(prefix: ApiPrefix, stream: str, consumer: str) -> Request:
    tokens = ("CONSUMER", "INFO", check_name("stream", stream), check_name("consumer", consumer))
    return _request(prefix, "consumer_info_response", tokens)


def consumer_create(prefix: ApiPrefix, stream: str, config: JsonObject) -> Request:
    """Create ("create"), change ("update") or either (""). A consumer without a durable name keeps its `name`."""
    key = "durable_name" if config.get("durable_name") else "name"
    tokens = ("CONSUMER", "CREATE", check_name("stream", stream), _name_in(config, "consumer", key))
    body: JsonObject = {"stream_name": stream, "config": config, "action": "create"}
    return _request(prefix, "consumer_create_response", tokens, body)


def consumer_delete(prefix: ApiPrefix, stream: str, consumer: str) -> Request:
    tokens = ("CONSUMER", "DELETE", check_name("stream", stream), check_name("consumer", consumer))
    return _request(prefix, "consumer_delete_response", tokens)


def _name_in(config: JsonObject, kind: str = "stream", key: str = "name") -> str:
    name = config.get(key)
    return check_name(kind, name if isinstance(name, str) else "")
