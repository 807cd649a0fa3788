"""The servers' advisories about snapshots and restores, as one line each. Information for `-v`, never proof.

Up to 2.14 a snapshot is announced as complete after an abort too, and only 2.15 says with which error; a restore is
announced as complete when it failed, and not at all when it stalled. So these lines say "ended", not "done".
Anything else is None: anyone who may publish on their subjects can send advisories.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from jsbackup.errors import FormatError
from jsbackup.readable import one_line
from jsbackup.strict_json import Fields, read_object

__all__ = ["Advisory", "AdvisoryKind", "advisory_subjects", "decode_advisory"]

_SUBJECTS = "$JS.EVENT.ADVISORY.STREAM"
_TYPES = "io.nats.jetstream.advisory.v1."
_MAX_BYTES = 64 * 1024
_SECOND = 1_000_000_000


class AdvisoryKind(Enum):
    """The end of the advisory's `type`; in capitals it is the token of its subject."""

    SNAPSHOT_CREATE = "snapshot_create"
    SNAPSHOT_COMPLETE = "snapshot_complete"
    RESTORE_CREATE = "restore_create"
    RESTORE_COMPLETE = "restore_complete"


@dataclass(frozen=True, slots=True)
class Advisory:
    """One advisory. Fields that its kind does not have are None; `start_ns` and `end_ns` are by the server's clock."""

    kind: AdvisoryKind
    stream: str
    messages: int | None = None
    bytes: int | None = None
    start_ns: int | None = None
    end_ns: int | None = None
    error: str | None = None

    @property
    def line(self) -> str:
        what = f"{'snapshot' if 'SNAPSHOT' in self.kind.name else 'restore'} of {one_line(self.stream)}"
        if self.kind is AdvisoryKind.SNAPSHOT_CREATE:
            return f"server: {what} began, {self.messages} messages, {self.bytes} bytes"
        if self.kind is AdvisoryKind.RESTORE_CREATE:
            return f"server: {what} began"
        size = "" if self.bytes is None else f", {self.bytes} bytes taken"
        error = f", error: {self.error}" if self.error else ""
        return f"server: {what} ended after {((self.end_ns or 0) - (self.start_ns or 0)) / _SECOND:.3f} s{size}{error}"


def advisory_subjects() -> tuple[str, ...]:
    """Return the four subjects to subscribe to, for all streams. A JetStream domain does not change them."""
    return tuple(f"{_SUBJECTS}.{kind.name}.*" for kind in AdvisoryKind)


def decode_advisory(payload: bytes) -> Advisory | None:
    """Return the advisory, or None if `payload` is not a valid one of the four kinds."""
    try:
        value = Fields(read_object(payload, "advisory", max_bytes=_MAX_BYTES), "advisory")
        kind = AdvisoryKind(value.text("type").removeprefix(_TYPES))
        state = value.fields("state") if kind is AdvisoryKind.SNAPSHOT_CREATE else None
        ended = kind in (AdvisoryKind.SNAPSHOT_COMPLETE, AdvisoryKind.RESTORE_COMPLETE)
        taken = value.number("bytes") if kind is AdvisoryKind.RESTORE_COMPLETE else None
        return Advisory(
            kind=kind,
            stream=value.name("stream"),
            messages=None if state is None else state.number("messages"),
            bytes=taken if state is None else state.number("bytes"),
            start_ns=value.time_ns("start") if ended else None,
            end_ns=value.time_ns("end") if ended else None,
            error=one_line(value.text("error", "")) or None,
        )
    except (FormatError, ValueError):
        return None
