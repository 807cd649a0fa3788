"""Restores that may have only so many bytes under way, so that a test can stop them in the middle."""

from __future__ import annotations

import pytest

from jsbackup.engine.restore import stream_restore

__all__ = ["narrow"]


def narrow(monkeypatch: pytest.MonkeyPatch, window_bytes: int) -> None:
    """In this process; for another one see `command_line`."""
    monkeypatch.setattr(stream_restore, "LEAST_WINDOW_BYTES", window_bytes)
    monkeypatch.setattr(stream_restore, "window_for", lambda round_trip_seconds: window_bytes)
