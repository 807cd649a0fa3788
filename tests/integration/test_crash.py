"""Commands killed at random moments, one after the other, in one repository: what was committed always verifies, a
rerun succeeds at once, prune removes exactly what no backup names, and what is restored in the end is what there was.

A moment is a number of objects that have come or gone since the command began, so it lies within its work, however slow
the machine. `JSBACKUP_TEST_KILLS=200` makes a long history of each, `JSBACKUP_TEST_SEED` another one.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.repository import layout
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.keep.leases import DURATION_SECONDS, SeenLease, list_leases, store_now
from jsbackup.repository.manifest import objects_named
from jsbackup.repository.repository import Repository
from jsbackup.stores.base import Store
from jsbackup.stores.local import LocalStore
from jsbackup.stores.url import open_store
from tests.harness.api import Wire, call, connected
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.oracle import compare
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import NatsServer
from tests.integration.witness import announced, seen
from tests.stores.s3_bench import settings_of

pytestmark = [pytest.mark.nats, pytest.mark.s3, pytest.mark.timeout(3600)]

KILLS = int(os.environ.get("JSBACKUP_TEST_KILLS", "4"))
# The others are too much for every day.
MORE = [("2.15.1", "folder"), ("2.11.11", "s3")] if KILLS > 4 else []
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")
STREAMS = [f"STREAM_{number}" for number in range(5)]
FAR_SECONDS = 120.0
ME = age.age_identity(bytes(range(32)))

# Once each, whatever chance would have.
ORDER = ["backup", "prune", "copy", "forget"]
DELETES = ("forget", "prune")
_KEY_FILES = {"WRITER_KEY": "writer.key", "IDENTITY": "my.key"}
_NUMBERS = itertools.count()


@dataclass(frozen=True, slots=True)
class Site:
    """A repository, and what its commands find in their environment."""

    store: Store
    keys: GivenKeys
    environment: dict[str, str]

    def run(self, *arguments: str) -> Ran:
        return jsbackup(*arguments, seconds=FAR_SECONDS, **self.environment)

    def objects(self) -> set[str]:
        return {info.key for info in self.store.list()}

    def content(self) -> set[str]:
        return {info.key for info in self.store.list(layout.SEGMENTS)}

    def leases(self) -> list[SeenLease]:
        return list_leases(self.store)

    def sound(self) -> dict[str, set[str]]:
        """What each backup names; every message of every one is right."""
        if not list(self.store.list(layout.DESCRIPTOR)):
            return {}
        repository = Repository.open(self.store, self.keys)
        manifests = {backup: repository.manifest(backup) for backup in repository.backups()}
        for backup, manifest in manifests.items():
            assert list(verify_backup(repository.objects, manifest, Level.DATA)) == [], backup
        assert [summary.id for summary in repository.inventory().summaries] == list(manifests)
        return {backup: set(objects_named(manifest)) for backup, manifest in manifests.items()}

    def end_leases(self, chance: random.Random) -> None:
        """Of the dead; `unlock` removes them when their time is over, or when it is told to."""
        if not self.leases():
            return
        if isinstance(self.store, LocalStore) and chance.random() < 0.7:
            then = store_now(self.store, os.urandom) - DURATION_SECONDS - 5
            for seen in self.leases():
                for key in seen.keys:
                    os.utime(Path(self.store.location) / key, (then, then))
            unlocked = self.run("unlock").ok().document["leases"]
            assert all(one["state"] == "expired" and one["removed"] and one["process_gone"] for one in unlocked)
        else:
            self.run("unlock", "--force").ok()
        assert self.leases() == []


@pytest.fixture(params=["folder", "folder, encrypted", "s3"])
def places(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Site, Site]:
    """A repository, and a place for its copy."""
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3_server")
        for name, value in server.credentials().items():
            monkeypatch.setenv(name, value)
        one, other = (f"s3://{BUCKET}/crashes/{next(_NUMBERS)}" for _ in range(2))
        to = {name.replace("JSBACKUP_", "JSBACKUP_TO_"): value for name, value in server.environment.items()}
        at = server.environment | to | {"JSBACKUP_REPO": one, "JSBACKUP_TO_REPO": other}
        stores = [open_store(location, settings_of(server.url)) for location in (one, other)]
        return Site(stores[0], NO_KEYS, at), Site(stores[1], NO_KEYS, at | {"JSBACKUP_REPO": other})
    at, keys = {"JSBACKUP_REPO": str(tmp_path / "one")}, NO_KEYS
    if request.param == "encrypted":
        (tmp_path / _KEY_FILES["IDENTITY"]).write_text(f"{ME.text}\n")
        assert ME.recipient is not None
        made = ["init", "--encrypt-to", ME.recipient.label, "--writer-key", str(tmp_path / _KEY_FILES["WRITER_KEY"])]
        Site(LocalStore(tmp_path), NO_KEYS, at).run(*made).ok()
        keys = GivenKeys(identities=(ME,))
        at |= {f"JSBACKUP_{name}_FILE": str(tmp_path / file) for name, file in _KEY_FILES.items()}
    stores = [LocalStore(tmp_path / "one"), LocalStore(tmp_path / "other")]
    return Site(stores[0], keys, at), Site(stores[1], keys, at | {"JSBACKUP_REPO": str(tmp_path / "other")})


async def _change(url: str, chance: random.Random, *, first: bool) -> None:
    """Messages come to some streams, and go from some; with a consumer each that has something pending."""
    async with connected(url) as nc:
        for name in STREAMS if first else ():
            config = {"name": name, "subjects": [f"{name}.>"], "storage": "file", "num_replicas": 1}
            await call(nc, f"STREAM.CREATE.{name}", config)
            consumer = {"stream_name": name, "config": {"durable_name": "some", "ack_policy": "explicit"}}
            await call(nc, f"CONSUMER.DURABLE.CREATE.{name}.some", consumer)
        chosen = STREAMS if first else chance.sample(STREAMS, len(STREAMS) // 2)
        wire = await Wire.open(url)
        for name in chosen:
            for number in range(chance.randrange(1, 200)):
                await wire.send(f"{name}.{number % 5}", chance.randbytes(chance.randrange(2000)))
        await wire.replies()
        await wire.close()
        for name in chosen[::2]:
            state = (await call(nc, f"STREAM.INFO.{name}"))["state"]
            await call(nc, f"STREAM.PURGE.{name}", {"seq": state["first_seq"] + chance.randrange(20)})


def killed(site: Site, moment: int, line: list[str], env: dict[str, str]) -> bool:
    """Run a command, and kill it when so many objects of the site have come or gone. Whether it was not too late."""
    before = site.objects()
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**env)
    ) as child:
        deadline = time.monotonic() + FAR_SECONDS
        while child.poll() is None and len(site.objects() ^ before) < moment:
            assert time.monotonic() < deadline
        child.kill()
        out, _ = child.communicate()
    assert child.returncode in (0, -signal.SIGKILL), out
    return child.returncode != 0


@contextmanager
def restoring(site: Site, backup: str | None, target: NatsServer) -> Iterator[None]:
    """A restore that begins before and is let end after: whatever happens meanwhile, it succeeds."""
    if backup is None:
        yield
        return
    line = command_line("restore", backup, "-s", target.url, "--if-exists", "replace")
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment(**site.environment)
    ) as child:
        deadline = time.monotonic() + FAR_SECONDS
        while child.poll() is None and not site.leases():
            assert time.monotonic() < deadline
        yield
        out, _ = child.communicate(timeout=FAR_SECONDS)
    assert child.returncode == 0, out


@pytest.mark.explore
@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "places"), [("2.12.8", "encrypted"), ("2.15.1", "s3"), *MORE], indirect=["places"])
def test_killed_at_random_moments(
    version: str, places: tuple[Site, Site], nats_server: Callable[..., NatsServer]
) -> None:
    site, other = places
    server, target = nats_server(version), nats_server(version)
    chance = random.Random(f"{SEED} {version} {site.store.location[:2]} {len(site.environment)}")
    sys.stderr.write(f"JSBACKUP_TEST_SEED={SEED} JSBACKUP_TEST_KILLS={KILLS}\n")
    count = 0
    for number in itertools.count():
        if count >= KILLS:
            break
        asyncio.run(_change(server.url, chance, first=number == 0))
        name = ORDER[number] if number < len(ORDER) else chance.choice(ORDER)
        if name in DELETES:
            site.run("backup", "-s", server.url).ok()
        if name == "prune":
            site.run("forget", "--keep-last", "1").ok()
        was, copied = site.sound(), set(other.sound())
        arguments = {
            "backup": ["backup", "-s", server.url],
            "forget": ["forget", "--keep-last", "1", "--prune", "--grace", "0"],
            "prune": ["prune", "--grace", "0"],
            "copy": ["copy", "--to-repo", other.environment["JSBACKUP_REPO"]],
        }[name]
        changing = other if name == "copy" else site
        named, newest = set().union(*was.values()), was.get(max(was, default=""), set())
        changes = {
            "backup": len(STREAMS),
            "forget": len(was) + len(named - newest),
            "prune": len(site.content() - named),
            "copy": len(was) + len(named - other.content()),
        }[name]
        moment = chance.randrange(1, changes + 2)
        sys.stderr.write(f"{number}. {name}, {moment} objects: ")
        reader = min(was) if name in DELETES and chance.random() < 0.4 else None
        with restoring(site, reader, target):
            hit = killed(changing, moment, command_line(*arguments), site.environment)
        count += hit
        there = changing.sound()
        leases = changing.leases()
        sys.stderr.write(f"{'killed' if hit else 'ended'}, {len(there)} backups, {len(leases)} leases\n")
        if name == "copy":
            assert copied <= set(there) <= copied | set(was)
        else:
            assert set(sorted(was)[-1:] if name == "forget" else was) <= set(there)
        # In a bucket those that are needed by nobody are safe, too, until the lease of the dead has ended. In a folder
        # nothing of the dead is under way.
        waits = not isinstance(changing.store, LocalStore)
        content, exclusive = changing.content(), any(lease.key.exclusive for lease in leases)
        if leases and content - set().union(*there.values()) and (waits or (chance.random() < 0.5 and not exclusive)):
            pruned = changing.run("prune", "--grace", "0", "--lock-timeout", "0")
            if waits:
                assert pruned.code == 11 and changing.content() == content
            elif there:
                assert pruned.code == 0 and changing.content() == set().union(*there.values())
            else:  # a first backup or copy that was killed: its objects may as well be those of lost backups
                assert pruned.code == 14 and changing.content() == content
        # Only one that deletes has to be waited for.
        if exclusive:
            begun = site.run("backup", "-s", server.url, "--lock-timeout", "0")
            assert begun.code == (11 if waits else 0)
            changing.end_leases(chance)
        if name not in DELETES:
            site.run(*arguments, "--lock-timeout", "0").ok()
        changing.end_leases(chance)
        site.end_leases(chance)
        changing.run(*(arguments if name in DELETES else ["prune", "--grace", "0"])).ok()
        there = changing.sound()
        assert changing.content() == set().union(*there.values())
        assert changing.leases() == [] and list(changing.store.list(layout.MARKS)) == []
        if name == "copy":
            assert set(there) >= set(was)
    asyncio.run(_change(server.url, chance, first=False))
    last = site.run("backup", "-s", server.url).ok().document
    assert last["result"] == "complete"
    restored = site.run("restore", "latest", "-s", target.url, "--if-exists", "replace", "--replace-with-part").ok()
    # Backups that were killed while they read what is new leave a consumer for a minute.
    ignore = [*announced(restored), "consumer._INBOX-*", "state.consumer_count"]
    assert compare(seen(server.url), seen(target.url), ignore=ignore) == []
