from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config import edits, nearest, similar

WORDS = st.text("abcAB-", max_size=8)


def test_edits_are_counted_up_to_a_limit() -> None:
    assert edits("orders", "orders", 0) == 0
    assert [edits("orders", other, 3) for other in ("order", "ordesr", "ordres", "odersx")] == [1, 1, 1, 2]
    assert edits("orders", "payments", 3) is None and edits("kitten", "sitting", 2) is None
    assert edits("", "abc", 3) == 3 and edits("ab", "ba", 1) == 1


@given(WORDS, WORDS)
def test_edits_are_the_same_in_both_directions(one: str, other: str) -> None:
    count = edits(one, other, 8)
    assert count is not None and count == edits(other, one, 8)
    assert (count == 0) is (one == other)
    assert count >= abs(len(one) - len(other))
    assert count == 0 or edits(one, other, count - 1) is None


def test_a_short_name_is_only_similar_to_its_like() -> None:
    assert similar("gte", ["get", "forget"]) == ["get"]
    assert similar("get", ["forget", "set-up"]) == []
    assert similar("S", ["T", "SO"]) == [] and similar("KV", ["kv", "VK"]) == ["kv"]


def test_several_names_are_similar_only_if_they_are_equally_so() -> None:
    assert similar("stauts", ["stats", "status", "start"]) == ["stats", "status"]
    assert similar("statu", ["stats", "status", "state"]) == ["stats", "status", "state"]
    assert similar("status", ["stats", "status"]) == ["status"]


def test_the_stream_of_a_bucket_is_near_its_name() -> None:
    assert nearest("settings", ["setting", "KV_settings"]) == "Did you mean KV_settings?"
    assert nearest("reports", ["OBJ_reports"]) == "Did you mean OBJ_reports?"
    assert nearest("ordres", ["ORDERS", "PAYMENTS"]) == "Did you mean ORDERS?"
    assert nearest("x", ["ORDERS"]) is None and nearest("x", []) is None
