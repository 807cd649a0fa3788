"""The chosen messages of a stream in a backup. Every stored object is checked against its SHA-256 before it is used."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from jsbackup.engine.link.source import FindBackup
from jsbackup.errors import IncompleteError, JsBackupError, UsageError
from jsbackup.look.buckets.bucket import KeyValueBucket, key_subjects
from jsbackup.look.message import LookedUp, MessageFilter
from jsbackup.look.stream import find_stream, messages_of, newest_messages, with_messages
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM
from jsbackup.putting_back.model import PutBackOptions
from jsbackup.repository.manifest import Manifest, Source, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.shell import quoted_command
from jsbackup.transforms.cut import AtSequence, Cut
from jsbackup.transforms.subjects import is_literal

__all__ = ["ChosenMessages", "find_entry", "first_found", "possible_streams", "target_name"]


def possible_streams(options: PutBackOptions) -> tuple[str, ...]:
    """Return the names that the stream may have, the likeliest first: of a bucket, its own name may have been given."""
    name = options.stream
    if options.keys or options.object_name is not None:
        return tuple(dict.fromkeys([_full(BUCKET_STREAM if options.keys else OBJECT_STREAM, name), name]))
    return tuple(dict.fromkeys([name, _full(BUCKET_STREAM, name), _full(OBJECT_STREAM, name)]))


def first_found(searches: Sequence[FindBackup]) -> FindBackup:
    """Return what finds a backup by the first search that finds one, and raises as the first one if all fail for a
    UsageError.
    """

    def find(source: Source) -> Manifest:
        problems: list[UsageError] = []
        for search in searches:
            try:
                return search(source)
            except UsageError as error:
                problems.append(error)
        raise problems[0]

    return find


def target_name(options: PutBackOptions, entry: StreamBackup) -> str:
    """Return the name of the stream to write to."""
    if options.to is None:
        return entry.name
    prefix = next((known for known in (BUCKET_STREAM, OBJECT_STREAM) if entry.name.startswith(known)), "")
    return _full(prefix, options.to)


def _full(prefix: str, name: str) -> str:
    return name if name.startswith(prefix) else prefix + name


def find_entry(manifest: Manifest, options: PutBackOptions) -> StreamBackup:
    """Return the stream in the backup.

    Raises:
        UsageError: there is none, it has no messages, or something else can be chosen from it.
        UnsupportedError: it is in an archive format that is not known here.
    """
    known = {stream.name for stream in manifest.streams}
    name = next((stream for stream in possible_streams(options) if stream in known), possible_streams(options)[0])
    entry = with_messages(manifest, find_stream(manifest, name))
    prefix, kind = (BUCKET_STREAM, "a bucket") if options.keys else (OBJECT_STREAM, "an object store")
    if (options.keys or options.object_name is not None) and not name.startswith(prefix):
        raise UsageError(f"stream {name} is not {kind}", hint="Choose messages with --subject or --sequence.")
    if options.object_name is None and name.startswith(OBJECT_STREAM):
        raise UsageError(f"stream {name} is an object store", hint="Choose a file with --object.")
    return entry


class ChosenMessages:
    """What is chosen of a stream. Iteration yields the messages in rising sequence, and reads them again each time.

    Its methods raise the errors of `matching`. `unknown` is what the backup cannot say, in sentences, once the messages
    were read; with `partial` only.
    """

    def __init__(self, objects: Objects, manifest: Manifest, entry: StreamBackup, options: PutBackOptions) -> None:
        self.entry = entry
        self._objects = objects
        self._options = options
        self._bucket = KeyValueBucket(objects, manifest, entry)
        self.unknown: tuple[str, ...] = ()

    def __iter__(self) -> Iterator[LookedUp]:
        if self._options.keys:
            return self.at(self._key_revisions())
        return self._messages()

    def at(self, sequences: Collection[int]) -> Iterator[LookedUp]:
        """Yield the chosen messages with these sequences, of which there are some."""
        bounds = Cut(AtSequence(min(sequences)), AtSequence(max(sequences)))
        subjects = tuple(subject for key in self._options.keys for subject in key_subjects(self.entry, key))
        wanted = MessageFilter(bounds, subjects or self._options.filters.subject)
        for message in messages_of(self._objects, self.entry, wanted):
            if message.sequence in sequences:
                yield message

    def _messages(self) -> Iterator[LookedUp]:
        ranges, cut = self._options.sequences, self._options.cut
        if ranges and not cut:
            cut = Cut(AtSequence(min(first for first, _ in ranges)), AtSequence(max(last for _, last in ranges)))
        wanted = MessageFilter.of(cut, self._options.filters)
        if self._options.newest is not None:
            wanted = newest_messages(self._objects, self.entry, wanted, self._options.newest)
        for message in messages_of(self._objects, self.entry, wanted):
            if not ranges or any(first <= message.sequence <= last for first, last in ranges):
                yield message

    def _key_revisions(self) -> set[int]:
        """Return the revisions that the keys had at the moment.

        Raises:
            JsBackupError: a key had no value.
            IncompleteError: the backup cannot say; with `partial` only if it can say so of nothing.
        """
        sequences: set[int] = set()
        problems: list[IncompleteError] = []
        for key in self._options.keys:
            try:
                sequences |= self._matching(key, problems)
            except IncompleteError as error:
                problems.append(error)
        if problems and not (self._options.partial and sequences):
            raise problems[0].with_more_hint("Write the others with --partial.") if sequences else problems[0]
        self.unknown = tuple(problem.message for problem in problems)
        return sequences

    def _matching(self, pattern: str, problems: list[IncompleteError]) -> set[int]:
        """Return the revisions of the keys that match; add what the backup cannot say of several to `problems`."""
        bucket, at = self._bucket, self._options.at
        if is_literal(pattern):
            return {bucket.value(pattern, at).revision}
        listed = bucket.keys(at, pattern)
        if not listed.certain:
            problems.append(bucket.incomplete(listed, at))
        elif not listed.keys:
            which = "" if pattern == ">" else f" {pattern}"
            raise JsBackupError(
                f"bucket {bucket.name} has no keys{which} in backup {bucket.manifest.id}",
                hint=f"See {quoted_command('kv', bucket.manifest.id, bucket.name)} for its keys.",
            )
        return {state.revision for state in listed.keys}
