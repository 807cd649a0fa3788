"""A folder that a server uses is refused; one that nobody uses is not; what changes meanwhile is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.errors import UsageError
from jsbackup.exchange.folder import Folder
from jsbackup.exchange.server_store import store_files as in_use
from jsbackup.exchange.server_store.import_store import Advance, StoreSurvey
from jsbackup.exchange.server_store.store_files import StreamFiles, find_users, refuse_users
from jsbackup.formats.server_store.ciphers import StoreKeys
from tests.exchange.server_store import stores
from tests.exchange.server_store.made_up import write_stream
from tests.harness.server_stores import make_store, server_of
from tests.harness.servers import NEWEST


@pytest.mark.nats
@pytest.mark.timeout(240)
def test_a_running_server_is_found_from_any_folder_of_its_store(tmp_path: Path) -> None:
    made = make_store(NEWEST, "plain", tmp_path)
    store = made.directory / "store"
    places = (store, store / "jetstream", made.streams, made.streams / "ORDERS")
    assert not any(map(find_users, places))
    with server_of(NEWEST, "plain", made.directory):
        for place in places:
            with pytest.raises(UsageError, match=r"is in use by nats-server \(pid \d+\)"):
                refuse_users(place)
        (tmp_path / "link").symlink_to(made.streams)
        assert find_users(tmp_path / "link")
        assert not find_users(tmp_path / "other")
    assert not any(map(find_users, places))


@pytest.fixture
def processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A table of processes that tests fill."""
    table = tmp_path / "proc"
    table.mkdir()
    monkeypatch.setattr(in_use, "_PROCESSES", table)
    yield table


def process(table: Path, pid: int, *words: str, here: Path, name: str = "nats-server", root: Path = Path("/")) -> Path:
    place = table / str(pid)
    (place / "fd").mkdir(parents=True)
    (place / "comm").write_text(f"{name}\n")
    (place / "cmdline").write_bytes(b"\0".join(word.encode() for word in words) + b"\0")
    (place / "cwd").symlink_to(here)
    (place / "root").symlink_to(root)
    return place


@pytest.mark.parametrize(
    "words",
    [
        ["nats-server", "-js", "-sd", "{store}"],
        ["/usr/bin/nats-server", "--store_dir={store}"],
        ["nats-server", "--store_dir", "data"],
        ["nats-server", "-c", "{config}"],
        ["nats-server", "--config=server.conf"],
    ],
)
def test_a_command_line_tells_the_folder(tmp_path: Path, processes: Path, words: list[str]) -> None:
    store = tmp_path / "data"
    (store / "jetstream" / "$G").mkdir(parents=True)
    config = tmp_path / "server.conf"
    config.write_text(f'jetstream {{ store_dir: "{store}", max_file: 1G }}\n')
    filled = [word.format(store=store, config=config) for word in words]
    process(processes, 17, *filled, here=tmp_path)
    for place in (store, store / "jetstream", store / "jetstream" / "$G"):
        assert find_users(place) == ["nats-server (pid 17)"]
    assert find_users(tmp_path) == []


@pytest.mark.parametrize("setting", ["store_dir = {}", "storedir {}", "store_dir: '{}'", '"store_dir": "{}"'])
def test_a_configuration_tells_the_folder(tmp_path: Path, processes: Path, setting: str) -> None:
    store = tmp_path / "data"
    (store / "jetstream").mkdir(parents=True)
    (tmp_path / "nats.conf").write_text(f"port: 4222\njetstream {{\n {setting.format(store)}\n max_file: 1G }}\n")
    process(processes, 3, "nats-server", "-c", "nats.conf", here=tmp_path)
    assert find_users(store)


def test_a_server_in_a_container_sees_its_own_root(tmp_path: Path, processes: Path) -> None:
    inside = tmp_path / "container"
    (inside / "data" / "jetstream").mkdir(parents=True)
    process(processes, 9, "nats-server", "-sd", "/data", here=Path("/"), root=inside)
    assert find_users(inside / "data") == ["nats-server (pid 9)"]


def test_open_files_tell_the_folder(tmp_path: Path, processes: Path) -> None:
    store = tmp_path / "data"
    (store / "jetstream").mkdir(parents=True)
    place = process(processes, 4, "nats-server", here=tmp_path)
    assert not find_users(store)
    (place / "fd" / "7").symlink_to(store / "jetstream" / "1.blk")
    assert find_users(store) == ["nats-server (pid 4)"]


def test_others_do_not_count(tmp_path: Path, processes: Path) -> None:
    store = tmp_path / "data"
    (store / "jetstream").mkdir(parents=True)
    place = process(processes, 4, "tail", "-f", str(store), here=tmp_path, name="tail")
    (place / "fd" / "7").symlink_to(store / "jetstream" / "1.blk")
    process(processes, 5, "nats-server", "-sd", str(tmp_path / "another"), here=tmp_path)
    process(processes, 6, "nats-server", "-c", "missing.conf", here=tmp_path)
    (processes / "7").mkdir()  # ended meanwhile
    (processes / "self").mkdir()
    assert find_users(store) == []


def test_where_there_is_no_table_of_processes_nothing_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_use, "_PROCESSES", tmp_path / "nowhere")
    assert find_users(tmp_path) == []


def test_a_stream_that_changes_while_it_is_read_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    streams = tmp_path / "$G" / "streams"
    path = write_stream(streams)
    write_stream(streams, "QUIET")

    read = StoreSurvey.read

    def write_meanwhile(survey: StoreSurvey, advance: Advance) -> None:
        if survey._files.name == "ORDERS":
            with (path / "msgs" / "1.blk").open("ab") as block:
                block.write(b"more")
        read(survey, advance)

    monkeypatch.setattr(StoreSurvey, "read", write_meanwhile)
    imported = stores.import_folder(streams)
    assert imported.failures == {"ORDERS": "the files of stream ORDERS changed while they were read"}
    assert list(imported.messages) == ["QUIET"] and imported.partial


def test_stamps_know_files_that_come_and_go(tmp_path: Path) -> None:
    path = write_stream(tmp_path)

    def stamps() -> object:
        with Folder.open(path) as folder:
            return StreamFiles(folder, "ORDERS", StoreKeys((), "")).stamps()

    before = stamps()
    assert stamps() == before
    (path / "msgs" / "9.blk").write_bytes(b"")
    assert (added := stamps()) != before
    (path / "obs" / "pull" / "o.dat").unlink()
    assert stamps() != added
