"""A connection for other processes: the same one, and no secret on the way to them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.config import Secret
from jsbackup.config.connection import ConnectionOptions, UserPassword, connection_reference, source_connection
from jsbackup.errors import UsageError
from tests.config.test_connection import Disk
from tests.config.test_secrets import creds_text, new_seed

JWT = "eyJ0eXAi.eyJqdGki.c2ln"
SEED = new_seed()
PLANTED = "hunter2-s3cr3t"
SECRETS = (PLANTED, SEED, JWT)


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Disk:
    """With one of each, and a working folder that relative paths start from."""
    disk = Disk(tmp_path)
    disk.file("user.creds", creds_text(JWT, SEED))
    disk.file("user.nk", SEED)
    disk.file("password", PLANTED + "\n")
    for name in ("ca.pem", "cert.pem", "key.pem"):
        disk.file(name)
    disk.context("login", url=f"nats://c:{PLANTED}@in.context", creds=str(tmp_path / "user.creds"))
    disk.context("user", url="nats://in.context", user="c", password=PLANTED, jetstream_domain="far")
    disk.context("bare", token=PLANTED)
    monkeypatch.chdir(tmp_path)
    return disk


def _maybe(*values: str) -> st.SearchStrategy[str | None]:
    return st.sampled_from([None, None, "", *values])


OPTIONS = st.fixed_dictionaries(
    {
        "context": _maybe("login", "user", "bare"),
        "server": _maybe("nats://a,tls://b:1", f"nats://u:{PLANTED}@a", f"nats://{PLANTED}@a"),
        "user": _maybe("u"),
        "password": _maybe("file://$HOME/password", "env://OTHER", PLANTED, "data:;base64,eA=="),
        "token": _maybe("env://OTHER", "file://password", PLANTED),
        "creds": _maybe("~/user.creds", "user.creds", "file://user.creds", "data:;base64,eA=="),
        "nkey": _maybe("user.nk"),
        "tls_ca": _maybe("$HOME/ca.pem"),
        "js_domain": _maybe("near"),
        "inbox_prefix": _maybe("_X"),
        "timeout": _maybe("7s"),
    }
)
VARIABLES = st.fixed_dictionaries(
    {
        "NATS_CONTEXT": _maybe("login", "bare"),
        "NATS_URL": _maybe("nats://v", f"nats://u:{PLANTED}@v"),
        "NATS_USER": _maybe("v"),
        "NATS_PASSWORD": _maybe(PLANTED, "file://password", "env://OTHER"),
        "NATS_TOKEN": _maybe(PLANTED),
        "NATS_CREDS": _maybe("user.creds"),
        "NATS_NKEY": _maybe("user.nk"),
        "NATS_JWT": _maybe(JWT),
        "NATS_SEED": _maybe(SEED),
        "NATS_CERT": _maybe("$HOME/cert.pem"),
        "NATS_KEY": _maybe("$HOME/key.pem"),
    }
)


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(OPTIONS, VARIABLES, st.booleans())
def test_what_is_sent_makes_the_same_connection_and_holds_no_secret(
    disk: Disk, options: dict[str, str | None], variables: dict[str, str | None], selected: bool
) -> None:
    (disk.root / "config" / "nats" / "context.txt").write_text("user" if selected else "")
    environ = disk.environ | {"OTHER": PLANTED} | {name: value for name, value in variables.items() if value}
    given = ConnectionOptions(**options)  # type: ignore[arg-type]  # texts, where mypy sees one flag
    try:
        expected = source_connection(given, environ)
        reference = connection_reference(given, environ)
    except UsageError as refused:
        assert not any(secret in refused.message + (refused.hint or "") for secret in SECRETS)
        return
    sent = pickle.dumps(reference)
    assert not any(secret.encode() in sent for secret in SECRETS)
    # Where it arrives there are the secrets, another folder, and a context that somebody has selected.
    elsewhere = {n: v for n, v in environ.items() if n not in ("NATS_CONTEXT", "NATS_URL", "HOME", "XDG_CONFIG_HOME")}
    elsewhere |= {"NATS_URL": "nats://wrong", "NATS_CONTEXT": "wrong", "XDG_CONFIG_HOME": "/nonexistent"}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir("/")
        arrived = pickle.loads(sent).resolve(elsewhere)
    assert replace(arrived, context=expected.context) == expected


@pytest.mark.parametrize(
    ("options", "environ", "said"),
    [
        ({"password": PLANTED, "user": "u"}, {}, "--password holds a secret"),
        ({"token": PLANTED}, {}, "--token holds a secret"),
        ({"user": PLANTED}, {}, "--user, which without a password is a token, holds a secret"),
        ({"server": f"nats://u:{PLANTED}@a"}, {}, "--server holds a secret"),
        ({"server": f"nats://{PLANTED}@a"}, {}, "--server holds a secret"),
        ({"creds": "data:;base64,eA=="}, {}, "--creds holds a secret"),
        ({}, {"NATS_URL": f"nats://u:{PLANTED}@a"}, "NATS_URL holds a secret"),
        ({}, {"NATS_CREDS": "data:;base64,eA=="}, "NATS_CREDS holds a secret"),
    ],
)
def test_a_secret_that_would_have_to_travel_is_refused(
    disk: Disk, options: dict[str, str], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(UsageError) as caught:
        connection_reference(ConnectionOptions(**options), disk.environ | environ)  # type: ignore[arg-type]
    assert said in caught.value.message and PLANTED not in caught.value.message
    assert "NATS_PASSWORD" in (caught.value.hint or "")


def test_a_secret_that_is_missing_where_it_arrives_is_named(disk: Disk) -> None:
    environ = {"NATS_USER": "u", "NATS_PASSWORD": PLANTED}
    reference = connection_reference(ConnectionOptions(), disk.environ | environ)
    assert reference.resolve(environ).login == UserPassword("u", Secret(PLANTED))
    with pytest.raises(UsageError, match="'NATS_PASSWORD', which is not set"):
        reference.resolve({})
    named = connection_reference(ConnectionOptions(context="login"), disk.environ)
    (disk.root / "config" / "nats" / "context" / "login.json").unlink()
    with pytest.raises(UsageError, match="context"):
        named.resolve({})
