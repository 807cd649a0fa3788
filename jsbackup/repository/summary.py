"""What a backup comes to, without its streams: what `list` shows, what retention decides by, what a catalog keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jsbackup.repository.manifest import ArchiveFormat, Manifest, Result, Selection
from jsbackup.times import parse_time

__all__ = ["BackupSummary", "is_dated_ahead", "summary_of"]

# A backup that seems to come from later than this after now was made by a wrong clock, or ours is wrong.
_CLOCK_SLACK_NS = 300 * 10**9


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup. `created` is RFC 3339, `bytes` are those of the messages (see `manifest.py`).

    `cluster`, `account` and `domain` say where it comes from, as `Source` does; an import has none of them, and
    `imported` is the kind of folder it took in; one that was made of another backup by reshaping it has `transformed`,
    in the words of the options. Where nothing was selected, `selection` names all streams, and tells whether there are
    only configurations of them. What follows `selection` is as in a manifest, and None where it was not noted.
    """

    id: str
    created: str
    result: Result
    streams: int
    messages: int
    bytes: int
    tags: Mapping[str, str] = field(default_factory=dict)
    cluster: str = ""
    account: str = ""
    domain: str | None = None
    imported: str | None = None
    transformed: str | None = None
    selection: Selection = field(default_factory=Selection)
    # Entries of catalogs that an older tool wrote lack these, so they tell no two backups apart.
    account_name: str | None = field(default=None, compare=False)
    api_prefix: str | None = field(default=None, compare=False)
    login: str | None = field(default=None, compare=False)
    profile: str | None = field(default=None, compare=False)
    ended: str | None = field(default=None, compare=False)
    stored_bytes: int | None = field(default=None, compare=False)

    @property
    def seconds(self) -> float | None:
        """How long it took to make."""
        return None if self.ended is None else (parse_time(self.ended) - parse_time(self.created)) / 1e9

    @property
    def is_of_a_server(self) -> bool:
        """Whether it was made of a server's streams, and not of files or of another backup."""
        return self.imported is None and self.transformed is None


def is_dated_ahead(created: str, now_ns: int) -> bool:
    """Whether a backup made at that time, RFC 3339, is of the future."""
    return parse_time(created) > now_ns + _CLOCK_SLACK_NS


def summary_of(manifest: Manifest) -> BackupSummary:
    names = {stream.name for stream in manifest.streams} | {skipped.name for skipped in manifest.skipped}
    without_messages = all(stream.archive_format is ArchiveFormat.CONFIG for stream in manifest.streams)
    return BackupSummary(
        id=manifest.id,
        created=manifest.created,
        result=manifest.result,
        streams=len(manifest.streams),
        messages=sum(stream.captured.messages for stream in manifest.streams),
        bytes=sum(stream.captured.bytes for stream in manifest.streams),
        tags=dict(manifest.tags),
        cluster=manifest.source.cluster,
        account=manifest.source.account,
        domain=manifest.source.domain,
        imported=_imported(manifest.source.extra.get("imported")),
        transformed=_transformed(manifest.source.extra.get("transformed")),
        selection=manifest.selection
        or Selection(tuple(sorted(names)), config_only=bool(manifest.streams) and without_messages),
        account_name=manifest.source.account_name,
        api_prefix=manifest.source.api_prefix,
        login=manifest.source.login,
        profile=manifest.source.profile,
        ended=manifest.ended,
        stored_bytes=manifest.stored_bytes,
    )


def _imported(value: object) -> str | None:
    origin = value.get("from") if isinstance(value, dict) else None
    return origin if isinstance(origin, str) else None


def _transformed(value: object) -> str | None:
    options = value.get("options") if isinstance(value, dict) else None
    return " ".join(map(str, options)) if isinstance(options, list) else None
