from __future__ import annotations

from jsbackup.config import nearest, similar


def test_a_short_name_is_only_similar_to_its_like() -> None:
    assert similar("get", ["forgotten", "set-up"]) == []
    assert similar("S", ["T", "SOON"]) == [] and similar("KV", ["kv", "VK"]) == ["kv"]


def test_the_most_similar_name_comes_first() -> None:
    assert "status" in similar("stauts", ["stats", "status", "start"])
    assert similar("status", ["stats", "status"])[0] == "status"
    assert similar("x" * 10_000, ["x"]) == []


def test_the_stream_of_a_bucket_is_near_its_name() -> None:
    assert nearest("settings", ["setting", "KV_settings"]) == "Did you mean KV_settings?"
    assert nearest("setings", ["KV_settings"]) == "Did you mean KV_settings?"
    assert nearest("reports", ["OBJ_reports"]) == "Did you mean OBJ_reports?"
    assert nearest("ordres", ["ORDERS", "PAYMENTS"]) == "Did you mean ORDERS?"
    assert nearest("x", ["ORDERS"]) is None and nearest("x", []) is None
