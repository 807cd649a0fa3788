"""Streams that a backup does not have any more, because they were deleted on the server, and what their tables lack.

They are found by their tables, by backups since the last export, and by their names, if these were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from jsbackup.config import is_chosen
from jsbackup.errors import FormatError, IncompleteError, JsBackupError, TargetConflict, UnsupportedError, UsageError
from jsbackup.pipeline.tables.table_log import TableLog
from jsbackup.pipeline.tables.table_state import TableState
from jsbackup.pipeline.tables.target import TableTarget
from jsbackup.planning.transforming import TransformOptions
from jsbackup.repository import layout
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.names import decode_name, encode_name
from jsbackup.repository.read.between import EarlierState
from jsbackup.repository.read.sources import Wanted
from jsbackup.repository.repository import Repository
from jsbackup.repository.summary import summary_of
from jsbackup.transforms.rename import RenameOptions, bucket_of

__all__ = ["DeletedTables", "deleted_tables", "without_other_renames", "without_tables"]


@dataclass(frozen=True, slots=True)
class DeletedTables:
    """Tables of streams that a backup does not have, by the names of these. `refused` are those whose logs are damaged,
    by the names of the tables. `asked` says whether a stream of that name would be in the backup, and was asked for;
    None if that is not known.
    """

    states: Mapping[str, TableState] = field(default_factory=dict)
    refused: Mapping[str, JsBackupError] = field(default_factory=dict)
    asked: Callable[[str], bool] | None = None

    @property
    def earlier(self) -> dict[str, EarlierState]:
        found = {name: (state.source, state.position) for name, state in self.states.items()}
        return {name: EarlierState(of.incarnation, at.last_seq, at.backup_ns) for name, (of, at) in found.items()}


def deleted_tables(
    manifest: Manifest,
    target: TableTarget,
    wanted: Wanted,
    options: TransformOptions,
    *,
    log_of: Callable[[str], TableLog | None],
) -> DeletedTables:
    """Find the tables at the target whose streams are `wanted` and were deleted before the backup was made. `log_of`
    returns the log of a table by its name, and raises as that.

    Raises StoreError if the target cannot be read.
    """
    selection = manifest.selection
    known = {one.name for one in manifest.streams} | {one.name for one in manifest.skipped}
    # Of an import, it is not known what was deleted, and obfuscated tables do not have the names of streams.
    of_a_server = summary_of(manifest).is_of_a_server and not manifest.unlisted
    if not of_a_server or selection is None or selection.config_only or options.reshape.obfuscation is not None:
        return DeletedTables()

    def asked(name: str) -> bool:
        return name not in known and selection.selects(name) and is_chosen(name, wanted.streams, wanted.exclude)

    states: dict[str, TableState] = {}
    refused: dict[str, JsBackupError] = {}
    for table in _tables(target) if target.has_tables else ():
        name = _stream_of(table, options.renames)
        if name is None or not asked(name):
            continue
        try:
            log = log_of(table)
        except FormatError as error:
            refused[table] = error
        except (TargetConflict, UnsupportedError, UsageError):
            continue  # something else
        else:
            if log is not None and log.state is not None:
                states[name] = log.state
    return DeletedTables(states, refused, asked)


def without_tables(
    repository: Repository, manifest: Manifest, wanted: Wanted, found: Collection[str]
) -> Iterator[tuple[str, IncompleteError]]:
    """Yield the streams that were asked for by names or patterns and that the backup does not have, none of those that
    were `found`, each with an error that names the newest backup that has it.

    Raises UsageError if no backup has one.
    """
    there = {*found, *(one.name for one in manifest.streams), *(one.name for one in manifest.skipped)}
    for glob in wanted.streams:
        if any(map(glob.matches, there)):
            continue
        alone = replace(wanted, streams=(glob,), all_needed=True, as_newest=False)
        holder = repository.choose(layout.LATEST, alone).manifest
        for name in sorted(one.name for one in holder.streams if glob.matches(one.name)):
            why = " any more, and has no table"
            if manifest.selection is not None and not manifest.selection.selects(name):
                why = ", which is of other streams"
            first = f"export backup {holder.id} first, the newest that has it"
            yield name, IncompleteError(f"stream {name} is not in backup {manifest.id}{why}: {first}")


def without_other_renames(options: TransformOptions, streams: Collection[str], target: TableTarget) -> TransformOptions:
    """Return the options without new names of streams that are not among the exported `streams` and have tables under
    these names: options have to stay the same, also once a stream was deleted. Raises StoreError.
    """
    store = target.place.store()

    def has_table(name: str) -> bool:
        return next(iter(store.list(f"{encode_name(name)}/")), None) is not None

    names = tuple((old, new) for old, new in options.renames.names if old in streams or not has_table(new))
    return replace(options, renames=replace(options.renames, names=names))


def _tables(target: TableTarget) -> list[str]:
    """Return the names of what may be tables at a target."""
    if target.place.folder is not None:
        folders = {path.name for path in Path(target.place.folder).iterdir() if path.is_dir()}
    else:
        folders = {
            folder for info in target.place.store().list() for folder, rest, _ in [info.key.partition("/")] if rest
        }
    names: list[str] = []
    for folder in sorted(folders):
        with suppress(FormatError):
            name = decode_name(folder)
            names += [] if name is None else [name]
    return names


def _stream_of(table: str, renames: RenameOptions) -> str | None:
    """Return the name that the stream of a table has in backups; None if an export with these names has made no such
    table.
    """
    if renames.prefix:
        kind, bucket = bucket_of(table)
        return f"{kind}{bucket.removeprefix(renames.prefix)}" if bucket.startswith(renames.prefix) else None
    olds = {new: old for old, new in renames.names}
    return olds.get(table, None if table in olds.values() else table)
