"""The files in an object store, as a backup has them.

An object store is a stream `OBJ_<bucket>` (nats.go `object.go`, ADR-20). Each file has one message on
`$O.<bucket>.M.<name in base64>`, which describes it in JSON, and its chunks on `$O.<bucket>.C.<nuid>`. A file that is
replaced gets another nuid, and its old chunks are purged; one that is deleted keeps a description that says so. A link
is a description that names another file, or a bucket.

What a client wrote is not trusted: size and digest must be those of the description. The number of chunks may differ:
NATS.Net writes an empty chunk after a file whose size is a multiple of the chunk size, and does not count it.
"""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial

from jsbackup.errors import FormatError, IntegrityError, JsBackupError
from jsbackup.look.all_backups import FoundMessage
from jsbackup.look.message import LookedUp, MessageFilter, messages_in
from jsbackup.look.stream import StoredBucket, heads, in_parallel, messages_of, refs_within
from jsbackup.names import OBJECT_STREAM, is_name
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.shell import quoted_command
from jsbackup.strict_json import read_json
from jsbackup.times import datetime_of
from jsbackup.transforms.cut import AtSequence, Cut

__all__ = [
    "DESCRIPTION_BYTES",
    "ObjectBucket",
    "ObjectEntry",
    "ObjectLink",
    "description_subjects",
    "description_tokens",
    "read_description",
    "version_of",
]


_DIGEST = "SHA-256="  # in lower case: nats.go before 1.17


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

    @property
    def time(self) -> datetime:
        """When its description was stored, to the microsecond."""
        return datetime_of(self.modified_ns)


class ObjectBucket(StoredBucket):
    """An object store in a backup. All methods raise IntegrityError, KeyUnavailable and StoreError."""

    prefix = OBJECT_STREAM

    def entries(self) -> tuple[list[ObjectEntry], int]:
        """Return the files that are not deleted, sorted by name, and how many descriptions cannot be read. Needs memory
        for all of them.
        """
        wanted = MessageFilter(subjects=description_subjects(self.stream))
        newest: dict[str, ObjectEntry | None] = {}
        for described in in_parallel(partial(self._described, wanted), refs_within(self.stream.segments, wanted)):
            newest.update(described)
        readable = [entry for entry in newest.values() if entry is not None]
        listed = sorted((entry for entry in readable if not entry.deleted), key=lambda entry: entry.name)
        return listed, len(newest) - len(readable)

    def _described(self, wanted: MessageFilter, ref: SegmentRef) -> dict[str, ObjectEntry | None]:
        newest: dict[str, ObjectEntry | None] = {}
        columns = ("sequence", "timestamp_ns", "subject", "headers", "data")
        for batch in heads(self.objects, ref, wanted, columns):
            for message in messages_in(batch):
                try:
                    newest[message.subject] = read_description(message)
                except FormatError:
                    newest[message.subject] = None
        return newest

    def entry(self, name: str) -> ObjectEntry:
        """Return one file.

        Raises:
            JsBackupError: there is none, or it was deleted.
            FormatError: its description cannot be read.
        """
        wanted = MessageFilter(subjects=description_subjects(self.stream, name))
        message = next(messages_of(self.objects, self.stream, wanted, newest_first=True), None)
        where = f"object store {self.name} in backup {self.manifest.id}"
        history = quoted_command("history", self.name, options=[("--object", name)])
        hint = f"See {quoted_command('object', self.manifest.id, self.name)}, and {history} for all backups."
        if message is None:
            raise JsBackupError(f"there is no object {name} in {where}", hint=hint)
        entry = read_description(message)
        if entry.deleted:
            raise JsBackupError(f"object {name} of {where} was deleted before the backup", hint=hint)
        return entry

    def content(self, entry: ObjectEntry) -> Iterator[bytes]:
        """Yield the chunks of a file, in order. With the last one, size and digest have been compared.

        Raises:
            IntegrityError: they are not those of the description.
        """
        wanted = MessageFilter(Cut(until=AtSequence(entry.sequence)), (entry.chunk_subject,))
        size, digest = 0, hashlib.sha256()
        for message in messages_of(self.objects, self.stream, wanted) if entry.chunks else ():
            size += len(message.data)
            digest.update(message.data)
            if size > entry.size:
                break
            yield message.data
        if size != entry.size:
            raise IntegrityError(
                f"object {entry.name} of object store {self.name} is not whole in backup {self.manifest.id}: "
                f"{size:,} bytes, not {entry.size:,}",
                hint="It may have been replaced while the backup was made: take another backup.",
            )
        if entry.digest and urlsafe_b64encode(digest.digest()).decode().rstrip("=") != entry.digest.rstrip("="):
            raise IntegrityError(
                f"object {entry.name} of object store {self.name} does not have the digest that was stored with it",
                hint="Take another backup.",
            )


def description_subjects(stream: StreamBackup, name: str | None = None) -> tuple[str, ...]:
    """Return the subjects that the descriptions of a file may have, or those of all files."""
    own = f"$O.{stream.name.removeprefix(OBJECT_STREAM)}.M"
    # A mirror has those of its origin.
    prefix = own if f"{own}.>" in (stream.config.get("subjects") or ()) else "$O.*.M"
    return tuple(f"{prefix}.{token}" for token in ([">"] if name is None else sorted(description_tokens(name))))


def description_tokens(name: str) -> tuple[str, ...]:
    """Return the last token of the subjects that a description may have: in base64, with padding or without."""
    encoded = urlsafe_b64encode(name.encode("utf-8", "surrogateescape")).decode()
    return tuple(dict.fromkeys((encoded, encoded.rstrip("="))))


def read_description(message: LookedUp) -> ObjectEntry:
    """Return what a description says; null is the same as absent. Raises FormatError."""
    description = read_json(message.data, f"description of an object (message {message.sequence})")
    if not isinstance(description, dict):
        raise FormatError(f"description of an object (message {message.sequence}): not an object of JSON")

    def text(key: str, of: object = description) -> str:
        value = of.get(key) if isinstance(of, dict) else None
        if not isinstance(value := "" if value is None else value, str):
            raise FormatError(f"description of an object (message {message.sequence}): {key} is not text")
        return value

    def number(key: str) -> int:
        value = description.get(key)
        if type(value := 0 if value is None else value) is not int or value < 0:
            raise FormatError(f"description of an object (message {message.sequence}): {key} is not a number")
        return value

    deleted = description.get("deleted") is True
    options = description.get("options")
    target = options.get("link") if isinstance(options, dict) else None
    link = ObjectLink(text("bucket", target), text("name", target)) if isinstance(target, dict) else None
    nuid, chunks, digest = text("nuid"), number("chunks"), text("digest")
    if chunks and not is_name(nuid) and not deleted:
        raise FormatError(f"description of an object (message {message.sequence}): no valid nuid")
    prefix = message.subject.partition(".M.")[0]
    return ObjectEntry(
        name=text("name"),
        description=text("description"),
        size=number("size"),
        chunks=chunks,
        digest=digest[len(_DIGEST) :] if digest.upper().startswith(_DIGEST) else digest,
        modified_ns=message.timestamp_ns,
        sequence=message.sequence,
        deleted=deleted,
        link=link,
        chunk_subject=f"{prefix}.C.{nuid}",
    )


# --- object versions ---
#
# The versions of a file of an object store over all backups: when it came, was replaced, was deleted, and went.

# More than any client writes as a description.
DESCRIPTION_BYTES = 256 << 10


def version_of(message: FoundMessage) -> ObjectEntry | None:
    """Return what a description says that was searched for with `DESCRIPTION_BYTES`; None if it cannot be read."""
    try:
        described = LookedUp(message.sequence, message.timestamp_ns, message.subject, message.headers, message.start)
        return read_description(described)
    except FormatError:
        return None
