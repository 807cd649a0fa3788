"""Credentials and seeds are found by what files hold, in folders, single files, and where nsc keeps them."""

from __future__ import annotations

from pathlib import Path

import nkeys
import pytest

from jsbackup.config.accounts import find_creds, find_seeds, nsc_folder, place
from jsbackup.errors import UsageError
from tests.engine.identities import Key, creds_text

ACCOUNT = Key(nkeys.PREFIX_BYTE_ACCOUNT)


def creds(path: Path, account: Key = ACCOUNT, name: str = "ann") -> Key:
    user = Key()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(creds_text(account.jwt(user.public, name, {"type": "user"}), user.seed))
    return user


def test_a_credentials_file_is_for_the_account_that_its_jwt_names(tmp_path: Path) -> None:
    other = Key(nkeys.PREFIX_BYTE_ACCOUNT)
    first, second = (
        creds(tmp_path / "whatever.creds"),
        creds(tmp_path / "deep" / "er" / "other name.creds", other, "bob"),
    )
    (tmp_path / "notes.txt").write_text("not a file of credentials")
    found, problems = find_creds(tmp_path)
    assert problems == []
    assert {(one.claims.account, one.claims.user, one.claims.name) for one in found} == {
        (ACCOUNT.public, first.public, "ann"),
        (other.public, second.public, "bob"),
    }
    assert {one.login.seed.reveal() for one in found if one.login.seed} == {first.seed, second.seed}


def test_a_single_file_may_have_any_name(tmp_path: Path) -> None:
    user = creds(tmp_path / "secret")
    ([found], problems) = find_creds(tmp_path / "secret")
    assert (found.claims.user, found.path, problems) == (user.public, str(tmp_path / "secret"), [])


def test_what_is_no_credentials_file_is_named_and_does_not_hide_the_others(tmp_path: Path) -> None:
    user = creds(tmp_path / "good.creds")
    (tmp_path / "bad.creds").write_text("hunter2")
    (tmp_path / "binary.creds").write_bytes(b"\xff\xfe")
    (tmp_path / "odd.creds").write_text(creds_text("eyJ0.eyJh.c2ln", Key().seed))
    found, problems = find_creds(tmp_path)
    assert [one.claims.user for one in found] == [user.public]
    assert len(problems) == 3
    assert all("hunter2" not in problem for problem in problems)
    assert any("a JWT that is not of a user of an account" in problem for problem in problems)
    with pytest.raises(UsageError, match="does not hold a user JWT and a seed"):
        find_creds(tmp_path / "bad.creds")


def test_a_folder_without_any_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"there is no \.creds file below"):
        find_creds(tmp_path)
    with pytest.raises(UsageError, match="there is no account's seed in or below"):
        find_seeds(tmp_path)


def test_a_folder_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot read .*gone: no such file or directory"):
        find_creds(tmp_path / "gone")


def test_seeds_of_accounts_are_taken_and_those_of_others_passed_over(tmp_path: Path) -> None:
    (tmp_path / "a.nk").write_text(f"{ACCOUNT.seed}\n")
    (tmp_path / "b.seed").write_text(f"-----BEGIN ACCOUNT NKEY SEED-----\n{ACCOUNT.seed}\n")
    (tmp_path / "u.nk").write_text(Key().seed)
    (tmp_path / "o.nk").write_text(Key(nkeys.PREFIX_BYTE_OPERATOR).seed)
    (tmp_path / "junk.nk").write_text("hunter2")
    (tmp_path / "damaged.nk").write_text(ACCOUNT.seed[:-6] + "AAAAAA")
    found, problems = find_seeds(tmp_path)
    assert [(one.path, one.seed.reveal()) for one in found] == [
        (str(tmp_path / "a.nk"), ACCOUNT.seed),
        (str(tmp_path / "b.seed"), ACCOUNT.seed),
    ]
    assert len(problems) == 2 and all(ACCOUNT.seed[:-6] not in one and "hunter2" not in one for one in problems)
    with pytest.raises(UsageError, match="there is no account's seed in or below"):
        find_seeds(tmp_path / "u.nk")


def test_where_nsc_keeps_things(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert nsc_folder("creds", home) == tmp_path / ".local/share/nats/nsc/keys/creds"
    assert nsc_folder("keys", home) == tmp_path / ".local/share/nats/nsc/keys/keys/A"
    (tmp_path / ".nkeys").mkdir()
    assert nsc_folder("creds", home) == tmp_path / ".nkeys/creds"
    (tmp_path / ".local/share/nats/nsc/keys").mkdir(parents=True)
    assert nsc_folder("creds", home) == tmp_path / ".local/share/nats/nsc/keys/creds"
    assert nsc_folder("creds", {**home, "XDG_DATA_HOME": "/data"}) == tmp_path / ".nkeys/creds"
    assert nsc_folder("creds", {"HOME": "/h", "XDG_DATA_HOME": "/data"}) == Path("/data/nats/nsc/keys/creds")
    assert nsc_folder("keys", {**home, "NKEYS_PATH": "~/mine"}) == tmp_path / "mine/keys/A"


def test_a_place_is_a_path_or_a_folder_of_nsc(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "NKEYS_PATH": str(tmp_path / "keys")}
    (tmp_path / "keys/creds/OP").mkdir(parents=True)
    (tmp_path / "keys/keys/A").mkdir(parents=True)
    assert place("nsc", "creds", "--x", environ) == tmp_path / "keys/creds"
    assert place("NSC://OP", "creds", "--x", environ) == tmp_path / "keys/creds/OP"
    assert place("nsc://OP", "keys", "--x", environ) == tmp_path / "keys/keys/A"
    assert place("~/keys", "creds", "--x", environ) == tmp_path / "keys"
    for text, message in {
        "nsc://NO": "there is no",
        "nsc://OP/A/U": "not the name of an operator",
        "nsc://..": "not the name of an operator",
        "~/nothing": "there is no",
        "$NO/x": "names the variable NO, which is not set",
        "x" * 300: "there is no",
    }.items():
        with pytest.raises(UsageError) as caught:
            place(text, "creds", "--x", environ)
        assert message in caught.value.message
    with pytest.raises(UsageError) as caught:
        place("/etc/{acount}.creds", "creds", "--x", environ)
    assert "write {account}" in str(caught.value.hint)
