"""Command line over environment over context, and everything a connection needs checked before it is used."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config import Secret, environment
from jsbackup.config.connection import (
    Connection,
    ConnectionOptions,
    Nkey,
    Server,
    Tls,
    UserJwt,
    UserPassword,
    source_connection,
    target_connection,
)
from jsbackup.errors import UsageError
from tests.config.test_secrets import creds_text, new_seed

JWT = "eyJ0eXAi.eyJqdGki.c2ln"


class Disk:
    """A home with contexts, credentials and certificates, and the environment that points to it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {"HOME": str(root), "XDG_CONFIG_HOME": str(root / "config")}
        (root / "config" / "nats" / "context").mkdir(parents=True)

    def context(self, name: str, **fields: Any) -> None:
        (self.root / "config" / "nats" / "context" / f"{name}.json").write_text(json.dumps(fields))

    def select(self, name: str) -> None:
        (self.root / "config" / "nats" / "context.txt").write_text(name)

    def file(self, name: str, text: str = "x") -> str:
        (self.root / name).write_text(text)
        return str(self.root / name)

    def creds(self, name: str = "user.creds") -> tuple[str, UserJwt]:
        seed = new_seed()
        return self.file(name, creds_text(JWT, seed)), UserJwt(Secret(JWT), Secret(seed))

    def connection(self, environ: dict[str, str] | None = None, **options: Any) -> Connection:
        return source_connection(ConnectionOptions(**options), self.environ | (environ or {}))


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    return Disk(tmp_path)


def test_without_any_word_it_is_the_local_server(disk: Disk) -> None:
    assert disk.connection() == Connection(servers=(Server("127.0.0.1"),))
    assert disk.connection().url == "nats://127.0.0.1:4222"
    assert disk.connection().timeout_seconds == 5


def test_an_option_wins_over_the_environment_and_that_over_the_context(disk: Disk) -> None:
    disk.context("prod", url="nats://context", inbox_prefix="_CONTEXT")
    disk.select("prod")
    assert disk.connection().servers == (Server("context"),)
    assert disk.connection({"NATS_URL": "nats://environment"}).servers == (Server("environment"),)
    both = disk.connection({"NATS_URL": "nats://environment", "NATS_TIMEOUT": "9s"}, server="nats://option")
    assert both.servers == (Server("option"),)
    assert both.timeout_seconds == 9
    assert both.inbox_prefix == "_CONTEXT"
    assert both.context == "prod"


def test_the_context_is_named_by_option_then_variable_then_selection(disk: Disk) -> None:
    for name in ("one", "two", "three"):
        disk.context(name, url=f"nats://{name}")
    disk.select("three")
    assert disk.connection().context == "three"
    assert disk.connection({"NATS_CONTEXT": "two"}).context == "two"
    assert disk.connection({"NATS_CONTEXT": "two"}, context="one").servers == (Server("one"),)


def test_a_selected_context_that_is_gone_is_an_error(disk: Disk) -> None:
    disk.select("gone")
    with pytest.raises(UsageError, match="there is no nats context 'gone'"):
        disk.connection()


def test_a_server_beside_a_context_keeps_the_contexts_credentials(disk: Disk) -> None:
    path, login = disk.creds()
    disk.context("prod", url="nats://context", creds=path, jetstream_domain="hub")
    connection = disk.connection(context="prod", server="nats://option")
    assert connection.servers == (Server("option"),)
    assert connection.login == login
    assert connection.js_domain == "hub"


def test_empty_texts_say_nothing(disk: Disk) -> None:
    disk.context("prod", url="nats://context", user="", token="")
    connection = disk.connection({"NATS_URL": "", "NATS_USER": "", "NATS_CONTEXT": ""}, server="", context="prod")
    assert connection.servers == (Server("context"),)
    assert connection.login is None


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("host", (Server("host"),)),
        ("host:5222", (Server("host", 5222),)),
        ("NATS://Host", (Server("host"),)),
        ("tls://host", (Server("host", tls=True),)),
        ("nats://[::1]:5222/", (Server("::1", 5222),)),
        ("a, nats://b:1 ,,tls://c", (Server("a"), Server("b", 1), Server("c", tls=True))),
        ("nats://u:p%40%3A%2F%C3%BC@h", (Server("h", login=UserPassword("u", Secret("p@:/ü"))),)),
        ("nats://u:@h", (Server("h", login=UserPassword("u", Secret(""))),)),
        ("nats://tok%20en@h", (Server("h", token=Secret("tok en")),)),
    ],
)
def test_server_lists_are_read_as_the_cli_reads_them(disk: Disk, text: str, servers: tuple[Server, ...]) -> None:
    assert disk.connection(server=text).servers == servers


def test_a_server_prints_without_its_credentials() -> None:
    server = Server("::1", 5222, tls=True, login=UserPassword("ann", Secret("hunter2")), token=Secret("hunter2"))
    assert str(server) == "tls://[::1]:5222"
    assert "hunter2" not in repr(Connection(servers=(server,), token=Secret("hunter2")))


@pytest.mark.parametrize("text", ["ws://h:80", "wss://h:443", "nats://h:4222", "tls://h:4222"])
def test_each_scheme_has_its_port(text: str) -> None:
    (server,) = source_connection(ConnectionOptions(server=text.rpartition(":")[0]), {}).servers
    assert str(server) == text


@pytest.mark.parametrize(
    "text",
    [
        "nats://",
        "ftp://h",
        "nats://h:99999",
        "nats://u:hun:ter2",
        "nats://u:hunter2/x@h",
        "nats://u:p@hunter2/2026@h:4222",
        "nats://u:p@hunter2?x@h",
        "nats://u:p@hunter2#x@h",
        "hunter2://u@h",
        "h/path",
        "nats://h?x=1",
        ",",
        "nats://[::1",
    ],
)
def test_a_url_that_cannot_be_understood_is_refused_without_its_password(disk: Disk, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        disk.connection(server=text)
    assert "hun" not in caught.value.message
    assert caught.value.__cause__ is None


def test_each_way_to_log_in_comes_from_each_layer(disk: Disk) -> None:
    path, creds = disk.creds()
    seed = new_seed()
    nkey = disk.file("user.nk", seed)
    ways: list[tuple[dict[str, str], dict[str, str], object]] = [
        ({"user": "u", "password": "p"}, {"NATS_USER": "u", "NATS_PASSWORD": "p"}, UserPassword("u", Secret("p"))),
        ({"creds": path}, {"NATS_CREDS": path}, creds),
        ({"nkey": nkey}, {"NATS_NKEY": nkey}, Nkey(Secret(seed))),
        ({"jwt": JWT, "seed": seed}, {"NATS_JWT": JWT, "NATS_SEED": seed}, UserJwt(Secret(JWT), Secret(seed))),
        ({"jwt": JWT}, {"NATS_JWT": JWT}, UserJwt(Secret(JWT), None)),
    ]
    for options, environ, login in ways:
        assert disk.connection(**options).login == login
        assert disk.connection(environ).login == login
        renamed = {{"jwt": "user_jwt", "seed": "user_seed"}.get(key, key): value for key, value in options.items()}
        disk.context("way", **renamed)
        assert disk.connection(context="way").login == login


def test_within_a_layer_the_order_is_the_clis(disk: Disk) -> None:
    path, creds = disk.creds()
    nkey, seed = disk.file("user.nk", new_seed()), new_seed()
    fields = {"user_jwt": JWT, "user_seed": seed, "nkey": nkey, "creds": path, "user": "u", "password": "p"}
    expected: list[type] = [UserJwt, Nkey, UserJwt, UserPassword]
    for count, kind in zip((2, 3, 4, 6), expected, strict=True):
        disk.context("many", **dict(list(fields.items())[:count]))
        assert type(disk.connection(context="many").login) is kind
    disk.context("many", **dict(list(fields.items())[:4]))
    assert disk.connection(context="many").login == creds


def test_a_higher_layers_login_wins_over_any_of_a_lower_one(disk: Disk) -> None:
    path, creds = disk.creds()
    disk.context("prod", user="u", password="p", url="nats://x:y@h")
    assert disk.connection(context="prod", creds=path).login == creds
    assert disk.connection(context="prod", creds=path).servers == (Server("h"),)
    assert disk.connection({"NATS_CREDS": path}, context="prod").login == creds
    assert disk.connection({"NATS_CREDS": path}, user="a", password="b").login == UserPassword("a", Secret("b"))


def test_a_login_in_the_url_counts_where_it_stands_no_lower_than_another(disk: Disk) -> None:
    disk.context("prod", user="u", password="p", url="nats://x:y@h,nats://i")
    connection = disk.connection(context="prod")
    assert connection.servers == (Server("h", login=UserPassword("x", Secret("y"))), Server("i"))
    assert connection.login == UserPassword("u", Secret("p"))


def test_credentials_that_no_server_needs_are_not_read(disk: Disk) -> None:
    disk.context("prod", creds="/nonexistent/x.creds")
    assert disk.connection(context="prod", server="nats://x:y@h").login is None


def test_a_token_is_sent_on_top_and_a_user_without_a_password_is_one(disk: Disk) -> None:
    path, creds = disk.creds()
    both = disk.connection(creds=path, token="t")
    assert (both.login, both.token) == (creds, Secret("t"))
    assert disk.connection(user="tok").token == Secret("tok")
    assert disk.connection(user="tok").login is None
    assert disk.connection({"NATS_USER": "tok"}).token == Secret("tok")
    assert disk.connection({"NATS_PASSWORD": "p"}, user="u").login == UserPassword("u", Secret("p"))
    disk.context("open", user="u")
    assert disk.connection(context="open").login == UserPassword("u", Secret(""))
    assert disk.connection(context="open").token is None


def test_secrets_may_be_references(disk: Disk) -> None:
    disk.context("prod", user="u", password="env://PASSWORD", token="data:;base64,dG9r")
    connection = disk.connection({"PASSWORD": "p"}, context="prod")
    assert connection.login == UserPassword("u", Secret("p"))
    assert connection.token == Secret("tok")
    with pytest.raises(UsageError, match=r"password names the environment variable 'PASSWORD'"):
        disk.connection(context="prod")


def test_paths_in_a_context_expand(disk: Disk) -> None:
    _, creds = disk.creds("user.creds")
    disk.file("ca.pem")
    disk.context("prod", creds="~/user.creds", ca="file://$HERE/ca.pem")
    connection = disk.connection({"HERE": str(disk.root)}, context="prod")
    assert connection.login == creds
    assert connection.tls.ca == disk.root / "ca.pem"


def test_contradictions_on_one_command_line_are_refused(disk: Disk) -> None:
    with pytest.raises(UsageError, match="--creds and --nkey are different ways to log in"):
        disk.connection(creds="a", nkey="b")
    with pytest.raises(UsageError, match="--user and --creds"):
        disk.connection(user="u", password="p", creds="a")
    with pytest.raises(UsageError, match="a password but no user"):
        disk.connection(password="p")
    with pytest.raises(UsageError, match="a user seed but no user JWT"):
        disk.connection(seed=new_seed())


def test_domain_and_api_prefix_exclude_each_other_within_a_layer(disk: Disk) -> None:
    disk.context("both", jetstream_domain="hub", jetstream_api_prefix="$JS.x.API")
    disk.context("prefix", jetstream_api_prefix="$JS.x.API.")
    with pytest.raises(UsageError, match="exclude each other"):
        disk.connection(context="both")
    with pytest.raises(UsageError, match="exclude each other"):
        disk.connection(js_domain="hub", js_api_prefix="p")
    assert disk.connection(context="prefix").api_prefix == "$JS.x.API"
    overridden = disk.connection(context="prefix", js_domain="leaf")
    assert (overridden.js_domain, overridden.js_api_prefix) == ("leaf", None)
    assert overridden.api_prefix == "$JS.leaf.API"
    assert disk.connection().api_prefix == "$JS.API"


def test_tls_is_required_as_soon_as_anything_asks_for_it(disk: Disk) -> None:
    ca, cert, key = (disk.file(name) for name in ("ca.pem", "cert.pem", "key.pem"))
    assert disk.connection().tls == Tls()
    assert disk.connection(server="a,tls://b").tls == Tls(required=True)
    assert disk.connection(tls_first=True).tls == Tls(required=True, first=True)
    assert disk.connection(tls_ca=ca).tls == Tls(required=True, ca=Path(ca))
    environ = {"NATS_CERT": cert, "NATS_KEY": key, "NATS_CA": ca}
    assert disk.connection(environ).tls == Tls(required=True, ca=Path(ca), cert=Path(cert), key=Path(key))
    disk.context("first", tls_first=True)
    assert disk.connection(context="first").tls.first


def test_certificates_have_to_be_readable_files_and_pairs(disk: Disk) -> None:
    cert = disk.file("cert.pem")
    with pytest.raises(UsageError, match="needs its key"):
        disk.connection(tls_cert=cert)
    with pytest.raises(UsageError, match="needs its key"):
        disk.connection(tls_key=cert)
    with pytest.raises(UsageError, match=r"cannot read the TLS certificate authority .*absent\.pem: No such file"):
        disk.connection(tls_ca=str(disk.root / "absent.pem"))
    with pytest.raises(UsageError, match="has to be a file, not a reference of the kind env://"):
        disk.connection(tls_ca="env://CA")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"js_domain": "a.b"}, "not a JetStream domain"),
        ({"js_api_prefix": "a..b"}, "not a usable JetStream API prefix"),
        ({"inbox_prefix": "_INBOX.>"}, "not a usable inbox prefix"),
        ({"inbox_prefix": "_INBOX."}, "not a usable inbox prefix"),
        ({"timeout": "5"}, "not a duration: '5'"),
        ({"timeout": "0"}, "not between 0 and one hour"),
        ({"timeout": "2h"}, "not between 0 and one hour"),
        ({"jwt": "hunter2 x"}, "user JWT does not hold a JWT"),
        ({"jwt": JWT, "seed": "hunter2"}, "user seed does not hold a user's seed"),
    ],
)
def test_bad_values_are_refused(disk: Disk, options: dict[str, str], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        disk.connection(**options)
    assert message in caught.value.message
    assert "hunter2" not in caught.value.message


def test_a_socks_proxy_is_refused_rather_than_passed_by(disk: Disk) -> None:
    with pytest.raises(UsageError, match="SOCKS proxy is not supported"):
        disk.connection({"NATS_SOCKS_PROXY": "socks5://x"})
    disk.context("far", url="nats://a", socks_proxy="socks5://x")
    with pytest.raises(UsageError, match="SOCKS proxy is not supported"):
        disk.connection(context="far")


def test_a_target_is_only_what_was_named(disk: Disk) -> None:
    disk.context("selected", url="nats://selected", user="u", password="p")
    disk.select("selected")
    environ = disk.environ | {"NATS_URL": "nats://environment", "NATS_TOKEN": "t", "NATS_CONTEXT": "selected"}
    target = target_connection(ConnectionOptions(server="nats://target"), environ)
    assert target == Connection(servers=(Server("target"),))
    named = target_connection(ConnectionOptions(context="selected"), environ)
    assert named.servers == (Server("selected"),)
    assert named.token is None
    with pytest.raises(UsageError, match="the target server is not named"):
        target_connection(ConnectionOptions(user="u", password="p"), environ)


def test_no_secret_shows_in_anything_that_prints(disk: Disk) -> None:
    seed = new_seed()
    path = disk.file("x.creds", creds_text("eyJhunter2.b.c", seed))
    for connection in (
        disk.connection(server="nats://u:hunter2@h", token="hunter2"),
        disk.connection(user="u", password="hunter2"),
        disk.connection(creds=path),
        disk.connection(nkey=disk.file("x.nk", seed)),
    ):
        for text in (repr(connection), str(connection), f"{connection}", connection.url):
            assert "hunter2" not in text
            assert seed not in text


def test_the_environment_is_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_URL", "nats://one")
    taken = environment()
    monkeypatch.setenv("NATS_URL", "nats://two")
    assert taken["NATS_URL"] == "nats://one"
    assert os.environ["NATS_URL"] == "nats://two"


@given(
    st.dictionaries(
        st.sampled_from([field for field in ConnectionOptions.__dataclass_fields__ if field != "tls_first"]),
        st.text(max_size=20),
    )
)
def test_any_options_make_a_connection_or_a_usage_error(texts: dict[str, str]) -> None:
    environ = {"XDG_CONFIG_HOME": "/nonexistent", "HOME": "/nonexistent"}
    for build in (source_connection, target_connection):
        try:
            connection = build(ConnectionOptions(**texts), environ)  # type: ignore[arg-type]
        except UsageError:
            continue
        assert connection.servers
