"""Ask on a terminal: with a default, completion by Tab, and a clean end at Ctrl-C and Ctrl-D."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import suppress

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.terminal import printable
from jsbackup.errors import Interrupted, JsBackupError

__all__ = ["STAYS", "Questions", "can_ask"]

STAYS = "nothing was restored, nothing was changed"

_MOST_OFFERED = 500


def can_ask(output: Output) -> bool:
    """Return whether a person is there to answer: stdin and stdout are a terminal, and no program reads the output."""
    if output.as_json or output.quiet or output.log_json:
        return False
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stdout))


class Questions:
    """Questions to a person. `output` is the terminal."""

    def __init__(self, output: Output) -> None:
        self.output = output

    def ask(self, question: str, default: str = "", words: Sequence[str] = ()) -> str:
        """Return the answer without blanks around it, or the default. Tab completes the `words`.

        Raises Interrupted after Ctrl-C and Ctrl-D.
        """
        shown = f"{question} [{printable(default)}]: " if default else f"{question}: "
        try:
            with _Completion(words):
                return input(shown).strip() or default
        except (EOFError, KeyboardInterrupt):
            self.output.line()
            raise Interrupted(STAYS) from None
        except UnicodeDecodeError:
            self.output.line("That is not text.")
            return self.ask(question, default, words)

    def wrong(self, error: JsBackupError) -> None:
        """Say what is wrong with an answer, before it is asked again."""
        self.output.error(error)


class _Completion:
    """Completion by Tab, where Python has it (`readline`); names are separated by blanks and commas."""

    def __init__(self, words: Sequence[str]) -> None:
        # What would not be visible, or is not text, cannot be typed either.
        self._words = [word for word in words if word.isprintable()]

    def __enter__(self) -> None:
        with suppress(ImportError):
            import readline

            readline.set_completer_delims(" ,")
            readline.set_completer(self._complete)
            readline.set_auto_history(False)
            libedit = "libedit" in (readline.__doc__ or "")
            readline.parse_and_bind("bind ^I rl_complete" if libedit else "tab: complete")

    def __exit__(self, *_: object) -> None:
        with suppress(ImportError):
            import readline

            readline.set_completer(None)

    def _complete(self, text: str, state: int) -> str | None:
        found = [word for word in self._words if word.startswith(text)][:_MOST_OFFERED]
        return found[state] if state < len(found) else None
