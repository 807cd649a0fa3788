"""A writer key that opens nothing is not left behind; one that may open a repository is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.cli.options.opening import new_key_file
from jsbackup.errors import StoreError
from jsbackup.repository import layout
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import CREATED
from tests.harness.history import new_keys_of
from tests.harness.stores import Fault, FaultStore


@pytest.mark.parametrize("fault", [Fault.FAIL, Fault.LOSE_ANSWER])
def test_a_key_stays_only_if_its_repository_may_have_been_made(fault: Fault, tmp_path: Path) -> None:
    file, outcomes = tmp_path / "writer.key", []
    whole = FaultStore(MemoryStore())
    _create(whole, lambda: None)
    for at in range(1, whole.operations + 1):
        file.unlink(missing_ok=True)
        store = FaultStore(MemoryStore(), fault, at=at)
        try:
            with new_key_file(file, "key") as use:
                _create(store, use)
            outcomes.append("made")
        except StoreError:
            outcomes.append("kept" if file.exists() else "removed")
            assert file.exists() is (("put", layout.DESCRIPTOR) in store.log)
    assert {"kept", "removed"} <= set(outcomes)


def _create(store: FaultStore, making: Callable[[], None]) -> None:
    keys = new_keys_of("encrypted", "00ff")
    Repository.create(store, repository_id="00ff", created=CREATED, tool="t", new_keys=keys, making=making)


def test_where_the_use_of_a_key_begins_with_it_it_stays(tmp_path: Path) -> None:
    with pytest.raises(StoreError), new_key_file(tmp_path / "writer.key", "key") as use:
        use()
        raise StoreError("no answer")
    assert (tmp_path / "writer.key").read_text() == "key"
