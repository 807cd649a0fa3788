"""The summary of a backup, without its streams: for `list`, retention and catalogs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jsbackup.repository.manifest import ArchiveFormat, BackupResult, Manifest, Selection
from jsbackup.times import parse_time

__all__ = ["BackupSummary", "is_dated_ahead", "summary_of"]

# A backup from later than this after now was made with a wrong clock, or our clock is wrong.
_CLOCK_SLACK_NS = 300 * 10**9


@dataclass(frozen=True, slots=True)
class BackupSummary:
    """One backup. `created` is RFC 3339, `bytes` is that of the messages (see `manifest.py`).

    `cluster`, `account` and `domain` are as in `Source`; an import has none of them. `imported` is the kind of folder
    that was imported; `transformed` has the options by which the backup was made from another one. If nothing was
    selected, `selection` names all streams, and whether there are only configurations. The fields after `selection` are
    as in a manifest, and None if not recorded.
    """

    id: str
    created: str
    result: BackupResult
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
    # Catalog entries of older tools lack these, so they do not count in comparisons.
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
        """Whether it was made from a server's streams, not from files or another backup."""
        return self.imported is None and self.transformed is None


def is_dated_ahead(created: str, now_ns: int) -> bool:
    """Return whether a backup of this time (RFC 3339) is dated in the future."""
    return parse_time(created) > now_ns + _CLOCK_SLACK_NS


def summary_of(manifest: Manifest) -> BackupSummary:
    names = {stream.name for stream in manifest.streams} | {skipped.name for skipped in manifest.skipped}
    pages = manifest.stream_pages  # whose streams may not have been read
    without_messages = all(stream.archive_format is ArchiveFormat.CONFIG for stream in manifest.streams)
    return BackupSummary(
        id=manifest.id,
        created=manifest.created,
        result=manifest.result,
        streams=sum(page.streams for page in pages) or len(manifest.streams),
        messages=sum(one.messages for one in pages or (stream.captured for stream in manifest.streams)),
        bytes=sum(one.bytes for one in pages or (stream.captured for stream in manifest.streams)),
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
