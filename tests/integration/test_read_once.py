"""What a restore reads from its repository: each object once, and nothing else of any size."""

from __future__ import annotations

import asyncio
import itertools
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.config import Glob
from jsbackup.engine.restore.restore import run_restore
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.planning.model import RestoreOptions
from jsbackup.repository import layout
from jsbackup.repository.crypto import age
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.url import open_store
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from jsbackup.transforms.reshape import Reshape
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.commands import environment, jsbackup
from tests.harness.counting import CountingStore
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NEWEST, REPOSITORY, NatsServer
from tests.integration.large import MESSAGES, NAME, WHOLE, make_large, standing
from tests.stores.s3_bench import settings_of

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

_NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def source() -> Iterator[NatsServer]:
    with NatsServer("2.15.1") as server:
        make_large(server.url)
        yield server


Site = tuple[Store, dict[str, str]]


@pytest.fixture(params=["encrypted", pytest.param("s3", marks=pytest.mark.s3)])
def site(request: pytest.FixtureRequest, source: NatsServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """A repository with one backup of a large stream, and the environment for its commands."""
    store: Store
    options = ["--segment-size", "1MiB"]
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        for name, value in server.credentials().items():
            monkeypatch.setenv(name, value)
        location = f"s3://{BUCKET}/once/{next(_NUMBERS)}"
        at, store = server.environment, open_store(location, settings_of(server.url))
    else:
        location = str(tmp_path / "repo")
        at, store = {}, LocalStore(tmp_path / "repo")
    if request.param == "encrypted":
        me = age.age_identity(bytes(range(32)))
        (tmp_path / "my.key").write_text(f"{me.text}\n")
        assert me.recipient is not None
        writer = str(tmp_path / "writer.key")
        options += ["--encrypt-to", me.recipient.label, "--writer-key", writer]
        at = {"JSBACKUP_IDENTITY_FILE": str(tmp_path / "my.key"), "JSBACKUP_WRITER_KEY_FILE": writer}
    at = {**at, "JSBACKUP_REPO": location}
    jsbackup("init", *options, **at).ok()
    jsbackup("backup", "-s", source.url, **at).ok()
    return store, at


def _stored_bytes(store: Store) -> int:
    return sum(info.size for info in store.list(layout.SEGMENTS))


def _counted(at: dict[str, str], out: Path, *words: str) -> dict[str, Any]:
    """Run a command; return what it asked the store for, as a bill counts."""
    words = (*words, "-r", at["JSBACKUP_REPO"])
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench_counted", str(out), *words],
        capture_output=True,
        text=True,
        env=environment(**at),
        cwd=REPOSITORY,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(out.read_text())
    return found


@pytest.mark.by_turns
def test_a_restore_reads_what_is_stored_once(
    site: Site, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    store, at = site
    stored, target, out = _stored_bytes(store), nats_server(NEWEST), tmp_path / "counts.json"
    restore = ("restore", "latest", "-s", target.url)
    once = _counted(at, out, *restore)
    assert stored <= once["read_bytes"] <= 1.05 * stored, once
    segments = sum(1 for _ in store.list(layout.SEGMENTS))
    assert once["requests"]["get"] <= segments + 10 and once["requests"].get("head", 0) <= 10, once
    renamed = _counted(at, out, *restore, "--rename", f"{NAME}=OTHER", "--map-subject", f"{NAME}.>=>OTHER.>")
    assert 2 * stored <= renamed["read_bytes"] <= 2.05 * stored, renamed
    # All is checked first; then a copy is made, and proved.
    replaced = _counted(at, out, *restore, "--if-exists", "replace")
    assert 3 * stored <= replaced["read_bytes"] <= 3.05 * stored, replaced
    assert standing(target.url)[NAME] == WHOLE[NAME]


def _delete(url: str) -> None:
    async def delete() -> None:
        async with connected(url) as nc:
            await call(nc, f"STREAM.DELETE.{NAME}")

    asyncio.run(delete())


def test_a_part_of_a_stream_reads_the_segments_at_its_ends_twice(
    source: NatsServer, nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    """Once to count what is kept of them, and once to send it."""
    jsbackup("init", "-r", tmp_path, "--segment-size", "1MiB").ok()
    jsbackup("backup", "-s", source.url, "-r", tmp_path).ok()
    target = nats_server(NEWEST)
    store = CountingStore(LocalStore(tmp_path))
    repository = Repository.open(store)
    manifest = repository.manifest(repository.backups()[0])
    segments = {ref.key: ref for ref in manifest.streams[0].segments}
    refs = list(segments.values())
    third, last_but_one = refs[2], refs[-2]
    cuts = {
        Cut(): 0,
        Cut(until=AtSequence(third.last_seq - 5)): 1,
        Cut(since=AtSequence(last_but_one.first_seq + 5)): 1,
        Cut(AtSequence(third.first_seq + 5), AtSequence(last_but_one.last_seq - 5)): 2,
        Cut(AtTime(third.min_ns + 1), AtTime(last_but_one.max_ns - 1)): 2,
    }
    for cut, ends in cuts.items():
        store.read_bytes.clear()
        options = RestoreOptions((Glob(NAME),), reshape=Reshape(cut=cut))
        run = RestoreRun(connection_to(target.url), options, RestoreSettings(jobs=1))
        report = asyncio.run(run_restore(run, repository, manifest))
        assert report.code == 0 and report.streams[0].verified
        times = {key: store.read_bytes[key] / ref.size for key, ref in segments.items()}
        assert set(times.values()) <= {0, 1, 2}, (cut, times)
        assert sum(one == 2 for one in times.values()) <= ends, (cut, times)
        needed = sum(1 for one in times.values() if one)
        assert needed <= report.streams[0].messages * len(refs) / MESSAGES + 2, (cut, times)
        _delete(target.url)
