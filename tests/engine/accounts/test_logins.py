"""Which login an account gets: the first usable one, never that of another account, and a reason if there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys
import pytest

from jsbackup.config.accounts import AccountClaims, AccountsFile, read_accounts
from jsbackup.config.connection import ConnectionOptions, IssuedUser, UserJwt, UserPassword, source_connection
from jsbackup.engine.accounts.logins import AccountLogin, AccountLogins, LoginPurpose, read_sources
from jsbackup.engine.accounts.system_view import FoundAccount
from jsbackup.errors import UsageError
from tests.engine.identities import Key, creds_text

NOW = 1_700_000_000
SHOP, PAY = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT)
ENVIRON = {"HOME": "/nonexistent"}
BASE = source_connection(ConnectionOptions(server="nats://127.0.0.1:4222"), ENVIRON)
SHOP_FOUND, PAY_FOUND = FoundAccount(SHOP.public, "shop"), FoundAccount(PAY.public, "pay")


def creds(
    path: Path, account: Key = SHOP, name: str = "backup", expires: int | None = None, user: Key | None = None
) -> Key:
    user = user or Key()
    outer = {} if expires is None else {"exp": expires}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(creds_text(account.jwt(user.public, name, {"type": "user"}, **outer), user.seed))
    return user


def logins(environ: Mapping[str, str] = ENVIRON, twins: frozenset[str] = frozenset(), **given: Any) -> AccountLogins:
    file = given.pop("file", None) or AccountsFile(Path("accounts.toml"))
    sources = read_sources(replace(file, **given), environ)
    return AccountLogins(sources, environ, twins=twins, now=lambda: NOW, random=lambda count: bytes(range(count)))


def find(
    finder: AccountLogins, account: FoundAccount = SHOP_FOUND, claims: AccountClaims | None = None
) -> AccountLogin:
    return finder.find(account, claims, BASE, LoginPurpose.BACKUP)


def seed_of(login: AccountLogin) -> str:
    assert isinstance(login.connection.login, UserJwt) and login.connection.login.seed is not None
    return login.connection.login.seed.reveal()


def refusal(finder: AccountLogins, account: FoundAccount = SHOP_FOUND) -> str:
    with pytest.raises(UsageError) as caught:
        find(finder, account)
    assert account.account in caught.value.message
    return caught.value.message


def test_credentials_are_matched_by_what_their_jwt_says(tmp_path: Path) -> None:
    shop, pay = creds(tmp_path / "pay.creds", SHOP), creds(tmp_path / "shop.creds", PAY)
    finder = logins(creds=(str(tmp_path),))
    assert seed_of(find(finder)) == shop.seed
    assert seed_of(find(finder, PAY_FOUND)) == pay.seed
    assert find(finder).proved
    assert find(finder).told == f"credentials file {tmp_path}/pay.creds"


def test_expired_credentials_are_named_and_others_of_the_account_taken(tmp_path: Path) -> None:
    creds(tmp_path / "old.creds", expires=NOW - 1)
    assert f"the credentials in {tmp_path}/old.creds expired at 2023-11-14T22:13:19Z" in refusal(
        logins(creds=(str(tmp_path),))
    )
    user = creds(tmp_path / "new.creds", expires=NOW + 60)
    assert seed_of(find(logins(creds=(str(tmp_path),)))) == user.seed


def test_several_users_have_to_be_chosen_from(tmp_path: Path) -> None:
    for name in "cab":
        creds(tmp_path / f"{name}.creds", name=name)
    assert "credentials of several users, a, b, c: choose one by user = …" in refusal(logins(creds=(str(tmp_path),)))
    assert find(logins(creds=(str(tmp_path),), user="b")).told.endswith("/b.creds")
    assert "user d is not among those there are credentials of, a, b, c" in refusal(
        logins(creds=(str(tmp_path),), user="d")
    )


def test_one_user_in_several_files_is_taken_from_that_which_lasts(tmp_path: Path) -> None:
    user = Key()
    creds(tmp_path / "a.creds", user=user, expires=NOW + 10)
    creds(tmp_path / "b.creds", user=user)
    creds(tmp_path / "c.creds", user=user, expires=NOW + 99)
    assert find(logins(creds=(str(tmp_path),))).told.endswith("/b.creds")


def test_a_pattern_leads_by_name_or_key_and_is_checked(tmp_path: Path) -> None:
    shop = creds(tmp_path / "shop.creds")
    pay = creds(tmp_path / f"{PAY.public}.creds", PAY)
    finder = logins(creds=(f"{tmp_path}/{{account}}.creds",))
    assert seed_of(find(finder)) == shop.seed
    assert seed_of(find(finder, PAY_FOUND)) == pay.seed
    creds(tmp_path / "pay.creds", SHOP)
    assert seed_of(find(finder, PAY_FOUND)) == pay.seed  # by its key: the file with its name is of another account
    (tmp_path / f"{PAY.public}.creds").unlink()
    assert f"{tmp_path}/pay.creds has credentials of account {SHOP.public}" in refusal(finder, PAY_FOUND)
    assert finder.account_by_pattern("shop") == SHOP.public
    assert finder.account_by_pattern("nobody") is None


def test_a_pattern_may_be_any_reference(tmp_path: Path) -> None:
    user = creds(tmp_path / "shop.creds")
    environ = {**ENVIRON, "CREDS_shop": (tmp_path / "shop.creds").read_text()}
    assert seed_of(find(logins(environ, creds=("env://CREDS_{account}",)))) == user.seed


@pytest.mark.parametrize("name", ["../shop", "a/b", "..", "."])
def test_a_name_does_not_lead_out_of_the_folder(tmp_path: Path, name: str) -> None:
    creds(tmp_path / "shop.creds")
    finder = logins(creds=(f"{tmp_path}/sub/{{account}}.creds",))
    assert "no file is looked for by the name" in refusal(finder, FoundAccount(SHOP.public, name))


def test_a_name_that_two_accounts_have_leads_nowhere(tmp_path: Path) -> None:
    creds(tmp_path / "shop.creds")
    finder = logins(creds=(f"{tmp_path}/{{account}}.creds",), twins=frozenset({"shop"}))
    assert "does not exist" in refusal(finder)
    path = tmp_path / "logins.toml"
    path.write_text('[shop]\nuser = "u"\npassword = "p"\n')
    assert "is the name of several accounts: write its key" in refusal(
        logins(file=read_accounts(path, ENVIRON), twins=frozenset({"shop"}))
    )


def test_a_file_of_logins_comes_first_then_contexts(tmp_path: Path) -> None:
    creds(tmp_path / "c" / "shop.creds")
    contexts = tmp_path / "xdg" / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "shop-backup.json").write_text('{"user": "of-context", "password": "p"}')
    path = tmp_path / "logins.toml"
    path.write_text(f'[{SHOP.public}]\nuser = "of-file"\npassword = "p"\n')
    environ = {**ENVIRON, "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    given: dict[str, Any] = {"creds": (str(tmp_path / "c"),), "contexts": ("{account}-backup",)}

    def user(login: AccountLogin) -> str:
        assert isinstance(login.connection.login, UserPassword) and not login.proved
        return login.connection.login.user

    assert user(find(logins(environ, **given, file=read_accounts(path, ENVIRON)))) == "of-file"
    assert user(find(logins(environ, **given))) == "of-context"
    (contexts / "shop-backup.json").unlink()
    assert find(logins(environ, **given)).told.startswith("credentials file")
    assert "there is no nats context 'shop-backup'" in refusal(logins(environ, contexts=("{account}-backup",)))


def test_the_seed_that_issues_the_fewest_rights_is_taken(tmp_path: Path) -> None:
    signing, scoped = Key(nkeys.PREFIX_BYTE_ACCOUNT), Key(nkeys.PREFIX_BYTE_ACCOUNT)
    claims = AccountClaims(SHOP.public, "shop", (signing.public,), (scoped.public,))
    for name, key in {"own": SHOP, "signing": signing, "scoped": scoped, "other": PAY}.items():
        (tmp_path / f"{name}.nk").write_text(key.seed)
    for kind, file in {"signing key": "signing", "seed": "own", "scoped signing key": "scoped"}.items():
        login = find(logins(signing_keys=(str(tmp_path),)), SHOP_FOUND, claims)
        assert login.told == f"a user made with the {kind} in {tmp_path}/{file}.nk"
        assert isinstance(login.connection.login, IssuedUser) and login.connection.login.account == SHOP.public
        assert login.connection.inbox_prefix == ("_INBOX" if kind.startswith("scoped") else "_INBOX.0001020304050607")
        (tmp_path / f"{file}.nk").unlink()
    assert "there are no credentials" in refusal(logins(signing_keys=(str(tmp_path),)))


def test_without_the_accounts_jwt_its_own_seed_is_known(tmp_path: Path) -> None:
    (tmp_path / "own.nk").write_text(SHOP.seed)
    assert find(logins(signing_keys=(str(tmp_path),))).told.startswith("a user made with the seed in")


def test_credentials_that_cannot_be_used_leave_the_way_to_a_signing_key(tmp_path: Path) -> None:
    creds(tmp_path / "old.creds", expires=NOW - 1)
    (tmp_path / "own.nk").write_text(SHOP.seed)
    finder = logins(creds=(str(tmp_path),), signing_keys=(str(tmp_path),))
    assert find(finder).told.startswith("a user made with the seed")


def test_no_reason_shows_a_secret(tmp_path: Path) -> None:
    (tmp_path / "shop.creds").write_text(creds_text("hunter2", "SUhunter2"))
    assert "hunter2" not in refusal(logins(creds=(f"{tmp_path}/{{account}}.creds",)))
