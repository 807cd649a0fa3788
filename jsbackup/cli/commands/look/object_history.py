"""`jsbackup history BUCKET --object NAME`: the versions of a file in all backups.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject
from jsbackup.shell import command_line, quoted_command
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.all_backups import FoundMessage, Series, UnreadBackup
    from jsbackup.look.buckets.object_bucket import ObjectEntry
    from jsbackup.repository.repository import Repository

__all__ = ["OBJECT_STREAM", "print_versions"]

OBJECT_STREAM = "OBJ_"
_DIGEST_SHOWN = 12


def print_versions(
    shared: Shared,
    repository: Repository,
    series: Sequence[Series],
    name: str,
    *,
    unread: Sequence[UnreadBackup],
    limit: int,
) -> None:
    """Print the versions. Raises JsBackupError if no backup has any, and the errors of `search_series`."""
    from jsbackup.look.all_backups import search_series
    from jsbackup.look.buckets.object_bucket import description_subjects
    from jsbackup.look.buckets.object_versions import DESCRIPTION_BYTES, version_of
    from jsbackup.look.message_filter import MessageFilter

    newest = next(one.entry for one in reversed(series[-1].sightings) if one.entry is not None)
    wanted = MessageFilter(subjects=description_subjects(newest, name))
    found, more = search_series(repository, series, wanted, most=limit, start_bytes=DESCRIPTION_BYTES)
    bucket = newest.name.removeprefix(OBJECT_STREAM)
    if not found:
        raise JsBackupError(
            f"no backup has an object {name} of object store {bucket}",
            hint=f"See {quoted_command('object ls', 'latest', bucket)} for what there is.",
        )
    versions = [(one, version_of(one)) for one in found]
    document = {
        "bucket": bucket,
        "object": name,
        "versions": [_json(one, entry) for one, entry in versions],
        "more": more,
        "unread": [{"backup": one.backup, "reason": one.error.message} for one in unread],
    }
    output = shared.output

    def text() -> None:
        output.table(
            ["TIME", "WHAT", ">SIZE", "DIGEST", "FIRST BACKUP", "LAST BACKUP", "GONE IN"],
            [
                (
                    format_time(one.timestamp_ns),
                    _what(entry),
                    format_bytes(entry.size) if _is_file(entry) and entry else "-",
                    entry.digest[:_DIGEST_SHOWN] if entry else "-",
                    one.backups[0],
                    one.backups[-1],
                    one.gone or "-",
                )
                for one, entry in versions
            ],
        )
        if more:
            output.line(f"these are the newest {format_count(len(found), 'version')}; for more, see --limit")
        last = next((one for one, entry in reversed(versions) if _is_file(entry)), None)
        if last is not None:
            command = command_line("object get", last.backups[-1], bucket, name, options=[("-o", "FILE")])
            output.line(f"to get the last one: {command}")

    output.result(document, text)


def _is_file(entry: ObjectEntry | None) -> bool:
    return entry is not None and not entry.deleted and entry.link is None


def _what(entry: ObjectEntry | None) -> str:
    if entry is None:
        return "cannot be read"
    if entry.deleted:
        return "deleted"
    return f"link to {entry.link}" if entry.link is not None else "file"


def _json(one: FoundMessage, entry: ObjectEntry | None) -> JsonObject:
    about: JsonObject = {"readable": entry is not None}
    if entry is not None:
        link = entry.link
        about |= {
            "deleted": entry.deleted,
            "size": entry.size,
            "digest": entry.digest,
            "link": None if link is None else {"bucket": link.bucket, "name": link.name or None},
        }
    return {
        "origin": one.origin,
        "sequence": one.sequence,
        "time": format_time(one.timestamp_ns),
        **about,
        "backups": list(one.backups),
        "gone": one.gone or None,
    }
