"""Real copies: from a folder into S3 and back, stopped and killed at any moment, restored from what was copied."""

from __future__ import annotations

import itertools
import random
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.backups import FIRST, SECOND, make_repository, store_backup
from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.integration.witness import announced, back_up, filled, restore, seen

_NUMBERS = itertools.count()


def objects(folder: Path) -> dict[str, bytes]:
    """All but the descriptor, witnesses, and the leases of those that were killed, which expire."""
    store = LocalStore(folder)
    besides = (layout.ObjectKind.DESCRIPTOR, layout.ObjectKind.WITNESS, layout.ObjectKind.LEASE)
    return {info.key: store.get(info.key) for info in store.list() if layout.kind_of(info.key) not in besides}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two backups of some hundred objects. Tests leave it as it is."""
    folder = tmp_path_factory.mktemp("copied") / "repo"
    made = make_repository(LocalStore(folder))
    store_backup(made, FIRST, count=1500)
    store_backup(made, SECOND, count=2000)
    return folder


def to(server: S3Server) -> dict[str, str]:
    """The server for the second repository only."""
    return {name.replace("JSBACKUP_", "JSBACKUP_TO_"): value for name, value in server.environment.items()}


@pytest.mark.s3
def test_into_a_bucket_from_there_into_another_and_back(repository: Path, s3_server: S3Server, tmp_path: Path) -> None:
    one, other = (f"s3://{BUCKET}/copies/{next(_NUMBERS)}" for _ in range(2))
    whole = objects(repository)
    first = jsbackup("copy", FIRST, "-r", repository, "--to-repo", one, **to(s3_server)).ok().document
    then = jsbackup("copy", "-r", repository, "--to-repo", one, **to(s3_server)).ok().document
    assert (then["backups"], then["present"]) == ([SECOND], [FIRST])
    assert first["copied_objects"] + then["copied_objects"] == len(whole)
    assert first["copied_bytes"] + then["copied_bytes"] == sum(map(len, whole.values()))
    s3 = s3_server.environment
    options = ["--to-s3-endpoint", s3_server.url, "--to-s3-region", s3["JSBACKUP_S3_REGION"]]
    jsbackup("copy", "-r", one, "--to-repo", other, *options, **s3).ok()
    verified = jsbackup("verify", "-r", other, "--level", "data", **s3).ok().document
    assert [backup["ok"] for backup in verified["backups"]] == [True, True]
    jsbackup("copy", "-r", other, "--to-repo", tmp_path / "back", **s3).ok()
    assert objects(tmp_path / "back") == whole


def _is_there(brought: Callable[[], int], moment: int, child: subprocess.Popen[bytes]) -> bool:
    return brought() >= moment or child.poll() is not None


@pytest.mark.slow
def test_killed_at_a_random_moment_a_copy_is_repeated_with_what_it_brought(repository: Path, tmp_path: Path) -> None:
    whole, target = objects(repository), tmp_path / "target"
    chance = random.Random(1)
    line = command_line("copy", "-r", repository, "--to-repo", target)

    def brought() -> int:
        return sum(path.is_file() for path in target.rglob("*.parquet"))

    before = 0
    for _ in range(3):
        moment = before + chance.randrange(1, len(whole) // 4)
        with subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=environment()) as child:
            wait_until(partial(_is_there, brought, moment, child), f"{moment} objects")
            child.kill()
        before = brought()
        if (target / layout.DESCRIPTOR).exists():
            there = Repository.open(LocalStore(target)).backups()
            verified = jsbackup("verify", "-r", target, *there, "--level", "data").ok().document
            assert there or verified["backups"] == []
    done = jsbackup("copy", "-r", repository, "--to-repo", target).ok().document
    assert sorted(done["backups"] + done["present"]) == [FIRST, SECOND]
    kept = (*layout.CHECKS, layout.VERIFIED)  # of the checks above, if one of the backups was there
    there_now = {key: data for key, data in objects(target).items() if not key.startswith(kept)}
    assert there_now.keys() == whole.keys()
    assert [key for key, data in whole.items() if there_now[key] != data] == []


@pytest.mark.nats
def test_what_was_copied_restores_as_the_original_does(nats_server: Callable[..., NatsServer], tmp_path: Path) -> None:
    source, target = nats_server(NEWEST), nats_server(NEWEST)
    # A copy looks at objects: segments of several streams, of a bucket, of an object store; consumers, and none.
    only = ("GAPS", "EMPTIED", "OBJECTS", "KV", "WORKQUEUE", "PULL", "SOURCES", "UNICODE", "MANY_SUBJECTS")
    before = filled(source.url, NEWEST, only)
    back_up(source.url, tmp_path / "repo")
    jsbackup("copy", "-r", tmp_path / "repo", "--to-repo", tmp_path / "copy").ok()
    restored = restore(target.url, tmp_path / "copy")
    assert compare(before, seen(target.url), ignore=announced(restored)) == []
    # Backups go on in the copy, and build on what was copied.
    again = back_up(source.url, tmp_path / "copy").document
    assert sum(stream["stored_bytes_added"] for stream in again["streams"]) == 0
