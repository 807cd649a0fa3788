from __future__ import annotations

import pytest

from jsbackup.formats.archive.archive_items import asset_name_is_sound


@pytest.mark.parametrize(
    ("name", "sound"),
    [("ORDERS", True), ("größe-😀", True), ("n" * 255, True), ("ß" * 127, True), ("ß" * 128, False), ("", False),
     ("a.b", False), ("a b", False), ("a/b", False), ("a\\b", False), ("a\tb", False), ("a\0b", False), (">", False)],
)  # fmt: skip
def test_names_are_those_that_servers_take(name: str, sound: bool) -> None:
    assert asset_name_is_sound(name) is sound
