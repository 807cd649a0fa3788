"""Users made with seeds: the server takes them, with the rights that the manual lists and no others."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import nkeys
import pytest

from jsbackup.config import Secret
from jsbackup.config.accounts import with_login
from jsbackup.config.connection import Connection, ConnectionOptions, IssuedUser, UserJwt, source_connection
from jsbackup.engine.accounts.logins import LoginPurpose, SigningKey, least_rights, lifetime_seconds, mint_user
from jsbackup.engine.link.link import Link
from jsbackup.errors import NatsError, NatsPermissionDenied
from tests.engine.identities import Key, Operator
from tests.harness.servers import MINORS, REPOSITORY, NatsServer

ACCOUNT = Key(nkeys.PREFIX_BYTE_ACCOUNT)


def minted(key: Key, account: str, *, scoped: bool = False, now: int = 1_700_000_000, seconds: int = 900) -> UserJwt:
    return mint_user(
        SigningKey("/keys/a.nk", account, Secret(key.seed), scoped),
        least_rights(LoginPurpose.BACKUP, "$JS.API", "_INBOX.own"),
        name="jsbackup-backup",
        now_seconds=now,
        for_seconds=seconds,
        random=os.urandom,
    )


def claims(login: UserJwt) -> dict[str, Any]:
    body = login.jwt.reveal().split(".")[1]
    found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
    return found


def test_a_user_has_an_end_a_name_and_the_least_rights() -> None:
    login = minted(ACCOUNT, ACCOUNT.public)
    found = claims(login)
    assert (found["iss"], found["iat"], found["exp"]) == (ACCOUNT.public, 1_700_000_000, 1_700_000_900)
    assert found["name"] == "jsbackup-backup"
    assert login.seed is not None
    pair = nkeys.from_seed(bytearray(login.seed.reveal().encode()))
    assert found["sub"] == pair.public_key.decode()
    assert found["nats"]["sub"] == {"allow": ["_INBOX.own.>"]}
    assert "$JS.API.STREAM.SNAPSHOT.*" in found["nats"]["pub"]["allow"]
    assert not any("RESTORE" in subject or "STREAM.CREATE" in subject for subject in found["nats"]["pub"]["allow"])
    assert "issuer_account" not in found["nats"]


def test_no_two_users_are_the_same() -> None:
    assert len({minted(ACCOUNT, ACCOUNT.public).jwt for _ in range(5)}) == 5


def test_a_signing_key_names_the_account_and_one_of_a_role_no_rights() -> None:
    signing = Key(nkeys.PREFIX_BYTE_ACCOUNT)
    found = claims(minted(signing, ACCOUNT.public))
    assert (found["iss"], found["nats"]["issuer_account"]) == (signing.public, ACCOUNT.public)
    scoped = claims(minted(signing, ACCOUNT.public, scoped=True))["nats"]
    assert scoped == {
        "pub": {},
        "sub": {},
        "issuer_account": ACCOUNT.public,
        "type": "user",
        "version": 2,
    }


def test_rights_follow_the_domain() -> None:
    allowed = least_rights(LoginPurpose.RESTORE, "$JS.leaf.API", "_I").publish
    assert "$JS.leaf.API.STREAM.RESTORE.*" in allowed and "$JS.SNAPSHOT.RESTORE.*.*" in allowed
    assert not any(subject.startswith("$JS.API") for subject in allowed)


def test_a_life_is_minutes_and_longer_for_much_data() -> None:
    assert lifetime_seconds(0) == 15 * 60
    assert lifetime_seconds(1 << 30) == 15 * 60 + 1024
    assert lifetime_seconds(1 << 60) == 24 * 3600


def test_the_rights_are_those_of_the_manual() -> None:
    """What the manual lists for a backup user, and for a restore user, with the rows for streams in memory, buckets and
    mirrors."""
    page = (REPOSITORY / "jsbackup" / "manual" / "permissions.md").read_text()
    lists = [set(re.findall(r'"(\$[^"]+)"', block)) for block in re.findall(r"publish: \[(.*?)\]", page, re.DOTALL)[:2]]
    more = {
        subject
        for line in page.splitlines()
        if re.match(r"\| (streams kept in memory|buckets in use|\[mirrors|a repository for several)", line)
        for subject in re.findall(r"`(\$[^`]+)`", line)
    }
    assert len(lists) == 2 and len(more) == 5
    assert set(least_rights(LoginPurpose.BACKUP, "$JS.API", "_I").publish) == lists[0] | more
    assert set(least_rights(LoginPurpose.RESTORE, "$JS.API", "_I").publish) == lists[1] | more


@pytest.mark.nats
@pytest.mark.parametrize("version", MINORS)
def test_servers_take_minted_users_until_their_end(version: str) -> None:
    operator = Operator()
    account = operator.account

    async def look(connection: Connection) -> str | None:
        async with await Link.connect(connection, name="test") as link:
            await link.request("$JS.API.INFO")
            for subject in ("$JS.API.STREAM.DELETE.X", "anything"):
                with pytest.raises(NatsPermissionDenied):
                    await link.request(subject)
            with pytest.raises(NatsPermissionDenied):
                async with link.subscribe(">") as everything:
                    await everything.next(10)
            return await link.account()

    with NatsServer(version, config=operator.config) as server:
        base = source_connection(ConnectionOptions(server=server.url), {"HOME": "/nonexistent"})

        def connection(now: int) -> Connection:
            login = IssuedUser(account.public, lambda: minted(account, account.public, now=now))
            return replace(with_login(base, login), inbox_prefix="_INBOX.own")

        import time

        now = int(time.time())
        assert asyncio.run(look(connection(now))) == account.public
        with pytest.raises(NatsError, match=r"authorization violation|authentication expired") as caught:
            asyncio.run(look(connection(now - 3600)))
        assert "signing key" in str(caught.value.hint)


def test_a_login_does_not_show_its_seed(tmp_path: Path) -> None:
    key = SigningKey(str(tmp_path), ACCOUNT.public, Secret(ACCOUNT.seed))
    assert ACCOUNT.seed not in repr(key) + repr(minted(ACCOUNT, ACCOUNT.public))
