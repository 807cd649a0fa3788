"""Pages of few segments, so that a small stream has several levels of them; and pages of a single stream."""

from __future__ import annotations

import pytest

from jsbackup.repository.pages import segment_pages, stream_pages


def make_pages_small(patch: pytest.MonkeyPatch) -> None:
    """Let lists of more than two segments have pages of two to four parts."""
    patch.setattr(segment_pages, "UNPAGED", 2)
    patch.setattr(segment_pages, "LEAST", 2)
    patch.setattr(segment_pages, "MOST", 4)
    patch.setattr(segment_pages, "ZERO_BITS", 1)


def make_stream_pages_small(patch: pytest.MonkeyPatch) -> None:
    """Let all backups of servers have pages of streams, one for each stream; read and stored one after the other."""
    patch.setattr(stream_pages, "UNPAGED_BYTES", 0)
    patch.setattr(stream_pages, "ZERO_BITS", 0)
    patch.setattr(stream_pages, "_THREADS", 1)
