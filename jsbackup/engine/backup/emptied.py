"""Find out whether a server has lost its streams, or is another one, when a backup finds nothing of the earlier ones.

This only concerns a backup in which no stream with messages continues from an earlier backup (for configurations: one
without any stream). It is compared with the newest backup of the same source that has messages of streams in its
selection. If one of these streams has a message as old as that backup, it was restored, and not everything is lost.
Otherwise a stream that had messages, still is the same one, and removes messages by itself (a work queue, `max_age`) is
fine. A stream that is gone, was recreated or was purged is not: then the backup is partial, and reports what each of
them had. Messages that have arrived in recreated streams since do not replace the lost ones, neither in this backup nor
in later ones: each stream of such a backup has a warning, by which the next one knows.

If other streams continue, an empty stream that does not remove messages by itself gets a warning. It may have been
purged on purpose, so the backup is complete. While it stays empty its backups keep the warning, and a restore shows it.

An account that never had a message has nothing to lose. `backup --allow-nothing` accepts the present state.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from jsbackup.engine.backup.run import RecordedRestores
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.failure import Failure
from jsbackup.readable import format_count
from jsbackup.repository.keep.groups import Grouping, group_of
from jsbackup.repository.manifest import EMPTIED, ArchiveFormat, Manifest, Result, StreamBackup
from jsbackup.repository.origin import origin_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import BackupSummary, summary_of
from jsbackup.repository.write.new_backup import StoredStream
from jsbackup.times import parse_time
from jsbackup.transforms.removal import empties_itself

__all__ = ["Lost", "find_vanished", "warn_emptied", "with_last_backups"]

_log = logging.getLogger(__name__)

_LOOKED_AT = 8
_NOTHING_LEFT = "nothing is left of what backup"
_ANOTHER = "is another stream now"


@dataclass(frozen=True, slots=True)
class Lost:
    """`results` are those of the backup, marked if a stream has lost all its messages; `gone` are streams that no
    longer exist.

    `note` is a sentence, "" if nothing was lost.
    """

    results: tuple[StoredStream, ...]
    gone: tuple[Failure, ...] = ()
    note: str = ""


def find_vanished(
    repository: Repository,
    made: Manifest,
    results: Sequence[StoredStream],
    earlier: Mapping[str, StreamBackup],
    *,
    restores: RecordedRestores,
    among: Sequence[BackupSummary] | None = None,
) -> Lost:
    """Find lost streams in a backup that is about to be committed as `made`. Raises StoreError.

    `earlier` has the last backups of its streams since they were created; `among` are all backups of its origin, if
    they are known. What `restores` took back is not lost.
    """
    asked = made.selection
    assert asked is not None
    if asked.config_only:
        left = bool(made.streams)
    else:
        left = any(one.captured.messages and _goes_on(earlier.get(one.name)) for one in made.streams)
    if left or asked.allow_empty:
        return Lost(tuple(results))
    before = next(_earlier(repository, made, among), None)
    if before is None:
        return Lost(tuple(results))
    had = {stream.name: stream for stream in _of_worth(before, made)}
    now = {one.stream.name: one for one in results}
    if any(name in now and _has_old(now[name].stream, before) for name in had):
        return Lost(tuple(results))
    reasons = {name: _why_missed(stream, now.get(name), before.id) for name, stream in had.items()}
    origin, since = origin_of(made.source), before.created
    lost = {name: why for name, why in reasons.items() if why and not restores.took_back(origin, name, since)}
    if not lost:
        return Lost(tuple(results))
    others = f"{_NOTHING_LEFT} {before.id} has, and this stream alone is not a replacement"
    marked = [_warned(one, lost.get(one.stream.name, others)) for one in results]
    gone = [Failure(name, IncompleteError(why)) for name, why in sorted(lost.items()) if name not in now]
    note = (
        f"{_NOTHING_LEFT} {before.id} has: check whether the server has lost its streams or is a different one; if it "
        "is meant to be empty, run 'jsbackup backup --allow-nothing' once: 'latest' means that backup then"
    )
    return Lost(tuple(marked), tuple(gone), note)


def warn_emptied(
    repository: Repository, results: Sequence[StoredStream], earlier: Mapping[str, StreamBackup]
) -> list[StoredStream]:
    """Return the results, with a warning on each stream that has lost all its messages, and not by itself.

    `earlier` has the last backups of the streams since they were created. Raises StoreError.
    """
    empty = (one.stream for one in results if not one.stream.captured.messages)
    before = [
        earlier[now.name]
        for now in empty
        if now.name in earlier and now.archive_format is not ArchiveFormat.OPAQUE and not empties_itself(now.config)
    ]
    why = {one.name: one.emptied for one in before if not one.captured.messages and one.emptied}
    held = _last_held(repository, {one.name: one for one in before if one.captured.messages})
    why.update((name, f"{EMPTIED}{last}") for name, last in held.items())
    return [_with_warning(one, why[one.stream.name]) if one.stream.name in why else one for one in results]


def with_last_backups(
    repository: Repository, results: Sequence[StoredStream], earlier: Mapping[str, StreamBackup]
) -> list[StoredStream]:
    """Return the results; where the server has lost messages of a stream, its warning names the backup that has them.

    `earlier` as in `warn_emptied`. Raises StoreError.
    """
    lossy = {one.stream.name: one.stream.lost_since for one in results if one.stream.lost_since}
    if not lossy:
        return [*results]
    held = _last_held(repository, {name: earlier[name] for name in lossy if name in earlier})

    def named(result: StoredStream) -> StoredStream:
        stream = result.stream
        if (before := held.get(stream.name)) is None:
            return result
        warnings = (f"{one} ({before})" if one == stream.lost_since else one for one in stream.warnings)
        return replace(result, stream=replace(stream, warnings=tuple(warnings)))

    return [named(one) for one in results]


def _last_held(repository: Repository, streams: Mapping[str, StreamBackup]) -> dict[str, str]:
    """Return for each stream which backup has it in this state, and with how many messages."""
    held: dict[str, str] = {}
    for backup in reversed(repository.backups()) if streams else ():
        manifest = _manifest(repository, backup)
        if manifest is None:
            continue
        for one in manifest.streams:
            if one.name in streams and one.name not in held and one.captured == streams[one.name].captured:
                held[one.name] = f"{one.captured.messages:,} in backup {backup}, made {manifest.created[:19]}Z"
        if held.keys() == streams.keys():
            break
    return held


def _earlier(repository: Repository, made: Manifest, among: Sequence[BackupSummary] | None) -> Iterator[Manifest]:
    """Yield the newest backups with streams of the same selection; those with an equal selection come first."""
    mine = summary_of(made)
    try:
        summaries = repository.inventory().summaries if among is None else among
        backups = [one for one in summaries if _is_comparable(one, mine)]
    except JsBackupError as error:
        _log.warning("what there was before cannot be looked up: %s", error.message)
        return
    alike = [one for one in backups if group_of(one, Grouping.SELECTION) == group_of(mine, Grouping.SELECTION)]
    accepted = max((one.id for one in alike if one.selection.allow_empty), default="")
    others = [one for one in backups if one not in alike]
    lines = [[one for one in line if one.id >= accepted] for line in (alike, others)]
    # A partial one may come from a server that had already lost everything.
    newest = (
        one.id
        for result in (Result.COMPLETE, Result.PARTIAL)
        for line in lines
        for one in reversed(line)
        if one.result is result
    )
    for backup in islice(newest, _LOOKED_AT):
        manifest = _manifest(repository, backup)
        if manifest is not None and _of_worth(manifest, made):
            yield manifest


def _manifest(repository: Repository, backup: str) -> Manifest | None:
    """Return what can be read of a manifest; None if that is nothing, which is logged."""
    try:
        return repository.manifest(backup, in_part=True)
    except JsBackupError as error:
        _log.warning("backup %s: %s", backup, error.message)
        return None


def _is_comparable(backup: BackupSummary, mine: BackupSummary) -> bool:
    something = backup.streams if mine.selection.config_only else backup.messages
    empty = backup.selection.allow_empty
    return backup.is_of_a_server and origin_of(backup) == origin_of(mine) and bool(something or empty)


def _of_worth(before: Manifest, made: Manifest) -> list[StreamBackup]:
    """Return the streams of an earlier backup that are in the new selection and had messages."""
    asked = made.selection
    assert asked is not None
    return [one for one in before.streams if asked.selects(one.name) and (one.captured.messages or asked.config_only)]


def _goes_on(earlier: StreamBackup | None) -> bool:
    """Return whether a stream's last backup was made before everything was lost."""
    return earlier is not None and not any(
        _NOTHING_LEFT in warning or _ANOTHER in warning for warning in earlier.warnings
    )


def _has_old(now: StreamBackup, before: Manifest) -> bool:
    return bool(now.captured.messages) and now.state.first_ns <= parse_time(before.created)


def _why_missed(had: StreamBackup, found: StoredStream | None, backup: str) -> str:
    """Return why the stream may have been lost; "" if it is fine."""
    messages = had.captured.messages
    held = f"it had {format_count(messages, 'message')} in backup {backup}" if messages else f"it is in backup {backup}"
    if found is None:
        return f"{held}, and the server no longer has this stream"
    now = found.stream
    if now.created != had.created or now.state.last_seq < had.state.last_seq:
        count = now.captured.messages
        holds = f"with {format_count(count, 'message')}" if count else "without messages"
        return f"{held}, and {_ANOTHER}, {holds}"
    # If our clock is behind the server's, old messages seem newer than the backup that has them.
    return "" if now.captured.messages or empties_itself(now.config) else f"{held}, and has none now"


def _warned(result: StoredStream, why: str) -> StoredStream:
    return replace(_with_warning(result, why), incomplete=True)


def _with_warning(result: StoredStream, why: str) -> StoredStream:
    return replace(result, stream=replace(result.stream, warnings=(*result.stream.warnings, why)))
