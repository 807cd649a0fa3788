"""Row for row with `nats backup edit --help`: what our filters keep of an archive is what theirs keep of it.

`JSBACKUP_TEST_EDITS=200` tries as many random combinations, `JSBACKUP_TEST_SEED` others.
"""

from __future__ import annotations

import asyncio
import os
import random
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import jsbackup as api
from tests.exchange.edits import (
    BUCKET,
    FIRST_SEQ,
    FLAGS,
    NOT_FILTERS,
    NOT_OURS,
    ORDERS,
    Edit,
    after,
    before,
    fill,
    our_words,
    ours,
    read_folder,
    some_edits,
    theirs,
    to_folder,
)
from tests.exchange.nats_tool import observed
from tests.formats.archives import as_stored
from tests.harness.batches import Message, messages_of
from tests.harness.commands import jsbackup
from tests.harness.natscli import ToolFailed, nats_backup_account, run_nats
from tests.harness.servers import NEWEST, VERSIONS, NatsServer, version_tuple

pytestmark = [pytest.mark.nats, pytest.mark.natscli]

SEED = int(os.environ.get("JSBACKUP_TEST_SEED", "1"))
EDITS = int(os.environ.get("JSBACKUP_TEST_EDITS", "12"))


class Made(NamedTuple):
    """An account backed up by `nats backup`, and a repository that it was imported into."""

    account: Path
    repository: Path

    def times(self, stream: str) -> list[int]:
        return [message.timestamp_ns for message in read_folder(self.account / stream).messages]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Made]:
    folder = tmp_path_factory.mktemp("alike")
    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url))
        nats_backup_account(server.url, folder / "account")
    jsbackup("import", folder / "account", "-r", folder / "repo").ok()
    yield Made(folder / "account", folder / "repo")


def said_by_help() -> set[str]:
    text = run_nats("backup", "edit", "--help")
    flags = text.partition("Flags:")[2].partition("Global Flags:")[0]
    return {f"--{name}" for name in re.findall(r"^  --(?:\[no-\])?([a-z-]+)", flags, re.MULTILINE)}


def test_the_table_has_every_flag() -> None:
    assert said_by_help() == {*FLAGS, "--after", "--before", *NOT_FILTERS, *NOT_OURS}


def words_of(edits: Sequence[Edit]) -> dict[str, Any]:
    """Options as arguments of `Stream.messages`."""
    asked: dict[str, Any] = {}
    words = iter(word for edit in edits for word in edit.ours)
    for option in words:
        name = option.removeprefix("--").replace("-", "_")
        if name == "kv_compact":
            asked[name] = True
        elif name == "last_per_subject":
            asked[name] = int(next(words))
        elif name in ("since", "until"):
            value = next(words)
            asked[name] = int(value) if value.isdigit() else value
        else:
            asked.setdefault(name, []).append(next(words))
    return asked


def read_by_api(made: Made, stream: str, edits: Sequence[Edit]) -> list[Message]:
    found = api.open(str(made.repository)).latest()[stream]
    return as_stored(messages_of(found.messages(**words_of(edits))))


@pytest.mark.by_turns
@pytest.mark.parametrize("flag", [*FLAGS, "--after", "--before"])
def test_each_row_keeps_the_same(made: Made, tmp_path: Path, flag: str) -> None:
    times = made.times(ORDERS)
    middle, last = times[len(times) // 2], times[-1]
    rows = {
        **FLAGS,
        "--after": [after(middle), after(middle + 1), after(last)],
        "--before": [before(middle), before(middle + 1), before(last)],
    }[flag]
    had = {stream: len(made.times(stream)) for stream in (ORDERS, BUCKET)}
    telling = 0
    for number, edit in enumerate(rows):
        for stream in [BUCKET] if flag == "--kv-compact" else [ORDERS, BUCKET] if number < 9 else [ORDERS]:
            if stream == BUCKET and flag in ("--first-seq", "--last-seq", "--after", "--before"):
                continue
            target = tmp_path / f"{stream}{number}"
            expected = theirs(made.account / stream, target, [edit]).messages
            if flag == "--renumber":
                found = ours(made.repository, stream, tmp_path / f"ours{stream}", [edit]).messages
            else:
                found = read_by_api(made, stream, [edit])
            assert found == expected, (stream, edit)
            telling += 0 < len(expected) < had[stream]
    assert telling > 1 or (telling, flag) in ((1, "--kv-compact"), (0, "--renumber"))


@pytest.fixture(scope="module")
def target_server() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        yield server


@pytest.mark.explore
@pytest.mark.parametrize("number", range(EDITS))
def test_random_combinations_keep_the_same(made: Made, target_server: NatsServer, tmp_path: Path, number: int) -> None:
    chance = random.Random(f"{SEED} {number}")
    stream = chance.choice([ORDERS, BUCKET])
    edits = some_edits(chance, stream, made.times(stream))
    try:
        expected = theirs(made.account / stream, tmp_path / "theirs", edits)
    except ToolFailed as refusal:  # ends of a cut that cross each other
        assert re.search(r"FirstSeq \d+ is above LastSeq|After must be earlier than Before", str(refusal)), refusal
        target = to_folder(made.repository, tmp_path / "ours")
        refused = jsbackup("export", "latest", stream, *our_words(edits), *target)
        assert (refused.code, "nothing lies between them" in refused.out) == (2, True), edits
        return
    found = ours(made.repository, stream, tmp_path / "ours", edits)
    assert found.messages == expected.messages, edits
    renumbered = "--renumber" in our_words(edits)
    cut = any(word in our_words(edits) for word in ("--until",))
    if expected.messages and not cut:
        assert found.ends == expected.ends, edits
    if number % 4 == 0:
        name = f"{stream}_{number}"
        restored(made.repository, target_server.url, stream, name, edits)
        there = observed(target_server.url)[name]
        assert [plain(one) for one in there.messages] == [
            (one.sequence, one.timestamp_ns, as_bytes(one.subject, stream, name), one.headers or None, one.data)
            for one in expected.messages
        ], edits
        assert not renumbered or not there.messages or there.state["first_seq"] == 1


def restored(repository: Path, url: str, stream: str, name: str, edits: Sequence[Edit]) -> None:
    renaming = ["--rename", f"{stream}={name}"]
    if stream == ORDERS:  # other streams of this server have its subjects
        renaming += ["--map-subject", f"orders.>=>{name}.orders.>", "--map-subject", f"audit.*=>{name}.audit.$1"]
    jsbackup("restore", "latest", stream, *our_words(edits), *renaming, "-r", repository, "-s", url).ok()


def plain(one: Any) -> tuple[object, ...]:
    return one.sequence, one.time_ns, one.subject, one.header_block, one.data


def as_bytes(subject: str | bytes, stream: str, name: str) -> bytes:
    text = subject if isinstance(subject, bytes) else subject.encode()
    if stream == ORDERS:
        return f"{name}.".encode() + text
    return text.replace(b"$KV.cfg.", f"$KV.{name.removeprefix('KV_')}.".encode())


SOME = [
    [Edit.same("--exclude-subject", "orders.us.>"), Edit.same("--header", "X-Batch:7"), *FLAGS["--renumber"]],
    [Edit.same("--header", "x-batch"), Edit.same("--payload-match", "(?i)paid|^two$")],
    [Edit.same("--payload-match", "^.{4}$"), Edit.same("--last-per-subject", "2")],
]
COMPACT = [Edit.same("--kv-compact"), Edit.same("--exclude-subject", "$KV.cfg.theme")]


@pytest.mark.by_turns
@pytest.mark.parametrize("version", [one for one in VERSIONS if version_tuple(one) < (2, 15)])
def test_backups_of_older_servers_are_filtered_alike(made: Made, tmp_path: Path, version: str) -> None:
    """Theirs refuses what these servers make."""
    with NatsServer(version) as server:
        asyncio.run(fill(server.url))
        jsbackup("backup", "-r", tmp_path / "repo", "-s", server.url).ok()
        for number, (stream, edits) in enumerate([*((ORDERS, edits) for edits in SOME), (BUCKET, COMPACT)]):
            expected = theirs(made.account / stream, tmp_path / f"theirs{number}", edits)
            found = ours(tmp_path / "repo", stream, tmp_path / f"ours{number}", edits)
            assert [one._replace(timestamp_ns=0) for one in found.messages] == [
                one._replace(timestamp_ns=0) for one in expected.messages
            ]
            name = f"{stream}_{number}"
            restored(tmp_path / "repo", server.url, stream, name, edits)
            there = observed(server.url)[name]
            assert [(one.sequence, one.subject, one.header_block, one.data) for one in there.messages] == [
                (one.sequence, as_bytes(one.subject, stream, name), one.headers or None, one.data)
                for one in expected.messages
            ]


def test_consumers_follow_new_sequences(made: Made, tmp_path: Path) -> None:
    """Theirs drops them. Ours wait for the same messages as before."""
    edits = [Edit.same("--exclude-subject", "audit.log"), *FLAGS["--renumber"]]
    before_edit, found = read_folder(made.account / ORDERS), ours(made.repository, ORDERS, tmp_path / "out", edits)
    kept = [one.sequence for one in before_edit.messages if as_bytes(one.subject, "", "") != b"audit.log"]
    assert theirs(made.account / ORDERS, tmp_path / "theirs", edits).consumers == {}
    old, new = (result.consumers["reader"] for result in (before_edit, found))
    assert old is not None and new is not None
    assert set(new.pending) == {kept.index(sequence) + 1 for sequence in old.pending if sequence in kept}
    assert new.delivered.stream == sum(sequence <= old.delivered.stream for sequence in kept)
    assert new.ack_floor.stream == sum(sequence <= old.ack_floor.stream for sequence in kept)
    with NatsServer(NEWEST) as server:
        run_nats("backup", "restore", "stream", tmp_path / "out", url=server.url)
        consumers = observed(server.url)[ORDERS].consumers
    assert consumers["reader"]["num_ack_pending"] == len(new.pending)
    begins = sum(sequence < FIRST_SEQ + 40 for sequence in kept) + 1
    assert consumers["later"]["config"]["opt_start_seq"] == begins
    assert consumers["later"]["num_pending"] == len(kept) - begins + 1
