"""Which server is meant, and as whom: what is named, and nothing of the environment beside it."""

from __future__ import annotations

from pathlib import Path

import pytest

import jsbackup
from jsbackup.config.connection import Nkey, UserJwt, UserPassword
from tests.engine.identities import Key, creds_text

errors = jsbackup.errors


def test_secrets_are_given_as_files_or_as_what_is_in_them(tmp_path: Path) -> None:
    key = Key()
    text = creds_text("eyJ0.eyJh.c2ln", key.seed)
    file = tmp_path / "user.creds"
    file.write_text(text)
    for creds in (file, str(file), text.encode()):
        login = jsbackup.connection("nats://host", creds=creds).login
        assert isinstance(login, UserJwt) and login.jwt.reveal() == "eyJ0.eyJh.c2ln"
    (tmp_path / "user.nk").write_text(key.seed)
    for nkey in (tmp_path / "user.nk", key.seed.encode()):
        login = jsbackup.connection("nats://host", nkey=nkey).login
        assert isinstance(login, Nkey) and login.seed.reveal() == key.seed
    with pytest.raises(errors.UsageError):
        jsbackup.connection("nats://host", creds=tmp_path / "missing.creds")
    with pytest.raises(errors.UsageError, match="different ways"):
        jsbackup.connection("nats://host", creds=file, user="me", password="x")
    with pytest.raises(errors.UsageError):
        jsbackup.connection("http://localhost")


def test_a_connection_prints_without_secrets() -> None:
    named = jsbackup.connection("nats://host:4333", user="me", password="hidden", token="secret", timeout_seconds=1.5)
    assert named.url == "nats://host:4333" and named.timeout_seconds == 1.5
    assert isinstance(named.login, UserPassword)
    assert "hidden" not in repr(named) and "secret" not in repr(named)


def test_the_environment_counts_only_where_nothing_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("NATS_URL", "nats://env:4222")
    monkeypatch.setenv("NATS_TOKEN", "of the environment")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "nats" / "context").mkdir(parents=True)
    (tmp_path / "nats" / "context" / "prod.json").write_text('{"url": "nats://prod:4222"}')
    (tmp_path / "nats" / "context.txt").write_text("prod")
    assert jsbackup.connection("nats://host").token is None
    assert jsbackup.connection("nats://host").context is None
    by_context = jsbackup.connection(context="prod")
    assert (by_context.url, by_context.token) == ("nats://prod:4222", None)
    unnamed = jsbackup.connection()
    assert unnamed.url == "nats://env:4222" and unnamed.token is not None
