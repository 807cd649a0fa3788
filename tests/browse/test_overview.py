"""What a page says `forget` would do is what it would do."""

from __future__ import annotations

from jsbackup.browse.overview import next_removal
from jsbackup.repository.checks.ledger import remember_damaged
from jsbackup.repository.keep.damage import known_damage
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.objects import folder_of, id_of
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup

NOW_NS = 1_800_000_000_000_000_000


def test_a_damaged_backup_pushes_none_out() -> None:
    store = MemoryStore()
    repository = make_repository(store)
    store_backup(repository, FIRST)
    lost = [*store_backup(repository, SECOND, count=60).streams[0].segments][-1]

    def said() -> str:
        inventory = repository.inventory()
        damaged, _ = known_damage(repository, [FIRST, SECOND])
        return next_removal(inventory, (), Policy(last=1), now_ns=NOW_NS, damaged=damaged).value

    assert said() == "now"
    remember_damaged(
        repository.documents, {id_of(lost): folder_of(lost)}, now_seconds=9, tool="t", random=lambda size: b"x" * size
    )
    assert said() == "at the next backup"
    (record,) = store.list("verified/")
    store.delete(record.key)
    store.put(record.key, b"{")
    assert said() == "now", "it is only a preview"
