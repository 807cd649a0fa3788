"""Streams are compared if they were asked for, and if both backups were made with them."""

from __future__ import annotations

import pytest

from jsbackup.config import Glob
from jsbackup.errors import UsageError
from jsbackup.repository.manifest import BackupResult, Manifest, Selection, Source
from jsbackup.repository.read.diff import ComparedStreams
from tests.harness.backups import CREATED, FIRST, SECOND


def compared(*globs: str, exclude: tuple[str, ...] = (), without: str = "") -> ComparedStreams:
    selection = Selection(exclude=(without,)) if without else None
    backups = [
        Manifest(one, CREATED, "t", Source(), BackupResult.COMPLETE, (), selection=selection) for one in (FIRST, SECOND)
    ]
    return ComparedStreams([Glob(one) for one in globs], [Glob(one) for one in exclude], backups)


def test_all_streams_of_both_sides_are_compared_unless_some_are_chosen() -> None:
    names = {"A1", "A2", "B"}
    assert compared().choose(names) == names
    assert compared("A*", exclude=("A2",)).choose(names) == {"A1"}


def test_a_stream_that_a_backup_left_out_on_purpose_is_skipped_with_the_reason() -> None:
    choice = compared(without="A2")
    assert choice.choose({"A1", "A2"}) == {"A1"}
    assert list(choice.skipped) == ["A2"] and FIRST in choice.skipped["A2"]


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        (compared("C"), "matches C"),
        (compared("A2", without="A2"), "A2 cannot be compared"),
        (compared(exclude=("*",)), "--exclude"),
    ],
)
def test_nothing_to_compare_is_an_error_of_usage(choice: ComparedStreams, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choice.choose({"A1", "A2"})
