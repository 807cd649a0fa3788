"""Which account of a target a backup goes to, and what is said if there is none."""

from __future__ import annotations

import pytest

from jsbackup.engine.accounts.restores import FoundAccount, StoredAccount, _pairs, _Targets
from jsbackup.errors import UsageError
from jsbackup.repository.origin import Origin


def _hint(new: str, known: list[str]) -> str:
    targets = _Targets({name: FoundAccount(name, name) for name in known}, [])
    with pytest.raises(UsageError, match=f"the target has no account {new}") as caught:
        targets.name_by_hand([(f"OLD={new}", [], new)])
    return caught.value.hint or ""


def test_an_unknown_account_is_answered_by_those_there_are() -> None:
    assert "ORDERS" in _hint("ORDRES", ["ORDERS", "PAY"])
    assert _hint("nothing-alike", ["PAY", "ORDERS"]).startswith("Known there: ORDERS, PAY. An account of an operator")


def test_many_accounts_are_counted() -> None:
    assert "C03 and 26 more. " in _hint("nothing-alike", [f"C{number:02}" for number in range(30)])
    assert "Known" not in _hint("nothing-alike", [])


def _stored(key: str, name: str, domain: str = "") -> StoredAccount:
    return StoredAccount(Origin(cluster="c", account=key, account_name=name, domain=domain))


SHOP, PAY = _stored("AKEY", "shop"), _stored("BKEY", "pay")


@pytest.mark.parametrize("second", ["shop=payments", "AKEY=payments", "shop=pay"])
def test_an_account_that_is_mapped_twice_is_refused(second: str) -> None:
    with pytest.raises(UsageError, match=f"--map-account names shop twice: shop=pay and {second}$"):
        _pairs(["shop=pay", second], [SHOP, PAY], [])


def test_an_account_of_two_domains_is_mapped_once() -> None:
    both = [_stored("AKEY", "shop", "hub"), _stored("AKEY", "shop", "leaf")]
    assert _pairs(["shop=all", "pay=all"], [*both, PAY], []) == [("shop=all", both, "all"), ("pay=all", [PAY], "all")]


@pytest.mark.parametrize("text", ["shop=pay", "AKEY=pay"])
def test_a_mapped_account_that_is_left_out_is_named_as_such(text: str) -> None:
    with pytest.raises(UsageError, match=f"{text.partition('=')[0]} is left out by --account"):
        _pairs([text], [PAY], [SHOP])
    with pytest.raises(UsageError, match="no backup is of that account"):
        _pairs(["other=pay"], [PAY], [SHOP])
