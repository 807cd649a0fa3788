"""Which part of a command failed: a stream, or one of several restores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from jsbackup.errors import DigestMismatch, JsBackupError

__all__ = ["FailedProof", "Failure", "all_failed", "naming"]


@dataclass(frozen=True, slots=True)
class Failure:
    """A stream that is not in the backup (or not restored), and the error."""

    name: str
    error: JsBackupError


@dataclass(frozen=True, slots=True)
class FailedProof(Failure):
    """A stream that is restored and can be used, from `usable_ns` on, but whose proof failed."""

    usable_ns: int = 0

    @property
    def wrong(self) -> bool:
        """Whether it was found to differ from what was sent; else it is not known."""
        return isinstance(self.error, DigestMismatch)


def all_failed(errors: Sequence[JsBackupError], done: str = "committed") -> JsBackupError:
    """Return the error for when every stream failed and nothing was `done`: of their common kind, if there is one."""
    first = errors[0]
    if len(errors) == 1:
        return first
    kind: type[JsBackupError] = JsBackupError
    if len({error.exit_code for error in errors}) == 1:
        kind = next(base for base in type(first).__mro__ if "exit_code" in vars(base))
    return kind(f"all {len(errors)} streams failed, nothing was {done}; first: {first.message}", hint=first.hint)


@contextmanager
def naming(part: str) -> Iterator[None]:
    """Begin the messages of errors raised inside with the part that they are about."""
    try:
        yield
    except JsBackupError as error:
        raise error.with_message(f"{part}: {error.message}") from error.__cause__
