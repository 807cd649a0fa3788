"""A connection for an account has the servers of the run, and the login of the account alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from jsbackup.config import Secret
from jsbackup.config.accounts import with_login, with_options
from jsbackup.config.connection import ConnectionOptions, UserJwt, UserPassword, source_connection
from jsbackup.errors import UsageError

ENVIRON = {"HOME": "/nonexistent"}


def base(**options: str) -> ConnectionOptions:
    return ConnectionOptions(server="nats://sys:secret@a,nats://b:4333", **options)


def test_the_login_of_the_system_user_is_gone() -> None:
    made = source_connection(base(token="t", timeout="9s", inbox_prefix="_I"), ENVIRON)
    login = UserJwt(Secret("a.b.c"), None)
    own = with_login(made, login)
    assert own.login == login and own.token is None
    assert [(one.host, one.port, one.login, one.token) for one in own.servers] == [
        ("a", 4222, None, None),
        ("b", 4333, None, None),
    ]
    assert (own.timeout_seconds, own.inbox_prefix) == (9.0, "_I")


def test_of_a_context_the_login_and_the_files_of_tls_count(tmp_path: Path) -> None:
    (tmp_path / "cert").write_text("")
    context = tmp_path / "shop.json"
    files = {"cert": str(tmp_path / "cert"), "key": str(tmp_path / "cert")}
    context.write_text(json.dumps({"url": "nats://elsewhere", "user": "u", "password": "p", **files}))
    own = with_options(source_connection(base(), ENVIRON), ConnectionOptions(context=str(context)), ENVIRON)
    assert own.login == UserPassword("u", Secret("p"))
    assert [one.host for one in own.servers] == ["a", "b"] and not any(one.login for one in own.servers)
    assert own.tls.cert == tmp_path / "cert" and own.tls.required
    assert own.context == str(context)


def test_a_login_in_the_url_of_a_context_counts_too(tmp_path: Path) -> None:
    context = tmp_path / "shop.json"
    context.write_text(json.dumps({"url": "nats://u:p@elsewhere"}))
    own = with_options(source_connection(base(), ENVIRON), ConnectionOptions(context=str(context)), ENVIRON)
    assert own.login == UserPassword("u", Secret("p"))
    context.write_text(json.dumps({"url": "nats://t@elsewhere"}))
    own = with_options(source_connection(base(), ENVIRON), ConnectionOptions(context=str(context)), ENVIRON)
    assert (own.login, own.token) == (None, Secret("t"))


def test_no_login_is_an_error(tmp_path: Path) -> None:
    context = tmp_path / "shop.json"
    context.write_text("{}")
    with pytest.raises(UsageError, match=r"the nats context .* has no login"):
        with_options(source_connection(base(), ENVIRON), ConnectionOptions(context=str(context)), ENVIRON)
