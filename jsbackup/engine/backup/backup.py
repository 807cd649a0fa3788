"""Back up the chosen streams of an account in parallel, then put the manifest that commits the backup.

A stream that fails does not stop the others; it is recorded with the reason, and the backup is partial. Segments are
stored while they arrive; they are not visible until the manifest is written, last.

Each of `jobs` workers has its own connection, so a reconnect or a slow stream does not affect the others.

Find out whether a server has lost its streams, or is another one, when a backup finds nothing of the earlier ones.

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

**Unchanged streams** of a large account are found by the server's list of streams alone (`find_unchanged`).

A backup asks the server for all streams, a few hundred in one answer. Where there are thousands, asking again for each
of them would take longer than all else. So a stream is taken as it was in its last backup if the list shows that
nothing has changed: the same stream, with the same messages, bytes and ends (as in `read/increment.py`). Its
configuration is that of the list.

What a list does not show is asked for: the positions of consumers, deleted sequences. And a stream that copies from
another one, or that others copy from, is read in its turn (`read/mirrors.py`).
"""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence, Sized
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from jsbackup.config import MAY_MISS, Glob, excludes_nothing, is_chosen, nearest
from jsbackup.engine.backup.run import BackupOptions, BackupRun, RecordedRestores
from jsbackup.engine.backup.stream_backup import back_up_stream
from jsbackup.engine.link.concurrency import in_thread, run_workers, with_own_threads
from jsbackup.engine.link.jetstream import JetStream, advisories, connect_jetstream
from jsbackup.engine.link.source import lives_of, named_source
from jsbackup.engine.read.increment import AT_REST, Incremental, has_same_ends
from jsbackup.engine.read.mirrors import CaptureOrder, ask_copied, order_of, with_relatives
from jsbackup.engine.read.whole_stream import DAMAGE_HINT, is_damage
from jsbackup.errors import ApiError, IncompleteError, JsBackupError, NatsError, NothingChosen, UsageError
from jsbackup.failure import Failure
from jsbackup.model import StreamState
from jsbackup.planning.interrupted import about_copy, about_leftover, find_copies, is_left_out, replaced_by
from jsbackup.protocol.info import StreamInfo, stored_config
from jsbackup.protocol.responses import lacks_stream
from jsbackup.readable import format_count
from jsbackup.repository.checks.verify_run import lost_readers
from jsbackup.repository.keep import leases
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    BackupSummary,
    Fact,
    FactKind,
    Manifest,
    Selection,
    Source,
    StreamBackup,
    summary_of,
)
from jsbackup.repository.origin import origin_of
from jsbackup.repository.read.sources import Grouping, about_another_server, group_of
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.locking import BackupLock, open_lock
from jsbackup.repository.write.new_backup import NewBackup, StoredStream, previous_streams, with_streams
from jsbackup.repository.write.receipts import Receipts
from jsbackup.times import format_time, parse_time
from jsbackup.tool import TOOL
from jsbackup.transforms.removal import empties_itself

__all__ = [
    "BackupReport",
    "BegunBackup",
    "Chosen",
    "back_up_streams",
    "begin_backup",
    "choose_streams",
    "finish_backup",
    "has_many",
    "run_backup",
]

# Measured: asking for this many streams, some at a time, takes a fifth of a second.
_MANY = 64


def has_many(streams: Sized) -> bool:
    """Return whether these are so many streams that the server and the store are not asked for each of them."""
    return len(streams) > _MANY


def find_unchanged(
    run: BackupRun, streams: Sequence[StreamInfo], earlier: Mapping[str, StreamBackup], asked_ns: tuple[int, int]
) -> dict[str, StoredStream]:
    """Return by name the streams that have not changed since their backup in `earlier`; none if the account is small.

    `asked_ns` is when the list was asked for and had been answered, in Unix time.
    """
    options = run.options
    if not has_many(streams) or options.config_only or options.check or options.incremental is Incremental.NEVER:
        return {}
    begun, ended = map(format_time, asked_ns)
    unchanged = {}
    related = with_relatives(streams)
    for info in streams:
        before = earlier.get(info.name)
        if info.name in related or before is None or not _is_unchanged(info, before, with_consumers=options.consumers):
            continue
        if run.repository.objects.damaged_in(run.repository.objects.sealing.folder(info.name, before.incarnation)):
            continue
        stream = replace(
            before,
            config=stored_config(info.config),
            state=info.state,
            captured=replace(before.captured, begun=begun, ended=ended),
            archive_format=ArchiveFormat.MESSAGES,
            consumers=(),  # it had none, or none are asked for
            read=AT_REST,
        )
        unchanged[info.name] = StoredStream(stream, len(stream.segments))
    return unchanged


def _is_unchanged(info: StreamInfo, before: StreamBackup, *, with_consumers: bool) -> bool:
    state = info.state
    return (
        info.created == before.created
        and before.archive_format not in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE)
        and not (info.lost or state.deleted or before.remarks or before.copied)
        and not (with_consumers and (state.consumers or before.consumers))
        and not about_leftover(info.config)
        and (has_same_ends(before, state) or _is_as_empty(before, state))
    )


def _is_as_empty(before: StreamBackup, state: StreamState) -> bool:
    return not (before.captured.messages or state.messages) and before.state == state


_log = logging.getLogger(__name__)

_LOOKED_AT = 8


def find_vanished(
    repository: Repository,
    made: Manifest,
    results: Sequence[StoredStream],
    earlier: Mapping[str, StreamBackup],
    *,
    restores: RecordedRestores,
    among: Sequence[BackupSummary] | None = None,
) -> tuple[Sequence[StoredStream], tuple[Failure, ...], str]:
    """Find lost streams in a backup that is about to be committed as `made`: return its results, marked where a stream
    has lost all its messages, the streams that no longer exist, and a sentence, "" if nothing was lost. Raises
    StoreError.

    `earlier` has the last backups of its streams since they were created; `among` are all backups of its origin, if
    they are known. What `restores` took back is not lost.
    """
    asked = made.selection
    assert asked is not None
    if asked.config_only:
        left = bool(made.streams)
    else:
        left = any(stream.captured.messages and _goes_on(earlier.get(stream.name)) for stream in made.streams)
    if left or asked.allow_empty:
        return results, (), ""
    before = next(_earlier(repository, made, among), None)
    if before is None:
        return results, (), ""
    held_before = {stream.name: stream for stream in _of_worth(before, made)}
    now = {result.stream.name: result for result in results}
    if any(name in now and _has_old(now[name].stream, before) for name in held_before):
        return results, (), ""
    reasons = {name: _why_missed(stream, now.get(name), before.id) for name, stream in held_before.items()}
    origin, since = origin_of(made.source), before.created
    lost = {name: why for name, why in reasons.items() if why and not restores.took_back(origin, name, since)}
    if not lost:
        return results, (), ""
    others = Fact(FactKind.NOT_CONTINUED, before.id)
    marked = [replace(_with_fact(result, lost.get(result.stream.name, others)), incomplete=True) for result in results]
    vanished = [Failure(name, IncompleteError(why.text)) for name, why in sorted(lost.items()) if name not in now]
    note = (
        f"nothing is left of what backup {before.id} has: check whether the server has lost its streams or is a "
        "different one; if that is meant, run 'jsbackup backup --allow-nothing' once: 'latest' means that backup then"
    )
    return marked, tuple(vanished), note


def warn_emptied(
    repository: Repository, results: Sequence[StoredStream], earlier: Mapping[str, StreamBackup]
) -> list[StoredStream]:
    """Return the results, with a warning on each stream that has lost all its messages, and not by itself.

    `earlier` has the last backups of the streams since they were created. Raises StoreError.
    """
    empty = (result.stream for result in results if not result.stream.captured.messages)
    before = [
        earlier[now.name]
        for now in empty
        if now.name in earlier and now.archive_format is not ArchiveFormat.OPAQUE and not empties_itself(now.config)
    ]
    facts = _last_held(
        repository, {stream.name: stream for stream in before if stream.captured.messages}, FactKind.EMPTIED
    )
    still = ((stream.name, stream.fact(FactKind.EMPTIED)) for stream in before if not stream.captured.messages)
    facts |= {name: fact for name, fact in still if fact is not None}
    return [
        _with_fact(result, facts[result.stream.name]) if result.stream.name in facts else result for result in results
    ]


def with_last_backups(
    repository: Repository, results: Sequence[StoredStream], earlier: Mapping[str, StreamBackup]
) -> list[StoredStream]:
    """Return the results; where the server has lost messages of a stream, that fact names the backup that has them.

    `earlier` as in `warn_emptied`. Raises StoreError.
    """
    lossy = {
        result.stream.name: fact for result in results if (fact := result.stream.fact(FactKind.LOST_SINCE)) is not None
    }
    before = {name: earlier[name] for name in lossy if name in earlier}
    held = _last_held(repository, before, FactKind.LOST_SINCE)
    named = {name: replace(fact, detail=lossy[name].detail) for name, fact in held.items()}
    return [
        replace(result, stream=replace(result.stream, facts=(named[result.stream.name],)))
        if result.stream.name in named
        else result
        for result in results
    ]


def _last_held(repository: Repository, streams: Mapping[str, StreamBackup], kind: FactKind) -> dict[str, Fact]:
    """Return a fact for each stream that says which backup has it in this state, and with how many messages."""
    held: dict[str, Fact] = {}
    for backup in reversed(repository.backups()) if streams else ():
        manifest = _manifest(repository, backup)
        if manifest is None:
            continue
        for stream in manifest.streams:
            if stream.name in streams and stream.name not in held and stream.captured == streams[stream.name].captured:
                held[stream.name] = Fact(kind, backup, manifest.created, stream.captured.messages)
        if held.keys() == streams.keys():
            break
    return held


def _earlier(repository: Repository, made: Manifest, among: Sequence[BackupSummary] | None) -> Iterator[Manifest]:
    """Yield the newest backups with streams of the same selection; those with an equal selection come first."""
    mine = summary_of(made)
    try:
        summaries = repository.inventory().summaries if among is None else among
        backups = [summary for summary in summaries if _is_comparable(summary, mine)]
    except JsBackupError as error:
        _log.warning("what there was before cannot be looked up: %s", error.message)
        return
    alike = [backup for backup in backups if group_of(backup, Grouping.SELECTION) == group_of(mine, Grouping.SELECTION)]
    accepted = max((summary.id for summary in alike if summary.selection.allow_empty), default="")
    others = [backup for backup in backups if backup not in alike]
    lines = [[summary for summary in line if summary.id >= accepted] for line in (alike, others)]
    # A partial one may come from a server that had already lost everything.
    newest = (
        summary.id
        for result in (BackupResult.COMPLETE, BackupResult.PARTIAL)
        for line in lines
        for summary in reversed(line)
        if summary.result is result
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
    return [
        stream
        for stream in before.streams
        if asked.selects(stream.name) and (stream.captured.messages or asked.config_only)
    ]


def _goes_on(earlier: StreamBackup | None) -> bool:
    """Return whether a stream's last backup was made before everything was lost."""
    breaks = (FactKind.NOT_CONTINUED, FactKind.RECREATED)
    return earlier is not None and not any(fact.kind in breaks for fact in earlier.facts)


def _has_old(now: StreamBackup, before: Manifest) -> bool:
    return bool(now.captured.messages) and now.state.first_ns <= parse_time(before.created)


def _why_missed(before: StreamBackup, stored: StoredStream | None, backup: str) -> Fact | None:
    """Return why the stream may have been lost; None if it is fine."""
    fact = Fact(FactKind.GONE, backup, messages=before.captured.messages)
    if stored is None:
        return fact
    now, count = stored.stream, stored.stream.captured.messages
    if now.created != before.created or now.state.last_seq < before.state.last_seq:
        holds = f"with {format_count(count, 'message')}" if count else "without messages"
        return replace(fact, kind=FactKind.RECREATED, detail=holds)
    # If our clock is behind the server's, old messages seem newer than the backup that has them.
    return None if count or empties_itself(now.config) else replace(fact, kind=FactKind.PURGED)


def _with_fact(result: StoredStream, fact: Fact) -> StoredStream:
    return replace(result, stream=replace(result.stream, facts=(*result.stream.facts, fact)))


_LOSS_HINT = (
    "The server has lost messages, unless somebody has restored an older state: look at its log, keep the backup that "
    "has them, and see 'jsbackup help put-back'. The next backup is complete again."
)


@dataclass(frozen=True, slots=True)
class BackupReport:
    """The result of a backup. `manifest` is None if nothing was committed because every stream failed.

    `notes` are sentences about the whole backup, `lost_readers` about key files of readers that are missing or damaged.
    """

    manifest: Manifest | None
    streams: tuple[StoredStream, ...]
    failures: tuple[Failure, ...]
    notes: tuple[str, ...] = ()
    lost_readers: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Chosen:
    """Streams to read, largest first, with the last backup of each that has one. Can be sent to other processes.

    `asked_ns` is when the server was asked for them and had answered (Unix time), None if they are a part of those.
    """

    source: Source
    streams: tuple[StreamInfo, ...]
    earlier: Mapping[str, StreamBackup]
    asked_ns: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class BegunBackup:
    """A backup before its streams are read. `failures` are streams that cannot be read; `notes` is as in a report."""

    begun_ns: int
    chosen: Chosen
    failures: tuple[Failure, ...]
    receipts: Receipts
    lock: BackupLock | None
    notes: tuple[str, ...] = ()


@with_own_threads
async def run_backup(run: BackupRun, lease: leases.Lease) -> BackupReport:
    """Back streams up. `lease` is a shared one, renewed by the caller.

    Raises:
        UsageError: a named stream does not exist.
        UnsupportedError: the manifest would be too large for a repository without pages.
        NatsError: the server cannot be asked.
        RepositoryLocked: the lease was lost; nothing was committed.
    """
    async with _begun(run, lease) as begun:
        results, failed = await back_up_streams(run, begun.chosen, begun.receipts)
    return await in_thread(finish_backup, run, begun, results, failed, lease=lease)


@with_own_threads
async def begin_backup(run: BackupRun, lease: leases.Lease) -> BegunBackup:
    """Begin a backup whose streams will be read elsewhere. Raises UsageError, UnsupportedError, NatsError."""
    async with _begun(run, lease) as begun:
        return begun


@asynccontextmanager
async def _begun(run: BackupRun, lease: leases.Lease) -> AsyncIterator[BegunBackup]:
    """Ask the server for its streams. The server's advisories are logged until this exits."""
    repository, options, begun_ns = run.repository, run.options, run.clock_ns()
    lock = None
    if options.lock is not None:
        lock = await in_thread(open_lock, repository, options.lock, begun_ns / 10**9)
    async with connect_jetstream(run.connection) as js, advisories(js.link):
        await js.account()  # checks that JetStream is enabled for this account
        source = await named_source(js, run.connection, run.account)
        source = replace(source, profile=options.profile or None)
        asked_ns = run.clock_ns()
        streams, failures, notes = await choose_streams(
            js, options.streams, options.exclude, may_exclude_all=options.allow_nothing
        )
        answered_ns = run.clock_ns()
        for origin, copies in order_of(streams).broken.items():
            _log.warning(
                "streams copy in a circle: %s is read before %s, which may have more of it", origin, ", ".join(copies)
            )
        if not options.config_only and options.check:
            _log.info("the server checks each stream before it sends it; that may take long")
        if not options.config_only:
            run.progress.expect({info.name: info.state.bytes for info in streams})
        incarnations = {info.name: source.incarnation(info.name, info.created) for info in streams}
        receipts = Receipts(repository.documents, lease.id, format_time(begun_ns), TOOL)
        earlier: Mapping[str, StreamBackup] = {}
        if not options.config_only:
            earlier = await in_thread(
                previous_streams, repository, incarnations, origin=origin_of(source), among=run.earlier
            )
            await in_thread(receipts.read_earlier)
        lives = lives_of(streams)
        asked, tags = _selection(options), dict(options.tags)
        notes += await in_thread(lambda: list(about_another_server(repository, source, asked, tags, lives=lives)))
        chosen = Chosen(source, tuple(streams), earlier, (asked_ns, answered_ns))
        yield BegunBackup(begun_ns, chosen, tuple(failures), receipts, lock, tuple(notes))


def finish_backup(
    run: BackupRun,
    begun: BegunBackup,
    results: Sequence[StoredStream],
    failed: Sequence[Failure],
    *,
    lease: leases.Lease,
    followed: Mapping[str, StreamBackup] | None = None,
) -> BackupReport:
    """Commit what was stored, if anything was. `followed` are the last backups of streams whose emptying is not news.

    Raises RepositoryLocked and StoreError.
    """
    repository, options = run.repository, run.options
    failures = (*begun.failures, *failed)
    results = with_last_backups(repository, _beside_copies(results), begun.chosen.earlier)
    if failures and not results:
        return BackupReport(None, (), failures, begun.notes)
    made = NewBackup(
        repository,
        source=begun.chosen.source,
        begun_ns=begun.begun_ns,
        clock_ns=run.clock_ns,
        random=run.random,
        tags=options.tags,
        selection=_selection(options),
    )
    manifest = made.manifest(results, failures)
    notes = begun.notes
    if not failures:
        known = begun.chosen.earlier if followed is None else followed
        results, failures, note = find_vanished(
            repository, manifest, results, known, restores=run.restores, among=run.earlier
        )
        if not (note or options.allow_nothing):
            results = warn_emptied(repository, results, begun.chosen.earlier)
        notes += (note,) if note else ()
        manifest = with_streams(manifest, results, failures)
    damaged = [failure.name for failure in failures if is_damage(failure.error)]
    damaged += [result.stream.name for result in results if result.stream.lost]
    lossy = [result.stream.name for result in results if result.stream.fact(FactKind.LOST_SINCE)]
    notes += (f"{', '.join(lossy)}: {_LOSS_HINT}",) if lossy else ()
    notes += () if results or failures else ("no stream was backed up: there are none, or all are left out",)
    if damaged:
        notes += (f"{', '.join(damaged)}: {DAMAGE_HINT}",)
    manifest = repository.paged(manifest)
    if begun.lock is not None:
        manifest = begun.lock.lock_content(manifest)
    leases.commit(repository, manifest, lease)
    folders = {repository.objects.sealing.folder(stream.name, stream.incarnation) for stream in manifest.streams}
    begun.receipts.settle(folders)
    if begun.lock is not None:
        begun.lock.lock_manifest(manifest)
    return BackupReport(manifest, tuple(results), failures, notes, lost_readers(repository))


def _beside_copies(results: Sequence[StoredStream]) -> list[StoredStream]:
    """Warn about streams that an interrupted restore was to replace: their copies may have more messages."""
    copies = {replaced_by(result.stream.name, result.stream.config): result.stream.name for result in results}
    if copies.keys() <= {None}:
        return [*results]

    def warned(result: StoredStream) -> StoredStream:
        stream = result.stream
        if (copy := copies.get(stream.name)) is None:
            return result
        why = f"it may lack messages: an interrupted restore was replacing it, and left the copy {copy}"
        return replace(result, stream=replace(stream, warnings=(*stream.warnings, why)), incomplete=True)

    return [warned(result) for result in results]


def _selection(options: BackupOptions) -> Selection:
    """Return the selection, sorted so that it does not depend on the order of options."""
    streams, exclude = (sorted({glob.pattern for glob in globs}) for globs in (options.streams, options.exclude))
    return Selection(
        tuple(streams), tuple(exclude), options.consumers, options.config_only, allow_empty=options.allow_nothing
    )


async def choose_streams(
    js: JetStream,
    names: Sequence[Glob],
    exclude: Sequence[Glob],
    *,
    pattern_may_miss: bool = True,
    may_exclude_all: bool = True,
) -> tuple[list[StreamInfo], list[Failure], list[str]]:
    """Return the chosen streams, largest first; those that did not answer; and sentences about others.

    Raises UsageError for a named stream that does not exist, and for an --exclude that matches no stream or leaves
    none, unless that is allowed.
    """
    listing = await js.answering_streams(lambda name: is_chosen(name, names, exclude))
    silent = listing.silent
    present = set(listing.entries) | set(silent)
    copies = find_copies(listing.entries)
    for glob in names:
        if not any(glob.matches(name) for name in present):
            hint = nearest(glob.pattern, sorted(present)) or "See 'nats stream ls' for the streams there are."
            if left := [copy.name for copy in copies if glob.matches(copy.original)]:
                hint = f"An interrupted restore has removed it, and left its copy {left[0]}: run that restore again."
            raise NothingChosen(f"no stream matches {glob.pattern}", hint=hint)
    missed = {pattern: nearest(pattern, sorted(present)) for pattern in excludes_nothing(present, exclude)}
    for pattern, near in missed.items() if not pattern_may_miss else ():
        raise UsageError(f"--exclude {pattern}: no such stream", hint=f"{near or 'Correct it.'} {MAY_MISS}")

    def wanted(name: str) -> bool:
        return is_chosen(name, names, exclude)

    meant = [name for name in present if is_chosen(name, names, ())]
    if meant and not any(map(wanted, meant)) and not may_exclude_all:
        what = f"all {len(meant)} streams" if len(meant) > 1 else f"stream {meant[0]}"
        raise NothingChosen(
            f"--exclude leaves out {what}, so nothing would be backed up",
            hint="Correct it, or add --allow-nothing to make an empty backup.",
        )

    failures = [
        Failure(name, NatsError(f"stream {name} cannot be read: {reason}"))
        for name, reason in sorted(silent.items())
        if wanted(name)
    ]
    apart = {copy.name: copy for copy in copies if wanted(copy.name) and is_left_out(copy, names, exclude)}
    infos = [info for name, info in listing.entries.items() if wanted(name) and name not in {*silent, *apart}]
    notes = [about_copy(copy) for _, copy in sorted(apart.items())]
    notes += [
        f"--exclude {pattern} matches no stream{f' ({near})' if near else ''}" for pattern, near in missed.items()
    ]
    return sorted(infos, key=lambda info: (-info.state.bytes, info.name)), failures, notes


def _is_named(stream: str, names: Sequence[Glob]) -> bool:
    """Return whether it is one that is named itself, not by a pattern."""
    return any(glob.pattern == stream for glob in names)


@with_own_threads
async def back_up_streams(
    run: BackupRun, chosen: Chosen, receipts: Receipts
) -> tuple[list[StoredStream], list[Failure]]:
    """Store the streams, `jobs` at a time. Returns results and failures, ordered by name.

    Streams that copy from another one are captured before it (`read/mirrors.py`).
    """
    unchanged: Mapping[str, StoredStream] = {}
    if chosen.asked_ns is not None:
        unchanged = await in_thread(find_unchanged, run, chosen.streams, chosen.earlier, chosen.asked_ns)
    for name in unchanged:
        run.progress.finish(name)
    order = CaptureOrder([info for info in chosen.streams if info.name not in unchanged])
    at_once = min(run.options.jobs, len(order.waiting))
    beside = replace(run.options, limits=run.options.limits.beside(max(at_once - 1, 0)))
    run = replace(run, options=beside, many=has_many(chosen.streams))
    results = [*unchanged.values()]
    failures: list[Failure] = []

    async def read(js: JetStream, info: StreamInfo) -> StoredStream:
        copied = await ask_copied(js, info)
        previous = chosen.earlier.get(info.name)
        stream = await back_up_stream(run, js, info, source=chosen.source, previous=previous, receipts=receipts)
        return stream.with_copied(copied)

    async def store(js: JetStream, info: StreamInfo) -> bool:
        began = time.monotonic()
        try:
            try:
                stream = await read(js, info)
            except ApiError as error:
                if not lacks_stream(error) or _is_named(info.name, run.options.streams):
                    raise
                now = await js.find_stream(info.name)
                if now is None:
                    _log.warning("stream %s was deleted since the backup began, and is not in it", info.name)
                    return True
                stream = await read(js, now)
        except JsBackupError as error:
            _log.warning("stream %s failed: %s", info.name, error.message)
            failures.append(Failure(info.name, error))
            return False
        finally:
            run.progress.finish(info.name)
            await order.done(info.name)
        results.append(replace(stream, seconds=time.monotonic() - began))
        return True

    async def do_next(js: JetStream) -> bool:
        info = await order.take()
        return info is not None and (await store(js, info) or js.link.connected)

    connect = partial(connect_jetstream, run.connection)
    unreachable = await run_workers(at_once, connect, lambda: bool(order.waiting), do_next)
    if unreachable is not None:
        failures += [Failure(info.name, unreachable) for info in order.waiting]
    return sorted(results, key=lambda r: r.stream.name), sorted(failures, key=lambda f: f.name)
