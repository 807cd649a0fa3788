"""Names of a folder are sorted, also where there are too many for a list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.stores import local as folder_names
from jsbackup.stores.local import sorted_names

_NAMES = st.text(st.characters(blacklist_characters="\0/", blacklist_categories=("Cs",)), min_size=1, max_size=12)


@given(st.lists(_NAMES, unique=True), st.integers(1, 9), st.integers(1, 5))
def test_names_come_in_their_order_however_many_runs_they_make(names: list[str], run: int, block: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(folder_names, "_RUN_NAMES", run)
        patch.setattr(folder_names, "_BLOCK_NAMES", block)
        assert list(sorted_names(iter(names))) == sorted(names)


def test_names_that_are_not_utf_8_survive(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_names, "_RUN_NAMES", 2)
    names = ["b\udcff", "a", "c\udc80d", "ä"]
    assert list(sorted_names(names)) == sorted(names)


