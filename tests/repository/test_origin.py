"""How an origin is shown, and by which names it is chosen."""

from __future__ import annotations

import pytest

from jsbackup.config import Glob
from jsbackup.repository.origin import Origin

KEY, OTHER = "A" * 56, "AB" + "A" * 54


def test_an_account_that_is_known_by_its_key_is_shown_with_its_name() -> None:
    named = Origin("C1", KEY, "", account_name="My Shöp")
    assert named.short == "C1/My Shöp (AAAAAAAA…)"
    assert named.words == f"cluster C1, account {KEY} (My Shöp)"
    assert str(named) == f"C1/{KEY}"
    assert Origin("C1", KEY, "").short == "C1/AAAAAAAA…"
    assert Origin("C1", "SHOP", "hub").short == "hub/C1/SHOP"


def test_accounts_of_one_name_are_told_apart() -> None:
    one, other = (Origin("C1", key, "", account_name="twin") for key in (KEY, OTHER))
    assert one.short != other.short and one != other


def test_a_name_may_change() -> None:
    assert Origin("C1", KEY, "", account_name="before") == Origin("C1", KEY, "", account_name="after")


@pytest.mark.parametrize("pattern", ["My Shöp", "My*", KEY, "C1", f"C1/{KEY}", "C1/My Shöp", "*/My Shöp", "AAAA*"])
def test_it_is_chosen_by_name_and_by_key(pattern: str) -> None:
    assert Origin("C1", KEY, "", account_name="My Shöp").matches(Glob(pattern))


@pytest.mark.parametrize("pattern", ["my shöp", "Shöp", "C2", "C1/Shöp", OTHER])
def test_it_is_not_chosen_by_others(pattern: str) -> None:
    assert not Origin("C1", KEY, "", account_name="My Shöp").matches(Glob(pattern))
