"""How a restore sends: by which archive, and how much at a time, so that a test can stop it in the middle."""

from __future__ import annotations

import pytest

from jsbackup.engine.restore import stream_restore
from jsbackup.planning.model import RestoreOptions, SendAs

__all__ = ["narrow", "send_as"]


def narrow(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    """In this process; for another one see `command_line`."""
    monkeypatch.setattr(stream_restore, "LEAST_WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(stream_restore, "window_for", lambda round_trip_seconds: window_bytes)


def send_as(monkeypatch: pytest.MonkeyPatch, wire: str) -> None:
    """Instead of what is chosen for each stream; also in this process."""
    make = RestoreOptions.__init__
    defaults = (SendAs(wire) if isinstance(one, SendAs) else one for one in make.__defaults__ or ())
    monkeypatch.setattr(make, "__defaults__", tuple(defaults))
