"""Messages of a stream in many segments: those are read that may hold what is asked for, and no others."""

from __future__ import annotations

from pathlib import Path

import pytest

import jsbackup
from jsbackup.repository.manifest import Manifest
from jsbackup.stores.local import LocalStore
from tests.api.shop import rows
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.servers import NatsServer

errors = jsbackup.errors


@pytest.fixture
def stored(tmp_path: Path) -> Manifest:
    return store_backup(make_repository(LocalStore(tmp_path / "repo")), count=400)


def _remove_all_but(manifest: Manifest, folder: Path, keep: set[int]) -> None:
    for number, ref in enumerate(manifest.streams[0].segments):
        if number not in keep:
            (folder / ref.key).unlink()


def test_only_segments_are_read_that_may_hold_what_is_asked_for(stored: Manifest, tmp_path: Path) -> None:
    refs = stored.streams[0].segments
    assert len(refs) > 10
    orders = jsbackup.open(tmp_path / "repo")[FIRST]["orders"]
    everything = rows(orders.messages())
    assert len(everything) == 400
    _remove_all_but(stored, tmp_path / "repo", {3, 4})
    first, last = refs[3].first_seq + 1, refs[4].last_seq - 1
    wanted = [row for row in everything if first <= row[0] <= last]
    assert rows(orders.messages(since=first, until=last)) == wanted
    with pytest.raises(errors.IntegrityError, match="missing"):
        rows(orders.messages(until=last))


def test_batches_come_while_later_ones_are_not_read_yet(stored: Manifest, tmp_path: Path) -> None:
    _remove_all_but(stored, tmp_path / "repo", {0})
    batches = jsbackup.open(tmp_path / "repo")[FIRST]["orders"].messages()
    assert next(batches).num_rows == stored.streams[0].segments[0].messages
    with pytest.raises(errors.IntegrityError, match="missing"):
        next(batches)


@pytest.mark.nats
def test_what_is_lost_is_named_by_a_restore(stored: Manifest, tmp_path: Path, target: NatsServer) -> None:
    lost = stored.streams[0].segments[3]
    (tmp_path / "repo" / lost.key).unlink()
    backup = jsbackup.open(tmp_path / "repo")[FIRST]
    with pytest.raises(errors.IntegrityError, match="nothing was restored"):
        jsbackup.restore(backup, target.url, streams="orders", consumers="none")
    with pytest.raises(errors.IncompleteError, match=f"lacks {lost.messages} messages") as raised:
        jsbackup.restore(backup, target.url, streams="orders", consumers="none", partial=True)
    done = raised.value.result
    assert isinstance(done, jsbackup.RestoreOutcome)
    assert done.streams["orders"].lost_messages == lost.messages
    assert done.streams["orders"].messages == 400 - lost.messages


def test_a_stream_that_is_kept_verbatim_has_no_messages_to_read(stored: Manifest, tmp_path: Path) -> None:
    verbatim = jsbackup.open(tmp_path / "repo")[FIRST]["verbatim"]
    with pytest.raises(errors.UnsupportedError, match="verbatim"):
        verbatim.messages()


def test_a_backup_is_an_object_of_its_own(stored: Manifest, tmp_path: Path) -> None:
    repository = jsbackup.open(f"file://{tmp_path}/repo")
    (backup,) = repository.backups()
    assert list(backup) == ["orders", "verbatim"]
    assert [repr(one) for one in (repository, backup, backup["orders"])] == [
        f"<jsbackup repository {repository.location}>",
        f"<jsbackup backup {FIRST}>",
        f"<jsbackup stream orders of backup {FIRST}>",
    ]
    assert {name: one.exact for name, one in backup["orders"].consumers.items()} == {"small": True, "large": True}
