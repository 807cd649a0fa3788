"""Where live streams with sources end before they are cloned, and how far they had copied by then.

A clone restores origins first, so that copies find them; but a copy read after its origin would be ahead of it. So the
ends of copies are noted before any origin is read, downstream first, and copies are cloned up to there. Later messages
they copy again from the cloned origin. A copy that is still empty then is cloned empty. Copies that are also published
to are cloned completely (`growing_copies.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.read.consume import Row, rows_as_batch
from jsbackup.engine.read.copy_reach import reach_of
from jsbackup.engine.read.downstream import order_of
from jsbackup.errors import FormatError, NatsError
from jsbackup.planning.copies.copy_facts import CopyFacts, SourceFacts, sources_of
from jsbackup.planning.copies.creation_order import origin_names
from jsbackup.protocol.info import StreamInfo
from jsbackup.transforms.batches import SEQUENCE
from jsbackup.transforms.copy_positions import CopyPosition, SourceKey, last_positions, source_key

__all__ = ["note_ends"]

_AT_ONCE = 64
_MOST = 8192  # how many sequences at the end of a stream are searched


async def note_ends(js: JetStream, streams: Sequence[StreamInfo]) -> tuple[list[StreamInfo], CopyFacts]:
    """Return the streams, with the present state of those that copy from each other, and what is known about copies.

    Raises NatsError if one of them does not answer.
    """
    names = {info.name for info in streams}
    copies = {info.name for info in streams if origin_names(info.config) & names - {info.name}}
    origins = {name for info in streams if info.name in copies for name in origin_names(info.config) & names}
    now = {info.name: info for info in streams}
    sources: dict[str, Mapping[SourceKey, SourceFacts]] = {}
    ends: dict[str, int] = {}
    growing = set()
    for name in (name for stage in order_of(streams).stages for name in stage if name in copies | origins):
        found = await js.find_stream(name)
        if found is None:
            continue
        now[name] = found
        if name not in copies:
            continue
        facts = await _facts_of(js, found, now) if sources_of(found.config) else None
        if found.config.get("subjects"):
            growing.add(name)
            facts = facts and {key: _at_least(one) for key, one in facts.items()}
        else:
            # A stream that was never used may begin at a sequence of its own.
            ends[name] = max(found.state.last_seq, found.state.first_seq - 1)
        if facts is not None:
            sources[name] = facts
    latest = [now[info.name] for info in streams]
    if any(origin_names(info.config) != origin_names(now[info.name].config) for info in streams):
        return await note_ends(js, latest)  # one has become a copy since it was listed: the order is another
    return latest, CopyFacts(sources, ends, frozenset(growing))


def _at_least(facts: SourceFacts) -> SourceFacts:
    """Return what is known for certain about a source that continues meanwhile."""
    return replace(facts, reached=facts.left.sequence if facts.left else 0, exact=False)


async def _facts_of(
    js: JetStream, info: StreamInfo, origins: dict[str, StreamInfo]
) -> dict[SourceKey, SourceFacts] | None:
    """Return the facts about the sources; None if they cannot be read."""
    keys = [source_key(source) for source in sources_of(info.config)]
    try:
        left = await _last_marks(js, info, keys)
    except (NatsError, FormatError):
        return None
    if left is None:
        return None
    said = {one.key: one.sequence for one in reach_of(info, origins)}
    state = info.state
    facts = {}
    for key in keys:
        position = left.get(key)
        at = position.sequence if position else 0
        reached = max(at, said.get(key, 0))
        gone = state.last_seq - (position.at + position.later if position else state.messages)
        most = reached - at if key in said else gone
        facts[key] = SourceFacts(position, reached, key in said or not gone, (), most)
    return facts


async def _last_marks(
    js: JetStream, info: StreamInfo, keys: Sequence[SourceKey]
) -> dict[SourceKey, CopyPosition] | None:
    """Return the last marks of sources; None if the last messages do not have them, and earlier ones might."""
    first, last = max(info.state.first_seq, 1), info.state.last_seq
    least = max(first, last - _MOST + 1)
    found: dict[SourceKey, CopyPosition] = {}
    seen = 0
    while last >= least and len(found) < len(keys) and info.state.messages:
        sequences = range(max(least, last - _AT_ONCE + 1), last + 1)
        got = await asyncio.gather(*(js.message(info.name, sequence) for sequence in sequences))
        rows = [Row(m.sequence, m.timestamp_ns, m.subject.encode(), m.headers, m.data) for m in got if m is not None]
        if rows:
            batch = rows_as_batch(rows)
            for key, one in last_positions(batch, keys).items():
                found.setdefault(key, CopyPosition(one.sequence, one.identity, one.at, one.later + seen))
            seen += len(batch.column(SEQUENCE))
        last = sequences[0] - 1
    return found if len(found) == len(keys) or last < first else None
