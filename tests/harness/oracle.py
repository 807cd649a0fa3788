"""The independent witness: what a server holds, read back message by message through the plain API, and compared.

`observe` reads each sequence of a stream on its own with STREAM.MSG.GET, never with a snapshot, a consumer or anything
of the product. `compare` says in words what differs between two observations. What it leaves out is listed in this
module, each with its reason, and nothing else is left out.
"""

from __future__ import annotations

import base64
import calendar
import hashlib
import json
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

from nats.aio.client import Client

from tests.harness.api import JSON, Reply, Wire, call, creds_of, paged

# Requests under way at once while reading a stream.
_PIPELINE = 200
# A stream wider than this is not read sequence by sequence: a mistake of a test, not a stream of one.
_WIDEST = 1_000_000
# Differences of one kind that are spelt out for one stream.
_SPELT_OUT = 5
NO_MESSAGE = 10037

# Fields of a stream's configuration that a server writes although they mean the same as being absent.
STREAM_DEFAULTS: dict[str, Any] = {
    "allow_msg_ttl": False,  # 2.11 on write it always; 2.10 does not know it
}
# Servers before 2.14 give a stream with sources the default window; from 2.14 on it stays without one.
SOURCES_DUPLICATE_WINDOW_NS = 120 * 1_000_000_000
# Nothing of the kind was found in consumer configurations of 2.10.26 to 2.15.1.
CONSUMER_DEFAULTS: dict[str, Any] = {}
# Metadata that servers from 2.11 on add by themselves (version, API level, required level).
SERVER_METADATA = "_nats."

# Fields of a consumer's info that hold no state of the consumer.
RUNTIME_CONSUMER_FIELDS = frozenset(
    {
        "type",  # of the API's answer
        "stream_name",  # compared as the stream
        "config",  # compared field by field
        "created",  # no request can set it: archives v2 lose it, and 2.10 and 2.11 report it with a drift
        "cluster",  # who leads now
        "ts",  # time of asking
        "num_waiting",  # pulls waiting now
        "push_bound",  # a subscriber is there now
        "pause_remaining",  # counts down; `paused` and `pause_until` are compared
        "priority_groups",  # which client is pinned now
    }
)
# Fields of `delivered` and `ack_floor` that servers keep in memory only: the time of the last change.
RUNTIME_SEQUENCE_FIELDS = frozenset({"last_active"})
# Fields of a stream's state that are compared in another way: the two listings below by their contents.
LISTED_STATE_FIELDS = frozenset({"deleted", "subjects"})


@dataclass(frozen=True, slots=True)
class ObservedMessage:
    """One stored message; `header_block` is None where it has none; time in nanoseconds since 1970, UTC."""

    sequence: int
    time_ns: int
    subject: bytes
    header_block: bytes | None
    data: bytes


@dataclass(frozen=True, slots=True)
class ObservedStream:
    """`deleted` is what the server reports, `missing` what reading found between first and last sequence.

    `created` is not compared: no request can set it, and a restore of an archive v2 loses it.
    """

    name: str
    created: str
    config: JSON
    state: JSON
    deleted: tuple[int, ...]
    missing: tuple[int, ...]
    subjects: dict[str, int]
    messages: tuple[ObservedMessage, ...]
    consumers: dict[str, JSON]


async def observe(
    nc: Client, streams: Collection[str] | None = None, *, prefix: str = "$JS.API"
) -> dict[str, ObservedStream]:
    """Reads these streams (all of the account without `streams`) as a whole. Raises Refused where one is not there."""
    names = sorted(await paged(nc, "STREAM.NAMES", "streams", prefix=prefix)) if streams is None else streams
    if nc.connected_url is None:
        raise ValueError("the connection is not open")
    # Streams have thousands of messages, and each request of nats-py makes a future, a timer and a task.
    wire = await Wire.open(nc.connected_url.geturl(), creds=creds_of(nc))
    try:
        return {name: await _observe_stream(nc, wire, name, prefix) for name in names}
    finally:
        await wire.close()


async def _observe_stream(nc: Client, wire: Wire, name: str, prefix: str) -> ObservedStream:
    asked = {"deleted_details": True, "subjects_filter": ">"}
    info = await call(nc, f"STREAM.INFO.{name}", asked, prefix=prefix)
    state = _plain_state(info["state"])
    first, last = state["first_seq"], state["last_seq"]
    if last - first > _WIDEST:
        raise ValueError(f"stream {name} spans {last - first} sequences")
    messages: list[ObservedMessage] = []
    missing: list[int] = []
    deleted = set(state.get("deleted") or ())
    sequences = range(first, last + 1)
    for start in range(0, len(sequences), _PIPELINE):
        part = sequences[start : start + _PIPELINE]
        for sequence, message in zip(part, await _messages(wire, name, part, prefix), strict=True):
            if message is None and sequence not in deleted:
                # Servers with encrypted stores deny a message now and then that is asked for while they load its block
                # for another request (2.12.8: one in 300 times). The next answer is right.
                (message,) = await _messages(wire, name, [sequence], prefix)
            if message is None:
                missing.append(sequence)
            else:
                messages.append(message)
    if info["config"].get("allow_direct"):
        messages = [await _with_exact_subject(wire, name, message, prefix) for message in messages]
    consumers = {one["name"]: one for one in await paged(nc, f"CONSUMER.LIST.{name}", "consumers", prefix=prefix)}
    return ObservedStream(
        name=name,
        created=info["created"],
        config=info["config"],
        state={key: value for key, value in state.items() if key not in LISTED_STATE_FIELDS},
        deleted=tuple(sorted(deleted)),
        missing=tuple(missing),
        subjects=state.get("subjects") or {},
        messages=tuple(messages),
        consumers=consumers,
    )


def _plain_state(state: JSON) -> JSON:
    # A stream that never held a message has a first sequence of 0 or of 1, and in some servers "deleted" holds 0,
    # which is the number of no message.
    deleted = [sequence for sequence in state.get("deleted") or () if sequence > 0]
    return {**state, "first_seq": max(state["first_seq"], 1), "deleted": deleted, "num_deleted": len(deleted)}


async def _messages(wire: Wire, stream: str, sequences: Sequence[int], prefix: str) -> list[ObservedMessage | None]:
    for sequence in sequences:
        await wire.send(f"{prefix}.STREAM.MSG.GET.{stream}", b'{"seq":%d}' % sequence)
    replies = await wire.replies()
    return [_message(stream, sequence, reply) for sequence, reply in zip(sequences, replies, strict=True)]


def _message(stream: str, sequence: int, reply: Reply) -> ObservedMessage | None:
    if not reply.data:
        raise RuntimeError(f"reading {stream} {sequence}: {reply.header_block!r}")
    answer = json.loads(reply.data)
    if error := answer.get("error"):
        if error.get("err_code") == NO_MESSAGE:
            return None
        raise RuntimeError(f"reading {stream} {sequence}: {error}")
    message = answer["message"]
    if message["seq"] != sequence:
        raise RuntimeError(f"asked {stream} for {sequence}, got {message['seq']}")
    block = message.get("hdrs")
    return ObservedMessage(
        sequence=sequence,
        time_ns=time_ns(message["time"]),
        subject=message["subject"].encode(),
        header_block=None if block is None else base64.b64decode(block, validate=True),
        data=base64.b64decode(message.get("data") or "", validate=True),
    )


async def _with_exact_subject(wire: Wire, stream: str, message: ObservedMessage, prefix: str) -> ObservedMessage:
    # JSON replaces bytes that are not UTF-8; a direct get carries the subject's own bytes in a header.
    if "\ufffd" not in message.subject.decode():
        return message
    await wire.send(f"{prefix}.DIRECT.GET.{stream}", json.dumps({"seq": message.sequence}).encode())
    (reply,) = await wire.replies()
    # The server's own lines come after the message's.
    subject = reply.header_block.rpartition(b"\r\nNats-Subject: ")[2].partition(b"\r\n")[0]
    return ObservedMessage(message.sequence, message.time_ns, subject, message.header_block, message.data)


def time_ns(text: str) -> int:
    """RFC 3339 in UTC with up to nine decimals → nanoseconds since 1970."""
    if not text.endswith("Z"):
        raise ValueError(f"not in UTC: {text}")
    seconds, _, fraction = text[:-1].partition(".")
    year, month, day = (int(part) for part in seconds[:10].split("-"))
    hour, minute, second = (int(part) for part in seconds[11:].split(":"))
    return calendar.timegm((year, month, day, hour, minute, second)) * 1_000_000_000 + int(fraction.ljust(9, "0") or 0)


# --- comparing ---


def unused_floors(before: Mapping[str, ObservedStream], after: Mapping[str, ObservedStream]) -> list[str]:
    """Consumers that acknowledged nothing, as patterns for `compare`: 2.15 counts their floor from the first sequence
    or the one they start with, which means the same."""
    return [
        f"{name}:consumer.{consumer}.ack_floor"
        for name, stream in after.items()
        for consumer, info in stream.consumers.items()
        if info["ack_floor"]["consumer_seq"] == 0
        and info["ack_floor"]["stream_seq"] + 1 in (stream.state["first_seq"], info["config"].get("opt_start_seq"))
        and before[name].consumers[consumer]["ack_floor"]["consumer_seq"] == 0
    ]


def compare(
    before: Mapping[str, ObservedStream],
    after: Mapping[str, ObservedStream],
    *,
    ignore: Collection[str] = (),
    renamed: Mapping[str, str] | None = None,
) -> list[str]:
    """What differs, one sentence each, `<stream>: <path>: …`; empty if nothing does.

    `ignore` holds shell patterns over `<path>` or `<stream>:<path>`. Paths are `stream` (there or not),
    `config.<field>`, `state.<field>`, `deleted`, `missing`, `subjects`, `message.{subject,headers,data,time}`,
    `messages` (there or not), `consumer.<name>` (there or not), `consumer.<name>.config.<field>` and
    `consumer.<name>.<field>`.
    `renamed` maps names of `before` to names of `after`; the stream's own name is then not compared.
    """
    names = renamed or {}
    found: list[str] = []
    expected = {names.get(name, name): stream for name, stream in before.items()}
    for name in sorted(expected.keys() | after.keys()):
        differences = list(_compare_stream(expected.get(name), after.get(name), bool(names)))
        for path, words in differences:
            if not any(fnmatchcase(path, one) or fnmatchcase(f"{name}:{path}", one) for one in ignore):
                found.append(f"{name}: {path}: {words}")
    return found


Difference = tuple[str, str]


def _compare_stream(before: ObservedStream | None, after: ObservedStream | None, renamed: bool) -> Iterator[Difference]:
    if before is None or after is None:
        yield "stream", "is not there any more" if after is None else "was not there before"
        return
    config_before, config_after = (normal_config(one.config, STREAM_DEFAULTS) for one in (before, after))
    if renamed:
        config_before["name"] = config_after["name"]
    yield from _compare_fields("config.", config_before, config_after)
    yield from _compare_fields("state.", _counted(before.state), _counted(after.state))
    yield from _compare_values("deleted", before.deleted, after.deleted)
    yield from _compare_values("missing", before.missing, after.missing)
    yield from _compare_values("subjects", before.subjects, after.subjects)
    yield from _compare_messages(before.messages, after.messages)
    for name in sorted(before.consumers.keys() | after.consumers.keys()):
        yield from _compare_consumer(f"consumer.{name}", before.consumers.get(name), after.consumers.get(name))


def normal_config(config: JSON, defaults: JSON) -> JSON:
    """The configuration without what servers add by themselves."""
    normal = {key: value for key, value in config.items() if not (key in defaults and defaults[key] == value)}
    if normal.get("sources") and normal.get("duplicate_window") == SOURCES_DUPLICATE_WINDOW_NS:
        del normal["duplicate_window"]
    metadata = {
        key: value for key, value in (normal.pop("metadata", None) or {}).items() if not key.startswith(SERVER_METADATA)
    }
    return {**normal, "metadata": metadata} if metadata else normal


def _counted(state: JSON) -> JSON:
    # Counts of nothing are left out by the servers.
    return {key: value for key, value in state.items() if value != 0}


def _compare_fields(path: str, before: JSON, after: JSON) -> Iterator[Difference]:
    for key in sorted(before.keys() | after.keys()):
        yield from _compare_values(f"{path}{key}", before.get(key, "absent"), after.get(key, "absent"))


def _compare_values(path: str, before: object, after: object) -> Iterator[Difference]:
    if before != after:
        yield path, f"{_short(before)} became {_short(after)}"


def _compare_messages(before: Sequence[ObservedMessage], after: Sequence[ObservedMessage]) -> Iterator[Difference]:
    old, new = ({message.sequence: message for message in messages} for messages in (before, after))
    yield from _some("messages", sorted(old.keys() - new.keys()), lambda sequence: f"{sequence} is lost")
    yield from _some("messages", sorted(new.keys() - old.keys()), lambda sequence: f"{sequence} is new")
    both = sorted(old.keys() & new.keys())
    for path, value in _MESSAGE_PARTS:
        differing = [sequence for sequence in both if value(old[sequence]) != value(new[sequence])]
        yield from _some(
            path,
            differing,
            lambda sequence, value=value: (  # type: ignore[misc]
                f"{sequence}: {_short(value(old[sequence]))} became {_short(value(new[sequence]))}"
            ),
        )


_MESSAGE_PARTS: tuple[tuple[str, Callable[[ObservedMessage], object]], ...] = (
    ("message.subject", lambda message: message.subject),
    ("message.headers", lambda message: message.header_block),
    ("message.data", lambda message: message.data),
    ("message.time", lambda message: message.time_ns),
)


def _some(path: str, sequences: Sequence[int], words: Callable[[int], str]) -> Iterator[Difference]:
    for sequence in sequences[:_SPELT_OUT]:
        yield path, words(sequence)
    if len(sequences) > _SPELT_OUT:
        yield path, f"and {len(sequences) - _SPELT_OUT} more, up to {sequences[-1]}"


def _compare_consumer(path: str, before: JSON | None, after: JSON | None) -> Iterator[Difference]:
    if before is None or after is None:
        yield path, "is not there any more" if after is None else "was not there before"
        return
    configs = (normal_config(one.get("config") or {}, CONSUMER_DEFAULTS) for one in (before, after))
    yield from _compare_fields(f"{path}.config.", *configs)
    yield from _compare_fields(f"{path}.", consumer_state(before), consumer_state(after))


def consumer_state(info: JSON) -> JSON:
    """The lasting part of a consumer's info: delivered, ack floor, counts, paused or not."""
    state = {key: value for key, value in info.items() if key not in RUNTIME_CONSUMER_FIELDS}
    for key in ("delivered", "ack_floor"):
        position = info.get(key) or {}
        state[key] = {part: value for part, value in position.items() if part not in RUNTIME_SEQUENCE_FIELDS}
    return state


def _short(value: object) -> str:
    if isinstance(value, bytes) and len(value) > 60:
        return f"{len(value)} bytes (SHA-256 {hashlib.sha256(value).hexdigest()[:12]}…)"
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:190]}… ({len(text)} characters)"
