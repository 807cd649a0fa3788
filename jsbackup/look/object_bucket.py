"""The files in an object store, as a backup has them.

An object store is a stream `OBJ_<bucket>` (nats.go `object.go`, ADR-20). Each file has one message on
`$O.<bucket>.M.<name in base64>`, which describes it in JSON, and its chunks on `$O.<bucket>.C.<nuid>`. A file that is
replaced gets another nuid, and its old chunks are purged; one that is deleted keeps a description that says so. A link
is a description that names another file, or a bucket.

What a client wrote is not trusted: sizes, digest and number of chunks must be those of the description.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from jsbackup.errors import FormatError, IntegrityError, JsBackupError
from jsbackup.look.message import LookedUp, messages_in
from jsbackup.look.message_filter import MessageFilter
from jsbackup.look.segments import heads, in_parallel, refs_within
from jsbackup.look.stream import find_stream, last_messages, messages_of, with_messages
from jsbackup.names import is_name
from jsbackup.repository.manifest import Manifest, SegmentRef, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.strict_json import read_json
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = ["OBJECT_STREAM", "ObjectBucket", "ObjectEntry", "ObjectLink", "find_object_bucket"]

OBJECT_STREAM = "OBJ_"
_DIGEST = "SHA-256="


@dataclass(frozen=True, slots=True)
class ObjectLink:
    """Where a link leads: an object, or with an empty `name` a bucket."""

    bucket: str
    name: str = ""

    def __str__(self) -> str:
        return f"{self.bucket}/{self.name}" if self.name else f"bucket {self.bucket}"


@dataclass(frozen=True, slots=True)
class ObjectEntry:
    """A file, as its description says. `modified_ns` is when the server stored the description,
    `sequence` its sequence. `digest` is SHA-256 in base64, "" if none was stored.
    """

    name: str
    description: str
    size: int
    chunks: int
    digest: str
    modified_ns: int
    sequence: int
    deleted: bool
    link: ObjectLink | None
    chunk_subject: str


def find_object_bucket(objects: Objects, manifest: Manifest, name: str) -> ObjectBucket:
    """Return the object store; `name` may also be that of its stream. Raises as `find_bucket`."""
    names = {stream.name for stream in manifest.streams}
    if name in names and name.startswith(OBJECT_STREAM) and OBJECT_STREAM + name not in names:
        name = name.removeprefix(OBJECT_STREAM)
    return ObjectBucket(objects, manifest, with_messages(manifest, find_stream(manifest, OBJECT_STREAM + name)))


class ObjectBucket:
    """An object store in a backup. All methods raise the errors of `matching`."""

    def __init__(self, objects: Objects, manifest: Manifest, stream: StreamBackup) -> None:
        self.manifest = manifest
        self.stream = stream
        self._objects = objects

    @property
    def name(self) -> str:
        return self.stream.name.removeprefix(OBJECT_STREAM)

    @property
    def _descriptions(self) -> str:
        """The beginning of their subjects. A mirror has those of its origin."""
        own = f"$O.{self.name}.M"
        return own if f"{own}.>" in (self.stream.config.get("subjects") or ()) else "$O.*.M"

    def entries(self) -> tuple[list[ObjectEntry], int]:
        """Return the files that are not deleted, sorted by name, and how many descriptions cannot be read. Needs memory
        for all of them.
        """
        wanted = MessageFilter(subjects=(f"{self._descriptions}.>",))
        newest: dict[str, ObjectEntry | None] = {}
        for found in in_parallel(partial(self._described, wanted), refs_within(self.stream.segments, wanted)):
            newest.update(found)
        readable = [entry for entry in newest.values() if entry is not None]
        listed = sorted((entry for entry in readable if not entry.deleted), key=lambda entry: entry.name)
        return listed, len(newest) - len(readable)

    def _described(self, wanted: MessageFilter, ref: SegmentRef) -> dict[str, ObjectEntry | None]:
        newest: dict[str, ObjectEntry | None] = {}
        columns = ("sequence", "timestamp_ns", "subject", "headers", "data")
        for batch in heads(self._objects, ref, wanted, columns):
            for message in messages_in(batch):
                try:
                    newest[message.subject] = _entry(message)
                except FormatError:
                    newest[message.subject] = None
        return newest

    def entry(self, name: str) -> ObjectEntry:
        """Return one file.

        Raises:
            JsBackupError: there is none, or it was deleted.
            FormatError: its description cannot be read.
        """
        encoded = urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode()
        subjects = {f"{self._descriptions}.{one}" for one in (encoded, encoded.rstrip("="))}
        wanted = MessageFilter(subjects=tuple(sorted(subjects)))
        message = next(last_messages(self._objects, self.stream, wanted), None)
        where = f"object store {self.name} in backup {self.manifest.id}"
        hint = f"See 'jsbackup object ls {self.manifest.id} {self.name}' for what it has."
        if message is None:
            raise JsBackupError(f"there is no object {name} in {where}", hint=hint)
        entry = _entry(message)
        if entry.deleted:
            raise JsBackupError(f"object {name} of {where} was deleted before the backup", hint=hint)
        return entry

    def content(self, entry: ObjectEntry) -> Iterator[bytes]:
        """Yield the chunks of a file, in order. With the last one, size and digest have been compared.

        Raises:
            IntegrityError: they are not those of the description.
        """
        wanted = MessageFilter(Cut(until=AtSequence(entry.sequence)), (entry.chunk_subject,))
        chunks = size = 0
        digest = hashlib.sha256()
        for message in messages_of(self._objects, self.stream, wanted) if entry.chunks else ():
            chunks += 1
            size += len(message.data)
            digest.update(message.data)
            if chunks > entry.chunks or size > entry.size:
                break
            yield message.data
        if (chunks, size) != (entry.chunks, entry.size):
            raise IntegrityError(
                f"object {entry.name} of object store {self.name} is not whole in backup {self.manifest.id}: "
                f"{chunks} chunks and {size} bytes, not {entry.chunks} and {entry.size}",
                hint="It may have been replaced while the backup was made: take another backup.",
            )
        if entry.digest and urlsafe_b64encode(digest.digest()).decode().rstrip("=") != entry.digest.rstrip("="):
            raise IntegrityError(
                f"object {entry.name} of object store {self.name} does not have the digest that was stored with it",
                hint="Take another backup.",
            )


def _entry(message: LookedUp) -> ObjectEntry:
    """Return what a description says. Raises FormatError."""
    found = read_json(message.data, f"description of an object (message {message.sequence})")
    if not isinstance(found, dict):
        raise FormatError(f"description of an object (message {message.sequence}): not an object of JSON")

    def text(key: str, of: object = found) -> str:
        value = of.get(key, "") if isinstance(of, dict) else ""
        if not isinstance(value, str):
            raise FormatError(f"description of an object (message {message.sequence}): {key} is not text")
        return value

    def number(key: str) -> int:
        value = found.get(key, 0)
        if type(value) is not int or value < 0:
            raise FormatError(f"description of an object (message {message.sequence}): {key} is not a number")
        return value

    deleted = found.get("deleted") is True
    options = found.get("options")
    target = options.get("link") if isinstance(options, dict) else None
    link = ObjectLink(text("bucket", target), text("name", target)) if isinstance(target, dict) else None
    nuid, chunks = text("nuid"), number("chunks")
    if chunks and not is_name(nuid) and not deleted:
        raise FormatError(f"description of an object (message {message.sequence}): no valid nuid")
    prefix = message.subject.partition(".M.")[0]
    return ObjectEntry(
        name=text("name"),
        description=text("description"),
        size=number("size"),
        chunks=chunks,
        digest=text("digest").removeprefix(_DIGEST),
        modified_ns=message.timestamp_ns,
        sequence=message.sequence,
        deleted=deleted,
        link=link,
        chunk_subject=f"{prefix}.C.{nuid}",
    )
