"""Accounts are found on real servers of every version: names, keys, pages, and users who may not ask."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import nats
import pytest

from jsbackup.config.connection import Connection, ConnectionOptions, source_connection
from jsbackup.engine.accounts.system_view import AccountSurvey, FoundAccount, system_view
from jsbackup.errors import NatsError, NatsPermissionDenied
from jsbackup.protocol.info import StreamInfo
from tests.engine.identities import Operator, creds_text
from tests.harness.servers import MINORS, NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

ENVIRON = {"HOME": "/nonexistent"}


def connection(server: NatsServer, **login: str) -> Connection:
    return source_connection(ConnectionOptions(server=server.url, **login), ENVIRON)


async def survey(made: Connection) -> AccountSurvey:
    async with system_view(made) as view:
        return await view.survey()


async def streams(made: Connection, account: FoundAccount) -> dict[str, StreamInfo]:
    async with system_view(made) as view:
        await view.survey()
        return await view.streams(account)


async def fill(url: str, creds: Path, *names: str) -> None:
    client = await nats.connect(url, user_credentials=str(creds))
    for name in names:
        await client.jetstream().add_stream(name=name, subjects=[f"{name}.>"])
        await client.jetstream().publish(f"{name}.x", b"hello")
    await client.close()


@pytest.mark.parametrize("version", MINORS)
def test_accounts_of_an_operator_have_key_and_name(version: str, tmp_path: Path) -> None:
    operator = Operator(accounts=("My Shöp", "twin", "never used"), twins=("twin",))
    system = tmp_path / "sys.creds"
    system.write_text(creds_text(*operator.system_user()))
    with NatsServer(version, config=operator.config) as server:
        for index, key in enumerate(operator.keys[:3]):
            creds = tmp_path / f"{index}.creds"
            creds.write_text(creds_text(*operator.user(key=key)))
            asyncio.run(fill(server.url, creds, f"S{index}", "T"))
        made = connection(server, creds=str(system))
        found = asyncio.run(survey(made))
        shop, *twins = found.accounts
        assert (shop.name, shop.account) == ("My Shöp", operator.keys[0].public)
        assert [one.name for one in twins] == ["twin", "twin"]
        assert {one.account for one in twins} == {key.public for key in operator.keys[1:3]}
        assert shop.bytes > 0 and (found.servers, found.answered, found.problems) == (1, 1, ())
        assert asyncio.run(streams(made, shop)).keys() == {"S0", "T"}
        # Servers that were started again know them too, before anybody has logged in.
        server.restart()
        assert [one.account for one in asyncio.run(survey(made)).accounts] == [one.account for one in found.accounts]


def _config(accounts: list[str], users: str = "") -> str:
    listed = "\n".join(f'  "{name}" {{ jetstream: enabled }}' for name in accounts)
    return (
        f"accounts {{\n{listed}\n  SYS {{ users: [\n{{ user: sys, password: p }}\n{users}\n] }}\n"
        "  APP { users: [ { user: app, password: p } ] }\n}\nsystem_account: SYS\n"
    )


def test_more_accounts_than_a_page(tmp_path: Path) -> None:
    names = [f"A{number:05}" for number in range(2100)]
    with NatsServer(NEWEST, config=_config(names)) as server:
        found = asyncio.run(survey(connection(server, user="sys", password="p")))
    assert [one.account for one in found.accounts] == names
    assert not any(one.name for one in found.accounts)


@pytest.mark.parametrize("version", MINORS)
def test_a_user_of_another_account_is_told_so(version: str) -> None:
    with NatsServer(version, config=_config(["A"])) as server:
        with pytest.raises(
            NatsError, match="is not one of the system account, which alone knows all accounts"
        ) as caught:
            asyncio.run(survey(connection(server, user="app", password="p")))
        assert "SYS" in str(caught.value.hint)


@pytest.mark.parametrize("version", MINORS)
def test_a_subject_that_is_not_granted_is_named(version: str) -> None:
    limited = 'permissions: { publish: ["$SYS.REQ.SERVER.PING.STATSZ"], subscribe: ["_INBOX.>"] }'
    denied = r"does not allow publishing to \$SYS\.REQ\.SERVER\.PING\.JSZ"
    users = f"{{ user: few, password: p, {limited} }}"
    with NatsServer(version, config=_config(["A"], users)) as server, pytest.raises(NatsPermissionDenied, match=denied):
        asyncio.run(survey(connection(server, user="few", password="p")))


def test_the_least_that_a_system_user_needs() -> None:
    subjects = ["$SYS.REQ.SERVER.PING.STATSZ", "$SYS.REQ.SERVER.PING.JSZ"]
    limited = f'permissions: {{ publish: {json.dumps(subjects)}, subscribe: ["_INBOX_own.>"] }}'
    with NatsServer(NEWEST, config=_config(["A", "B C"], f"{{ user: few, password: p, {limited} }}")) as server:
        made = replace(connection(server, user="few", password="p"), inbox_prefix="_INBOX_own")
        assert [one.account for one in asyncio.run(survey(made)).accounts] == ["A", "B C"]


def test_a_server_without_jetstream_has_none() -> None:
    with NatsServer(NEWEST, config=_config([]), jetstream=False) as server:
        found = asyncio.run(survey(connection(server, user="sys", password="p")))
    assert (found.accounts, found.answered, found.domains) == ((), 1, frozenset())
