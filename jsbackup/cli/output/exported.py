"""What `export` says about what it wrote."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.output import format_bytes, format_count
from jsbackup.cli.output.result import Block, Result, broken_json, broken_lines, table
from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.model import JsonObject
from jsbackup.readable import in_short

if TYPE_CHECKING:
    from jsbackup.exchange.exporting import ExportedStream

__all__ = ["export_result"]


def export_result(
    files: int,
    size: int,
    exported: Sequence[ExportedStream],
    *,
    broken: Mapping[str, JsBackupError],
    directory: str,
    append: bool = False,
    is_new: bool = True,
) -> Result:
    """Return what was written, or with `append` added to tables, to `directory`. `broken` could not be read, or their
    tables not be extended. `is_new`: nothing was there.
    """
    messages, done = sum(stream.messages for stream in exported), "wrote" if is_new else "appended to"
    streams: list[JsonObject] = [
        {"name": s.name, "messages": s.messages, "archive": s.archive, "notes": list(s.notes)} for s in exported
    ]
    document: JsonObject = {
        "files": files,
        "rows": messages,
        "bytes": size,
        "streams": streams,
        "failed": broken_json(broken),
        **({"appended": True} if append else {}),
    }
    by_note: dict[str, list[str]] = {}  # many streams have the same one, which is printed once
    for stream in exported:
        for note in stream.notes:
            by_note.setdefault(note, []).append(stream.name)
    text: list[Block] = [
        table(streams, {"STREAM": "name", ">MESSAGES": ("messages", format_count), "WRITTEN AS": "archive"}),
        *(f"note: {in_short(names)}: {note}" for note, names in by_note.items()),
    ]
    for part in [{name: error} for name, error in broken.items()] if append else [broken]:  # each has to be seen to
        text += broken_lines(part)
    text.append(
        f"{done} {directory}: {format_count(len(exported), 'stream')}, {format_count(messages, 'message')}, "
        f"{format_count(files, 'file')}, {format_bytes(size)}"
    )
    return Result(document, text, IncompleteError.exit_code if broken or any(s.incomplete for s in exported) else 0)
