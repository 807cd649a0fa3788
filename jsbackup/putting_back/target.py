"""What a stream takes, by its configuration and state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from jsbackup.errors import PlanRefused, TargetConflict
from jsbackup.model import JsonObject, StreamState
from jsbackup.names import BUCKET_STREAM, is_subject
from jsbackup.protocol.info import StreamInfo
from jsbackup.putting_back.headers import MAX_HEADER_BYTES
from jsbackup.putting_back.model import PutBackMessage
from jsbackup.readable import format_count, format_seconds
from jsbackup.shell import shell_word
from jsbackup.transforms.subjects import is_pattern, matcher, overlaps

__all__ = [
    "EXTRA_BYTES",
    "blocked_by_config",
    "blocked_by_limits",
    "crowded_reason",
    "is_full",
    "keeps_one",
    "notes_about",
    "notes_on_age",
    "only",
    "subject_limit",
    "takes_not",
]

# What a store adds to each message, at most (nats-server's `filestore.go` and `memstore.go`).
RECORD_BYTES = 34
# Headers that are added to a message.
ADDED_BYTES = 600
EXTRA_BYTES = RECORD_BYTES + ADDED_BYTES
# A stream that drops messages for lack of space has so much less than its limit: so many messages of average size.
_SOME = 8


def blocked_by_config(info: StreamInfo, *, rolls_up: bool = False) -> Iterator[PlanRefused]:
    """Yield why the stream takes no message that is put back. `rolls_up`: descriptions of object files are written."""
    config, name = info.config, info.name
    elsewhere = "Restore the messages as a stream of another name (jsbackup restore --rename)."
    if config.get("sealed"):
        yield PlanRefused(f"stream {name} is sealed, and takes no messages", hint=elsewhere)
    if isinstance(mirror := config.get("mirror"), dict):
        origin = mirror.get("name")
        yield PlanRefused(
            f"stream {name} is a mirror of {origin}, and takes no messages",
            hint=f"Name the origin: --to {shell_word(str(origin))}.",
        )
    if (retention := config.get("retention", "limits")) != "limits":
        kind = "a work queue" if retention == "workqueue" else "kept by the interest of consumers"
        yield PlanRefused(
            f"stream {name} is {kind}: whether a missing message was lost or processed cannot be known",
            hint=elsewhere,
        )
    if config.get("allow_msg_counter"):
        counts = f"stream {name} counts: a message that is put back would be added to its counter"
        yield PlanRefused(counts, hint=elsewhere)
    if config.get("no_ack"):
        yield PlanRefused(f"stream {name} does not acknowledge messages (no_ack): what it stores cannot be known")
    if not config.get("subjects") and not config.get("mirror"):
        yield PlanRefused(f"stream {name} listens to no subjects, and only copies from other streams", hint=elsewhere)
    if rolls_up and (not config.get("allow_rollup_hdrs") or config.get("deny_purge")):
        yield PlanRefused(
            f"stream {name} does not allow replacing the description of a file (allow_rollup_hdrs, deny_purge)"
        )


def keeps_one(info: StreamInfo) -> bool:
    """Return whether only the last message of a subject counts: in a bucket, or with `max_msgs_per_subject` 1."""
    return info.name.startswith(BUCKET_STREAM) or subject_limit(info) == 1


def takes_not(info: StreamInfo, subject: str, size: int, *, block_bytes: int, max_payload: int) -> str:
    """Return why the stream takes no message of this subject and size (with headers); "" if it does."""
    if not is_subject(subject):
        return "its subject cannot be published to"
    patterns = [one for one in info.config.get("subjects") or () if isinstance(one, str) and is_pattern(one)]
    if not any(matcher(one).fullmatch(subject) for one in patterns):
        return f"stream {info.name} does not listen to its subject"
    transform = info.config.get("subject_transform")
    source = transform.get("src") if isinstance(transform, dict) else None
    if isinstance(transform, dict) and (not source or not is_pattern(source) or matcher(source).fullmatch(subject)):
        return f"stream {info.name} would rename its subject (subject_transform)"
    limit = _limit(info.config, "max_msg_size")
    if 0 < limit < size + ADDED_BYTES:
        return f"it may be too large for stream {info.name} (max_msg_size {limit:,}), with the headers that are added"
    if max_payload < size + ADDED_BYTES:
        return f"it is too large for the server (max_payload {max_payload:,})"
    if block_bytes + ADDED_BYTES > MAX_HEADER_BYTES:
        return "its headers are too large to add where it comes from"
    return ""


def blocked_by_limits(info: StreamInfo, messages: int, size: int, *, overwrite: bool) -> Iterator[TargetConflict]:
    """Yield why so many more messages, and bytes with what is added to each, do not fit."""
    for key, present, more, unit in (
        ("max_msgs", info.state.messages, messages, "messages"),
        ("max_bytes", info.state.bytes, size, "bytes"),
    ):
        limit = _limit(info.config, key)
        if limit <= 0 or not more or present + more <= limit:
            continue
        room = f"it has {present:,} {unit} of {limit:,}, and up to {more:,} more are needed"
        if info.config.get("discard") == "new":
            hint = f"Raise {key} of the stream, or choose fewer messages."
            yield TargetConflict(f"stream {info.name} is full: {room}", hint=hint)
        elif not overwrite:
            hint = f"Raise {key} of the stream, choose less, or accept that with --overwrite."
            yield TargetConflict(f"stream {info.name} would drop its oldest messages: {room}", hint=hint)


def crowded_reason(info: StreamInfo, present: int, *, overwrite: bool) -> str:
    """Return why a message of a subject of which there are `present` ones does not fit; "" if it does."""
    limit = subject_limit(info)
    if limit <= 0 or present < limit:
        return ""
    if info.config.get("discard") == "new" and info.config.get("discard_new_per_subject"):
        return f"stream {info.name} has {format_count(present, 'message')} of its subject, and takes no more"
    return (
        ""
        if overwrite
        else f"stream {info.name} would drop another message of its subject, of which it keeps {limit:,}"
    )


def subject_limit(info: StreamInfo) -> int:
    """Return how many messages of a subject the stream keeps; 0 or less if that is not limited."""
    return _limit(info.config, "max_msgs_per_subject")


def is_full(info: StreamInfo, state: StreamState) -> bool:
    """Return whether the stream, now in this state, has as much as its limits let it have: of bytes, about as much."""
    most, most_bytes = _limit(info.config, "max_msgs"), _limit(info.config, "max_bytes")
    some = _SOME * state.bytes // max(state.messages, 1)
    return 0 < most <= state.messages or 0 < most_bytes < state.bytes + some


def notes_about(info: StreamInfo) -> Iterator[str]:
    """Yield what happens elsewhere because of new messages."""
    if info.state.consumers:
        yield f"the consumers of stream {info.name} ({info.state.consumers:,}) get the messages as new ones"
    republish = info.config.get("republish")
    if isinstance(republish, dict):
        yield f"stream {info.name} publishes each message again on {republish.get('dest')}"


def notes_on_age(info: StreamInfo, writes: Sequence[PutBackMessage], now_ns: int) -> Iterator[str]:
    """Yield what becomes of messages that the stream would have removed by now, had it kept them: they begin anew."""
    limit = _limit(info.config, "max_age")
    old = sum(1 for one in writes if 0 < limit <= now_ns - one.timestamp_ns)
    if old:
        what = "is 1 message" if old == 1 else f"are {old:,} messages"
        yield (
            f"there {what} older than stream {info.name} keeps them (max_age {format_seconds(limit / 1e9)}): "
            "put back, a message is kept for that long again"
        )


def only(patterns: Sequence[str]) -> JsonObject:
    """Return the patterns as filters of a consumer: none may overlap another one; else there are none."""
    overlapping = any(overlaps(one, other) for at, one in enumerate(patterns) for other in patterns[:at])
    return {} if overlapping or not patterns else {"filter_subjects": list(patterns)}


def _limit(config: JsonObject, name: str) -> int:
    value = config.get(name)
    return value if isinstance(value, int) else 0
