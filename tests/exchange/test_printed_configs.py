"""Configurations of streams out of what commands print."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import read_printed_configs

ORDERS = {"name": "ORDERS", "subjects": ["orders.>"], "max_age": 5}
OTHER = {"name": "OTHER", "subjects": ["other"]}


@pytest.mark.parametrize(
    ("document", "names"),
    [
        (ORDERS, ["ORDERS"]),
        ({"config": ORDERS, "created": "2026-11-21T07:41:00Z", "state": {"messages": 7}}, ["ORDERS"]),
        ({"backup": "x", "streams": [{"name": "ORDERS", "config": ORDERS}, {"config": OTHER}]}, ["ORDERS", "OTHER"]),
        ({"streams": []}, []),
    ],
)
def test_configs_are_found_by_name(tmp_path: Path, document: object, names: list[str]) -> None:
    path = tmp_path / "told.json"
    path.write_text(json.dumps(document))
    found = read_printed_configs(path)
    assert list(found) == names and all(found[name]["name"] == name for name in names)
    assert found.get("ORDERS", ORDERS) == ORDERS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("[]", "is not a JSON object"),
        ('{"config": 5}', "has no configuration of a stream"),
        ('{"config": {"name": ""}}', "has no configuration of a stream"),
        ('{"config": {"name": "a.b"}}', "has no configuration of a stream"),
        ('{"streams": [5]}', "has no configuration of a stream"),
        ('{"streams": [{"config": {"name": "A"}}, {"config": {"name": "A"}}]}', "two configurations of stream A"),
        ('{"name": "A", "x": "\\ud800"}', "has half a surrogate pair"),
        ('{"name": "A", "x": NaN}', "is not JSON"),
    ],
)
def test_what_tells_no_config_is_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "told.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_printed_configs(path)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere.json cannot be read: no such file or directory"):
        read_printed_configs(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="cannot be read: is a directory"):
        read_printed_configs(tmp_path)


def test_a_name_that_is_there_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"config":{"name":"A","max_age":1,"max_age":2}}')
    with pytest.raises(UsageError, match=r'a\.json has the name "max_age" twice in one object'):
        read_printed_configs(tmp_path / "a.json")
