"""A listing finds what the store has listed, in whatever order, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.repository.checks.verify import FolderListing
from jsbackup.stores.base import ObjectInfo


@given(st.lists(st.tuples(st.text(max_size=8), st.integers(0, 2**40), st.floats(0, 2e9)), unique_by=lambda one: one[0]))
def test_what_is_listed_is_found_and_nothing_else(objects: list[tuple[str, int, float]]) -> None:
    listing = FolderListing(ObjectInfo(*one) for one in objects)
    keys = {key for key, _, _ in objects}
    for key, size, modified_seconds in objects:
        assert listing.find(key) == (size, modified_seconds)
        assert (listing.find(f"{key}/") is not None) == (f"{key}/" in keys)
    assert FolderListing(()).find("x") is None
