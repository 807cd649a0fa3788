"""Names of a folder are sorted, also where there are too many for a list."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.stores import local as folder_names
from jsbackup.stores.local import LocalStore, sorted_names

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


def test_a_folder_of_many_objects_is_listed_whole_and_in_order(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(folder_names, "_RUN_NAMES", 16)
    store = LocalStore(tmp_path_factory.mktemp("store"))
    chance = random.Random(7)
    keys = [f"a/{chance.randrange(10**6):06}" for _ in range(100)] + ["a/0/x", "a/999999/y", "a/0-", "b/1"]
    for key in dict.fromkeys(keys):
        store.put(key, b"1")
    assert [info.key for info in store.list("a/")] == sorted({key for key in keys if key.startswith("a/")})
    assert [info.key for info in store.list("a/1")] == sorted({key for key in keys if key.startswith("a/1")})
