"""A file of accounts has a table for each account, and nothing that is not understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from jsbackup.config.accounts import AccountsFile, read_accounts
from jsbackup.config.connection import ConnectionOptions
from jsbackup.errors import UsageError


def written(folder: Path, text: str, mode: int = 0o600) -> AccountsFile:
    path = folder / "logins.toml"
    path.write_text(text)
    path.chmod(mode)
    return read_accounts(path, {"HOME": "/nowhere", "WHO": "ann"})


def test_each_table_is_the_login_of_an_account(tmp_path: Path) -> None:
    (tmp_path / "word").write_text("hunter2\n")
    file = written(
        tmp_path,
        f'[SHOP]\nuser = "${{WHO}}"\npassword = "env://W"\n["My Shöp"]\ncreds = "~/a.creds"\n'
        f'[PAY]\ncontext = "pay"\n["*"]\nuser = "backup-{{account}}"\npassword-file = "{tmp_path}/{{account}}"\n',
    )
    assert not file.exposed
    assert file.options("SHOP", "SHOP", {"WHO": "ann"}) == ConnectionOptions(user="ann", password="env://W")
    assert file.options("My Shöp", "x", {}) == ConnectionOptions(creds="~/a.creds")
    assert file.options("PAY", "x", {}) == ConnectionOptions(context="pay")
    assert file.options("*", "word", {}) == ConnectionOptions(user="backup-word", password=f"file://{tmp_path}/word")


def test_settings_say_where_the_logins_of_all_accounts_are(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        'creds = ["~/creds", "op://${WHO}/{account}"]\nsigning-keys = "nsc"\ncontexts = "{account}-x"\n'
        'user = "backup"\nuser-lifetime = "1h"\n',
    )
    assert (file.creds, file.signing_keys) == (("~/creds", "op://ann/{account}"), ("nsc",))
    assert (file.contexts, file.user, file.lifetime_seconds, file.tables) == (("{account}-x",), "backup", 3600, {})


def test_braces_stand_for_the_account_in_the_table_of_all_others_alone(tmp_path: Path) -> None:
    assert written(tmp_path, '[A]\nuser = "x-{account}"\n').options("A", "A", {}).user == "x-{account}"


def test_a_secret_that_others_can_read_is_noticed(tmp_path: Path) -> None:
    for text, exposed in {'"hunter2"': True, '"env://P"': False, '"op://a/b/c"': False, '"${P}"': False}.items():
        assert written(tmp_path, f"[A]\nuser = 'u'\npassword = {text}\n", 0o644).exposed == exposed
    assert not written(tmp_path, "[A]\nuser = 'u'\npassword = 'hunter2'\n", 0o600).exposed
    assert "hunter2" not in repr(written(tmp_path, "[A]\nuser = 'u'\npassword = 'hunter2'\n"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no login"),
        ("user = 'a'", "names no login"),
        ("A = 1", "unknown key 'A'"),
        ("cred = 'a'", "unknown key 'cred'"),
        ("creds = 7", "creds is not a text"),
        ("creds = ['a', 7]", "creds is not a text"),
        ("user = ['a']", "user is not a text"),
        ("contexts = ['shop']", "shop: one context cannot be that of every account"),
        ("creds = 'nsc'\nuser-lifetime = '3s'", "is not between a minute and seven days"),
        ("creds = 'nsc'\nuser-lifetime = 'soon'", "not a duration"),
        ("[A]\npasword = 'hunter2'", "A: unknown key 'pasword'"),
        ("[A]\nserver = 'nats://x'", "A: unknown key 'server'"),
        ("[A]\nuser = 7", "A: user is not a text"),
        ("[A]\nuser = ''", "A: user is not a text"),
        ("[A", "is not TOML"),
    ],
)
def test_what_is_not_understood_is_refused_without_its_value(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        written(tmp_path, text)
    assert message in caught.value.message
    assert "hunter2" not in f"{caught.value.message} {caught.value.hint}"


def test_a_mistake_has_the_nearest_key(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as caught:
        written(tmp_path, "[A]\npasword = 'x'\n")
    assert caught.value.hint == "Did you mean password?"


def test_a_variable_that_is_not_set_names_file_and_account(tmp_path: Path) -> None:
    file = written(tmp_path, "[A]\nuser = '${NO}'\n")
    with pytest.raises(UsageError, match=rf"{file.path}: A: the variable NO is not set"):
        file.options("A", "A", {})
