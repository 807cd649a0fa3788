"""Prove a restore: read the server's messages back and compare them with the backup.

The stream's digest over the restored messages decides. If it differs, the messages are compared one by one; messages
that the stream's own rules removed meanwhile (`max_age`, per-message TTL, consumers of a queue) are not errors, nor are
those that it discarded for newer ones because it is at a limit (`read/discards.py`). Messages beyond the backup's last
sequence arrived after the restore: they are not compared, but may explain what was discarded.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.engine.read.compare import Comparison, Missing
from jsbackup.engine.read.discards import Discarded, Discards, discards_oldest
from jsbackup.engine.read.snapshot_transfer import Advance, Sink
from jsbackup.engine.read.whole_stream import deleted_since, read_whole
from jsbackup.engine.restore.partial_proof import ProofLevel
from jsbackup.errors import DigestMismatch, NatsPermissionDenied
from jsbackup.formats.digest import StreamDigest, StreamDigester
from jsbackup.formats.sequences import SequenceSet
from jsbackup.model import ArchivedConsumer, ConsumerState, JsonObject, StreamState
from jsbackup.progress import ignored
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import count_were, format_count
from jsbackup.transforms.subjects import overlaps

__all__ = ["Expected", "Proof", "excuses", "keeps_its_messages", "prove_stream", "read_back"]

_READINGS = 5
_PAUSE_SECONDS = 0.5
_TTL = re.compile(rb"^nats-ttl:[ \t]*([^\r]*)\r$", re.IGNORECASE | re.MULTILINE)
_SHOWN = 5
_LONG_NS = 24 * 3600 * 1_000_000_000  # of `max_age`: long beside a restore
_FULL = 0.5  # of a limit, from which on it is near
# Settings by which one message removes another.
_REMOVING = ("allow_msg_schedules", "allow_msg_ttl", "allow_rollup_hdrs")

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
    excused = await excuses(js, name, expected.config, expected.consumers, now_ns=now_ns)

    def compare() -> Comparison:
        discards = Discards(expected.config, expected.last_seq)
        return Comparison(expected.messages_of(), expected.last_seq, excused, discards if discards.limited else None)

    info, comparison = await read_back(js, name, compare, ignored)
    await in_thread(comparison.finish)
    if comparison.undecided:
        info = await js.stream(name)
        comparison.decide(info)
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
            hint="Something else may be writing to it, or its limits remove messages; look at 'nats stream info'.",
        )
    _check_last(info, expected)
    # Consumers may have taken more since the first reading.
    left = expected.messages - comparison.gone
    return Proof(info, found.stream_digest, left, comparison.gone, discarded=comparison.discarded)


def keeps_its_messages(config: JsonObject, state: StreamState) -> bool:
    """Return whether a stream in `state` still has its messages after a while, though clients use it.

    If not, its proof must not wait: it would find messages missing, or excuse too many of them. A queue removes what
    its consumers take; a bucket, what is written again; a stream near its limits, its oldest messages.
    """
    if config.get("retention", "limits") != "limits" or any(config.get(setting) for setting in _REMOVING):
        return False
    if (config.get("max_msgs_per_subject") or 0) > 0 or 0 < (config.get("max_age") or 0) < _LONG_NS:
        return False
    limits = ((config.get("max_msgs") or 0, state.messages), (config.get("max_bytes") or 0, state.bytes))
    return config.get("discard") == "new" or not any(0 < limit * _FULL < held for limit, held in limits)


async def excuses(
    js: JetStream, name: str, config: JsonObject, consumers: Sequence[ArchivedConsumer], *, now_ns: Callable[[], int]
) -> Callable[[Missing], bool]:
    """Return a function: whether the stream has removed a message by its own rules or for its consumers."""
    queue = config.get("retention", "limits") != "limits"
    taken = queue and await _at_work(js, name, consumers)

    def excused(missing: Missing) -> bool:
        return taken or _has_expired(missing, config, now_ns()) or (queue and _is_acknowledged(missing, consumers))

    return excused


async def _at_work(js: JetStream, name: str, consumers: Sequence[ArchivedConsumer]) -> bool:
    """Return whether consumers have taken messages since the restore, so that a queue no longer has all of them."""
    try:
        listing = await js.consumers(name)
    except NatsPermissionDenied:
        return False
    states = {consumer.name: consumer.state or ConsumerState() for consumer in consumers}
    return any(
        info.delivered.consumer > states.get(consumer, ConsumerState()).delivered.consumer
        or info.ack_floor.stream > states.get(consumer, ConsumerState()).ack_floor.stream
        for consumer, info in listing.entries.items()
    )


def _is_acknowledged(missing: Missing, consumers: Sequence[ArchivedConsumer]) -> bool:
    """Return whether each consumer of the message has acknowledged it, so that a queue removes it.

    Replicas of older servers, and snapshots of them, hold such messages a little longer (measured: 2.11).
    """
    subject = missing.subject.decode("utf-8", "replace")
    waited_for = [one.state for one in consumers if _is_for(one.config, subject)]
    return bool(waited_for) and all(
        state is not None
        and (
            missing.sequence <= state.ack_floor.stream
            or (missing.sequence <= state.delivered.stream and missing.sequence not in state.pending)
        )
        for state in waited_for
    )


def _is_for(consumer: JsonObject, subject: str) -> bool:
    filters = [consumer.get("filter_subject"), *(consumer.get("filter_subjects") or [])]
    wanted = [one for one in filters if isinstance(one, str) and one]
    return not wanted or any(overlaps(one, subject) for one in wanted)


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
    """Read everything that the stream holds into a new sink, until a reading has no deletions, but for the oldest
    messages of a stream that discards them all the time: those were there when they were read.

    Raises DigestMismatch if that does not happen, and the errors of `read_whole`.
    """
    # Messages deleted before the backup have no record here, so no deletions have to be known in advance.
    deleted = SequenceSet()
    for reading in range(1, _READINGS + 1):
        info = await js.stream(name)
        sink, capture = await read_whole(js, info, make_sink, deleted=deleted, advance=advance)
        since = deleted_since(capture)
        if not since or await _are_discarded(js, info, since):
            return info, sink
        # Messages were deleted since the restore (by consumers): again, without those.
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
