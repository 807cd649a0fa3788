"""What runs on Spark names the key files of readers that are lost, as other commands do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from tests.cli.commands.operate.test_reader_keys import ME, OTHER, damage, make_vault
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import FIRST

Type = Callable[..., Typed]


def test_a_changed_copy_and_an_import_of_a_table_do_their_work_and_end_with_14(typed: Type, tmp_path: Path) -> None:
    vault = make_vault(typed, tmp_path, ME, OTHER)
    table = tmp_path / "table.jsonl"
    table.write_text('{"sequence": 1, "time": "2026-11-21T01:45:00Z", "subject": "a", "data": "eA=="}\n')
    imported = ("import", table, "--format", "jsonl", "--stream", "A", "--json")
    assert vault.write(*imported).code == 0
    damage(vault.key_file(OTHER), "removed")
    again = vault.write(*imported)
    assert again.code == 14 and any("is missing" in note for note in check("import", again)["notes"])
    renamed = ("--stream", "orders", "--rename", "*=x*", "--to-repo", vault.repo)
    done = vault.read("copy", FIRST, *renamed, "--writer-key", vault.writer, "--json")
    document = check("copy", done)
    assert done.code == 14 and document["result"] == "complete" and "is missing" in document["notes"][0]
