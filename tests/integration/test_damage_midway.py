"""Objects that are damaged when a restore reads them: nothing of their stream stays, and what was there before does.

The server takes small chunks, and little is read ahead, so that a part of the stream has been sent when the damage is
found.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest

from jsbackup.config import Glob
from jsbackup.engine.restore import send_archive
from jsbackup.engine.restore.proof import ProofLevel
from jsbackup.engine.restore.restore import RestoreReport, run_restore
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.engine.restore.send_archive import TransmitLimits
from jsbackup.errors import IntegrityError, JsBackupError
from jsbackup.planning.interrupted import MARKER
from jsbackup.planning.model import IfExists, RestoreOptions, SendAs
from jsbackup.protocol.restore import RestoreSender
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.stores.memory import MemoryStore
from tests.engine.restores import connection_to
from tests.harness.api import call, connected
from tests.harness.backups import FIRST, make_repository
from tests.harness.commands import jsbackup
from tests.harness.damage import DAMAGES, MESSAGES, flip, put_instead, store_restorable, swap
from tests.harness.sending import narrow
from tests.harness.servers import NEWEST, VERSIONS, NatsServer
from tests.harness.small_pages import make_pages_small
from tests.integration.large import NAME, TOTAL_BYTES, Standing, make_large, standing
from tests.integration.large import WHOLE as LARGE

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

CHUNK = 8192
ONCE = RestoreSettings(jobs=2, limits=TransmitLimits(ahead_bytes=CHUNK))
WHOLE = Standing(len(MESSAGES), MESSAGES[-1].sequence, False)


@pytest.fixture(autouse=True)
def _narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    narrow(monkeypatch, CHUNK)


@dataclass(slots=True)
class Scene:
    """A repository whose objects can be damaged, an empty server, and how many bytes were sent to it."""

    store: MemoryStore
    server: NatsServer
    sent_bytes: int = 0

    @property
    def manifest(self) -> Manifest:
        repository = Repository.open(self.store)
        return repository.manifest(repository.backups()[0])

    def stream(self, name: str) -> StreamBackup:
        return next(one for one in self.manifest.streams if one.name == name)

    def restore(self, *names: str, settings: RestoreSettings = ONCE, **options: Any) -> RestoreReport:
        repository = Repository.open(self.store)
        asked = replace(RestoreOptions(tuple(map(Glob, names))), **options)
        run = RestoreRun(connection_to(self.server.url), asked, settings)
        return asyncio.run(run_restore(run, repository, self.manifest))

    def failure(self, *names: str, settings: RestoreSettings = ONCE, **options: Any) -> JsBackupError:
        """The error of a restore of which nothing succeeds, before anything is sent or later."""
        try:
            report = self.restore(*names, settings=settings, **options)
        except JsBackupError as error:
            assert error.exit_code == IntegrityError.exit_code
            return error
        assert (report.code, report.streams) == (IntegrityError.exit_code, ())
        return report.failures[0].error

    def standing(self) -> dict[str, Standing]:
        return standing(self.server.url)

    def delete(self, name: str) -> None:
        self._call(f"STREAM.DELETE.{name}")

    def create(self, config: dict[str, Any]) -> None:
        self._call(f"STREAM.CREATE.{config['name']}", config)

    def publish(self, subject: str) -> None:
        async def publish() -> None:
            async with connected(self.server.url) as nc:
                await nc.request(subject, b"1", timeout=20)

        asyncio.run(publish())

    def _call(self, subject: str, *request: Any) -> None:
        async def ask() -> None:
            async with connected(self.server.url) as nc:
                await call(nc, subject, *request)

        asyncio.run(ask())


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, nats_server: Callable[..., NatsServer]) -> Iterator[Callable[..., Scene]]:
    send = RestoreSender.send

    def start(version: str = NEWEST, store: MemoryStore | None = None) -> Scene:
        if store is None:
            store = MemoryStore()
            store_restorable(make_repository(store), FIRST)
        made = Scene(store, nats_server(version, max_payload_bytes=32 * CHUNK))

        def count(sender: RestoreSender, chunk: bytes, reply: str) -> None:
            made.sent_bytes += len(chunk)
            send(sender, chunk, reply)

        monkeypatch.setattr(send_archive, "_AHEAD_BYTES", 1)
        monkeypatch.setattr(RestoreSender, "send", count)
        return made

    yield start


def _damaged(store: MemoryStore, keys: Sequence[str], damage: str) -> Callable[[], None]:
    """Damage the first of two objects, or exchange them; return what undoes that."""
    before = {key: store.get(key) for key in keys}
    if damage == "exchanged":
        swap(store, *keys)
    else:
        put_instead(store, keys[0], DAMAGES[damage](before[keys[0]]))

    def undo() -> None:
        for key, data in before.items():
            put_instead(store, key, data)

    return undo


def _kinds(scene: Scene, paged: bool) -> dict[str, tuple[str, list[str]]]:
    """For each kind of object: a stream, and the keys of two of its objects."""
    orders, verbatim = scene.stream("ORDERS"), scene.stream("VERBATIM")
    segments = [ref.key for ref in orders.segments]
    middle = len(segments) // 2
    if paged:
        (page, *_), (other, *_) = orders.pages, scene.stream("QUEUE").pages
        return {"page": ("ORDERS", [page.key, other.key])}
    (pending,) = (one.pending.key for one in orders.consumers if one.pending is not None)
    return {
        "first segment": ("ORDERS", segments[:2]),
        "middle segment": ("ORDERS", segments[middle : middle + 2]),
        "last segment": ("ORDERS", segments[:-3:-1]),
        "pending set": ("ORDERS", [pending, segments[0]]),
        "piece": ("VERBATIM", [ref.key for ref in verbatim.opaque[1:3]]),
    }


@pytest.mark.by_turns
@pytest.mark.parametrize(
    ("version", "wire", "paged"),
    [
        (VERSIONS[0], SendAs.AUTO, False),
        (NEWEST, SendAs.V1, False),
        (NEWEST, SendAs.V2, False),
        (NEWEST, SendAs.V2, True),
    ],
)
def test_nothing_stays_of_a_stream_with_a_damaged_object(
    version: str,
    wire: SendAs,
    paged: bool,
    scene: Callable[..., Scene],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if paged:
        make_pages_small(monkeypatch)
    here = scene(version)
    for kind, (name, keys) in _kinds(here, paged).items():
        sends = SendAs.AUTO if name == "VERBATIM" else wire
        for damage in [*DAMAGES, "exchanged"]:
            undo = _damaged(here.store, keys, damage)
            error = here.failure(name, wire=sends)
            assert any(key in error.message for key in keys), (kind, damage, error)
            assert "--partial" in (error.hint or "") or paged, (kind, damage, error)
            assert here.standing() == {}, (kind, damage)
            undo()
        assert here.restore(name, wire=sends).failures == ()
        (left,) = here.standing().values()
        assert not left.marked
        here.delete(name)


def test_the_other_streams_are_restored(scene: Callable[..., Scene]) -> None:
    here = scene()
    key = here.stream("ORDERS").segments[-1].key
    put_instead(here.store, key, flip(here.store.get(key)))
    report = here.restore("ORDERS", "OTHER")
    assert report.code == 3 and [one.name for one in report.streams] == ["OTHER"]
    assert [(one.name, one.error.exit_code) for one in report.failures] == [("ORDERS", 14)]
    assert list(here.standing()) == ["OTHER"]
    rest = here.restore("ORDERS", settings=replace(ONCE, partial=True))
    assert rest.code == 3 and rest.streams[0].verified and [one.key for one in rest.streams[0].lost] == [key]


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of a repository with one large stream, of some twenty segments."""
    folder = tmp_path_factory.mktemp("large") / "repo"
    jsbackup("init", "-r", folder, "--segment-size", "1MiB").ok()
    with NatsServer("2.15.1") as server:
        make_large(server.url)
        jsbackup("backup", "-s", server.url, "-r", folder).ok()
    store = LocalStore(folder)
    return {info.key: store.get(info.key) for info in store.list()}


@pytest.mark.by_turns
@pytest.mark.parametrize(("version", "wire"), [("2.11.11", SendAs.V1), (NEWEST, SendAs.V1), (NEWEST, SendAs.V2)])
def test_nothing_stays_of_a_stream_of_which_a_part_was_sent(
    version: str, wire: SendAs, scene: Callable[..., Scene], large: dict[str, bytes]
) -> None:
    store = MemoryStore()
    for key, data in large.items():
        store.put(key, data)
    here = scene(version, store)
    segments = [ref.key for ref in here.stream(NAME).segments]
    assert len(segments) > 20
    for place in (len(segments) // 2, len(segments) - 1):
        undo = _damaged(store, [segments[place]], "flipped")
        here.sent_bytes = 0
        assert segments[place] in here.failure(NAME, wire=wire).message
        # A whole block of an archive v1, of 8 MiB, is made before any of it is sent.
        assert here.sent_bytes > max(0, place * TOTAL_BYTES // len(segments) - (9 << 20)) and here.standing() == {}
        undo()
    assert here.restore(NAME, wire=wire).code == 0
    assert here.standing() == LARGE


@pytest.mark.by_turns
@pytest.mark.parametrize("proof", [ProofLevel.FULL, ProofLevel.QUICK, ProofLevel.NONE])
def test_a_stream_to_be_replaced_stays_if_an_object_is_damaged(proof: ProofLevel, scene: Callable[..., Scene]) -> None:
    here = scene()
    settings = replace(ONCE, proof=proof)
    there = {"name": "ORDERS", "subjects": ["orders.>"], "storage": "file"}
    here.create(there)
    here.publish("orders.mine")
    before = here.standing()
    kinds = _kinds(here, paged=False)
    for kind in ("first segment", "last segment", "pending set"):
        name, keys = kinds[kind]
        for damage in ("flipped", "missing", "zeroed", "exchanged"):
            undo = _damaged(here.store, keys, damage)
            error = here.failure(name, settings=settings, if_exists=IfExists.REPLACE, replace_with_part=True)
            assert any(key in error.message for key in keys), (kind, damage, error)
            assert here.standing() == before, (kind, damage)
            undo()
    assert here.restore("ORDERS", settings=settings, if_exists=IfExists.REPLACE, replace_with_part=True).code == 0
    assert here.standing() == {"ORDERS": WHOLE}


def test_a_leftover_stays_if_an_object_is_damaged(scene: Callable[..., Scene]) -> None:
    """It may have the messages that the repository has lost."""
    here = scene()
    here.create({"name": "ORDERS", "subjects": ["orders.>"], "storage": "file", "metadata": {MARKER: "earlier"}})
    before = here.standing()
    for key in (ref.key for ref in here.stream("ORDERS").segments[::2]):
        undo = _damaged(here.store, [key], "flipped")
        error = here.failure("ORDERS")
        assert key in error.message and error.message.startswith("nothing was restored")
        assert here.standing() == before
        undo()
    assert here.restore("ORDERS").code == 0
    assert here.standing() == {"ORDERS": WHOLE}
