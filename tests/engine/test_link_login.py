"""Getting in: every way to log in, TLS in its variants, several servers, and what a refusal says."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
from collections.abc import Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config.connection import Connection, ConnectionOptions, source_connection
from jsbackup.engine.link.link import Link
from jsbackup.errors import JsBackupError, NatsError, NatsPermissionDenied, NatsTimeout, UsageError
from jsbackup.protocol import api
from tests.engine.identities import Authority, Key, Operator, creds_text
from tests.harness.servers import NEWEST, VERSIONS, NatsServer, Port, hub_and_leaf

PLANTED = "hunter2-s3cr3t"


@pytest.fixture(autouse=True)
def nothing_is_printed(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture, recwarn: pytest.WarningsRecorder
) -> Iterator[None]:
    """Neither nats-py nor asyncio may write to the terminal, whatever went wrong."""
    yield
    gc.collect()
    assert capfd.readouterr() == ("", "")
    assert [record.getMessage() for record in caplog.records] == []


def connection(url: str, **options: Any) -> Connection:
    return source_connection(ConnectionOptions(server=url, **options), {"HOME": "/nonexistent"})


def with_login(url: str, userinfo: str) -> str:
    return url.replace("://", f"://{userinfo}@")


async def account_of(made: Connection) -> str | None:
    async with await Link.connect(made, name="test") as link:
        return await link.account()


def refusal(made: Connection) -> NatsError:
    """The error of a connection that must not come about."""
    with pytest.raises(NatsError) as caught:
        asyncio.run(account_of(made))
    return caught.value


def assert_hidden(error: JsBackupError) -> None:
    seen: BaseException | None = error
    while seen is not None:
        assert PLANTED not in f"{seen!r} {seen} {getattr(seen, 'hint', '')}"
        seen = seen.__cause__ or seen.__context__


@pytest.mark.nats
@pytest.mark.parametrize("version", VERSIONS)
def test_the_greeting_tells_who_the_server_is(version: str) -> None:
    async def main(server: NatsServer) -> None:
        async with await Link.connect(connection(server.url), name="test") as link:
            assert ".".join(map(str, link.server_version)) == version == link.server_version_text
            assert (link.server_name, link.cluster_name, link.domain) == ("hello", None, "here")
            assert (link.jetstream, link.max_payload_bytes) == (True, 4096)
            assert await link.account() == "$G"
            assert 0 < await link.rtt() < 5
            assert (link.generation, link.connected) == (1, True)

    with NatsServer(version, name="hello", domain="here", max_payload_bytes=4096) as server:
        asyncio.run(main(server))


@pytest.mark.nats
def test_users_tokens_and_nkeys_get_in_and_wrong_ones_do_not(tmp_path: Path) -> None:
    key = Key()
    (tmp_path / "user.nk").write_text(key.seed)
    (tmp_path / "other.nk").write_text(Key().seed)
    password = "p@:/ ü" + PLANTED
    accounts = f"""accounts {{
      P: {{ users: [{{ user: "a b", password: "{password}" }}] }}
      N: {{ users: [{{ nkey: {key.public} }}] }}
    }}"""
    with NatsServer(NEWEST, config=accounts) as server:
        assert asyncio.run(account_of(connection(server.url, user="a b", password=password))) == "P"
        encoded = f"a%20b:p%40%3A%2F%20%C3%BC{PLANTED}"
        assert asyncio.run(account_of(connection(with_login(server.url, encoded)))) == "P"
        assert asyncio.run(account_of(connection(server.url, nkey=str(tmp_path / "user.nk")))) == "N"

        wrong = refusal(connection(server.url, user="a b", password=PLANTED))
        assert wrong.message == f"cannot connect to {server.url}: authorization violation"
        assert wrong.hint == "The server does not accept user 'a b' with this password."
        in_url = refusal(connection(with_login(server.url, f"ann:{PLANTED}")))
        unknown = refusal(connection(server.url, nkey=str(tmp_path / "other.nk")))
        assert unknown.hint == "The server does not know the nkey."
        nobody = refusal(connection(server.url))
        assert nobody.hint is not None
        assert nobody.hint.startswith("The server wants credentials")
        for error in (wrong, in_url, unknown, nobody):
            assert error.exit_code == 20
            assert_hidden(error)


@pytest.mark.nats
def test_a_token_gets_in_as_option_and_in_the_url() -> None:
    with NatsServer(NEWEST, config=f"authorization {{ token: {json.dumps(PLANTED)} }}") as server:
        assert asyncio.run(account_of(connection(server.url, token=PLANTED))) == "$G"
        assert asyncio.run(account_of(connection(server.url, user=PLANTED))) == "$G"
        assert asyncio.run(account_of(connection(with_login(server.url, PLANTED)))) == "$G"
        error = refusal(connection(server.url, token="other" + PLANTED))
        assert error.hint == "The server does not accept the token."
        assert_hidden(error)


@pytest.mark.nats
@pytest.mark.parametrize("version", [VERSIONS[0], NEWEST])
def test_jwt_users_get_in_by_file_by_context_by_pair_and_by_bearer(version: str, tmp_path: Path) -> None:
    operator = Operator()
    jwt, seed = operator.user()
    creds = tmp_path / "ann.creds"
    creds.write_text(creds_text(jwt, seed))
    bearer, _ = operator.user(bearer=True)
    with NatsServer(version, config=operator.config, jetstream=False) as server:
        for made in (
            connection(server.url, creds=str(creds)),
            connection(server.url, jwt=jwt, seed=seed),
            connection(server.url, jwt=bearer),
            _by_context(tmp_path, url=server.url, creds="~/ann.creds"),
            _by_context(tmp_path, url=server.url, user_jwt=jwt, user_seed="env://SEED", environ={"SEED": seed}),
        ):
            assert asyncio.run(account_of(made)) == operator.account.public

        stranger, stranger_seed = Operator().user()
        error = refusal(connection(server.url, jwt=stranger, seed=stranger_seed))
        assert error.hint is not None
        assert "expired, revoked or for another operator" in error.hint
        assert stranger_seed not in f"{error!r}{error.hint}"
        error = refusal(connection(server.url, jwt=jwt))  # not a bearer JWT: a signature is needed
        assert "authorization violation" in error.message


def _by_context(home: Path, *, environ: dict[str, str] | None = None, **fields: str) -> Connection:
    folder = home / "config" / "nats" / "context"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "prod.json").write_text(json.dumps(fields))
    (folder.parent / "context.txt").write_text("prod")
    variables = {"HOME": str(home), "XDG_CONFIG_HOME": str(home / "config"), **(environ or {})}
    return source_connection(ConnectionOptions(), variables)


@pytest.mark.nats
def test_a_domain_is_reached_through_its_prefix() -> None:
    async def domain_of(made: Connection) -> object:
        async with await Link.connect(made, name="test") as link:
            return (await link.api(api.account_info(api.ApiPrefix(made.api_prefix))))["domain"]

    with hub_and_leaf(NEWEST) as (hub, leaf):
        assert asyncio.run(domain_of(connection(hub.url))) == "hub"
        assert asyncio.run(domain_of(connection(hub.url, js_domain="leaf"))) == "leaf"
        assert asyncio.run(domain_of(connection(leaf.url, js_api_prefix="$JS.hub.API"))) == "hub"


# ------------------------------------------------------------------------------------------------------------ TLS


def tls_config(server: Any, **more: object) -> str:
    lines = "\n".join(
        f"  {key}: {json.dumps(str(value)) if isinstance(value, Path) else value}" for key, value in more.items()
    )
    return (
        f"tls {{\n  cert_file: {json.dumps(str(server.cert))}\n  key_file: {json.dumps(str(server.key))}\n{lines}\n}}"
    )


@pytest.mark.nats
def test_tls_needs_the_right_authority(tmp_path: Path) -> None:
    authority, stranger = Authority(tmp_path), Authority(tmp_path, "stranger")
    with NatsServer(NEWEST, config=tls_config(authority.sign("server"))) as server:
        assert asyncio.run(account_of(connection(server.url, tls_ca=str(authority.cert)))) == "$G"
        tls_url = server.url.replace("nats://", "tls://")
        assert asyncio.run(account_of(connection(tls_url, tls_ca=str(authority.cert)))) == "$G"
        for made in (connection(server.url), connection(tls_url), connection(server.url, tls_ca=str(stranger.cert))):
            error = refusal(made)
            assert "the server's certificate is not accepted" in error.message
            assert error.hint is not None
            assert "--tlsca" in error.hint


@pytest.mark.nats
def test_a_certificate_for_another_address_is_not_accepted(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    with NatsServer(NEWEST, config=tls_config(authority.sign("server", address="127.0.0.9"))) as server:
        assert "certificate is not accepted" in refusal(connection(server.url, tls_ca=str(authority.cert))).message


@pytest.mark.nats
def test_mutual_tls_needs_the_clients_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = authority.sign("client")
    config = tls_config(authority.sign("server"), ca_file=authority.cert, verify="true")
    with NatsServer(NEWEST, config=config) as server:
        files = {"tls_ca": str(authority.cert), "tls_cert": str(client.cert), "tls_key": str(client.key)}
        assert asyncio.run(account_of(connection(server.url, **files))) == "$G"
        error = refusal(connection(server.url, tls_ca=str(authority.cert)))
        assert error.message.startswith(f"cannot connect to {server.url}: ")
        assert error.hint == "The server asks for a client certificate: give --tlscert and --tlskey."


@pytest.mark.nats
def test_the_handshake_can_come_first(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    config = tls_config(authority.sign("server"), handshake_first="true")
    with NatsServer(NEWEST, config=config) as server:
        first = connection(server.url, tls_ca=str(authority.cert), tls_first=True)
        assert asyncio.run(account_of(first)) == "$G"
        error = refusal(connection(server.url, tls_ca=str(authority.cert), timeout="300ms"))
        assert isinstance(error, NatsTimeout)
        assert error.hint is not None
        assert "--tlsfirst" in error.hint
    with NatsServer(NEWEST, jetstream=False) as plain:
        error = refusal(connection(plain.url, tls_first=True))
        assert "TLS failed" in error.message
        assert error.hint is not None
        assert "without --tlsfirst" in error.hint


@pytest.mark.nats
def test_tls_is_used_where_the_server_merely_offers_it(tmp_path: Path) -> None:
    authority = Authority(tmp_path)

    async def encrypted(server: NatsServer, made: Connection) -> bool:
        async with await Link.connect(made, name="test"):
            clients = server.monitor("/connz")["connections"]
            return all("tls_version" in client for client in clients)

    with NatsServer(NEWEST, config=tls_config(authority.sign("server")) + "\nallow_non_tls: true") as server:
        assert asyncio.run(encrypted(server, connection(server.url, tls_ca=str(authority.cert))))
        assert not asyncio.run(encrypted(server, connection(server.url)))


@pytest.mark.nats
@pytest.mark.parametrize("tls", [False, True])
def test_a_websocket_serves_as_a_socket_does(tls: bool, tmp_path: Path) -> None:
    pytest.importorskip("aiohttp")
    authority, port = Authority(tmp_path), Port()
    inner = tls_config(authority.sign("server")) if tls else "no_tls: true"
    config = (
        f"websocket {{ listen: 127.0.0.1:{port.number}\n{inner} }}\n" + 'authorization { user: ann, password: "x" }'
    )
    given: dict[str, Any] = {"user": "ann", "password": "x"}
    plain = f"ws://127.0.0.1:{port.number}"

    async def exchange(made: Connection) -> None:
        async with await Link.connect(made, name="test") as link, link.subscribe("big") as subscription:
            await link.publish("big", bytes(900_000), headers={"A": "b"})
            message = await subscription.next(10)
            assert len(message.data) == 900_000 and b"A: b" in message.headers

    with NatsServer(NEWEST, config=config, jetstream=False):
        if tls:
            url = plain.replace("ws:", "wss:")
            asyncio.run(exchange(connection(url, tls_ca=str(authority.cert), **given)))
            assert "certificate is not accepted" in refusal(connection(url, **given)).message
        else:
            asyncio.run(exchange(connection(plain, **given)))
            assert "offers no TLS" in refusal(connection(plain, tls_ca=str(authority.cert), **given)).message
    assert refusal(connection(plain, **given)).message.startswith(f"cannot connect to {plain}: ")
    port.release()


def test_credentials_are_not_sent_in_plain_text_where_tls_is_wanted() -> None:
    heard = bytearray()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info())
        heard.extend(await reader.read())
        writer.close()

    async def main() -> None:
        async with scripted(greet) as port:
            made = connection(f"tls://127.0.0.1:{port}", user="ann", password=PLANTED)
            with pytest.raises(NatsError, match="the server offers no TLS"):
                await Link.connect(made, name="test")

    asyncio.run(main())
    assert heard == b""


@pytest.mark.parametrize("broken", ["ca", "cert", "pair", "locked"])
def test_certificate_files_that_cannot_be_used_are_a_usage_error(tmp_path: Path, broken: str) -> None:
    authority = Authority(tmp_path)
    one, two, locked = authority.sign("one"), authority.sign("two"), authority.sign("locked", password=b"x")
    junk = tmp_path / "junk.pem"
    junk.write_text("junk")
    files = {
        "ca": {"tls_ca": junk},
        "cert": {"tls_cert": junk, "tls_key": one.key},
        "pair": {"tls_cert": one.cert, "tls_key": two.key},
        "locked": {"tls_cert": locked.cert, "tls_key": locked.key},
    }[broken]
    made = connection("nats://127.0.0.1:1", **{name: str(path) for name, path in files.items()})
    with pytest.raises(UsageError, match=r"TLS certificate"):
        asyncio.run(account_of(made))


# ------------------------------------------------------------------------------------------------- out of reach


def test_a_refused_connection_names_the_server_and_not_its_password() -> None:
    port = Port()
    try:
        error = refusal(connection(f"nats://ann:{PLANTED}@127.0.0.1:{port.number}"))
    finally:
        port.release()
    assert error.message == f"cannot connect to nats://127.0.0.1:{port.number}: connection refused"
    assert error.hint == "Check that a nats-server runs there and that address and port are right."
    assert_hidden(error)


def test_a_host_with_several_addresses_is_refused_in_one_phrase() -> None:
    port = Port()
    try:
        error = refusal(connection(f"nats://localhost:{port.number}"))
    finally:
        port.release()
    assert error.message == f"cannot connect to nats://localhost:{port.number}: connection refused"


def test_an_unknown_host_is_said_to_be_unknown() -> None:
    error = refusal(connection("nats://no-such-host.invalid"))
    assert error.message.startswith("cannot connect to nats://no-such-host.invalid:4222: the host name is not known")


def test_a_server_that_says_nothing_is_given_up_in_time() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        error = refusal(connection(f"nats://127.0.0.1:{silent.getsockname()[1]}", timeout="200ms"))
    assert isinstance(error, NatsTimeout)
    assert error.message.endswith("no answer within 0.2 s")


@pytest.mark.nats
def test_the_first_server_that_accepts_is_taken_and_all_reasons_are_told() -> None:
    port = Port()
    gone = f"nats://127.0.0.1:{port.number}"
    try:
        with NatsServer(NEWEST, jetstream=False) as server:

            async def main() -> None:
                async with await Link.connect(connection(f"{gone},{server.url}"), name="test") as link:
                    assert str(link.server) == server.url

            asyncio.run(main())
        error = refusal(connection(f"{gone},{server.url}"))
    finally:
        port.release()
    assert (
        error.message
        == f"cannot connect to {gone}: connection refused; cannot connect to {server.url}: connection refused"
    )


@pytest.mark.nats
def test_a_user_without_an_inbox_is_told_so_when_it_connects() -> None:
    config = """authorization { users: [{
      user: ann, password: p, permissions: { publish: ">", subscribe: "_MINE.ann.>" }
    }] }"""
    with NatsServer(NEWEST, config=config) as server:
        error = refusal(connection(server.url, user="ann", password="p"))
        assert isinstance(error, NatsPermissionDenied)
        assert "does not allow subscribing to _INBOX." in error.message
        assert error.hint is not None
        assert "--inbox-prefix" in error.hint
        made = connection(server.url, user="ann", password="p", inbox_prefix="_MINE.ann")
        assert asyncio.run(account_of(made)) == "$G"


# ------------------------------------------------------------------------------------------------ strange servers


def info(**fields: object) -> bytes:
    """The INFO line of a server that asks for nothing."""
    facts = {"server_id": "X", "version": "2.15.1", "max_payload": 1024, "headers": True, "proto": 1, **fields}
    return b"INFO " + json.dumps(facts).encode() + b"\r\n"


@asynccontextmanager
async def scripted(answer: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]) -> Any:
    """A server that does what `answer` does, on the port that is yielded."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


@pytest.mark.parametrize(
    "greeting",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.9\r\n",
        b"INFO {}\r\n",
        b"INFO [1]\r\n",
        b"INFO nonsense\r\n",
        b'INFO {"max_payload": "many"}\r\n',
        b'INFO {"max_payload": -1}\r\n',
        b"INFO " + b"[" * 20_000 + b"\r\n",
        b"INFO " + b"x" * 200_000,
        b"\xff\xfe\r\n",
        info(connect_urls=[5]),
        info(connect_urls=5),
        info(nonce=5),
        b"",
    ],
)
def test_what_does_not_greet_like_nats_is_refused(greeting: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(greeting)
        writer.close()

    async def main() -> None:
        async with scripted(answer) as port:
            with pytest.raises(NatsError, match=f"cannot connect to nats://127.0.0.1:{port}"):
                await Link.connect(connection(f"nats://127.0.0.1:{port}", timeout="2s"), name="test")

    asyncio.run(main())


@pytest.mark.parametrize(
    "answer_to_connect", [b"", b"-ERR 'maximum connections exceeded'\r\n", b"-ERR\r\n", b"+OK\r\n"]
)
def test_a_server_that_hangs_up_after_connect_is_an_error(answer_to_connect: bytes) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info())
        await reader.readline()
        writer.write(answer_to_connect)
        writer.close()

    async def main() -> None:
        async with scripted(answer) as port:
            with pytest.raises(NatsError, match=f"127.0.0.1:{port}"):
                await Link.connect(connection(f"nats://127.0.0.1:{port}", timeout="2s"), name="test")

    asyncio.run(main())


def test_a_token_is_sent_beside_user_and_password() -> None:
    said: list[dict[str, object]] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(info(auth_required=True))
        said.append(json.loads((await reader.readline()).removeprefix(b"CONNECT ")))
        writer.close()

    async def main() -> None:
        async with scripted(answer) as port:
            made = connection(f"nats://127.0.0.1:{port}", user="ann", password="p", token="t")
            with pytest.raises(NatsError):
                await Link.connect(made, name="the name")

    asyncio.run(main())
    assert (said[0]["user"], said[0]["pass"], said[0]["auth_token"]) == ("ann", "p", "t")
    assert said[0]["name"] == "the name"
