"""JetStream's reports on accounts, streams and consumers, as frozen values. Shapes: nats-server 2.10 to 2.15.

Configs are unchanged JSON objects. Times are nanoseconds since the epoch, 0 if there is none; `created` is kept
as text too, since it identifies a stream's incarnation. Subjects that are not UTF-8 arrive with U+FFFD in place of the
bad bytes: Go's JSON encoder cannot do better.
"""

from __future__ import annotations

import binascii
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject, SequencePair, StreamState
from jsbackup.readable import one_line
from jsbackup.server_state import pair_from_json, stream_state_from_json
from jsbackup.strict_json import INT64, Fields
from jsbackup.times import ZERO_TIME

__all__ = [
    "MARKER",
    "AccountInfo",
    "AccountLimits",
    "ClusterInfo",
    "ConsumerInfo",
    "Replica",
    "SourceInfo",
    "StoredMessage",
    "StreamInfo",
    "Tier",
    "account_info",
    "consumer_info",
    "stored_config",
    "stored_message",
    "stream_info",
]


@dataclass(frozen=True, slots=True)
class Replica:
    """A follower as the leader reports it; `lag` in operations."""

    name: str
    current: bool
    offline: bool
    lag: int

    @property
    def is_current(self) -> bool:
        """Whether it is online and has everything that the leader has."""
        return self.current and not self.offline and self.lag == 0


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """The servers of a stream or consumer. `leader` is "" without one; a single server leads itself."""

    name: str
    leader: str
    replicas: tuple[Replica, ...]

    @property
    def ready(self) -> bool:
        """Whether there is a leader, and every replica is current."""
        return bool(self.leader) and all(replica.is_current for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class SourceInfo:
    """The state of a mirror or source. `active_ns` is the time since it last heard from its origin, -1 for never.

    `seq` is the origin's sequence up to which it has copied, 0 if the server does not report it (before 2.15, mirrors).
    """

    name: str
    lag: int
    active_ns: int
    error: str | None
    external: JsonObject | None
    seq: int = 0
    filter_subject: str = ""
    subject_transforms: tuple[JsonObject, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamInfo:
    """A stream. `lost` counts damaged messages; these are the `lost_sequences`, which count as deleted. `now_ns` is the
    server's clock when it answered.

    `deleted` are the deleted sequences in rising order, None if there are some and they were not requested. `subjects`
    counts the messages by subject, None unless a filter requested them and found some; `subject_count` is the number of
    all subjects.
    """

    name: str
    config: JsonObject
    created: str
    created_ns: int
    state: StreamState
    deleted: tuple[int, ...] | None
    subjects: Mapping[str, int] | None
    lost: int
    cluster: ClusterInfo | None
    mirror: SourceInfo | None
    sources: tuple[SourceInfo, ...]
    now_ns: int
    subject_count: int = 0
    lost_sequences: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class ConsumerInfo:
    """A consumer and its state in numbers; the pending and redelivered messages themselves are not reported."""

    stream: str
    name: str
    config: JsonObject
    created: str
    created_ns: int
    delivered: SequencePair
    ack_floor: SequencePair
    num_ack_pending: int
    num_redelivered: int
    num_pending: int
    cluster: ClusterInfo | None
    push_bound: bool
    now_ns: int


@dataclass(frozen=True, slots=True)
class AccountLimits:
    """Limits of an account or one of its tiers, in bytes and counts; -1 is unlimited."""

    max_memory: int
    max_storage: int
    max_streams: int
    max_consumers: int
    max_ack_pending: int
    memory_max_stream_bytes: int
    storage_max_stream_bytes: int
    max_bytes_required: bool


@dataclass(frozen=True, slots=True)
class Tier:
    """Use and limits of an account or one of its tiers (`R1`, `R3`), in bytes and counts."""

    memory: int
    storage: int
    reserved_memory: int
    reserved_storage: int
    streams: int
    consumers: int
    limits: AccountLimits


@dataclass(frozen=True, slots=True)
class AccountInfo:
    """An account. If it has `tiers`, `usage` is their sum and its limits mean nothing. 2.10 has API level 0."""

    usage: Tier
    tiers: Mapping[str, Tier]
    domain: str | None
    api_level: int


@dataclass(frozen=True, slots=True)
class StoredMessage:
    """One message of a stream. `headers` is the raw block, None if it has none."""

    subject: str
    sequence: int
    timestamp_ns: int
    headers: bytes | None
    data: bytes


# Servers from 2.11 on add these to answers and do not store them (`jetstream_versioning.go`).
_ANSWER_METADATA = ("_nats.ver", "_nats.level")
# Metadata key of a stream that is being restored, or whose restore was interrupted.
MARKER = "jsbackup.restoring"


def stored_config(config: JsonObject) -> JsonObject:
    """Return a stream's or consumer's configuration from the API as servers store it and archives have it.

    Without the mark of a restore, which never belongs in a backup.
    """
    metadata = config.get("metadata")
    if not isinstance(metadata, dict):
        return config
    kept = {key: value for key, value in metadata.items() if key not in (*_ANSWER_METADATA, MARKER)}
    rest = {key: value for key, value in config.items() if key != "metadata"}
    return rest | ({"metadata": kept} if kept else {})


def stream_info(document: JsonObject, where: str = "stream info") -> StreamInfo:
    """Decode STREAM.INFO, CREATE, UPDATE, the end of a restore, or an entry of a list. Raises FormatError."""
    value = Fields(document, where)
    config = value.fields("config")
    state = value.fields("state")
    mirror = value.optional("mirror")
    lost = state.optional("lost")
    return StreamInfo(
        name=config.name("name"),
        config=config.value,
        created=value.text("created"),
        created_ns=value.time_ns("created"),
        state=stream_state_from_json(state),
        deleted=state.numbers("deleted") if "deleted" in state.value or not state.value.get("num_deleted") else None,
        subjects=_subjects(state),
        lost=0 if lost is None else len(lost.array("msgs")),
        lost_sequences=() if lost is None else tuple(lost.numbers("msgs")),
        cluster=_cluster(value),
        mirror=None if mirror is None else _source(mirror),
        sources=tuple(map(_source, value.each("sources"))),
        now_ns=value.time_ns("ts"),
        subject_count=state.number("num_subjects", default=0),
    )


def _subjects(state: Fields) -> dict[str, int] | None:
    subjects = state.optional("subjects")
    return None if subjects is None else {subject: subjects.number(subject) for subject in subjects.value}


def _cluster(value: Fields) -> ClusterInfo | None:
    cluster = value.optional("cluster")
    if cluster is None:
        return None
    return ClusterInfo(
        name=cluster.text("name", ""),
        leader=cluster.text("leader", ""),
        replicas=tuple(
            Replica(
                name=replica.text("name"),
                current=replica.flag("current"),
                offline=replica.flag("offline"),
                lag=replica.number("lag", default=0),
            )
            for replica in cluster.each("replicas")
        ),
    )


def _source(value: Fields) -> SourceInfo:
    error = value.optional("error")
    external = value.optional("external")
    return SourceInfo(
        name=value.text("name"),
        lag=value.number("lag", default=0),
        active_ns=value.signed("active", 0),
        error=None if error is None else one_line(error.text("description", "")) or "no description",
        external=None if external is None else external.value,
        seq=value.number("seq", default=0),
        filter_subject=value.text("filter_subject", ""),
        subject_transforms=tuple(
            {"src": transform.text("src", ""), "dest": transform.text("dest", "")}
            for transform in value.each("subject_transforms")
        ),
    )


def consumer_info(document: JsonObject, where: str = "consumer info", stream: str = "") -> ConsumerInfo:
    """Decode CONSUMER.INFO, CREATE, or an entry of the list of `stream`'s consumers. Raises FormatError.

    If all servers of a consumer are offline, a cluster lists it with its config only, without the names outside of it.
    """
    value = Fields(document, where)
    config = value.fields("config")
    if value.text("name", ""):
        name = value.name("name")
    else:
        name = config.name("name" if config.value.get("name") else "durable_name")
    return ConsumerInfo(
        stream=value.text("stream_name", "") or stream,
        name=name,
        config=config.value,
        created=value.text("created"),
        created_ns=value.time_ns("created"),
        delivered=pair_from_json(value.fields("delivered")),
        ack_floor=pair_from_json(value.fields("ack_floor")),
        num_ack_pending=value.number("num_ack_pending", default=0),
        num_redelivered=value.number("num_redelivered", default=0),
        num_pending=value.number("num_pending", default=0),
        cluster=_cluster(value),
        push_bound=value.flag("push_bound"),
        now_ns=value.time_ns("ts"),
    )


def account_info(document: JsonObject) -> AccountInfo:
    """Decode an answer of INFO. Raises FormatError."""
    value = Fields(document, "account info")
    tiers = value.optional("tiers")
    api = value.optional("api")
    return AccountInfo(
        usage=_tier(value),
        tiers={} if tiers is None else {name: _tier(tiers.fields(name)) for name in tiers.value},
        domain=value.text("domain", "") or None,
        api_level=0 if api is None else api.number("level", default=0),
    )


def _tier(value: Fields) -> Tier:
    limits = value.fields("limits")
    return Tier(
        memory=value.number("memory"),
        storage=value.number("storage"),
        reserved_memory=_reserved(value, "reserved_memory"),
        reserved_storage=_reserved(value, "reserved_storage"),
        streams=value.number("streams"),
        consumers=value.number("consumers"),
        limits=AccountLimits(
            max_memory=limits.signed("max_memory"),
            max_storage=limits.signed("max_storage"),
            max_streams=limits.signed("max_streams"),
            max_consumers=limits.signed("max_consumers"),
            max_ack_pending=limits.signed("max_ack_pending", -1),
            memory_max_stream_bytes=limits.signed("memory_max_stream_bytes", -1),
            storage_max_stream_bytes=limits.signed("storage_max_stream_bytes", -1),
            max_bytes_required=limits.flag("max_bytes_required"),
        ),
    )


def _reserved(value: Fields, key: str) -> int:
    # Measured: 2.10.26 counts a restored stream without max_bytes as minus one byte, and wraps around.
    reserved = value.number(key, default=0)
    return 0 if reserved > INT64 else reserved


def stored_message(document: JsonObject) -> StoredMessage:
    """Decode an answer of STREAM.MSG.GET. Raises FormatError, also for a message without a time: all messages
    have one.
    """
    value = Fields(document, "stored message").fields("message")
    if value.text("time") in ("", ZERO_TIME):
        raise FormatError(f"stored message: message {value.number('seq')} has no time")
    headers = _base64(value, "hdrs")
    return StoredMessage(
        subject=value.text("subject"),
        sequence=value.number("seq"),
        timestamp_ns=value.time_ns("time"),
        headers=headers or None,
        data=_base64(value, "data"),
    )


def _base64(value: Fields, key: str) -> bytes:
    try:
        return b64decode(value.text(key, ""), validate=True)
    except (binascii.Error, ValueError) as error:
        raise FormatError(f"{value.where}: {key} is not base64") from error
