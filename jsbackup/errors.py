"""All errors that jsbackup raises on purpose, with their exit codes.

    JsBackupError                          1  failed
    ├── ExecutorsLost                         a cluster of Spark has no executor any more
    ├── UsageError                         2  usage or configuration
    │   └── NothingChosen                         no stream of the account is what the options name
    ├── IncompleteError                    3  finished, but something is missing
    ├── RepositoryNotFound                10  no repository there
    ├── RepositoryLocked                  11  locked
    ├── KeyUnavailable                    12  wrong or missing key
    ├── UnsupportedError                  13  format or feature not supported
    │   └── UnknownArchiveFormat              the first decoded bytes are of no archive we know
    ├── IntegrityError                    14  stored or received bytes are not what they should be
    │   ├── FormatError                       bytes that break the rules of their format
    │   └── DigestMismatch                    well-formed bytes with another content
    ├── PlanRefused                       15  plan refused, or the target cannot be met
    ├── TargetConflict                    16  conflict at the target: names, limits, subjects
    ├── PolicyBreach                      17  policy breach (`status`)
    ├── NatsError                         20  NATS unreachable or not allowed
    │   ├── NatsNoResponders                  no one subscribes to the subject of a request
    │   ├── NatsTimeout                       no answer in time
    │   │   └── NoLeader                      a cluster placed a stream where no server answers
    │   ├── NatsPermissionDenied              the server does not allow the subject
    │   ├── ApiError                          JetStream answered with an error
    │   └── TransferError                     a snapshot or restore transfer failed; may be tried again
    │       └── SnapshotBusy                  another snapshot of the stream is running (servers up to 2.14)
    ├── StoreError                        21  storage unreachable or not allowed
    │   ├── ObjectNotFound                    no object of that key
    │   ├── NoFolder                          something else is where a store's folder should be
    │   ├── ObjectExists                      create-only put found another object under the key
    │   └── ObjectLocked                      the store keeps the object for some time yet, for everyone
    └── Interrupted                      130  stopped by the user, state safe

Codes are a contract that users script against (the manual lists them): they never change meaning. Messages are lower
case without a full stop and name what happened and to what; `hint` is a full sentence that says what to do next.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self, TypeVar

__all__ = [
    "ApiError",
    "DigestMismatch",
    "ExecutorsLost",
    "FormatError",
    "IncompleteError",
    "IntegrityError",
    "Interrupted",
    "JsBackupError",
    "KeyUnavailable",
    "NatsError",
    "NatsNoResponders",
    "NatsPermissionDenied",
    "NatsTimeout",
    "NoFolder",
    "NoLeader",
    "NothingChosen",
    "ObjectExists",
    "ObjectLocked",
    "ObjectNotFound",
    "PlanRefused",
    "PolicyBreach",
    "RepositoryLocked",
    "RepositoryNotFound",
    "SnapshotBusy",
    "StoreError",
    "TargetConflict",
    "TransferError",
    "UnknownArchiveFormat",
    "UnsupportedError",
    "UsageError",
]

E = TypeVar("E", bound="JsBackupError")


class JsBackupError(Exception):
    """Base of all errors raised on purpose. `message` says what happened, `hint` what to do, and `facts` what a program
    may want to know besides, by name: each is described in the JSON schema of errors.

    Errors do not change: who knows more makes another one, of the same kind and with the same cause.
    """

    exit_code = 1
    facts: Mapping[str, int] = MappingProxyType({})

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __setattr__(self, name: str, value: object) -> None:
        python = name.startswith("__")  # Python's own, such as `__traceback__`
        if not python and (name in vars(self) or hasattr(type(self), name)):
            raise AttributeError(f"{name} of an error does not change")
        super().__setattr__(name, value)

    def naming(self, subject: str) -> str:
        """Return the message, with what it is about before it unless it names that itself."""
        return self.message if subject in self.message else f"{subject}: {self.message}"

    def with_message(self, message: str) -> Self:
        return self._another((message,), {"message": message})

    def with_hint(self, hint: str) -> Self:
        return self._another(self.args, {"hint": hint})

    def with_more_hint(self, sentence: str) -> Self:
        """With a sentence behind the hint, or as the hint if there is none."""
        return self.with_hint(f"{self.hint} {sentence}" if self.hint else sentence)

    def with_facts(self, **facts: int) -> Self:
        """With these facts besides those it has."""
        return self._another(self.args, {"facts": {**self.facts, **facts}})

    def caused_by(self, cause: BaseException) -> Self:
        """As `raise … from`, for an error that is returned."""
        another = self._another(self.args, {})
        another.__cause__ = cause
        return another

    def _another(self, args: tuple[Any, ...], changed: dict[str, Any]) -> Self:
        another = _restored(type(self), args, {**vars(self), **changed})
        another.__cause__ = self.__cause__
        return another

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors are returned from other processes, and some classes need more than a message.
        return _restored, (type(self), self.args, dict(vars(self)))


def _restored(kind: type[E], args: tuple[Any, ...], state: dict[str, Any]) -> E:
    error = kind.__new__(kind, *args)
    vars(error).update(state)
    return error


class ExecutorsLost(JsBackupError):
    """Another attempt at what failed would fail with it, too."""


class UsageError(JsBackupError):
    exit_code = 2


class NothingChosen(UsageError):
    pass


class IncompleteError(JsBackupError):
    """`result` is what there is, where a function of the package raises it: a backup, or what a restore came to."""

    exit_code = 3

    def __init__(self, message: str, *, hint: str | None = None, result: Any = None) -> None:
        super().__init__(message, hint=hint)
        self.result = result


class RepositoryNotFound(JsBackupError):
    exit_code = 10


class RepositoryLocked(JsBackupError):
    exit_code = 11


class KeyUnavailable(JsBackupError):
    exit_code = 12


class UnsupportedError(JsBackupError):
    exit_code = 13


class UnknownArchiveFormat(UnsupportedError):
    """The decoded stream starts with bytes of an unknown archive format; `prefix` contains them."""

    def __init__(self, prefix: bytes) -> None:
        super().__init__(f"unknown archive format (starts with {prefix[:8]!r})")
        self.prefix = prefix


class IntegrityError(JsBackupError):
    exit_code = 14


class FormatError(IntegrityError):
    """Bytes do not follow their format: truncated, damaged, hostile or foreign."""


class DigestMismatch(IntegrityError):
    """Well-formed content that differs from the expected content."""


class PlanRefused(JsBackupError):
    exit_code = 15


class TargetConflict(JsBackupError):
    exit_code = 16


class PolicyBreach(JsBackupError):
    exit_code = 17


class NatsError(JsBackupError):
    exit_code = 20


class NatsTimeout(NatsError):
    pass


class NatsNoResponders(NatsError):
    """The server says that no one subscribes to the subject of a request."""


class NoLeader(NatsTimeout):
    """A cluster placed a stream on a server that does not answer. A retry may find another one."""


class NatsPermissionDenied(NatsError):
    pass


class ApiError(NatsError):
    """JetStream's own error response. `code` is HTTP-like, `err_code` JetStream's five-digit one (0 if absent)."""

    def __init__(self, message: str, *, code: int, err_code: int, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.code = code
        self.err_code = err_code


class TransferError(NatsError):
    """A snapshot or restore transfer failed. `retry` says whether starting it again can help."""

    def __init__(self, message: str, *, retry: bool = True, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.retry = retry


class SnapshotBusy(TransferError):
    """Servers up to 2.14 make one snapshot of a stream at a time: wait, then try again."""


class StoreError(JsBackupError):
    """`temporary`: a retry may succeed, but not before `retry_after_seconds` if the store requested a pause."""

    exit_code = 21

    def __init__(
        self, message: str, *, hint: str | None = None, temporary: bool = False, retry_after_seconds: float = 0.0
    ) -> None:
        super().__init__(message, hint=hint)
        self.temporary = temporary
        self.retry_after_seconds = retry_after_seconds


class NoFolder(StoreError):
    """Something else is in the place of a store's folder; `reason` says what."""

    def __init__(self, location: str, reason: str) -> None:
        super().__init__(
            f"cannot open {location}: {reason}",
            hint="Name a folder, and see whether a disk or share is not mounted there.",
        )
        self.location = location
        self.reason = reason


class ObjectNotFound(StoreError):
    """No object under `key`."""

    def __init__(self, key: str) -> None:
        super().__init__(f"no such object: {key}")
        self.key = key


class ObjectExists(StoreError):
    """A create-only put found an object under `key`."""

    def __init__(self, key: str) -> None:
        super().__init__(f"object exists already: {key}")
        self.key = key


class ObjectLocked(StoreError):
    """The object under `key` is locked in the store; it was not removed."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"the store keeps {key} locked",
            hint="It can be removed when its retention is over; until then it stays, and stays readable.",
        )
        self.key = key


class Interrupted(JsBackupError):
    exit_code = 130
