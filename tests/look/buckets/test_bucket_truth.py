"""Keys of buckets at random moments, as backups tell them, compared with what was written to a real server.

What a backup cannot say must be said: no key is silently missing, and no value is older than it was. `kv`,
put-back and the page tell the same.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.look.buckets.bucket import KeyList, KeyValueBucket
from jsbackup.look.buckets.bucket_series import BucketSeries, find_series
from jsbackup.look.moment import option_text
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.transforms.cut import AtSequence, Edge
from tests.browse.client import Browsing, rows
from tests.harness.api import call, connected
from tests.harness.commands import jsbackup
from tests.harness.servers import NEWEST, NatsServer
from tests.look.recording import KEYS, Recording, Scenario, write

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

_TTL = {"allow_msg_ttl": True}
SCENARIOS = [
    Scenario("three", 3, {"put": 15, "delete": 4, "purge": 1}),
    # Little is overwritten twice between two backups.
    Scenario("quiet", 1, {"put": 15}, _TTL, counts=(2, 3, 4), backups=6),
    Scenario("compacted", 5, {"put": 6, "delete": 3, "compact": 3}),
    Scenario(
        "short-marked", 64, {"put": 5, "short": 4, "purge": 1}, {**_TTL, "subject_delete_marker_ttl": 3600 * 10**9}
    ),
    Scenario("all", 3, {"put": 6, "short": 2, "delete": 2, "compact": 1, "erase": 1}, {**_TTL, "deny_delete": False}),
]


@dataclass(frozen=True)
class Told:
    """A repository with backups of a bucket, what was written to it, and the last sequence of each backup."""

    scenario: Scenario
    repo: Path
    recording: Recording
    ends: dict[str, int]

    def buckets(self) -> Iterator[KeyValueBucket]:
        """The bucket in each backup, oldest first."""
        repository = Repository.open(LocalStore(self.repo))
        return (KeyValueBucket.find(repository.objects, repository.manifest(backup), "b") for backup in self.ends)


@pytest.fixture(scope="module", params=SCENARIOS, ids=lambda one: one.name)
def told(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Told:
    scenario: Scenario = request.param
    chance, recording, ends = random.Random(scenario.name), Recording(), {}
    repo = tmp_path_factory.mktemp(scenario.name) / "repo"

    async def fill(url: str) -> None:
        async with connected(url) as nc:
            if not recording.last_seq:
                await call(nc, "STREAM.CREATE.KV_b", scenario.stream)
            await write(nc, recording, scenario, chance, chance.choice(scenario.counts))
            if "short" in scenario.what and chance.random() < 0.7:
                await asyncio.sleep(2.5)

    with NatsServer(NEWEST) as server:
        for _ in range(scenario.backups):
            asyncio.run(fill(server.url))
            made = jsbackup("backup", "-s", server.url, "-r", repo).ok().document["backup"]
            ends[made] = recording.last_seq
    return Told(scenario, repo, recording, ends)


def _moments(told: Told, bucket: KeyValueBucket, count: int = 2) -> list[Edge]:
    return told.recording.moments(random.Random(bucket.manifest.id[:8]), told.ends[bucket.manifest.id], count)


def _value(asked: KeyValueBucket | BucketSeries, key: str, at: Edge) -> bytes | str | None:
    """The value, None if the key certainly had none, "unknown" if that is not known."""
    try:
        return asked.value(key).revision.value if isinstance(asked, BucketSeries) else asked.value(key, at).value
    except IncompleteError:
        return "unknown"
    except JsBackupError as error:
        assert error.exit_code == 1
        return None


def _check(told: Told, at: Edge, values: dict[str, bytes | str | None], listed: KeyList) -> None:
    """What is said of single keys, and of all of them, is the truth and the same."""
    known = {state.key: told.recording.values[state.revision] for state in listed.keys}
    for key in KEYS:
        about = (told.scenario.name, key, at, values[key], listed)
        possible = told.recording.possible(key, at)
        assert values[key] == "unknown" or values[key] in possible, about
        if key in known:
            assert known[key] == values[key], about
        elif values[key] == "unknown":
            assert key in listed.unknown or not listed.whole, about
        else:
            assert values[key] is None and key not in listed.unknown, about


def test_what_one_backup_says_is_true(told: Told) -> None:
    said: Counter[str] = Counter()
    for bucket in told.buckets():
        for at in _moments(told, bucket):
            listed = bucket.keys(at)
            values = {key: _value(bucket, key, at) for key in KEYS}
            _check(told, at, values, listed)
            for key in KEYS:
                said["unknown" if values[key] == "unknown" else "known"] += 1
                left = bool(bucket.newest_revisions(key, 1))
                # A key of which something is left is named.
                assert values[key] != "unknown" or (key in listed.unknown) == left
                alone = bucket.keys(at, key)
                assert [one.key for one in alone.keys] == ([key] if isinstance(values[key], bytes) else [])
                assert alone.unknown == ((key,) if values[key] == "unknown" else ()) and alone.whole
        now = AtSequence(told.ends[bucket.manifest.id])
        assert bucket.keys().certain
        for state in bucket.keys().keys:
            assert told.recording.values[state.revision] in told.recording.possible(state.key, now)
    assert said["known"] and said["unknown"], said


def test_the_backups_around_a_moment_say_more_and_it_is_true(told: Told) -> None:
    said: Counter[str] = Counter()
    repository = Repository.open(LocalStore(told.repo))
    *_, newest = told.buckets()
    for at in _moments(told, newest, 5):
        series = find_series(repository, newest, at)
        values = {key: _value(series, key, at) for key in KEYS}
        _check(told, at, values, series.keys(">").keys)
        for key in KEYS:
            by_newest = _value(newest, key, at)
            said["more"] += by_newest == "unknown" != values[key]
            assert by_newest in ("unknown", values[key])
    assert said["more"]


def test_the_page_tells_the_same(told: Told) -> None:
    *_, bucket = told.buckets()
    with Browsing("-r", told.repo) as page:
        page.log_in()
        for at in _moments(told, bucket, 1):
            listed, typed = bucket.keys(at), option_text(at)
            shown = page.get(f"/backup/{bucket.manifest.id}/bucket", name="KV_b", at=typed)
            assert [row[0] for row in rows(shown)] == [state.key for state in listed.keys]
            assert ("Other keys may have existed" in shown.words) == (not listed.whole)
            assert ("cannot say what these keys were" in shown.words) == bool(listed.unknown)
