"""A first run that fails leaves nothing behind, and none makes a repository unnoticed (point 5)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jsbackup.errors import StoreError
from jsbackup.repository.crypto.access import NO_KEYS
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.late_repository import make_late, open_unless_vacant
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from tests.harness.backups import CREATED, store_backup
from tests.harness.interleave import World, explore
from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, backup_of, fill, profiles, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

NOBODY = "nats://127.0.0.1:1"
USERS = """accounts { A { jetstream: enabled, users: [
  { user: u, password: p }
  { user: blind, password: p, permissions: { publish: { deny: ["$JS.API.STREAM.SNAPSHOT.>"] } } }
] } }
no_auth_user: u
"""


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    with NatsServer(NEWEST, config=USERS) as started:
        fill(started.url, "ORDERS", 3)
        yield started


@pytest.mark.by_turns
def test_a_first_run_that_fails_leaves_nothing(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    blind = f"nats://blind:p@127.0.0.1:{server.port}"
    wrong = f"nats://u:wrong@127.0.0.1:{server.port}"
    damaged = tmp_path / "damaged"
    damaged.mkdir()
    (damaged / "backup.json").write_text("{}")
    for line, code in (
        (("backup", "-s", NOBODY), 20),
        (("backup", "-s", wrong), 20),
        (("backup", "-s", blind), 20),
        (("backup", "NOSUCH", "-s", server.url), 2),
        (("backup", "ORDERS", "NO*", "-s", server.url), 2),
        (("follow", "-s", NOBODY, "--for", "1s"), 20),
        (("follow", "NOSUCH", "-s", server.url, "--for", "1s"), 2),
        (("import", tmp_path / "missing"), 2),
        (("import", damaged), 14),
        (("import", damaged, "--format", "parquet", "--stream", "S"), 2),
    ):
        done = typed(*line, "-r", repo)
        assert (done.code, repo.exists()) == (code, False), (line, done)
        assert "creating one" not in done.err


def test_a_copy_that_copies_nothing_makes_no_repository(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, second = tmp_path / "repo", tmp_path / "second"
    assert typed("init", "-r", repo).code == 0
    assert typed("copy", "--to-repo", second, "-r", repo).code == 0 and not second.exists()
    assert typed("backup", "-s", server.url, "-r", repo).code == 0
    assert typed("copy", "20260101", "--to-repo", second, "-r", repo).code == 2 and not second.exists()
    (segment,) = repo.rglob("*.parquet")
    whole = segment.read_bytes()
    segment.chmod(0o600)
    segment.write_bytes(b"x" + whole[1:])
    assert typed("copy", "--to-repo", second, "-r", repo).code == 14 and not second.exists()
    segment.write_bytes(whole)
    refused = typed("copy", "--to-repo", second, "-r", repo, "--no-init")
    assert refused.code == 10 and "not mounted" in refused.err and not second.exists()
    done = typed("copy", "--to-repo", second, "-r", repo, "-q")
    assert (done.code, done.err) == (0, f"no repository at {second}: creating one\n")
    assert typed("verify", "--level", "data", "-r", second).code == 0


def test_a_replica_is_made_with_its_first_object(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo, second, key = tmp_path / "repo", tmp_path / "second", tmp_path / "writer.key"
    assert typed("init", "--sign", "--writer-key", key, "-r", repo).code == 0
    line = ("copy", "--to-repo", second, "-r", repo, "--writer-key", key)
    assert typed(*line).code == 0 and not second.exists()
    assert typed("backup", "-s", server.url, "-r", repo, "--writer-key", key).code == 0
    assert typed(*line).code == 0
    assert typed("verify", "--level", "data", "-r", second, "--writer-key", key).code == 0


def test_where_a_disk_is_not_mounted_nothing_is_made(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    config = profiles(tmp_path / "c.toml", repo, [("shop", server.url)], "[profiles.shop.backup]\nno-init = true\n")
    for line in (
        ("backup", "-s", server.url, "-r", repo, "--no-init"),
        ("follow", "-s", server.url, "-r", repo, "--no-init"),
        ("import", tmp_path, "-r", repo, "--no-init"),
        ("backup", "--config", config, "--profile", "shop", "-q"),
    ):
        done = typed(*line)
        if line[0] == "import":
            assert done.code in (2, 10)
        else:
            assert done.code == 10 and "not mounted" in done.err and "jsbackup init" in done.err
        assert not repo.exists()
    scheduled = typed("schedule", "--format", "cron", "--config", config, "--profile", "shop", "--json").document
    assert scheduled["jobs"][0]["arguments"] == ["backup"]  # the profile says it
    config = profiles(tmp_path / "c.toml", repo, [("shop", server.url)])
    scheduled = typed("schedule", "--format", "cron", "--config", config, "--profile", "shop", "--json").document
    assert scheduled["jobs"][0]["arguments"] == ["backup", "--no-init"]
    assert any("--no-init" in note for note in scheduled["notes"])


def test_that_a_repository_is_made_is_said_with_quiet_too(server: NatsServer, typed: Type, tmp_path: Path) -> None:
    repo = tmp_path / "repo"
    done = typed("backup", "-s", server.url, "-r", repo, "-q")
    assert (done.code, done.out, done.err) == (0, "", f"no repository at {repo}: creating one\n")
    done = typed("backup", "-s", server.url, "-r", repo, "-q")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert not any((repo / "locks").iterdir())
    assert backup_of(typed("backup", "-s", server.url, "-r", tmp_path / "other", "--json"))


# --- the store of a repository that is not there yet ---


def _late(folder: Path, made: list[str]) -> Repository:
    store = LocalStore(folder)

    def make() -> Repository:
        made.append("made")
        return Repository.create(store, repository_id="00ff", created=CREATED, tool="tests")

    return make_late(store, Descriptor("00ff", CREATED, "tests"), make, clock=lambda: 1000.0)


def test_leases_alone_make_no_repository_and_move_into_the_one_that_is_made(tmp_path: Path) -> None:
    from jsbackup.repository.keep.leases import Mode, Terms, acquire

    made: list[str] = []
    repository = _late(tmp_path / "repo", made)
    terms = Terms(Mode.SHARED, "backup", "tests", "host", CREATED)
    lease = acquire(
        repository.store,
        terms,
        wait_seconds=0,
        clock=lambda: 0.0,
        sleep=lambda _: None,
        random=lambda count: bytes(range(count)),
    )
    lease.renew()
    assert (made, (tmp_path / "repo").exists(), repository.backups()) == ([], False, [])
    store_backup(repository)
    assert made == ["made"] and len(list((tmp_path / "repo" / "locks").iterdir())) == 2
    lease.renew()  # although the clock of the folder is decades ahead of the one that it began with
    lease.check()
    lease.release()
    assert not any((tmp_path / "repo" / "locks").iterdir())
    assert len(Repository.open(LocalStore(tmp_path / "repo")).backups()) == 1


def test_two_that_make_one_at_the_same_time_share_it(tmp_path: Path) -> None:
    made: list[str] = []
    one, other = _late(tmp_path / "repo", made), _late(tmp_path / "repo", made)
    store_backup(one, "20261121T014500Z-000001")
    store_backup(other, "20261121T014600Z-000002")
    assert len(Repository.open(LocalStore(tmp_path / "repo")).backups()) == 2


def test_first_backups_at_once_both_succeed_whatever_the_order() -> None:
    def back_up(number: int) -> Callable[[World, Store], Repository]:
        def run(world: World, store: Store) -> Repository:
            def make() -> Repository:
                return Repository.create(store, repository_id=f"{number}" * 8, created=CREATED, tool="test")

            descriptor = Descriptor(f"{number}" * 8, CREATED, "test")
            opened = open_unless_vacant(store, NO_KEYS)
            repository = opened or make_late(store, descriptor, make, clock=lambda: world.now)
            store_backup(repository, f"20261121T01450{number}Z-000001")
            return repository

        return run

    def check(world: World) -> None:
        assert [actor.error for actor in world.actors] == [None, None]
        if all(actor.done for actor in world.actors):
            assert len(Repository.open(world.store).backups()) == 2

    def world() -> World:
        return World(lambda store: None, [back_up(1), back_up(2)], ("",), ())

    assert explore(world, check, switches=1) > 100


def test_a_location_where_nothing_can_be_stored_is_tried_once(tmp_path: Path) -> None:
    made: list[str] = []
    repository = _late(tmp_path / "missing" / "repo", made)
    errors: list[StoreError] = []

    def put(number: int) -> None:
        try:
            repository.store.put(f"segments/a-00000000/{number}", b"")
        except StoreError as error:
            errors.append(error)

    threads = [threading.Thread(target=put, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (made, len(errors)) == (["made"], 4)
