"""What a table knows about itself, so that an export can extend it: how its messages were made, and which backups it
has. Pure.

    {"format": 1, "options": ["--mask …"], "digest": "9f…", "partition": "day", "streams": ["ORDERS"],
     "pending": ["20261121T014500Z-1a2b3c"], "position": {…}}

`position` is as the offset of a streaming query (`stream_walk.py`), of one stream. An export goes from backup to
backup and adds to each table what that has, in one commit. So a backup that a table has is done for all tables of that
export, but for the last ones, which are `pending`.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from jsbackup.errors import FormatError, UnsupportedError, UsageError
from jsbackup.pipeline.messages.stream_walk import StreamOffsets
from jsbackup.planning.changed_streams import ChangeOptions
from jsbackup.repository.manifest import Manifest, StreamBackup, summary_of
from jsbackup.repository.origin import origin_of
from jsbackup.strict_json import read_object, write_json
from jsbackup.transforms.obfuscate.names import keyed_hash
from jsbackup.transforms.reshape import Reshape

__all__ = ["TableSource", "TableState", "life_of", "refuse_unsteady", "source_of"]

_FORMAT = 1
_MARK_BYTES = 4  # as of `MaskKey`: they distinguish keys, and reveal next to nothing


@dataclass(frozen=True, slots=True)
class TableSource:
    """What has to be the same in all exports into a table. `words` are the options for messages; `digest` is that of
    all that decides how messages look, keys included, and of where they are from. `partition` is `day` or "".
    """

    words: tuple[str, ...] = ()
    digest: str = ""
    partition: str = ""

    def refuse_other(self, name: str, other: TableSource) -> None:
        """Raise UsageError if `other`, that of the table called `name`, is not the same."""
        hint = "Append to it with the same options, or export to another folder."
        if other.partition != self.partition:
            made = "has partitions by day" if other.partition else "has no partitions"
            raise UsageError(f"the table of stream {name} {made}", hint=hint)
        if other.digest != self.digest:
            made = f"with {' '.join(other.words)}" if other.words else "without options that change messages"
            if other.words == self.words:
                made += ", and with another key or of another source"
            raise UsageError(f"the table of stream {name} was made {made}", hint=hint)


@dataclass(frozen=True, slots=True)
class TableState:
    """`streams` are the names and patterns that were typed for the export that was last. `commits` counts commits."""

    source: TableSource
    position: StreamOffsets = field(default_factory=lambda: StreamOffsets(""))
    pending: tuple[str, ...] = ()
    streams: tuple[str, ...] = ()
    commits: int = 0

    def is_done(self, backup: str) -> bool:
        """Return whether a backup is done for all tables of the export that was last."""
        return self.position.knows(backup) and backup not in self.pending

    def with_done(self, backups: Iterable[str]) -> TableState:
        """Return the state of a table that has these backups, too: in none of them is more of its stream."""
        position = self.position
        taken = tuple(sorted({*position.taken, *(backup for backup in backups if not position.knows(backup))}))
        return replace(self, position=replace(position, taken=taken, backup=max((position.backup, *taken[-1:]))))

    def to_json(self) -> str:
        value = {
            "format": _FORMAT,
            "options": list(self.source.words),
            "digest": self.source.digest,
            "partition": self.source.partition,
            "streams": list(self.streams),
            "pending": list(self.pending),
            "commits": self.commits,
            "position": self.position.to_json(),
        }
        return write_json(value, "the state of a table").decode()

    @classmethod
    def from_json(cls, text: str | bytes, what: str) -> TableState:
        """Decode the result of `to_json`; `what` begins errors.

        Raises:
            FormatError: it is damaged.
            UnsupportedError: a newer version has written it.
        """
        value = read_object(text, what)
        if value.get("format") != _FORMAT:
            raise UnsupportedError(f"{what} was written by another version of jsbackup", hint="Use that version.")
        texts = [value.get(name) for name in ("digest", "partition")]
        lists = [value.get(name) for name in ("options", "streams", "pending")]
        sound = all(isinstance(text, str) for text in texts) and type(value.get("commits")) is int
        sound = sound and all(
            isinstance(items, list) and all(isinstance(word, str) for word in items) for items in lists
        )
        if not sound or not isinstance(value.get("position"), dict):
            raise FormatError(f"{what} is damaged")
        words, streams, pending = (tuple(map(str, items or ())) for items in lists)
        source = TableSource(words, str(texts[0]), str(texts[1]))
        return cls(source, StreamOffsets.from_json(value["position"]), pending, streams, value["commits"])


def life_of(stream: StreamBackup, reshape: Reshape) -> str:
    """Return what the column `incarnation` has: within it, a sequence is one message. Of obfuscated messages a hash, as
    names must not be found by trying.
    """
    life = f"{stream.incarnation}@{stream.life}" if stream.life else stream.incarnation
    return life if reshape.obfuscation is None else keyed_hash(reshape.obfuscation.names.secret, life.encode())


def refuse_unsteady(options: ChangeOptions) -> None:
    """Raise UsageError for options whose result for old messages changes with new ones."""
    reshape = options.reshape
    unsteady = [] if reshape.newest is None else [str(reshape.newest)]
    unsteady += ["--renumber"] if reshape.renumber else []
    if unsteady:
        raise UsageError(
            f"{unsteady[0].split()[0]} and --append exclude each other: what is exported would change later",
            hint="Leave one of them out.",
        )


def source_of(
    stream: str, manifest: Manifest, options: ChangeOptions, *, mask_secret: bytes, partition: str
) -> TableSource:
    """Return what the table of a stream of a backup is made of. `mask_secret` is the key of masks, b"" without one."""
    reshape, obfuscation, summary = options.reshape, options.reshape.obfuscation, summary_of(manifest)
    edges = [f"--{name} {edge}" for name, edge in (("since", reshape.cut.since), ("until", reshape.cut.until)) if edge]
    words = [word for word in options.words if word not in ("--since", "--until")] + edges
    # New names are those of tables: a stream that has none yet may get one.
    words = [word for word in words if not word.startswith("--rename ")]
    key = b"jsbackup export" if obfuscation is None else obfuscation.names.secret
    mark = hmac.digest(mask_secret, b"jsbackup export", hashlib.sha256)[:_MARK_BYTES].hex() if mask_secret else ""
    whole = {
        "stream": stream,
        "words": words,
        "mask_key": mark,
        "transformed": summary.transformed,
        "imported": summary.imported,
        "origin": "" if summary.imported else str(origin_of(summary)),
    }
    digest = hmac.digest(key, write_json(whole, "options", sort_keys=True), hashlib.sha256).hex()
    return TableSource(tuple(words) if obfuscation is None else ("--obfuscate",), digest, partition)
