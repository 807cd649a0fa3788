"""Restores of all accounts: of streams that only some have, and what is said of accounts where nothing was done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import jsonschema
import pytest

from tests.cli.test_json import CLOSED
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, Typed, delete, fill, names, typing, url

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

CONFIG = """
accounts {
  SHOP: { jetstream: enabled, users: [ { user: shop, password: p } ] }
  PAY: { jetstream: enabled, users: [ { user: pay, password: p } ] }
  SYS: { users: [ { user: sys, password: p } ] }
}
system_account: SYS
"""


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    monkeypatch.setenv("P", "p")
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, name="C1", config=CONFIG) as server:
        yield server


@pytest.fixture
def server(started: NatsServer, typed: Type, tmp_path: Path) -> Iterator[NatsServer]:
    """Without streams; a backup of both accounts is in the repository: BOTH is in both, ONLY in SHOP."""
    for account, streams in (("SHOP", ("BOTH", "ONLY")), ("PAY", ("BOTH",))):
        for stream in streams:
            fill(url(started, account), stream, 3)
    assert _all(typed, "backup", started, tmp_path).code == 0
    _clear(started)
    yield started
    _clear(started)


def _clear(server: NatsServer) -> None:
    for account in ("SHOP", "PAY"):
        delete(url(server, account), *names(url(server, account)))


def _all(typed: Type, command: str, server: NatsServer, folder: Path, *options: str) -> Typed:
    logins = folder / "logins.toml"
    logins.write_text(
        '[SHOP]\nuser = "shop"\npassword = "env://P"\n[PAY]\nuser = "pay"\npassword = "env://P"\n', encoding="utf-8"
    )
    where = ("-s", url(server, "SYS"), "-r", folder / "repo", "--accounts", logins)
    return typed(command, *options, "--all-accounts", *where)


def test_a_stream_comes_back_into_the_accounts_that_have_it(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    for command in ("plan", "restore"):
        done = _all(typed, command, server, tmp_path, "latest", "ONLY")
        assert done.code == 0, done
        assert "note: account PAY is left out: it has no such stream in its latest backup\n" in done.err
        assert "account SHOP into account SHOP" in done.out and "account PAY into" not in done.out
    assert names(url(server, "SHOP")) == ["ONLY"] and names(url(server, "PAY")) == []
    done = _all(typed, "restore", server, tmp_path, "latest", "ONLY", "BOTH", "--if-exists", "replace", "--json")
    jsonschema.Draft202012Validator({**CLOSED, "$ref": "#/$defs/restore_accounts"}).validate(done.document)
    assert done.code == 0 and done.document["left_out"] == []
    assert sorted(names(url(server, "SHOP"))) == ["BOTH", "ONLY"] and names(url(server, "PAY")) == ["BOTH"]
    # So are streams that are left out: one that only some accounts have is no mistake.
    done = _all(typed, "restore", server, tmp_path, "latest", "--exclude", "ONLY", "--if-exists", "replace")
    assert done.code == 0, done
    done = _all(typed, "plan", server, tmp_path, "latest", "ONLY", "--if-exists", "replace", "--json")
    jsonschema.Draft202012Validator({**CLOSED, "$ref": "#/$defs/plan_accounts"}).validate(done.document)
    assert [one["account"] for one in done.document["left_out"]] == ["PAY"]


def test_a_stream_that_no_account_has_is_refused(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    done = _all(typed, "restore", server, tmp_path, "latest", "ONYL")
    assert done.code == 2
    assert "error: no account has a stream ONYL in its latest backup\nhint: Did you mean ONLY?" in done.err
    done = _all(typed, "restore", server, tmp_path, "latest", "BOTH", "ONYL")
    assert done.code == 2 and names(url(server, "PAY")) == []
    done = _all(typed, "restore", server, tmp_path, "latest", "--exclude", "ONYL")
    assert done.code == 2 and names(url(server, "PAY")) == []


def test_only_latest_is_a_backup_of_all_accounts(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    backup = typed("list", "-r", tmp_path / "repo", "--json").document["backups"][0]["backup"]
    for argument in ("S_shop", backup):
        done = _all(typed, "restore", server, tmp_path, argument)
        assert done.code == 2 and f"and the first argument is {argument}\nhint: Write latest" in done.err


def test_skipped_accounts_do_not_count_as_restored(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    assert _all(typed, "restore", server, tmp_path, "latest", "--account", "PAY").code == 0
    skip = ("--if-exists", "skip")
    done = _all(typed, "restore", server, tmp_path, "latest", *skip)
    assert done.code == 0
    assert "2 accounts: 1 skipped, 1 restored; 2 streams restored, 1 skipped\n" in done.out, done.out
    done = _all(typed, "restore", server, tmp_path, "latest", *skip)
    assert done.code == 0 and "2 accounts: 2 skipped; 0 streams restored, 3 skipped\n" in done.out


def test_an_account_that_is_mistyped_is_named(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    said = "no account with JetStream is named PYA\nhint: Did you mean PAY?\n"
    repo = ("-r", tmp_path / "repo")
    done = typed("status", "--live", "--all-accounts", "--account", "PYA", "-s", url(server, "SYS"), *repo)
    assert done.code == 2 and said in done.err, done
    done = _all(typed, "restore", server, tmp_path, "latest", "--account", "PYA")
    assert done.code == 2 and said in done.err, done
