"""After a stream was restored in place, or its server's disk was put back, the next backup is of what is there."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path

import pytest

from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from tests.harness.api import JSON
from tests.harness.commands import PATIENT, jsbackup
from tests.harness.filling import fill, publish
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.integration.test_follow import following, wait_for
from tests.trials.accounts import ask

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

REPLACE = ("--if-exists", "replace", "--replace-with-part")
STREAM: JSON = {"subjects": ["orders.>"], "storage": "file", "retention": "limits", "num_replicas": 1}


def back_up(url: str, repo: Path) -> str:
    return str(jsbackup("backup", "-s", url, "-r", repo, *PATIENT).ok().document["backup"])


def send(url: str, subject: str, count: int = 1, text: str = "{}") -> None:
    asyncio.run(publish(url, subject, [text.format(number) for number in range(count)]))


def fifty_more(url: str) -> None:
    send(url, "orders.more", 50)


def hundred(url: str) -> None:
    asyncio.run(fill(url, "S", 100, subject="orders.eu.{}", **STREAM))


def delete(url: str, sequence: int) -> None:
    ask(url, "STREAM.MSG.DELETE.S", {"seq": sequence})


def check_equal(url: str, repo: Path, backup: str = "latest") -> None:
    """A backup is what the server has: by reading both whole."""
    assert jsbackup("diff", backup, "live", "-s", url, "-r", repo, *PATIENT).ok().document["equal"]


@pytest.mark.parametrize("version", ENDS)
def test_a_message_that_was_saved_is_backed_up_and_one_that_was_erased_is_not(version: str, tmp_path: Path) -> None:
    with NatsServer(version) as server:
        hundred(server.url)
        first = back_up(server.url, tmp_path)
        delete(server.url, 50)
        back_up(server.url, tmp_path)
        jsbackup("restore", first, "S", *REPLACE, "-s", server.url, "-r", tmp_path, *PATIENT).ok()
        delete(server.url, 60)
        back_up(server.url, tmp_path)
        check_equal(server.url, tmp_path)


@pytest.mark.parametrize("way", ["replaced", "cut", "deleted before", "grown since", "emptied"])
def test_the_backup_after_an_earlier_state_was_restored_is_complete(way: str, tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        asyncio.run(fill(server.url, "S", 0, **STREAM))
        nothing = back_up(server.url, tmp_path)
        send(server.url, "orders.eu.{}", 100)
        first = back_up(server.url, tmp_path)
        ask(server.url, "STREAM.PURGE.S", {"seq": 51})
        fifty_more(server.url)
        second = back_up(server.url, tmp_path)
        if way == "emptied":
            jsbackup("restore", nothing, "S", *REPLACE, *at).ok()
        elif way == "deleted before":
            ask(server.url, "STREAM.DELETE.S")
            jsbackup("restore", first, *at).ok()
        else:
            more = ("--until", "120") if way == "cut" else ()
            jsbackup("restore", second if way == "cut" else first, "S", *REPLACE, *more, *at).ok()
        if way == "grown since":
            send(server.url, "orders.other", 60)
        made = jsbackup("backup", *at).ok().document
        assert made["result"] == "complete"
        check_equal(server.url, tmp_path)
        fifty_more(server.url)
        back_up(server.url, tmp_path)
        check_equal(server.url, tmp_path)


def test_what_no_restore_took_back_is_lost(tmp_path: Path) -> None:
    """By hand, or by another tool; and messages of another stream."""
    with NatsServer(NEWEST) as server:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        hundred(server.url)
        first = back_up(server.url, tmp_path)
        fifty_more(server.url)
        back_up(server.url, tmp_path)
        jsbackup("restore", first, "S", *REPLACE, *at).ok()
        for note in (tmp_path / "receipts").glob("restore-*"):
            assert json.loads(note.read_bytes())["streams"] == ["S"]
            note.unlink()
        after = jsbackup("backup", *at)
        assert after.code == 3 and "restored an older state" in after.document["notes"][0]


def test_sequences_that_are_given_again_begin_another_life_of_the_stream(tmp_path: Path) -> None:
    def life() -> str:
        back_up(server.url, tmp_path)
        repository = Repository.open(LocalStore(tmp_path))
        return repository.manifest(repository.backups()[-1]).streams[0].life

    with NatsServer(NEWEST) as server:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        hundred(server.url)
        first = back_up(server.url, tmp_path)
        fifty_more(server.url)
        assert life() == ""
        jsbackup("restore", "latest", "S", *REPLACE, *at).ok()
        fifty_more(server.url)
        assert life() == ""  # all that it had is still there
        jsbackup("restore", first, "S", *REPLACE, *at).ok()
        second = life()
        fifty_more(server.url)
        assert life() == second != ""


def test_two_servers_of_one_cluster_name_do_not_lend_each_other_messages(tmp_path: Path) -> None:
    with NatsServer("2.12.8") as production, NatsServer("2.12.8") as staging:
        asyncio.run(fill(production.url, "S", 0, **STREAM))
        send(production.url, "orders.eu.{}", 300, '{{"name": "person {}"}}')
        clone = ("clone", "S", "--mask", "orders.>:$.name=redact")
        jsbackup(*clone, "-s", production.url, "--to-server", staging.url, *PATIENT).ok()
        back_up(staging.url, tmp_path)
        send(production.url, "orders.eu.1", 1, '{{"name": "person"}}')
        back_up(production.url, tmp_path)
        check_equal(production.url, tmp_path)


@pytest.mark.parametrize("version", ENDS)
def test_a_disk_that_was_put_back_is_noticed(version: str, tmp_path: Path) -> None:
    repo, copy = tmp_path / "repo", tmp_path / "copy"
    with NatsServer(version, directory=tmp_path / "server", config="") as server:
        hundred(server.url)
        server.stop()
        shutil.copytree(server.store_directory, copy)
        server.start()
        delete(server.url, 50)
        back_up(server.url, repo)
        server.stop()
        shutil.rmtree(server.store_directory)
        shutil.copytree(copy, server.store_directory)
        server.start()
        delete(server.url, 60)
        back_up(server.url, repo)
        check_equal(server.url, repo)


def test_follow_notices_that_a_stream_was_restored_in_place(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        hundred(server.url)
        first = back_up(server.url, tmp_path)
        with following(tmp_path, server.url) as process:
            delete(server.url, 50)
            wait_for(tmp_path, lambda manifest: manifest.streams[0].captured.messages == 99, process)
            restore = ("restore", first, "S", *REPLACE, "-s", server.url, "-r", tmp_path)
            jsbackup(*restore, *PATIENT).ok()
            delete(server.url, 60)
            assert process.end()[0] == 0
        check_equal(server.url, tmp_path)


@pytest.mark.parametrize(
    "option",
    [("--map-subject", "orders.eu.>=>orders.us.>"), ("--mask", "orders.>:$.name=redact")],
    ids=["mapped", "masked"],
)
def test_what_a_restore_altered_is_read_again(option: tuple[str, str], tmp_path: Path) -> None:
    """It has the same sequences, times and sizes as what was stored before, and is not the same."""
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url, "S", 0, **STREAM))
        send(server.url, "orders.eu.{}", 100, '{{"name": "bob"}}')
        back_up(server.url, tmp_path)
        restore = ("restore", "latest", "S", *REPLACE, "-s", server.url, "-r", tmp_path, *option)
        jsbackup(*restore, *PATIENT).ok()
        back_up(server.url, tmp_path)
        check_equal(server.url, tmp_path)
