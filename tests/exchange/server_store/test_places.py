"""Which streams a folder has, whichever folder of a store it is, and what is in the way."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from jsbackup.errors import FormatError, KeyUnavailable, StoreError, UsageError
from jsbackup.exchange.server_store.store_files import ServerStore
from tests.exchange.server_store.made_up import MESSAGES, write_stream
from tests.exchange.server_store.stores import import_folder


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The `store_dir` of a server with one account, of a cluster."""
    root = tmp_path / "data"
    for name in ("ORDERS", "KV_größe"):
        write_stream(root / "jetstream" / "$G" / "streams", name)
    (root / "jetstream" / "$SYS" / "_js_" / "_meta_").mkdir(parents=True)
    return root


def names(path: Path, account: str | None = None) -> tuple[str, list[str], list[str]]:
    with ServerStore.open(path, account) as found:
        return found.account, sorted(found.streams), found.notes


@pytest.mark.parametrize("below", ["", "jetstream", "jetstream/$G", "jetstream/$G/streams"])
def test_any_folder_of_the_store_will_do(store: Path, below: str) -> None:
    account, streams, notes = names(store / below)
    assert (account, streams) == ("$G", ["KV_größe", "ORDERS"])
    assert any("$SYS" in note for note in notes) == (below in ("", "jetstream"))


def test_the_folder_of_one_stream_will_do(store: Path) -> None:
    assert names(store / "jetstream/$G/streams/ORDERS")[:2] == ("$G", ["ORDERS"])


def test_a_copy_of_one_stream_is_recognized_by_its_configuration(store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy of it"
    shutil.copytree(store / "jetstream/$G/streams/ORDERS", copy)
    assert names(copy)[:2] == ("", ["ORDERS"])
    assert names(copy, "ACME")[:2] == ("ACME", ["ORDERS"])
    imported = import_folder(copy)
    assert len(imported.messages["ORDERS"]) == len(MESSAGES) and not imported.partial
    (copy / "meta.sum").write_bytes(b"0" * 16)
    with pytest.raises(UsageError, match="its name is not that of a stream"):
        names(copy)


def test_accounts_are_told_apart(store: Path) -> None:
    write_stream(store / "jetstream" / "ACME" / "streams", "INVOICES")
    (store / "jetstream" / "EMPTY" / "streams").mkdir(parents=True)
    with pytest.raises(UsageError, match=r"streams of 2 accounts: \$G, ACME") as caught:
        names(store)
    assert "--account" in str(caught.value.hint)
    assert names(store, "ACME")[:2] == ("ACME", ["INVOICES"])
    assert names(store, "$G")[1] == ["KV_größe", "ORDERS"]
    with pytest.raises(UsageError, match="no streams of account EMPTY") as caught:
        names(store, "EMPTY")
    assert "$G, ACME" in str(caught.value.hint)
    assert names(store / "jetstream" / "ACME")[:2] == ("ACME", ["INVOICES"])


def test_a_copy_of_an_account_may_have_another_name(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store / "jetstream" / "$G", tmp_path / "saved")
    assert names(tmp_path / "saved")[0] == "saved"
    assert names(tmp_path / "saved", "$G")[:2] == ("$G", ["KV_größe", "ORDERS"])
    shutil.copytree(store / "jetstream" / "$G" / "streams", tmp_path / "else" / "streams")
    assert names(tmp_path / "else" / "streams", "$G")[:2] == ("$G", ["KV_größe", "ORDERS"])


def test_what_is_no_store_is_refused(tmp_path: Path, store: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "jetstream" / "$G" / "streams").mkdir(parents=True)
    for path in ("empty", "jetstream"):
        with pytest.raises(UsageError, match="is not the store of a nats-server"):
            names(tmp_path / path)
    with pytest.raises(UsageError, match="is not a folder"):
        names(tmp_path / "file")
    with pytest.raises(UsageError, match="there is no folder"):
        names(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="is not the store of a nats-server"):
        names(store / "jetstream/$G/streams/ORDERS/msgs")


def test_what_is_left_out_is_said(store: Path, tmp_path: Path) -> None:
    streams = store / "jetstream" / "$G" / "streams"
    write_stream(streams, "GOING")
    (streams / "GOING").rename(streams / ".GOING")
    (tmp_path / "elsewhere").mkdir()
    (streams / "LINKED").symlink_to(tmp_path / "elsewhere")
    (streams / "no stream").mkdir()
    (streams / "file").write_bytes(b"")
    (store / "jetstream" / "OTHER").symlink_to(tmp_path / "elsewhere")
    with ServerStore.open(store, None) as found:
        assert list(found.streams) == ["KV_größe", "ORDERS"]
        assert "stream GOING was being deleted, and is left out" in found.notes
        assert any("OTHER is a symbolic link" in note for note in found.notes)
        failures = {failure.name: failure.error for failure in found.failures}
    assert failures.keys() == {"LINKED", "no stream"}
    assert isinstance(failures["no stream"], FormatError)
    imported = import_folder(store)
    assert imported.partial and imported.failures.keys() == {"LINKED", "no stream"}
    assert sorted(imported.messages) == ["KV_größe", "ORDERS"]


def test_folders_that_may_not_be_read_are_an_error(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(_descriptor: int) -> None:
        raise PermissionError(13, "denied")

    monkeypatch.setattr("os.scandir", scandir)
    with pytest.raises(StoreError, match="permission denied"):
        names(store)


# --- keys ---


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    path = tmp_path / "sealed"
    write_stream(path / "jetstream" / "$G" / "streams", key=b"the key")
    write_stream(path / "jetstream" / "ACME" / "streams", key=b"the key", account="ACME")
    return path


def check(path: Path, keys: tuple[bytes, ...], account: str | None) -> None:
    with ServerStore.open(path, account) as found:
        found.check_keys(keys)


def test_keys_are_asked_for_before_anything_is_read(sealed: Path, store: Path) -> None:
    with pytest.raises(KeyUnavailable, match="the store is encrypted") as caught:
        check(sealed, (), "$G")
    assert "--store-key-file" in str(caught.value.hint)
    with pytest.raises(KeyUnavailable, match=r"does not open the store of account \$G"):
        check(sealed, (b"another one",), "$G")
    for account in ("$G", "ACME"):
        check(sealed, (b"another one", b"the key"), account)
        assert len(import_folder(sealed, (b"the key",), account=account).messages["ORDERS"]) == len(MESSAGES)
    check(store, (b"not needed",), "$G")


def test_the_account_is_part_of_the_key(sealed: Path, tmp_path: Path) -> None:
    shutil.copytree(sealed / "jetstream" / "ACME", tmp_path / "renamed")
    with pytest.raises(KeyUnavailable, match="account renamed") as caught:
        check(tmp_path / "renamed", (b"the key",), None)
    assert "--account" in str(caught.value.hint)
    check(tmp_path / "renamed", (b"the key",), "ACME")


def test_one_key_that_fits_is_enough(sealed: Path) -> None:
    """The others may be damaged: that is found out later."""
    streams = sealed / "jetstream" / "$G" / "streams"
    (streams / "ORDERS" / "meta.key").write_bytes(b"damaged")
    check(sealed, (b"the key",), "$G")
    for key in (streams / "ORDERS" / "msgs").glob("*.key"):
        key.unlink()
    with pytest.raises(KeyUnavailable):
        check(sealed, (b"the key",), "$G")


def test_a_purge_counts_only_with_a_block_of_its_own(tmp_path: Path) -> None:
    """As for the server: with the key of a block alone, the messages are those from before."""
    streams = tmp_path / "$G" / "streams"
    folder = write_stream(streams, key=b"a key")
    (folder / "__new_msgs__").mkdir()
    shutil.copy(folder / "msgs" / "1.key", folder / "__new_msgs__" / "9.key")
    assert len(import_folder(tmp_path / "$G", (b"a key",)).messages["ORDERS"]) == len(MESSAGES)
