"""Plan one file of an object store: it is read whole and its digest compared before anything is planned."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.engine.link.threads import in_thread
from jsbackup.errors import FormatError
from jsbackup.look.buckets.object_bucket import ObjectBucket, ObjectEntry, description_tokens, read_description
from jsbackup.look.message import LookedUp
from jsbackup.look.stream import message_at
from jsbackup.model import JsonObject
from jsbackup.names import OBJECT_STREAM
from jsbackup.protocol.info import StoredMessage
from jsbackup.putting_back.model import Blocked, Fate, PlannedMessage, PutBackPlan
from jsbackup.putting_back.target import EXTRA_BYTES, blocked_by_limits, takes_not
from jsbackup.repository.objects import Objects
from jsbackup.strict_json import read_object
from jsbackup.times import format_time

__all__ = ["PresentFile", "description_of", "file_at", "object_prefix", "plan_object"]

# Of a description, what says where it is stored, not what is stored.
_PLACE = ("nuid", "bucket", "mtime", "chunks", "options")
# For the length of a subject of chunks.
_NUID = "0" * 22


@dataclass(frozen=True, slots=True)
class PresentFile:
    """The description at the target of a file with that name. `entry` is None if it cannot be read."""

    message: StoredMessage
    entry: ObjectEntry | None


def object_prefix(stream: str) -> str:
    """Return the beginning of the subjects of an object store."""
    return f"$O.{stream.removeprefix(OBJECT_STREAM)}"


async def plan_object(js: JetStream, objects: Objects, plan: PutBackPlan) -> PutBackPlan:
    """Return the plan with the file. Raises as `make_plan`; IntegrityError also if the file in the backup is not whole,
    or does not have its digest.
    """
    name = plan.options.object_name
    assert name is not None
    bucket = ObjectBucket(objects, plan.manifest, plan.entry)
    entry = await in_thread(bucket.entry, name)
    sizes = await in_thread(lambda: [len(chunk) for chunk in bucket.content(entry)])
    prefix = object_prefix(plan.target.name)
    present = await file_at(js, plan.target.name, name)
    subject = f"{prefix}.M.{description_tokens(name)[0]}" if present is None else present.message.subject
    blocked: list[Blocked] = []
    for where, size in ((f"{prefix}.C.{_NUID}", max(sizes, default=0)), (subject, 0)):
        if reason := takes_not(plan.target, where, size, block_bytes=0, max_payload=js.link.max_payload_bytes):
            blocked.append(Blocked(f"file {name}: {reason}"))
    written = PlannedMessage(
        entry.sequence,
        entry.modified_ns,
        subject,
        entry.size,
        Fate.WRITE,
        name=name,
        expected=0 if present is None else present.message.sequence,
    )
    one = await _decided(js, objects, plan, written, entry=entry, chunks=len(sizes), present=present)
    if one.fate is Fate.WRITE:
        size = entry.size + (len(sizes) + 1) * EXTRA_BYTES
        blocked += blocked_by_limits(plan.target, len(sizes) + 1, size, overwrite=False)
    notes = () if entry.digest or entry.link else ("no digest was stored with the file",)
    return replace(plan, messages=(one,), blocked=tuple(blocked), notes=(*plan.notes, *notes), file=entry)


async def file_at(js: JetStream, stream: str, name: str) -> PresentFile | None:
    """Return the newest description at the target of a file with this name, or None."""
    newest: StoredMessage | None = None
    for token in description_tokens(name):
        found = await js.last_message(stream, f"{object_prefix(stream)}.M.{token}")
        if found is not None and (newest is None or found.sequence > newest.sequence):
            newest = found
    if newest is None:
        return None
    try:
        return PresentFile(newest, read_description(_looked_up(newest)))
    except FormatError:
        return PresentFile(newest, None)


async def _decided(
    js: JetStream,
    objects: Objects,
    plan: PutBackPlan,
    written: PlannedMessage,
    *,
    entry: ObjectEntry,
    chunks: int,
    present: PresentFile | None,
) -> PlannedMessage:
    if present is None:
        return written
    when = f"message {present.message.sequence} of {format_time(present.message.timestamp_ns)}"
    if present.entry is not None and present.entry.deleted:
        return replace(written, reason=f"removed by {when}")
    if present.entry is not None:
        stored = await in_thread(description_of, objects, plan, entry)
        if _content(stored) == _content(read_object(present.message.data, "description")):
            # NATS.Net does not count an empty chunk at the end.
            written_alike = present.entry.chunks == entry.chunks
            if await _is_whole(js, plan.target.name, present.entry, chunks if written_alike else present.entry.chunks):
                return replace(written, fate=Fate.THERE, reason=f"{when} is the same", expected=None)
            return replace(written, reason=f"replaces {when}, which lacks chunks", overwrites=True)
    if present.message.timestamp_ns >= entry.modified_ns and not plan.options.overwrite:
        return replace(written, fate=Fate.REFUSED, reason=f"{when} is newer, and differs", expected=None, conflict=True)
    return replace(written, reason=f"replaces {when}", overwrites=True)


async def _is_whole(js: JetStream, stream: str, entry: ObjectEntry, chunks: int) -> bool:
    return not chunks or (await js.subjects(stream, entry.chunk_subject)).get(entry.chunk_subject, 0) >= chunks


def description_of(objects: Objects, plan: PutBackPlan, entry: ObjectEntry) -> JsonObject:
    """Return the description of a file in the backup as it was stored. Raises the errors of `matching`."""
    message = message_at(objects, plan.manifest, plan.entry, entry.sequence)
    return read_object(message.data, f"description of object {entry.name}")


def _content(description: JsonObject) -> JsonObject:
    """Return what a description says of the file itself; nothing is the same as an empty member."""
    said = {name: value for name, value in description.items() if name not in _PLACE and value}
    options = description.get("options")
    link = options.get("link") if isinstance(options, dict) else None
    return {**said, "link": link} if link else said


def _looked_up(message: StoredMessage) -> LookedUp:
    return LookedUp(message.sequence, message.timestamp_ns, message.subject, message.headers, message.data)
