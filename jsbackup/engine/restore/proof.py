"""Prove a restore: read the server's messages back and compare them with the backup.

The stream's digest over the restored messages decides. If it differs, the messages are compared one by one; messages
that the stream's own rules removed meanwhile (`max_age`, per-message TTL, consumers of a queue) are not errors, nor are
those that it discarded for newer ones because it is at a limit (`read/removals.py`). Messages beyond the backup's last
sequence arrived after the restore: they are not compared, but may explain what was discarded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.catch_up import describe_stream
from jsbackup.engine.read.compare import Comparison
from jsbackup.engine.read.removals import Discarded, Discards, Missing, Taken, discards_oldest
from jsbackup.engine.read.snapshot_transfer import Advance, Sink
from jsbackup.engine.read.whole_stream import deleted_since, read_whole
from jsbackup.engine.restore.partial_proof import ProofLevel
from jsbackup.errors import DigestMismatch, NatsPermissionDenied
from jsbackup.formats.digest import StreamDigest, StreamDigester
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.protocol.info import ConsumerInfo, StreamInfo
from jsbackup.readable import count_were, format_count

__all__ = [
    "Expected",
    "Proof",
    "about_lacking",
    "consumers_of",
    "excuses",
    "keeps_its_messages",
    "prove_stream",
    "read_back",
    "taken_by",
]

_READINGS = 5
_PAUSE_SECONDS = 0.5
_TTL = re.compile(rb"^nats-ttl:[ \t]*([^\r]*)\r$", re.IGNORECASE | re.MULTILINE)
_SHOWN = 5
_ASKED_SUBJECTS = 1000
_LONG_NS = 24 * 3600 * 1_000_000_000  # of `max_age`: long beside a restore
_FULL = 0.5  # of a limit, from which on it is near
# Settings by which one message removes another.
_REMOVING = ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs")
_WRITTEN = "Something else may be writing to it, or its limits remove messages; look at 'nats stream info'."
_ROLLED_UP = (
    "A client may have rolled up a subject, as the purge of a key does (Nats-Rollup), or have purged or written to the "
    "stream, or its limits remove messages; look at 'nats stream info'."
)
_TAKEN = (
    "Its consumers have acknowledged fewer since. Something else may have purged it, or deleted a consumer that had "
    "taken some; look at 'nats stream info'."
)

S = TypeVar("S", bound=Sink)


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected content of a restored stream, the rules by which it removes messages, and the positions of its
    consumers.

    `messages_of` reads the backup's messages again, if that is needed.
    """

    digest: StreamDigest
    messages: int
    last_seq: int
    config: JsonObject
    consumers: Sequence[ArchivedConsumer]
    messages_of: Callable[[], Iterable[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Proof:
    """The result. `gone` messages were removed by the stream's own rules, some of them `discarded` for newer ones.
    `level` says how much was compared.
    """

    info: StreamInfo
    digest: StreamDigest
    messages: int
    gone: int
    level: ProofLevel = ProofLevel.FULL
    discarded: Discarded = field(default_factory=Discarded)
    bytes: int | None = None  # of the messages that are left, if some are gone


class _DigestSink:
    def __init__(self, last_seq: int) -> None:
        self._last_seq = last_seq
        self.digester = StreamDigester()

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows and batch.column("sequence")[-1].as_py() > self._last_seq:
            batch = batch.filter(pc.less_equal(batch.column("sequence"), self._last_seq))
        self.digester.update(batch)


async def prove_stream(
    js: JetStream, name: str, expected: Expected, *, now_ns: Callable[[], int], advance: Advance
) -> Proof:
    """Read `name` back and compare it. Raises DigestMismatch, listing messages, and NatsError."""
    info, sink = await read_back(js, name, lambda: _DigestSink(expected.last_seq), advance)
    found = sink.digester
    if found.stream_digest == expected.digest and found.messages == expected.messages:
        _check_last(info, expected)
        return Proof(info, found.stream_digest, found.messages, 0)
    listed = await consumers_of(js, name, expected.config)

    def compare() -> Comparison:
        discards = Discards(expected.config, expected.last_seq)
        taken = taken_by(expected.config, expected.consumers, listed)
        excused = excuses(expected.config, taken, now_ns)
        return Comparison(
            expected.messages_of(), expected.last_seq, excused, discards if discards.limited else None, taken
        )

    info, comparison = await read_back(js, name, compare, ignored)
    await in_thread(comparison.finish)
    if comparison.undecided:
        if comparison.discards is not None:
            await _explain_subjects(js, name, comparison.discards, expected.last_seq)
        info = await js.stream(name)
        comparison.decide(info, await consumers_of(js, name, expected.config) or {})
    if comparison.count:
        since = info.state.last_seq - expected.last_seq
        raise DigestMismatch(
            f"stream {name} does not hold what was restored, in {format_count(comparison.count, 'message')}: "
            + ", ".join(
                [
                    _list("missing", comparison.missing_count, comparison.missing),
                    _list("added", comparison.added_count, comparison.added),
                    _list("changed", comparison.changed_count, comparison.changed),
                ]
            )
            + (f"; {count_were(since, 'message')} published to it since" if since > 0 else ""),
            hint=_TAKEN if _is_queue(expected.config) else about_lacking(expected.config),
        )
    _check_last(info, expected)
    # Consumers may have taken more since the first reading.
    left = expected.messages - comparison.gone
    size = found.raw_bytes if left else 0
    return Proof(info, found.stream_digest, left, comparison.gone, discarded=comparison.discarded, bytes=size)


def about_lacking(config: JsonObject) -> str:
    """Return the hint on a stream that lacks messages."""
    return _ROLLED_UP if config.get("allow_rollup_hdrs") else _WRITTEN


def keeps_its_messages(config: JsonObject, state: StreamState) -> bool:
    """Return whether a stream in `state` still has its messages after a while, though clients use it.

    If not, its proof must not wait: it would find messages missing, or excuse too many of them. A queue removes what
    its consumers take; a bucket, what is written again; a stream near its limits, its oldest messages.
    """
    if _is_queue(config) or any(config.get(setting) for setting in _REMOVING):
        return False
    if (config.get("max_msgs_per_subject") or 0) > 0 or 0 < (config.get("max_age") or 0) < _LONG_NS:
        return False
    limits = ((config.get("max_msgs") or 0, state.messages), (config.get("max_bytes") or 0, state.bytes))
    return config.get("discard") == "new" or not any(0 < limit * _FULL < held for limit, held in limits)


def taken_by(
    config: JsonObject, consumers: Sequence[ArchivedConsumer], listed: Mapping[str, ConsumerInfo] | None
) -> Taken | None:
    """Return what decides whether consumers have taken messages; None unless the stream is a queue."""
    return Taken(config, consumers, listed) if _is_queue(config) else None


def excuses(config: JsonObject, taken: Taken | None, now_ns: Callable[[], int]) -> Callable[[Missing], bool]:
    """Return a function: whether the stream has removed a message by its own rules, whatever else has happened."""

    def excused(missing: Missing) -> bool:
        return _has_expired(missing, config, now_ns()) or (taken is not None and taken.is_unwanted(missing))

    return excused


def _is_queue(config: JsonObject) -> bool:
    return bool(config.get("retention", "limits") != "limits")


async def consumers_of(js: JetStream, name: str, config: JsonObject) -> Mapping[str, ConsumerInfo] | None:
    """Return the consumers of a queue; None if they may not be listed, or the stream is none."""
    if not _is_queue(config):
        return None
    try:
        return (await js.consumers(name)).entries
    except NatsPermissionDenied:
        return None


async def _explain_subjects(js: JetStream, name: str, discards: Discards, last_seq: int) -> None:
    """Ask the server about subjects of which a reading shows too few newer messages: some may have been removed while
    it was read, and even newer ones published.
    """
    if not discards.per_subject:
        return
    for subject, newest_missing in discards.subjects[:_ASKED_SUBJECTS]:
        try:
            text = subject.decode()
            held = (await js.subjects(name, text)).get(text, 0)
            first, last = await js.next_message(name, 1, text), await js.last_message(name, text)
        except (UnicodeDecodeError, NatsPermissionDenied):
            return
        if first is None or last is None:
            continue
        if held >= discards.per_subject and first.sequence > newest_missing and last.sequence > last_seq:
            discards.explain(subject)


def _check_last(info: StreamInfo, expected: Expected) -> None:
    if info.state.last_seq < expected.last_seq:
        raise DigestMismatch(
            f"stream {info.name} ends at sequence {info.state.last_seq}, the backup at {expected.last_seq}"
        )


def _list(what: str, count: int, sequences: Sequence[int]) -> str:
    shown = ", ".join(map(str, sequences[:_SHOWN]))
    return f"{count:,} {what}" + (f" ({shown}{', …' if count > _SHOWN else ''})" if sequences else "")


def _has_expired(message: Missing, config: JsonObject, now_ns: int) -> bool:
    """Return whether the stream's own rules have removed the message by now."""
    age_ns = now_ns - message.timestamp_ns
    max_age = config.get("max_age") or 0
    if 0 < max_age <= age_ns:
        return True
    ttl = _TTL.search(message.headers) if config.get("allow_msg_ttl") else None
    seconds = _go_seconds(ttl[1].decode("ascii", "replace")) if ttl else None
    return seconds is not None and seconds * 1_000_000_000 <= age_ns


_GO_UNITS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}


def _go_seconds(text: str) -> float | None:
    """Parse a TTL: whole seconds or a Go duration; None for `never` and anything else."""
    if text.isdigit():
        return float(text)
    parts = re.findall(r"([0-9.]+)(ns|us|µs|ms|s|m|h)", text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _GO_UNITS[unit] for number, unit in parts)


async def read_back(js: JetStream, name: str, make_sink: Callable[[], S], advance: Advance) -> tuple[StreamInfo, S]:
    """Read everything that the stream holds into a new sink, or held when the reading began.

    Raises DigestMismatch if clients delete so much meanwhile that this cannot be told, and the errors of `read_whole`.
    """
    # Messages deleted before the backup have no record here, so no deletions have to be known in advance.
    deleted = SequenceSet()
    for reading in range(1, _READINGS + 1):
        info = await js.stream(name) if reading == 1 else await describe_stream(js, name)
        if info.deleted:
            deleted = deleted | SequenceSet(info.deleted)
        sink, capture = await read_whole(js, info, make_sink, deleted=deleted, advance=advance)
        since = deleted_since(capture)
        # What is deleted now was there when the reading began, if all that was not is known.
        if not since or info.deleted is not None or await _are_discarded(js, info, since):
            return info, sink
        # Messages were deleted since the restore: again, without those.
        deleted = deleted | since
        await asyncio.sleep(_PAUSE_SECONDS * reading)
    raise DigestMismatch(
        f"stream {name} is restored but not verified: "
        "other clients delete or overwrite its messages while it is read back",
        hint="Nothing of it was removed by jsbackup. To verify it, restore while no client writes to it.",
    )


async def _are_discarded(js: JetStream, before: StreamInfo, deleted: SequenceSet) -> bool:
    """Return whether only the oldest messages were deleted while the stream was read, and its limits may have done so.
    `before` describes it before it was read.
    """
    if not discards_oldest(before.config):
        return False
    state = (await js.stream(before.name)).state
    return max(deleted) < state.first_seq
