"""All accounts of a system in one command: an operator's by the real nsc, and those of a server's configuration."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from tests.cli.test_json import CLOSED
from tests.harness.api import connected, publish_stored
from tests.harness.awkward import fill
from tests.harness.clusters import NatsCluster
from tests.harness.commands import Ran, jsbackup
from tests.harness.nsc import Nsc, nsc_program
from tests.harness.oracle import ObservedStream, compare, observe
from tests.harness.servers import NEWEST, NatsServer, Port, wait_until
from tests.integration.test_accounts import BACKUP, MORE, PROVE, RESTORE

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

Held = dict[str, dict[str, ObservedStream]]
"""What accounts hold, by their names."""

STREAMS = ("GAPS", "PULL", "WORKQUEUE", "INTEREST", "KV")
# What the manual grants a user of the system account, and users of accounts besides.
SYSTEM = ("$SYS.REQ.SERVER.PING.STATSZ", "$SYS.REQ.SERVER.PING.JSZ")
KEYS = ("$SYS.REQ.ACCOUNT.*.INFO",)
RESOLVED = ("$SYS.REQ.CLAIMS.LIST", "$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP")
BUCKETS = ("$JS.API.CONSUMER.CREATE.>", "$JS.API.CONSUMER.DELETE.*.*", "$JS.FC.>", "$JS.API.STREAM.MSG.GET.*")
WHO = ("$SYS.REQ.USER.INFO",)
PATIENCE = ("--timeout", "60s")


def granted(*subjects: Collection[str]) -> tuple[str, ...]:
    """Options of nsc that make a user of these permissions."""
    publish = ",".join(dict.fromkeys(one for some in subjects for one in some))
    return ("--allow-pub", publish, "--allow-sub", "_INBOX.>")


def held(server: NatsServer, nsc: Nsc, names: Collection[str]) -> Held:
    """Reads everything that the accounts hold, as their administrators."""

    async def look() -> Held:
        found: Held = {}
        for name in names:
            async with connected(server.url, nsc.creds_folder / name / "admin.creds") as nc:
                found[name] = await observe(nc)
        return found

    return asyncio.run(look())


def filled(server: NatsServer, nsc: Nsc, names: Collection[str]) -> Held:
    """Makes two awkward streams in each account, not the same in all, and reads them back."""

    async def make() -> None:
        for number, name in enumerate(names):
            only = [STREAMS[number % len(STREAMS)], STREAMS[(number + 1) % len(STREAMS)]]
            async with connected(server.url, nsc.creds_folder / name / "admin.creds") as nc:
                await fill(nc, server.version, only=only)

    asyncio.run(make())
    return held(server, nsc, names)


def differences(before: Held, after: Held) -> list[str]:
    assert before.keys() == after.keys()
    return [f"{name}: {difference}" for name in before for difference in compare(before[name], after[name])]


def checked(name: str, ran: Ran) -> dict[str, Any]:
    """The document, as the schema describes it."""
    jsonschema.Draft202012Validator({**CLOSED, "$ref": f"#/$defs/{name}"}).validate(ran.document)
    return ran.document


def by_name(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["account_name"] or one["account"]: one for one in document["accounts"]}


def named(folder: Path, **settings: str | Path) -> tuple[str, Path]:
    """The option for a new file that says where logins are."""
    lines = [f"{key.replace('_', '-')} = {json.dumps(str(value))}\n" for key, value in settings.items()]
    path = folder / f"accounts-{len(list(folder.glob('accounts-*')))}.toml"
    path.write_text("".join(lines))
    return "--accounts", path


def run(command: str, server: NatsServer, creds: Path, repository: Path, *options: str | Path, **environ: str) -> Ran:
    """A command for all accounts, as a user of the system account."""
    return jsbackup(
        command, "--all-accounts", "-s", server.url, "--creds", creds, "-r", repository, *PATIENCE, *options, **environ
    )


NAMES = ["My Shöp", "注文", *(f"account {number:02}" for number in range(10))]


@pytest.mark.by_turns
def test_a_dozen_accounts_come_back_under_other_keys(tmp_path: Path) -> None:
    """By one command each, with the least rights: users that the manual describes for the backup, users made with
    signing keys for the restore. Compared message by message."""
    nsc, other = Nsc(tmp_path / "nsc"), Nsc(tmp_path / "other", "NEW")
    for name in NAMES:
        nsc.add_account(name)
        nsc.add_user(name, "admin")
        nsc.add_user(name, "backup", *granted(BACKUP, BUCKETS, WHO))
        other.add_account(name)
        other.add_user(name, "admin")
        other.add_signing_key(name)
    reader = nsc.add_user("SYS", "reader", *granted(SYSTEM))
    writer = other.add_user("SYS", "writer", *granted(SYSTEM, KEYS, RESOLVED))
    repository = tmp_path / "repo"
    with NatsServer(NEWEST, config=nsc.full_resolver(tmp_path / "jwt"), name="old") as server:
        nsc.push(server.url)
        before = filled(server, nsc, NAMES)
        options = named(tmp_path, creds=nsc.creds_folder, user="backup")
        document = checked("backup_accounts", run("backup", server, reader, repository, *options).ok())
        assert (document["result"], document["problems"], document["servers"]) == (
            "complete",
            [],
            {"known": 1, "answered": 1},
        )
        accounts = by_name(document)
        assert accounts.keys() == set(NAMES)
        for name, one in accounts.items():
            assert one["account"] == nsc.key_of(name)
            assert one["login"] == f"credentials file {nsc.creds_folder}/{name}/backup.creds"
            assert {stream["name"] for stream in one["result"]["streams"]} == before[name].keys()
        again = run("backup", server, reader, repository, *options).ok().document
        assert not any(s["stored_bytes_added"] for one in again["accounts"] for s in one["result"]["streams"])
        status = run("status", server, reader, repository, "--live").ok()
        live = checked("status", status)["live_accounts"]
        assert {one["account_name"]: one["not_backed_up"] for one in live} == {name: [] for name in NAMES}
    jsbackup("verify", "-r", repository, "--level", "data").ok()

    listed = jsbackup("list", "-r", repository).ok().document["backups"]
    assert len(listed) == 2 * len(NAMES)
    assert {one["source"]["account"]: one["source"]["account_name"] for one in listed} == {
        nsc.key_of(name): name for name in NAMES
    }
    only = jsbackup("list", "-r", repository, "--origin", "My Shöp").ok().document["backups"]
    assert {one["source"]["account"] for one in only} == {nsc.key_of("My Shöp")}

    with NatsServer(NEWEST, config=other.full_resolver(tmp_path / "jwt2"), name="new") as server:
        other.push(server.url)
        options = named(tmp_path, signing_keys=other.keys_folder)
        planned = run("plan", server, writer, repository, *options).ok()
        assert {one["code"] for one in checked("plan_accounts", planned)["accounts"]} == {0}
        restored = checked("restore_accounts", run("restore", server, writer, repository, *options).ok())
        assert restored["result"] == "restored"
        for name, one in by_name(restored).items():
            assert one["into"] == {"account": other.key_of(name), "account_name": name, "domain": None}
            assert one["login"].startswith("a user made with the signing key in ")
            assert all(stream["verified"] for stream in one["result"]["streams"])
        assert differences(before, held(server, other, NAMES)) == []


@dataclass(frozen=True)
class System:
    """A small system: three accounts with streams, one without, one without JetStream."""

    nsc: Nsc
    server: NatsServer
    reader: Path
    before: Held


SMALL = ["shop", "pay", "twin"]


@pytest.fixture(scope="module", params=["2.10.26", NEWEST])
def system(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[System]:
    folder = tmp_path_factory.mktemp("system")
    nsc = Nsc(folder / "nsc")
    for name in SMALL:
        nsc.add_account(name)
    nsc.add_account("empty")
    nsc.add_account("off", jetstream=False)
    for name in (*SMALL, "empty", "off"):
        nsc.add_user(name, "admin")
    reader = nsc.add_user("SYS", "reader", *granted(SYSTEM, KEYS))
    with NatsServer(request.param, config=nsc.full_resolver(folder / "jwt"), name="small") as server:
        nsc.push(server.url)
        yield System(nsc, server, reader, filled(server, nsc, SMALL))


@pytest.mark.by_turns
def test_every_way_to_the_credentials_comes_to_the_same(system: System, tmp_path: Path) -> None:
    nsc = system.nsc
    nsc.add_signing_key("pay")
    nsc.push(system.server.url)
    flat = tmp_path / "flat"
    flat.mkdir()
    for name, key in nsc.accounts().items():
        shutil.copy(
            nsc.creds_folder / name / ("admin.creds" if name != "SYS" else "reader.creds"), flat / f"{key}.creds"
        )
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "nsc").symlink_to(nsc_program())
    (tools / "op").write_text(f'#!/bin/sh\ncat "{nsc.creds_folder}/$(basename "$(dirname "$2")")/admin.creds"\n')
    (tools / "op").chmod(0o755)
    ways: dict[str, tuple[str | Path, ...]] = {
        "folder": named(tmp_path, creds=nsc.creds_folder),
        "names are no matter": named(tmp_path, creds=flat),
        "by name": named(tmp_path, creds=f"{nsc.creds_folder}/{{account}}/admin.creds"),
        "by key": named(tmp_path, creds=f"{flat}/{{account}}.creds"),
        "nsc's folder": named(tmp_path, creds="nsc"),
        "nsc's folder of an operator": named(tmp_path, creds="nsc://OP"),
        "nsc itself": named(tmp_path, creds="nsc://OP/{account}/admin"),
        "op": named(tmp_path, creds="op://vault/{account}/creds"),
        "seeds": named(tmp_path, signing_keys=nsc.keys_folder),
        "nsc's seeds": named(tmp_path, signing_keys="nsc"),
    }
    environ = {**nsc.environment, "PATH": f"{tools}:/usr/bin:/bin"}
    for number, (way, options) in enumerate(ways.items()):
        ran = run("backup", system.server, system.reader, tmp_path / f"repo{number}", *options, **environ)
        document = checked("backup_accounts", ran)
        assert ran.code == 0, (way, ran.out, ran.err)
        done = {name: one["result"]["streams"] for name, one in by_name(document).items()}
        assert done.keys() == set(SMALL), way
        assert {name: {s["name"] for s in streams} for name, streams in done.items()} == {
            name: streams.keys() for name, streams in system.before.items()
        }
        # Not even in the repository: users that are made leave nothing behind.
        stored = b"".join(path.read_bytes() for path in (tmp_path / f"repo{number}").rglob("*") if path.is_file())
        assert b"NATS USER JWT" not in stored and b"jsbackup-backup" not in stored


def test_an_account_without_credentials_is_named_and_fails_what_watches(system: System, tmp_path: Path) -> None:
    nsc, folder = system.nsc, tmp_path / "creds"
    for name in ("shop", "twin"):
        shutil.copytree(nsc.creds_folder / name, folder / name)
    ran = run("backup", system.server, system.reader, tmp_path / "repo", *named(tmp_path, creds=folder))
    document = checked("backup_accounts", ran)
    assert (ran.code, document["result"]) == (3, "partial")
    pay = by_name(document)["pay"]
    assert (pay["code"], pay["login"], pay["result"]) == (2, None, None)
    assert pay["error"]["message"] == f"there are no credentials for account pay ({nsc.key_of('pay')})"
    assert pay["unsaved_streams"] == sorted(system.before["pay"])
    status = run("status", system.server, system.reader, tmp_path / "repo", "--live")
    breaches = checked("status", status)["breaches"]
    assert status.code == 17
    assert [(one["rule"], one["about"]) for one in breaches] == [
        ("account-not-backed-up", f"small/{nsc.key_of('pay')}")
    ]
    assert f"account {nsc.key_of('pay')} (pay) has 2 streams, and no backup" in breaches[0]["reason"]
    others = ("--account", "shop", "--account", "twin")
    for command, options in {"backup": named(tmp_path, creds=folder), "status": ("--live",)}.items():
        run(command, system.server, system.reader, tmp_path / "repo", *options, *others).ok()
    # One whose credentials are gone is no less named.
    shutil.rmtree(folder / "twin")
    ran = run("backup", system.server, system.reader, tmp_path / "repo", *named(tmp_path, creds=folder))
    assert ran.code == 3 and by_name(ran.document)["twin"]["unsaved_streams"] == sorted(system.before["twin"])


def test_credentials_that_expired_are_said_to_be(system: System, tmp_path: Path) -> None:
    nsc, folder = system.nsc, tmp_path / "creds"
    shutil.copytree(nsc.creds_folder, folder)
    shutil.rmtree(folder / "pay")
    short = nsc.add_user("pay", "short", "--expiry", "2020-01-01")
    (folder / "old.creds").write_text(short.read_text())
    nsc.run("delete", "user", "--account", "pay", "--name", "short", "--rm-creds", "--rm-nkey")
    ran = run("backup", system.server, system.reader, tmp_path / "repo", *named(tmp_path, creds=folder))
    assert ran.code == 3
    message = by_name(ran.document)["pay"]["error"]["message"]
    assert f"the credentials in {folder}/old.creds expired at 2020-01-01" in message


def test_an_account_that_only_earlier_backups_know_is_not_forgotten(system: System, tmp_path: Path) -> None:
    """Its JetStream is taken from it: no server lists it, and nobody says so unless somebody asks."""
    nsc, repository = system.nsc, tmp_path / "repo"
    nsc.add_account("later")
    admin = nsc.add_user("later", "admin")
    nsc.push(system.server.url)

    async def fill_later() -> None:
        async with connected(system.server.url, admin) as nc:
            await fill(nc, system.server.version, only=["GAPS"])

    asyncio.run(fill_later())
    options = named(tmp_path, creds=nsc.creds_folder)
    run("backup", system.server, system.reader, repository, *options).ok()
    nsc.run("edit", "account", "--name", "later", "--js-disable")
    nsc.push(system.server.url)
    wait_until(
        lambda: "later" not in json.dumps(system.server.monitor("/jsz?accounts=1").get("account_details")),
        "JetStream of account later to end",
        system.server,
    )
    ran = run("backup", system.server, system.reader, repository, *options)
    later = by_name(checked("backup_accounts", ran))["later"]
    assert (ran.code, later["listed"], later["code"]) == (3, False, 20)
    assert "JetStream not enabled for account" in later["error"]["message"]
    others = (word for name in system.before for word in ("--account", name))
    run("backup", system.server, system.reader, repository, *options, *others).ok()
    shutil.rmtree(nsc.creds_folder / "later")
    ran = run("backup", system.server, system.reader, repository, *options)
    assert "earlier backups have it, and no server lists it" in by_name(ran.document)["later"]["error"]["message"]


@pytest.mark.by_turns
def test_names_that_two_accounts_have(system: System, tmp_path: Path) -> None:
    """nsc has one account of a name; servers keep what was pushed before it was made again."""
    nsc, first = system.nsc, system.nsc.key_of("twin")
    kept = tmp_path / "first.creds"
    shutil.copy(nsc.creds_folder / "twin" / "admin.creds", kept)
    nsc.run("delete", "account", "--name", "twin", "--rm-creds")
    second = nsc.add_account("twin")
    nsc.add_user("twin", "admin")
    nsc.push(system.server.url)
    held_by_second = filled(system.server, nsc, ["twin"])["twin"]
    folder = tmp_path / "creds"
    shutil.copytree(nsc.creds_folder, folder)
    shutil.copy(kept, folder / "kept.creds")
    repository = tmp_path / "repo"
    document = run("backup", system.server, system.reader, repository, *named(tmp_path, creds=folder)).ok().document
    twins = {one["account"]: one for one in document["accounts"] if one["account_name"] == "twin"}
    assert {key: {s["name"] for s in one["result"]["streams"]} for key, one in twins.items()} == {
        first: system.before["twin"].keys(),
        second: held_by_second.keys(),
    }
    # By name alone nothing is found for either, and by key it is.
    ran = run(
        "backup", system.server, system.reader, repository, *named(tmp_path, creds=f"{folder}/{{account}}/admin.creds")
    )
    assert ran.code == 3
    assert {one["account"] for one in ran.document["accounts"] if one["code"]} == {first, second}
    # A system with one of that name does not get both.
    target = Nsc(tmp_path / "target", "NEW")
    for name in ("shop", "pay", "twin"):
        target.add_account(name)
        target.add_user(name, "admin")
    target.add_account("second")
    target.add_user("second", "admin")
    writer = target.add_user("SYS", "writer")
    with NatsServer(system.server.version, config=target.full_resolver(tmp_path / "jwt")) as server:
        target.push(server.url)
        options = named(tmp_path, creds=target.creds_folder)
        ran = run("restore", server, writer, repository, *options)
        document = checked("restore_accounts", ran)
        assert (ran.code, document["result"]) == (2, "refused")
        refused = [one for one in document["accounts"] if one["code"]]
        assert {one["account"] for one in refused} == {first, second}
        assert all("several accounts of the backups are named twin" in one["error"]["message"] for one in refused)
        assert held(server, target, ["shop", "pay", "twin"]) == {"shop": {}, "pay": {}, "twin": {}}
        mapped = ("--map-account", f"{first}=twin", "--map-account", f"{second}=second")
        run("restore", server, writer, repository, *options, *mapped).ok()
        after = held(server, target, ["shop", "pay", "twin", "second"])
    assert differences({**system.before, "second": held_by_second}, after) == []


def test_nothing_is_changed_unless_all_can_be_restored(system: System, tmp_path: Path) -> None:
    nsc, repository = system.nsc, tmp_path / "repo"
    only = [option for name in ("shop", "pay") for option in ("--account", name)]
    run("backup", system.server, system.reader, repository, *named(tmp_path, creds=nsc.creds_folder), *only).ok()
    target = Nsc(tmp_path / "target", "NEW")
    for name in ("shop", "Pay GmbH"):
        target.add_account(name)
        target.add_user(name, "admin")
        target.add_user(name, "restore", *granted(RESTORE, PROVE, MORE, BUCKETS, WHO))
    writer = target.add_user("SYS", "writer", *granted(SYSTEM, KEYS, RESOLVED))
    with NatsServer(system.server.version, config=target.full_resolver(tmp_path / "jwt")) as server:
        target.push(server.url)
        names = ("shop", "Pay GmbH")
        options = named(tmp_path, creds=target.creds_folder, user="restore")
        ran = run("restore", server, writer, repository, *options)
        document = checked("restore_accounts", ran)
        assert (ran.code, document["result"]) == (2, "refused")
        pay = by_name(document)["pay"]
        assert "the target has no account with this key or name" in pay["error"]["message"]
        assert by_name(document)["shop"] | {"login": None} == by_name(document)["shop"] | {"error": None, "login": None}
        assert held(server, target, names) == {name: {} for name in names}

        mapped = ("--map-account", "pay=Pay GmbH")
        name = next(iter(system.before["pay"]))

        async def occupy() -> None:
            async with connected(server.url, target.creds_folder / "Pay GmbH" / "admin.creds") as nc:
                await nc.jetstream().add_stream(name=name, subjects=["taken"])

        asyncio.run(occupy())
        ran = run("restore", server, writer, repository, *options, *mapped)
        assert (ran.code, ran.document["result"]) == (16, "refused")
        assert f"{name}: exists at the target" in by_name(ran.document)["pay"]["error"]["message"]
        assert held(server, target, ["shop"]) == {"shop": {}}
        planned = run("plan", server, writer, repository, *options, *mapped)
        assert planned.code == 16
        assert {one["code"] for one in checked("plan_accounts", planned)["accounts"]} == {0, 16}

        ran = run("restore", server, writer, repository, *options, *mapped, "--if-exists", "replace").ok()
        assert by_name(checked("restore_accounts", ran))["pay"]["into"]["account_name"] == "Pay GmbH"
        after = held(server, target, names)
    assert (
        differences(
            {"shop": system.before["shop"], "pay": system.before["pay"]},
            {"shop": after["shop"], "pay": after["Pay GmbH"]},
        )
        == []
    )


def test_two_accounts_into_one_only_if_they_do_not_meet(system: System, tmp_path: Path) -> None:
    nsc, repository = system.nsc, tmp_path / "repo"
    only = ("--account", "shop", "--account", "pay")
    run("backup", system.server, system.reader, repository, *named(tmp_path, creds=nsc.creds_folder), *only).ok()
    target = Nsc(tmp_path / "target", "NEW")
    target.add_account("all")
    target.add_user("all", "admin")
    writer = target.add_user("SYS", "writer")
    with NatsServer(system.server.version, config=target.memory_resolver()) as server:
        options = (*named(tmp_path, creds=target.creds_folder), "--map-account", "shop=all", "--map-account", "pay=all")
        twice = run("restore", server, writer, repository, *options, "--map-account", "shop=SYS")
        assert twice.code == 2 and "--map-account names shop twice" in twice.document["error"]["message"]
        left_out = run("restore", server, writer, repository, *options, "--account", "pay")
        assert left_out.code == 2 and "shop is left out by --account" in left_out.document["error"]["message"]
        both = system.before["shop"].keys() & system.before["pay"].keys()
        ran = run("restore", server, writer, repository, *options)
        assert ran.code == 16 and len(both) == 1
        message = next(one["error"]["message"] for one in ran.document["accounts"] if one["error"])
        assert (
            f"would become stream {next(iter(both))}, which account pay ({nsc.key_of('pay')}) restores too" in message
        )
        assert held(server, target, ["all"]) == {"all": {}}
        run("restore", server, writer, repository, *options, "--exclude", next(iter(both))).ok()
        after = held(server, target, ["all"])["all"]
    assert after.keys() == (system.before["shop"].keys() | system.before["pay"].keys()) - both


def test_an_account_that_was_renamed_is_the_same(system: System, tmp_path: Path) -> None:
    nsc, repository = system.nsc, tmp_path / "repo"
    options = (*named(tmp_path, creds=nsc.creds_folder), "--account", nsc.key_of("shop"))
    run("backup", system.server, system.reader, repository, *options).ok()
    nsc.run("rename", "account", "shop", "store", "--OK")
    nsc.push(system.server.url)
    try:
        document = run("backup", system.server, system.reader, repository, *options).ok().document
        [one] = document["accounts"]
        assert one["account_name"] == "store"
        assert not any(stream["stored_bytes_added"] for stream in one["result"]["streams"])
        lines = jsbackup("status", "-r", repository).ok().document["lines"]
        assert [(line["account"], line["account_name"], line["backups"]) for line in lines] == [
            (nsc.key_of("store"), "store", 2)
        ]
    finally:
        nsc.run("rename", "account", "store", "shop", "--OK")
        nsc.push(system.server.url)


def test_a_role_of_a_signing_key_is_enough(system: System, tmp_path: Path) -> None:
    """Users of a scoped signing key have the rights of its role alone."""
    nsc = system.nsc
    before = set(nsc.keys_folder.rglob("*.nk"))
    nsc.add_signing_key("pay", "--role", "backup", *granted(BACKUP, BUCKETS, WHO))
    [made] = set(nsc.keys_folder.rglob("*.nk")) - before
    nsc.push(system.server.url)
    folder = tmp_path / "keys"
    folder.mkdir()
    shutil.copy(made, folder)
    options = (*named(tmp_path, signing_keys=folder), "--account", "pay")
    document = run("backup", system.server, system.reader, tmp_path / "repo", *options).ok().document
    assert by_name(document)["pay"]["login"].startswith("a user made with the scoped signing key in ")


def test_named_streams_need_not_be_in_every_account(system: System, tmp_path: Path) -> None:
    options = (*named(tmp_path, creds=system.nsc.creds_folder), "--account", "shop", "--account", "pay")
    name = next(iter(system.before["shop"].keys() - system.before["pay"].keys()))
    document = run("backup", system.server, system.reader, tmp_path / "repo", name, *options).ok().document
    accounts = by_name(document)
    assert [stream["name"] for stream in accounts["shop"]["result"]["streams"]] == [name]
    assert accounts["pay"]["idle"] == f"no stream matches {name}" and accounts["pay"]["result"] is None
    typo = run("backup", system.server, system.reader, tmp_path / "repo", f"{name}x", *options)
    assert typo.code == 2 and f"no stream matches {name}x" in typo.document["error"]["message"]
    assert name in typo.document["error"]["hint"]


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("", ("--account-creds", "x"), "--account-creds"),
        ("creds = '/nowhere/creds'", (), "there is no /nowhere/creds"),
        ("creds = '/etc/{acount}.creds'", (), "there is no /etc/{acount}.creds"),
        ("signing-keys = '/nowhere'", (), "there is no /nowhere"),
        ("contexts = 'shop'", (), "one context cannot be that of every account"),
        ("creds = 'nsc'", ("--accounts", "/nowhere"), "cannot read the file of accounts /nowhere"),
        (None, (), "--all-accounts needs a login for each account"),
        ("creds = 'nsc'", ("--js-api-prefix", "x"), "--js-api-prefix makes no sense with --all-accounts"),
        ("creds = 'nsc'", ("--spark", "local"), "--spark makes no sense with --all-accounts"),
    ],
)
def test_mistakes_are_said_before_anything_is_asked(
    text: str | None, options: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    file = tmp_path / "accounts.toml"
    file.write_text(text or "")
    where = () if text is None else ("--accounts", file)
    ran = jsbackup("backup", "--all-accounts", "-s", "nats://127.0.0.1:1", "-r", tmp_path / "repo", *where, *options)
    assert ran.code == 2
    assert message in ran.document["error"]["message"]
    assert not (tmp_path / "repo").exists()


def test_options_for_accounts_want_all_accounts(tmp_path: Path) -> None:
    for command in (["backup"], ["restore", "latest"], ["plan", "latest"], ["status", "--live"]):
        option = ["--account", "x"] if command[0] == "status" else ["--accounts", "x"]
        ran = jsbackup(*command, "-r", tmp_path / "repo", *option)
        assert (
            ran.code == 2 and f"{option[0]} makes no sense without --all-accounts" in ran.document["error"]["message"]
        )
    ran = jsbackup("restore", "latest", "-r", tmp_path / "repo", "--map-account", "a=b")
    assert ran.code == 2 and "--map-account makes no sense without" in ran.document["error"]["message"]
    ran = jsbackup("status", "-r", tmp_path / "repo", "--all-accounts")
    assert ran.code == 2 and "--all-accounts makes sense with --live only" in ran.document["error"]["message"]


# --- accounts of a server's configuration ---

CONFIG = """
accounts {
  SHOP {
    jetstream: enabled
    users: [ { user: backup-SHOP, password: s }, { user: few, password: f, permissions: FEW } ]
  }
  "PÄY" { jetstream: enabled, users: [ { user: pay, password: p } ] }
  EMPTY { jetstream: enabled }
  NONE { users: [ { user: none, password: n } ] }
  SYS { users: [ { user: sys, password: sys } ] }
}
system_account: SYS
""".replace("FEW", '{ publish: ["$JS.API.>", "$JS.SNAPSHOT.>"], subscribe: ["_INBOX.>"] }')


def _as(server: NatsServer, user: str) -> str:
    return server.url.replace("://", f"://{user}@")


def _fill_config(server: NatsServer) -> Held:
    async def make() -> Held:
        found: Held = {}
        for name, user in {"SHOP": "backup-SHOP:s", "PÄY": "pay:p"}.items():
            async with connected(_as(server, user)) as nc:
                await fill(nc, server.version, only=["GAPS" if name == "SHOP" else "KV"])
                found[name] = await observe(nc)
        return found

    return asyncio.run(make())


def _config_run(command: str, server: NatsServer, repository: Path, *options: str | Path, **environ: str) -> Ran:
    user = {"NATS_USER": "sys", "NATS_PASSWORD": "sys"}
    arguments = ("--all-accounts", "-s", server.url, "-r", repository, *PATIENCE, *options)
    return jsbackup(command, *arguments, **user, **environ)


@pytest.mark.parametrize("version", ["2.10.26", NEWEST])
def test_accounts_of_a_configuration_have_logins_in_a_file_or_contexts(version: str, tmp_path: Path) -> None:
    logins, repository = tmp_path / "logins.toml", tmp_path / "repo"
    logins.write_text(
        '["*"]\nuser = "backup-{account}"\npassword = "env://SHOP_PASSWORD"\n'
        '["PÄY"]\nuser = "pay"\npassword = "${PAY}"\n'
    )
    secrets = {"SHOP_PASSWORD": "s", "PAY": "p"}
    file = ("--accounts", logins, "--account", "SHOP", "--account", "P*")
    with NatsServer(version, config=CONFIG, name="conf") as server:
        before = _fill_config(server)
        document = checked("backup_accounts", _config_run("backup", server, repository, *file, **secrets).ok())
        assert {one["account"]: one["login"] for one in document["accounts"]} == {
            "PÄY": f"[PÄY] of {logins}",
            "SHOP": f"[*] of {logins}",
        }
        assert [one["account"] for one in document["left_out"]] == ["EMPTY"]
        contexts = tmp_path / "xdg" / "nats" / "context"
        contexts.mkdir(parents=True)
        (contexts / "SHOP-backup.json").write_text(
            '{"url": "nats://elsewhere", "user": "backup-SHOP", "password": "s"}'
        )
        (contexts / "PÄY-backup.json").write_text('{"user": "pay", "password": "p"}')
        by_context = named(tmp_path, contexts="{account}-backup")
        environ = {"XDG_CONFIG_HOME": str(tmp_path / "xdg")}
        ran = _config_run("backup", server, repository, *by_context, **environ).ok()
        assert {one["account"]: one["idle"] for one in ran.document["accounts"]} == {
            "EMPTY": "it has no streams, and there are no credentials for it",
            "PÄY": None,
            "SHOP": None,
        }
        # A login of another account is noticed, where it can be; where it cannot, it is not taken.
        (contexts / "PÄY-backup.json").write_text('{"user": "backup-SHOP", "password": "s"}')
        (contexts / "SHOP-backup.json").write_text('{"user": "few", "password": "f"}')
        ran = _config_run("backup", server, tmp_path / "wrong", *by_context, **environ)
        errors = {one["account"]: one["error"] and one["error"]["message"] for one in ran.document["accounts"]}
        assert errors["PÄY"] == "the user that was given for account PÄY is one of account SHOP"
        if version == "2.10.26":
            assert errors["SHOP"] and "does not say of which account the user is" in errors["SHOP"]
            assert ran.code == 2 and not (tmp_path / "wrong").exists()
        else:
            assert errors["SHOP"] is None and ran.code == 3
        live = _config_run("status", server, repository, "--live").ok().document["live_accounts"]
        assert {one["account"]: one["streams"] for one in live} == {"EMPTY": 0, "PÄY": 1, "SHOP": 1}
    with NatsServer(version, config=CONFIG, name="fresh") as server:
        _config_run("restore", server, repository, *file, **secrets).ok()

        async def look() -> Held:
            found: Held = {}
            for name, user in {"SHOP": "backup-SHOP:s", "PÄY": "pay:p"}.items():
                async with connected(_as(server, user)) as nc:
                    found[name] = await observe(nc)
            return found

        assert differences(before, asyncio.run(look())) == []


def test_an_operators_accounts_come_into_a_configuration_by_name(system: System, tmp_path: Path) -> None:
    repository, names = tmp_path / "repo", ("shop", "pay")
    only = [option for name in names for option in ("--account", name)]
    run("backup", system.server, system.reader, repository, *named(tmp_path, creds=system.nsc.creds_folder), *only).ok()
    config = CONFIG.replace("SHOP", "shop").replace('"PÄY"', "pay")
    logins = tmp_path / "logins.toml"
    logins.write_text('[shop]\nuser = "backup-shop"\npassword = "env://S"\n[pay]\nuser = "pay"\npassword = "env://P"\n')
    with NatsServer(system.server.version, config=config) as server:
        ran = _config_run("restore", server, repository, "--accounts", logins, S="s", P="p").ok()
        assert {one["account_name"]: one["into"]["account"] for one in ran.document["accounts"]} == {
            "shop": "shop",
            "pay": "pay",
        }


# --- domains and clusters ---


@pytest.mark.parametrize("version", ["2.10.26", NEWEST])
def test_accounts_behind_leaf_nodes_are_of_their_domains(version: str, tmp_path: Path) -> None:
    port = Port()
    config = CONFIG.replace('"PÄY"', "PAY")
    remotes = "\n".join(
        f'{{ url: "nats-leaf://{user}@127.0.0.1:{port.number}", account: {account} }}'
        for account, user in {"SHOP": "backup-SHOP:s", "PAY": "pay:p", "SYS": "sys:sys"}.items()
    )
    logins = tmp_path / "logins.toml"
    logins.write_text('[SHOP]\nuser = "backup-SHOP"\npassword = "env://S"\n[PAY]\nuser = "pay"\npassword = "env://P"\n')
    options = ("--accounts", logins, "--account", "SHOP", "--account", "PAY", "--timeout", "3s")
    hub_config = f"{config}\nleafnodes {{ listen: 127.0.0.1:{port.number} }}"
    leaf_config = f"{config}\nleafnodes {{ remotes: [\n{remotes}\n] }}"
    try:
        with (
            NatsServer(version, name="hub", domain="hub", config=hub_config) as hub,
            NatsServer(version, name="leaf", domain="leaf", config=leaf_config) as leaf,
        ):
            wait_until(lambda: hub.monitor("/leafz")["leafnodes"] == 3, "the leaf connections", hub, leaf)

            async def make() -> None:
                for server in (hub, leaf):
                    for user in ("backup-SHOP:s", "pay:p"):
                        async with connected(_as(server, user)) as nc:
                            js = nc.jetstream()
                            await js.add_stream(name=f"OF_{server.name}", subjects=[f"{server.name}.>"])
                            await js.publish(f"{server.name}.x", b"hello")

            asyncio.run(make())
            ran = _config_run("backup", hub, tmp_path / "repo", *options, S="s", P="p").ok()
            assert {
                (one["account"], one["domain"]): [stream["name"] for stream in one["result"]["streams"]]
                for one in ran.document["accounts"]
            } == {
                ("PAY", "hub"): ["OF_hub"],
                ("PAY", "leaf"): ["OF_leaf"],
                ("SHOP", "hub"): ["OF_hub"],
                ("SHOP", "leaf"): ["OF_leaf"],
            }
            assert {
                one["source"]["domain"] for one in jsbackup("list", "-r", tmp_path / "repo").document["backups"]
            } == {
                "hub",
                "leaf",
            }
            one = _config_run("backup", hub, tmp_path / "one", *options, "--js-domain", "leaf", S="s", P="p").ok()
            assert {each["domain"] for each in one.document["accounts"]} == {"leaf"}
            leaf.kill()
            ran = _config_run("backup", hub, tmp_path / "repo", *options, S="s", P="p")
            assert ran.code == 3 and ran.document["result"] == "partial"
            assert (
                "no server of domain leaf answered, and earlier backups have accounts of it" in ran.document["problems"]
            )
    finally:
        port.release()


def test_a_cluster_is_asked_as_a_whole_and_a_server_that_is_gone_is_missed(tmp_path: Path) -> None:
    config = CONFIG.replace('"PÄY"', "PAY")
    logins = tmp_path / "logins.toml"
    logins.write_text('[SHOP]\nuser = "backup-SHOP"\npassword = "env://S"\n[PAY]\nuser = "pay"\npassword = "env://P"\n')
    options = ("--accounts", logins, "--account", "SHOP", "--account", "P*")
    with NatsCluster(NEWEST, config=config, user="pay:p") as cluster:
        first = cluster.servers[0]

        async def make() -> str:
            leaders = []
            for user, replicas in {"backup-SHOP:s": 1, "pay:p": 3}.items():
                async with connected(_as(first, user)) as nc:
                    js = nc.jetstream(timeout=30)
                    info = await js.add_stream(name="S", subjects=["s.>"], num_replicas=replicas)
                    await publish_stored(nc, "s.x", b"hello")
                    assert info.cluster is not None
                    leaders.append(str(info.cluster.leader))
            return leaders[0]

        alone = asyncio.run(make())
        secrets = {"S": "s", "P": "p"}
        document = _config_run("backup", first, tmp_path / "repo", *options, **secrets).ok().document
        assert document["servers"] == {"known": 3, "answered": 3}
        assert {one["account"] for one in document["accounts"]} == {"PAY", "SHOP"}
        cluster.named(alone).kill()
        other = next(server for server in cluster.servers if server.name != alone)
        ran = _config_run("backup", other, tmp_path / "repo", *options, "--timeout", "5s", **secrets)
        assert ran.code == 3
        assert ran.document["servers"]["answered"] == 2
        [problem] = ran.document["problems"]
        assert problem.startswith("2 of 3 servers answered")
        status = _config_run("status", other, tmp_path / "repo", "--live", "--timeout", "5s")
        assert status.code == 17
        assert "servers-not-answering" in {one["rule"] for one in status.document["breaches"]}
