"""Salvage on real servers: backups of servers whose store files are damaged, and imports of the files themselves.

What the server held before the damage is told by the witness. A damaged file is put in the place of a good one while
the server is stopped: it then starts with an index that knows nothing of it.
"""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.repository.read.segments import SegmentReader
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.exchange.server_store.stores import fingerprint, lost_sequences, records_in, subjects_of
from tests.harness.api import connected
from tests.harness.batches import messages_of
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.oracle import ObservedStream, compare, observe, unused_floors
from tests.harness.server_stores import KEY, KINDS, STORES, MadeStore, make_store, server_of
from tests.harness.servers import NEWEST, NatsServer, version_tuple

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

ORDERS = "store/jetstream/$G/streams/ORDERS"
BLOCK = 2  # of several


def _payload(made: MadeStore, block: bytes) -> bytes:
    """A byte of one payload."""
    _, stop, _ = _middle(made)
    return block[: stop - 20] + bytes([block[stop - 20] ^ 1]) + block[stop - 19 :]


def _length(made: MadeStore, block: bytes) -> bytes:
    """A bit of the length of one record: all records after it seem to be lost."""
    start, _, _ = _middle(made)
    return block[: start + 1] + bytes([block[start + 1] ^ 1]) + block[start + 2 :]


def _half(made: MadeStore, block: bytes) -> bytes:
    return block[: len(block) // 2]


def _flipped(made: MadeStore, block: bytes) -> bytes:
    middle = len(block) // 2
    return block[:middle] + bytes([block[middle] ^ 1]) + block[middle + 1 :]


def _middle(made: MadeStore) -> tuple[int, int, int]:
    records = records_in(made.streams / "ORDERS", BLOCK, made.keys)
    assert records is not None
    return records[len(records) // 2]


DAMAGES = {"payload": _payload, "length": _length, "half": _half, "flipped": _flipped, "missing": None}


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(
            (version, kind), id=f"{version}-{kind}", marks=pytest.mark.xdist_group(f"salvage-{version}-{kind}")
        )
        for version, kind in STORES
    ],
)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[MadeStore]:
    version, kind = request.param
    yield make_store(version, kind, tmp_path_factory.mktemp("store"))


def _damaged(made: MadeStore, into: Path, damage: str) -> Path:
    """A copy of the store with a damaged block."""
    copy = Path(shutil.copytree(made.directory, into))
    block = copy / ORDERS / "msgs" / f"{BLOCK}.blk"
    change = DAMAGES[damage]
    if change is None:
        block.unlink()
    else:
        block.write_bytes(change(made, block.read_bytes()))
    return copy


def _fits(made: MadeStore, damage: str) -> bool:
    compressed = KINDS[made.kind][1] != "none"
    return damage not in ("payload", "length") if compressed else damage != "flipped"


def _back_up(server: NatsServer, repository: Path, *arguments: str) -> Ran:
    return jsbackup("backup", "-s", server.url, "-r", repository, *arguments)


def _stored(repository: Path, name: str = "ORDERS") -> tuple[dict[int, tuple[bytes, bytes]], set[int], dict[str, int]]:
    """Payloads by sequence, and what is lost, of a stream of the last backup."""
    opened = Repository.open(LocalStore(repository))
    stream = next(one for one in opened.manifest(opened.backups()[-1]).streams if one.name == name)
    reader = SegmentReader(opened.objects)
    messages = {
        one.sequence: (one.subject if isinstance(one.subject, bytes) else one.subject.encode(), one.data)
        for one in messages_of(batch for ref in stream.segments for batch in reader.read(ref))
    }
    return messages, lost_sequences(stream), dict(stream.lost.subjects)


def _truth(made: MadeStore) -> dict[int, tuple[bytes, bytes]]:
    return {one.sequence: (one.subject, one.data) for one in made.held["ORDERS"].messages}


@pytest.mark.by_turns
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_backup_of_a_damaged_server_has_what_can_be_read(made: MadeStore, tmp_path: Path, damage: str) -> None:
    if not _fits(made, damage):
        return
    copy = _damaged(made, tmp_path / "copy", damage)
    repository = tmp_path / "repository"
    with server_of(made.version, made.kind, copy) as server:
        plain = _back_up(server, repository)
        if plain.code == 3:
            # It fails, or the server says what it has lost; either way the way out is named.
            assert any("help salvage" in note for note in plain.document["notes"])
        else:
            assert plain.code == 14, plain
            assert "help salvage" in plain.document["error"]["hint"]
        salvaged = _back_up(server, repository, "--salvage", "--incremental", "never")
    assert salvaged.code == 3, salvaged
    document = {one["name"]: one for one in salvaged.document["streams"]}
    assert document["KV_settings"]["warnings"] == []
    truth, (got, lost, subjects) = _truth(made), _stored(repository)
    assert got.items() <= truth.items()
    assert lost == truth.keys() - got.keys()
    assert not subjects or subjects == subjects_of(made.held["ORDERS"], lost)
    # At most the block is lost, and of one damaged payload only that message.
    records = records_in(made.streams / "ORDERS", BLOCK, made.keys)
    if records is not None:
        assert lost <= {sequence for _, _, sequence in records}
    if damage == "payload":
        assert lost == {_middle(made)[2]}
    # Later ones have cut the block off by now, and so have those that had to read it before they could send it.
    if damage == "length" and version_tuple(made.version) < (2, 11) and not made.keys:
        assert lost == {_middle(made)[2]}
    assert len(got) >= len(truth) * 2 // 3 - 1
    assert document["ORDERS"]["lost"]["spans"]


@pytest.mark.by_turns
@pytest.mark.parametrize("damage", ["half", "payload", "flipped"])
def test_what_the_last_backup_has_is_not_lost(made: MadeStore, tmp_path: Path, damage: str) -> None:
    if not _fits(made, damage):
        return
    repository = tmp_path / "repository"
    healthy = Path(shutil.copytree(made.directory, tmp_path / "healthy"))
    with server_of(made.version, made.kind, healthy) as server:
        _back_up(server, repository).ok()
    copy = _damaged(made, tmp_path / "copy", damage)
    with server_of(made.version, made.kind, copy) as server:
        salvaged = _back_up(server, repository, "--salvage", "--incremental", "never").ok()
    (orders,) = (one for one in salvaged.document["streams"] if one["name"] == "ORDERS")
    assert orders["lost"] is None and any("last backup" in warning for warning in orders["warnings"])
    got, _, _ = _stored(repository)
    assert got == _truth(made)


# --- from the files to a server ---


def _import(made: MadeStore, directory: Path, repository: Path, *arguments: str | Path) -> Ran:
    keys: tuple[str | Path, ...] = ()
    if made.keys:
        file = repository.parent / "key"
        file.write_text(f"{KEY}\n")
        keys = ("--store-key-file", file)
    return jsbackup("import", "--server-store", directory / "store", "-r", repository, *keys, *arguments)


@pytest.mark.by_turns
def test_a_store_comes_back_on_a_server_as_it_was(made: MadeStore, tmp_path: Path) -> None:
    before = fingerprint(made.directory)
    _import(made, made.directory, tmp_path / "repository").ok()
    assert fingerprint(made.directory) == before
    with NatsServer(made.version) as server:
        jsbackup("restore", "latest", "-r", tmp_path / "repository", "-s", server.url).ok()
        after = _observed(server)
    assert compare(made.held, after, ignore=unused_floors(made.held, after)) == []


def _observed(server: NatsServer) -> dict[str, ObservedStream]:
    async def work() -> dict[str, ObservedStream]:
        async with connected(server.url) as nc:
            return await observe(nc)

    return asyncio.run(work())


@pytest.mark.parametrize("made", [(NEWEST, "plain")], indirect=True)
def test_every_command_says_for_ever_that_a_backup_was_salvaged(made: MadeStore, tmp_path: Path) -> None:
    copy, repository = _damaged(made, tmp_path / "copy", "payload"), tmp_path / "repository"
    sequence = _middle(made)[2]
    assert _import(made, copy, repository).code == 3
    lost = f"1 message is lost: sequence {sequence}"
    assert "partial" in (shown := _text("show", "latest", "-r", repository)) and lost in shown
    streams = jsbackup("show", "latest", "-r", repository).document["streams"]
    (orders,) = (one for one in streams if one["name"] == "ORDERS")
    assert [span["first_seq"] for span in orders["lost"]["spans"]] == [sequence]
    lacks = "was read from a damaged store, and lacks 1 message that it had"
    assert lacks in _text("verify", "-r", repository)
    verified = jsbackup("verify", "-r", repository).ok().document["backups"]
    assert verified[0]["lost"]["ORDERS"] == orders["lost"]
    with NatsServer(NEWEST) as server:
        at = ("-r", repository, "-s", server.url)
        assert lacks in _text("plan", "latest", *at)
        assert lacks in _text("restore", "latest", *at)
        after = _observed(server)["ORDERS"]
        assert sequence in after.missing
        assert len(after.messages) == len(made.held["ORDERS"].messages) - 1


def _text(*arguments: str | Path) -> str:
    """What a command prints for people."""
    done = subprocess.run(command_line(*arguments), capture_output=True, text=True, timeout=240, env=environment())
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("made", [(NEWEST, "plain")], indirect=True)
def test_latest_is_the_last_complete_backup_and_status_warns(made: MadeStore, tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    healthy = Path(shutil.copytree(made.directory, tmp_path / "healthy"))
    with server_of(made.version, made.kind, healthy) as server:
        complete = _back_up(server, repository).ok().document["backup"]
    copy = _damaged(made, tmp_path / "copy", "half")
    with server_of(made.version, made.kind, copy) as server:
        partial = _back_up(server, repository)
    assert partial.code == 3
    shown = jsbackup("show", "latest", "-r", repository).ok()
    assert shown.document["backup"] == complete
    status = jsbackup("status", "-r", repository)
    assert status.code == 17 and "incomplete-backup" in status.out and "ORDERS" in status.out
    assert jsbackup("restore", "latest", "--help").code == 0
    assert partial.document["backup"] in jsbackup("list", "-r", repository).out
