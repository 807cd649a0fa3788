"""What `export` says about what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.grouped import broken_json, tell_broken
from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.readable import in_short

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import ExportedStream

__all__ = ["tell_exported"]


def tell_exported(
    shared: Shared,
    files: int,
    size: int,
    exported: Sequence[ExportedStream],
    *,
    broken: Mapping[str, JsBackupError],
    directory: str,
    append: bool = False,
    is_new: bool = True,
) -> int:
    """Report what was written, or with `append` added to tables, to `directory`; return the exit code. `broken` could
    not be read, or their tables not be extended. `is_new`: nothing was there.
    """
    output = shared.output
    messages, done = sum(stream.messages for stream in exported), "wrote" if is_new else "appended to"

    def text() -> None:
        output.table(
            ["STREAM", ">MESSAGES", "WRITTEN AS"], [(s.name, format_count(s.messages), s.archive) for s in exported]
        )
        for note, names in _by_note(exported).items():
            output.line(f"note: {in_short(names)}: {note}")
        if append:  # each has to be seen to
            for name, error in broken.items():
                tell_broken(output, {name: error})
        else:
            tell_broken(output, broken)
        output.line(
            f"{done} {directory}: {format_count(len(exported), 'stream')}, {format_count(messages, 'message')}, "
            f"{format_count(files, 'file')}, {format_bytes(size)}"
        )

    document = {
        "files": files,
        "rows": messages,
        "bytes": size,
        "streams": [
            {
                "name": s.name,
                "messages": s.messages,
                "archive": s.archive,
                "notes": list(s.notes),
            }
            for s in exported
        ],
        "failed": broken_json(broken),
        **({"appended": True} if append else {}),
    }
    output.result(document, text)
    return IncompleteError.exit_code if broken or any(stream.incomplete for stream in exported) else 0


def _by_note(exported: Sequence[ExportedStream]) -> dict[str, list[str]]:
    """Return the streams by note: many have the same one, which is printed once."""
    found: dict[str, list[str]] = {}
    for stream in exported:
        for note in stream.notes:
            found.setdefault(note, []).append(stream.name)
    return found
