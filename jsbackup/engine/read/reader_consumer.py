"""The consumers by which streams are read: their configuration, how to recognize them, and what they deliver."""

from __future__ import annotations

from typing import NamedTuple

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.protocol.events import Message
from jsbackup.protocol.headers import parse_status

__all__ = [
    "IDLE_SECONDS",
    "LEFT_SECONDS",
    "PUT_BACK_DESCRIPTION",
    "MessagePosition",
    "is_control",
    "is_reader",
    "owner_of",
    "position_of",
    "reader_config",
]

IDLE_SECONDS = 5.0  # the requested heartbeat; after three missed ones the consumer counts as lost
_FLOW_CONTROL = 100
_DESCRIPTION = "jsbackup reads this stream"
PUT_BACK_DESCRIPTION = "jsbackup puts messages back into this stream"
_OWNER = "jsbackup.repository"  # metadata key
# How long a reader exists without a listener: as long as a silent reader is waited for.
LEFT_SECONDS = 15.0
_ACK_TOKENS, _LONG_ACK_TOKENS = 9, 12  # of an ack subject; the long one has a domain and an account before the stream


def is_control(message: Message) -> bool:
    """Return whether this is flow control or a heartbeat. A stored message may look alike, but has a position."""
    if message.data or not message.headers or (message.reply or "").count(".") >= _ACK_TOKENS - 1:
        return False
    status = parse_status(message.headers)
    return status is not None and status.code == _FLOW_CONTROL


def is_reader(config: JsonObject) -> bool:
    """Return whether a consumer with this configuration is one of ours: a killed run leaves it behind for a while."""
    ours = config.get("description") in (_DESCRIPTION, PUT_BACK_DESCRIPTION)
    return ours and not config.get("durable_name")


def owner_of(config: JsonObject) -> str | None:
    """Return the repository that a reader of ours was created for, if it is recorded."""
    if not is_reader(config):
        return None
    owner = (config.get("metadata") or {}).get(_OWNER)
    return owner if isinstance(owner, str) else None


def reader_config(inbox: str, first: int, idle_seconds: float, owner: str = "") -> JsonObject:
    """Return the configuration of a reader: delivers to `inbox` from sequence `first` on, with heartbeats when idle.

    `owner` is the id of its repository, by which a left reader is recognized.
    """
    config = {
        "name": inbox.replace(".", "-"),
        "description": _DESCRIPTION,
        "deliver_subject": inbox,
        "deliver_policy": "by_start_sequence",
        "opt_start_seq": first,
        "replay_policy": "instant",
        "ack_policy": "none",
        "max_deliver": 1,
        "mem_storage": True,
        "num_replicas": 1,
        "flow_control": True,
        "idle_heartbeat": int(idle_seconds * 1e9),
        "inactive_threshold": int(LEFT_SECONDS * 1e9),
    }
    return {**config, "metadata": {_OWNER: owner}} if owner else config


class MessagePosition(NamedTuple):
    """The position of a delivered message: its sequence and store time in the stream, the number of its delivery by the
    consumer, from 1, and how many messages are pending after it.
    """

    sequence: int
    delivery: int
    timestamp_ns: int
    pending: int


def position_of(stream: str, reply: str) -> MessagePosition:
    """Parse the ack subject of a delivered message. Raises FormatError for anything else."""
    tokens = reply.split(".")
    if len(tokens) >= _LONG_ACK_TOKENS - 1:
        tokens = tokens[4:]
    elif len(tokens) == _ACK_TOKENS:
        tokens = tokens[2:]
    else:
        raise FormatError(f"reading {stream}: a message without its position")
    try:
        return MessagePosition(int(tokens[3]), int(tokens[4]), int(tokens[5]), int(tokens[6]))
    except ValueError as error:
        raise FormatError(f"reading {stream}: a message without a valid position") from error
