"""What several exit codes come to."""

from __future__ import annotations

from itertools import permutations

import pytest

from jsbackup.errors import DigestMismatch, KeyUnavailable, StoreError
from jsbackup.exit_codes import EXIT_CODES, combined, damage, first_of, unreadable


@pytest.mark.parametrize(
    ("codes", "one"),
    [
        ([], 0),
        ([0, 0], 0),
        ([20], 20),
        ([20, 20], 20),
        ([20, 21], 1),
        ([14, 20], 1),
        ([1, 1], 1),
        ([3], 3),
        ([0, 3], 3),
        ([3, 20], 3),
        ([0, 20], 3),
        ([0, 20, 21], 3),
        ([0, 14], 3),
    ],
)
def test_parts_come_to_one_code_whatever_their_order(codes: list[int], one: int) -> None:
    assert {combined(order) for order in permutations(codes)} == {one}


@pytest.mark.parametrize(
    ("codes", "one"),
    [([0, 17, 14], 14), ([0, 17, 3], 17), ([14], 14), ([20, 17], 17), ([0, 20], 3), ([20, 21], 1), ([0], 0), ([], 0)],
)
def test_what_was_looked_for_comes_first(codes: list[int], one: int) -> None:
    assert {combined(order, first=(14, 17)) for order in permutations(codes)} == {one}


def test_a_command_may_have_another_word_for_different_ones() -> None:
    assert combined([20, 21], mixed=3) == 3
    assert combined([20, 20], mixed=3) == 20
    assert combined([], mixed=3) == 0


def test_the_first_one_counts_where_there_is_an_order() -> None:
    assert first_of([]) == first_of([0, 0]) == 0
    assert first_of([0, 21, 20]) == 21
    assert first_of([16, 15, 14], 15, 16) == 15
    assert first_of([14, 16], 15, 16) == 16
    assert first_of([14, 12], 15, 16) == 14


def test_no_combination_leaves_the_contract() -> None:
    for codes in permutations(EXIT_CODES, 3):
        assert {combined(codes), combined(codes, first=(14, 17)), first_of(codes, 14)} <= EXIT_CODES.keys()


def test_damage_that_was_found_is_one_code_and_comes_before_other_errors() -> None:
    assert (damage([]), damage(["a flaw"]), damage(0), damage(True)) == (0, 14, 0, 14)
    assert unreadable([]) == 0
    assert unreadable([StoreError("away"), KeyUnavailable("no key")]) == StoreError.exit_code
    assert unreadable([StoreError("away"), DigestMismatch("another")]) == 14
