"""`latest` in a repository that several accounts and servers share (points 1 and 2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.identities import Operator, creds_text
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import (
    ACCOUNTS,
    CONFIG,
    FEW,
    Type,
    backup_of,
    count,
    delete,
    fill,
    fill_as,
    names,
    profiles,
    typing,
    url,
)

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

EMBEDDED = Path(__file__).resolve().parents[2] / ".venv" / "bin" / "nats-server"
OLDEST = "2.10.26"
COUNTS = dict(zip(ACCOUNTS, (3, 5, 7), strict=True))


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module", params=[OLDEST, NEWEST])
def shared(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server with three accounts, each with a stream ORDERS of another length. Tests leave that as it is."""
    with NatsServer(request.param, name="C1", config=CONFIG) as server:
        for account, messages in COUNTS.items():
            fill(url(server, account), "ORDERS", messages)
        yield server


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[NatsServer]:
    """Another server, with the same accounts, and nothing in them but for the time of a test."""
    with NatsServer(NEWEST, name="C2", config=CONFIG) as server:
        yield server


@pytest.fixture
def bare(elsewhere: NatsServer) -> Iterator[NatsServer]:
    yield elsewhere
    for account in ACCOUNTS:
        where = url(elsewhere, account)
        delete(where, *names(where))


def _back_up_all(typed: Type, server: NatsServer, repo: Path) -> dict[str, str]:
    """The id of each account's backup; the last one is the newest of all."""
    made = {}
    for account in ACCOUNTS:
        done = typed("backup", "-s", url(server, account), "-r", repo, "--json")
        assert done.code == 0, done
        made[account] = backup_of(done)
    return made


def test_latest_is_of_the_account_that_is_connected_to(shared: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    made = _back_up_all(typed, shared, repo)
    for account in ACCOUNTS:
        where = ("-s", url(shared, account), "-r", repo)
        planned = typed("plan", "latest", *where, "--if-exists", "replace", "--json")
        assert (planned.code, backup_of(planned)) == (0, made[account])
        done = typed("restore", "latest", *where, "--if-exists", "replace", "--json")
        assert (done.code, backup_of(done)) == (0, made[account])
        assert count(url(shared, account), "ORDERS") == COUNTS[account]
        assert typed("diff", "latest", "live", *where).code == 0


def test_of_several_sources_none_is_taken_unless_it_is_chosen(shared: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, out = tmp_path / "repo", tmp_path / "out"
    made = _back_up_all(typed, shared, repo)
    export = ("export", "latest", "--format", "config", "--output", out, "-r", repo)
    for line in (export, ("show", "latest", "-r", repo), ("drill", "-r", repo, "--nats-server", EMBEDDED)):
        refused = typed(*line)
        assert refused.code == 2 and "backups of 3 sources" in refused.err
        for account in ACCOUNTS:
            assert f"--origin C1/{account}" in refused.err and made[account] in refused.err
    for line in (("verify", "latest", "-r", repo), ("hold", "latest", "-r", repo), ("forget", "latest", "-r", repo)):
        refused = typed(*line)
        assert refused.code == 2 and made["PAY"] in refused.err and "by its id" in refused.err
    assert not out.exists()
    for origin in ("PAY", "C1/PAY", "*PAY"):
        shown = typed("show", "latest", "-r", repo, "--origin", origin, "--json")
        assert (shown.code, backup_of(shown)) == (0, made["PAY"])
    nobody = typed("show", "latest", "-r", repo, "--origin", "PYA")
    assert nobody.code == 2 and "jsbackup list" in nobody.err
    drilled = typed("drill", "-r", repo, "--origin", "LOGS", "--nats-server", EMBEDDED, "--json")
    assert (drilled.code, backup_of(drilled)) == (0, made["LOGS"])
    misplaced = typed("show", made["PAY"], "-r", repo, "--origin", "PAY")
    assert misplaced.code == 2 and "Leave one of them out" in misplaced.err


def test_a_lost_cluster_is_restored_into_another_one_with_one_command(
    shared: NatsServer, bare: NatsServer, typed: Type, tmp_path: Path
) -> None:
    one, all_of_them = tmp_path / "one", tmp_path / "all"
    assert typed("backup", "-s", url(shared, "PAY"), "-r", one).code == 0
    done = typed("restore", "latest", "-s", url(bare, "LOGS"), "-r", one)
    assert done.code == 0 and count(url(bare, "LOGS"), "ORDERS") == COUNTS["PAY"]
    assert "it comes from cluster C1, account PAY; the connected server is cluster C2, account LOGS" in done.err

    made = _back_up_all(typed, shared, all_of_them)
    refused = typed("restore", "latest", "-s", url(bare, "PAY"), "-r", all_of_them)
    assert refused.code == 2 and "none is of cluster C2, account PAY" in refused.err
    assert names(url(bare, "PAY")) == []
    chosen = typed("restore", "latest", "-s", url(bare, "PAY"), "-r", all_of_them, "--origin", "C1/PAY", "--json")
    assert (chosen.code, backup_of(chosen)) == (0, made["PAY"])
    assert count(url(bare, "PAY"), "ORDERS") == COUNTS["PAY"]
    # From now on there are backups of the new cluster, and latest is one of these.
    new = typed("backup", "-s", url(bare, "PAY"), "-r", all_of_them, "--json")
    _back_up_all(typed, shared, all_of_them)
    planned = typed("plan", "latest", "-s", url(bare, "PAY"), "-r", all_of_them, "--if-exists", "replace", "--json")
    assert backup_of(planned) == backup_of(new)


def test_a_backup_of_another_source_is_told_when_it_is_named(
    shared: NatsServer, bare: NatsServer, typed: Type, tmp_path: Path
) -> None:
    repo, alone = tmp_path / "all", tmp_path / "alone"
    made = _back_up_all(typed, shared, repo)["PAY"]
    comes = "comes from cluster C1, account PAY; the connected server is cluster C2, account LOGS"
    told = f"backup {made} {comes}"
    there, own = ("-s", url(bare, "LOGS"), "-r", repo), ("-s", url(shared, "PAY"), "-r", repo)
    planned = typed("plan", made, *there, "--json")
    assert (planned.code, planned.document["notes"]) == (0, [told])
    # The start of an id names a backup only if no other one has it, and those of one second can share all but the end.
    one = backup_of(typed("backup", "-s", url(shared, "PAY"), "-r", alone, "--json"))
    assert f"note: backup {one} {comes}" in typed("plan", one[:-1], "-s", url(bare, "LOGS"), "-r", alone).err
    assert typed("plan", made, *own, "--if-exists", "replace", "--json").document["notes"] == []
    done = typed("restore", made, *there)
    assert done.code == 0 and f"note: {told}" in done.err
    assert count(url(bare, "LOGS"), "ORDERS") == COUNTS["PAY"]


def test_a_profile_means_what_it_has_backed_up(
    shared: NatsServer, bare: NatsServer, typed: Type, tmp_path: Path
) -> None:
    repo = tmp_path / "repo"
    by = [(account.lower(), url(shared, account)) for account in ACCOUNTS]
    config = ("--config", profiles(tmp_path / "c.toml", repo, by))
    made = {}
    for name, _ in by:
        made[name] = backup_of(typed("backup", *config, "--profile", name, "--json"))
    for name, _ in by:
        drilled = typed("drill", *config, "--profile", name, "--nats-server", EMBEDDED, "--json")
        assert (drilled.code, backup_of(drilled)) == (0, made[name])
        done = typed("restore", "latest", *config, "--profile", name, "--if-exists", "replace", "--json")
        assert (done.code, backup_of(done)) == (0, made[name])
        assert count(url(shared, name), "ORDERS") == COUNTS[name.upper()]
    # The cluster is lost, and the profile leads to a new one by now.
    moved = ("--config", profiles(tmp_path / "m.toml", repo, [("pay", url(bare, "LOGS"))]))
    done = typed("restore", "latest", *moved, "--profile", "pay", "--json")
    assert (done.code, backup_of(done)) == (0, made["pay"]) and "it comes from cluster C1" in done.err
    # A profile that has never backed anything up tells nothing.
    strange = ("--config", profiles(tmp_path / "s.toml", repo, [("new", url(bare, "SHOP"))]))
    assert typed("restore", "latest", *strange, "--profile", "new").code == 2
    assert names(url(bare, "SHOP")) == []


def test_the_policy_of_a_profile_takes_nothing_of_another(shared: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    policies = "[profiles.shop.forget]\nkeep-last = 30\n[profiles.pay.forget]\nkeep-last = 1\n"
    by = [(account.lower(), url(shared, account)) for account in ("SHOP", "PAY")]
    config = ("--config", profiles(tmp_path / "c.toml", repo, by, policies))
    made: dict[str, list[str]] = {"shop": [], "pay": []}
    for name in ("shop", "pay", "shop", "pay"):
        made[name].append(backup_of(typed("backup", *config, "--profile", name, "--json")))
    assert typed("forget", *config, "--profile", "shop", "--profile", "pay").code == 0
    left = [one["backup"] for one in typed("list", "-r", repo, "--json").document["backups"]]
    assert sorted(left) == sorted([*made["shop"], made["pay"][1]])


def test_by_all_a_profile_means_what_it_says_now(typed: Type, shared: NatsServer, tmp_path: Path) -> None:
    repo, where = tmp_path / "repo", url(shared, "SHOP")
    fill(where, "OBJ_old", 2)
    try:
        config = profiles(tmp_path / "c.toml", repo, [("shop", where)])
        whole = backup_of(typed("backup", "--config", config, "--profile", "shop", "--json"))
        without = '[profiles.shop.backup]\nexclude = ["OBJ_*"]\n'
        config = profiles(tmp_path / "c.toml", repo, [("shop", where)], without)
        part = backup_of(typed("backup", "--config", config, "--profile", "shop", "--json"))
        shown = typed("show", "latest", "--config", config, "--profile", "shop", "--json")
        assert backup_of(shown) == part
        shown = typed("show", "latest", "-r", repo, "--json")
        assert (
            backup_of(shown) == whole
            and f"{part} is newer but not used: it is of all streams except OBJ_*" in shown.err
        )
    finally:
        delete(where, "OBJ_old")


@pytest.mark.parametrize("version", [OLDEST, NEWEST])
def test_accounts_that_are_jwts_are_kept_apart(version: str, typed: Type, tmp_path: Path) -> None:
    operator, repo = Operator(accounts=ACCOUNTS), tmp_path / "repo"
    login: dict[str, Path] = {}
    for account in ACCOUNTS:
        for suffix, publish in (("", ()), ("-few", FEW)):
            login[account + suffix] = tmp_path / f"{account}{suffix}.creds"
            login[account + suffix].write_text(creds_text(*operator.user(account=account, publish=publish)))
    with NatsServer(version, name="C1", config=operator.config) as server:
        for account, messages in COUNTS.items():
            fill_as(server.url, login[account], "ORDERS", messages)
        made = {}
        for account in ACCOUNTS:
            # A user with the fewest permissions: from 2.12 on the server says the account, before the JWT does.
            line = ("backup", "-s", server.url, "--creds", login[f"{account}-few"], "-r", repo, "--json")
            made[account] = backup_of(typed(*line))
        for account in ACCOUNTS:
            where = ("-s", server.url, "--creds", login[f"{account}-few"], "-r", repo, "--if-exists", "replace")
            assert backup_of(typed("plan", "latest", *where, "--json")) == made[account]
        repo = tmp_path / "named"
        for account in ACCOUNTS:
            line = ("backup", "-s", server.url, "--creds", login[account], "-r", repo, "--json")
            made[account] = backup_of(typed(*line))
        for account in ACCOUNTS:
            where = ("-s", server.url, "--creds", login[account], "-r", repo, "--if-exists", "replace")
            done = typed("restore", "latest", *where, "--json")
            assert (done.code, backup_of(done)) == (0, made[account])
            streams = {stream["name"]: stream["messages"] for stream in done.document["streams"]}
            assert streams == {"ORDERS": COUNTS[account]}
        key = operator.accounts["PAY"].public
        assert backup_of(typed("show", "latest", "-r", repo, "--origin", key, "--json")) == made["PAY"]
        listed = typed("list", "-r", repo)
        if version == NEWEST:  # servers before 2.12 do not tell the name
            assert backup_of(typed("show", "latest", "-r", repo, "--origin", "PAY", "--json")) == made["PAY"]
            assert "C1/PAY" in listed.out
        else:
            assert f"C1/{key[:8]}…" in listed.out


def test_accounts_that_nobody_may_learn_are_told_apart_by_who_logs_in(typed: Type, tmp_path: Path) -> None:
    """Servers before 2.12, and users who may not ask."""
    repo = tmp_path / "repo"
    with NatsServer(OLDEST, name="C1", config=CONFIG) as server:
        made = {}
        for account, messages in COUNTS.items():
            fill(url(server, account), "ORDERS", messages)
            line = ("backup", "-s", url(server, account, few=True), "-r", repo, "--json")
            made[account] = backup_of(typed(*line))
        sources = [one["source"] for one in typed("list", "-r", repo, "--json").document["backups"]]
        assert [one["account"] for one in sources] == ["", "", ""]
        for account in ACCOUNTS:
            where = ("-s", url(server, account, few=True), "-r", repo, "--if-exists", "replace", "--json")
            assert backup_of(typed("plan", "latest", *where)) == made[account]
        # Who restores is someone else: then nobody can tell.
        refused = typed("restore", "latest", "-s", url(server, "PAY"), "-r", repo, "--if-exists", "replace")
        assert refused.code == 2 and "backups of 3 sources" in refused.err
        # None pushes another one out.
        kept = typed("forget", "--keep-last", "1", "-r", repo, "--json").document["kept"]
        assert [one["backup"] for one in kept] == list(made.values())


def test_servers_that_nobody_has_named_are_told_apart_by_their_streams(typed: Type, tmp_path: Path) -> None:
    repo = ("-r", tmp_path)
    with (
        NatsServer(NEWEST, name="") as prod,
        NatsServer(NEWEST, name="") as test,
        NatsServer(NEWEST, name="") as fresh,
    ):
        fill(prod.url, "ORDERS", 3)
        fill(test.url, "ORDERS", 5)
        fill(test.url, "TMP", 1)
        of_prod = typed("backup", "-s", prod.url, *repo, "--json")
        of_test = typed("backup", "-s", test.url, *repo, "--json")
        assert (of_prod.code, of_prod.document["notes"], of_test.code) == (0, [], 0)
        assert f"another server than that of backup {backup_of(of_prod)}" in of_test.document["notes"][0]
        for command in ("restore", "plan"):
            refused = typed(command, "latest", "-s", prod.url, *repo, "--if-exists", "replace")
            assert refused.code == 2 and backup_of(of_prod) in refused.err and backup_of(of_test) in refused.err
        assert names(prod.url) == ["ORDERS"] and count(prod.url, "ORDERS") == 3
        # A new server after a disaster has no streams; this one's are those of the newest backup.
        for server in (fresh, test):
            done = typed("restore", "latest", "-s", server.url, *repo, "--if-exists", "replace", "--json")
            assert (done.code, backup_of(done)) == (0, backup_of(of_test))
        assert typed("restore", backup_of(of_prod), "-s", prod.url, *repo, "--if-exists", "replace").code == 0


# --- what a backup is worth ---


def test_a_backup_of_one_stream_by_hand_is_not_what_all_means(bare: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, where = tmp_path / "repo", ("-s", url(bare, "SHOP"), "-r", tmp_path / "repo")
    for stream in ("ORDERS", "PAYMENTS", "TMP"):
        fill(url(bare, "SHOP"), stream, 3)
    whole = backup_of(typed("backup", *where, "--exclude", "TMP", "--json"))
    hand = backup_of(typed("backup", "ORDERS", *where, "--json"))
    config = backup_of(typed("backup", "--config-only", *where, "--json"))
    tmp = backup_of(typed("backup", "TMP", *where, "--json"))
    replace = (*where, "--if-exists", "replace")

    done = typed("restore", "latest", *replace)
    # TMP is in no backup of all: that is said, and the exit code says so too.
    assert done.code == 3 and f"missing: TMP: is not in backup {whole}, but in {tmp}" in done.out
    assert f"jsbackup restore {tmp} TMP" in done.out
    assert f"{hand} is newer but not used: it is of streams ORDERS" in done.err
    assert f"{config} is newer but not used: it has configurations only" in done.err
    document = typed("restore", "latest", *replace, "--json").document
    assert document["backup"] == whole and [one["name"] for one in document["missing"]] == ["TMP"]
    assert document["elsewhere"][0] | {"created": ""} == {"stream": "TMP", "backup": tmp, "created": ""}
    planned = typed("plan", "latest", *replace, "--json")
    assert planned.code == 3 and planned.document["elsewhere"] == document["elsewhere"]
    assert typed("restore", "latest", *replace, "--exclude", "TMP").code == 0

    for streams, meant in ((["ORDERS"], hand), (["PAYMENTS"], whole), (["ORDERS", "PAYMENTS"], whole), (["TMP"], tmp)):
        done = typed("restore", "latest", *streams, *replace, "--json")
        assert (done.code, backup_of(done)) == (0, meant), streams
    none = typed("restore", "latest", "ORDERS", "TMP", *replace)
    assert none.code == 2 and f"TMP is in {tmp}" in none.err
    typo = typed("restore", "latest", "PAYMENT", *replace)
    assert typo.code == 2 and "Did you mean PAYMENTS?" in typo.err
    assert typed("forget", "latest", "-r", repo).code == 2
    # Configurations are latest where there is nothing else.
    assert typed("forget", whole, hand, tmp, "-r", repo).code == 0
    assert backup_of(typed("plan", "latest", *replace, "--json")) == config


def test_a_stream_that_is_gone_comes_from_the_newest_backup_that_has_it(
    bare: NatsServer, typed: Type, tmp_path: Path
) -> None:
    where = ("-s", url(bare, "SHOP"), "-r", tmp_path / "repo")
    for stream in ("ORDERS", "PAYMENTS"):
        fill(url(bare, "SHOP"), stream, 3)
    had = [backup_of(typed("backup", *where, "--json")) for _ in range(3)][-1]
    delete(url(bare, "SHOP"), "PAYMENTS")
    later = [backup_of(typed("backup", *where, "--json")) for _ in range(4)][-1]
    done = typed("restore", "latest", "PAYMENTS", *where, "--json")
    assert (done.code, backup_of(done)) == (0, had)
    assert f"{later} is newer but not used: it has no stream PAYMENTS" in done.err
    # All of it is what there was last; that PAYMENTS is not in it is said.
    planned = typed("plan", "latest", *where, "--if-exists", "replace", "--json")
    said = f"stream PAYMENTS is not in {later}; the newest backup that has it is {had}, made "
    assert backup_of(planned) == later and planned.document["notes"][0].startswith(said)
    delete(url(bare, "SHOP"), "PAYMENTS")
    done = typed("restore", "latest", *where, "--if-exists", "replace")
    assert done.code == 0 and f"note: {said}" in done.err
    exported = ("export", "latest", "--format", "config", "--output", tmp_path / "out", "-r", tmp_path / "repo")
    drilled = ("drill", "-r", tmp_path / "repo", "--nats-server", EMBEDDED)
    for command in (exported, drilled, ("show", "latest", "-r", tmp_path / "repo")):
        assert f"note: {said}" in typed(*command).err


def test_a_partial_backup_is_not_the_latest_while_there_is_a_complete_one(
    bare: NatsServer, typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from jsbackup.engine.backup import backup as engine
    from jsbackup.errors import TransferError

    where = ("-s", url(bare, "SHOP"), "-r", tmp_path / "repo")
    for stream in ("ORDERS", "PAYMENTS"):
        fill(url(bare, "SHOP"), stream, 3)
    whole = backup_of(typed("backup", *where, "--json"))
    back_up_stream = engine.back_up_stream

    async def breaking(run: object, js: object, info: object, **named: object) -> object:
        if getattr(info, "name", "") == "PAYMENTS":
            raise TransferError("it broke off")
        return await back_up_stream(run, js, info, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(engine, "back_up_stream", breaking)
    done = typed("backup", *where, "--json")
    partial = backup_of(done)
    assert done.code == 3
    replace = (*where, "--if-exists", "replace")
    done = typed("restore", "latest", *replace, "--json")
    assert (done.code, backup_of(done)) == (0, whole)
    assert f"{partial} is newer but not used: it is partial, in PAYMENTS: it broke off" in done.err
    # What it has is whole.
    assert backup_of(typed("restore", "latest", "ORDERS", *replace, "--json")) == partial
    # Restored by its id, or where there is no other, it lacks something: that is no success.
    done = typed("restore", partial, *replace, "--json")
    assert done.code == 3 and [one["name"] for one in done.document["missing"]] == ["PAYMENTS"]
    assert typed("forget", whole, "-r", tmp_path / "repo").code == 0
    done = typed("restore", "latest", *replace, "--json")
    assert (done.code, backup_of(done)) == (3, partial)
