"""Pages of few segments, so that a small stream has several levels of them."""

from __future__ import annotations

import pytest

from jsbackup.repository.pages import page_store, paging


def make_pages_small(patch: pytest.MonkeyPatch) -> None:
    """Let lists of more than two segments have pages of two to four parts."""
    patch.setattr(page_store, "UNPAGED", 2)
    patch.setattr(paging, "LEAST", 2)
    patch.setattr(paging, "MOST", 4)
    patch.setattr(paging, "_ZERO_BITS", 1)
