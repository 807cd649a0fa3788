"""Tables that an export does without: the others are brought up to date, and each of these is named."""

from __future__ import annotations

from collections.abc import Mapping

from jsbackup.errors import JsBackupError
from jsbackup.readable import alike, without_name

__all__ = ["all_refused"]


def all_refused(refused: Mapping[str, JsBackupError]) -> JsBackupError:
    """Return one error for an export of which nothing is left: all streams have one in `refused`, which is not empty.

    It names each stream, and is of their kind if all have the same exit code.
    """
    first = next(iter(refused.values()))
    if len(refused) == 1:
        return first
    groups = alike((name, name, without_name(name, error.message), None) for name, error in refused.items())
    sentences = []
    hints: dict[str, None] = {}
    for names in groups:
        name, error = names[0], refused[names[0]]
        alone = len(names) == 1
        said = error.message if alone else _of_several(name, error.message)
        sentences.append(f"stream{'' if alone else 's'} {', '.join(names)}: {said}")
        if error.hint:
            hints[error.hint if alone else _of_several(name, error.hint)] = None
    message = f"nothing was exported: {'; '.join(sentences)}"
    codes = {error.exit_code for error in refused.values()}
    whole = first.with_message(message) if len(codes) == 1 else JsBackupError(message)
    return whole.with_hint(" ".join(hints)) if hints else whole


def _of_several(name: str, text: str) -> str:
    """Return a text about a stream as it is after the names of several."""
    said = without_name(name, text)
    for words, instead in (
        (" of stream <stream>", ""),
        ("in its table", "in their tables"),
        ("the table of <stream>", "its table"),
        ("stream <stream>", "each"),
    ):
        said = said.replace(words, instead)
    return said
