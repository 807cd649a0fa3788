"""Which account of a target a backup goes to, and what is said if there is none."""

from __future__ import annotations

import pytest

from jsbackup.engine.accounts.targets import FoundAccount, _Targets
from jsbackup.errors import UsageError


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
