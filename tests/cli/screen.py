"""What a terminal shows after a text was sent to it: as much of one as progress bars use."""

from __future__ import annotations

import re

from jsbackup.readable import display_width

_PIECE = re.compile(r"\x1b\[A|\r|\n|[^\x1b\r\n]", re.DOTALL)


class Screen:
    """Endless rows. A wide character fills two cells, the second of them with nothing."""

    def __init__(self) -> None:
        self._rows: dict[int, dict[int, str]] = {}
        self._row = self._column = 0

    def feed(self, text: str) -> None:
        at = 0
        while at < len(text):
            match = _PIECE.match(text, at)
            assert match is not None, f"no bar needs {text[at : at + 8]!r}"
            self._put(match[0])
            at = match.end()

    def _put(self, piece: str) -> None:
        if piece == "\r":
            self._column = 0
        elif piece == "\n":
            self._row += 1
        elif piece == "\x1b[A":
            self._row -= 1
        else:
            for cell in [piece, *[""] * (display_width(piece) - 1)]:
                self._rows.setdefault(self._row, {})[self._column] = cell
                self._column += 1

    @property
    def lines(self) -> list[str]:
        """All rows down to the last that is not blank."""
        last = max(self._rows, default=-1)
        rows = [self._rows.get(number, {}) for number in range(last + 1)]
        texts = ["".join(row.get(c, " ") for c in range(max(row, default=-1) + 1)).rstrip() for row in rows]
        while texts and not texts[-1]:
            texts.pop()
        return texts
