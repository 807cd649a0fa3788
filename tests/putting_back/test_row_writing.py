"""Rows as new messages of a stream: each once, in order, also where they are written again."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any, TypeVar

import pytest

from jsbackup.config import Connection, ConnectionOptions, source_connection
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError, NatsError, TargetConflict, UsageError
from jsbackup.protocol.info import StoredMessage
from jsbackup.putting_back import row_sender
from jsbackup.putting_back.new_rows import NewRow, RowTarget, WriteId, WrittenRows
from jsbackup.putting_back.row_writing import begin_write, check_written, write_rows
from tests.harness.api import JSON, call, connected
from tests.harness.servers import NEWEST, NatsServer

T = TypeVar("T")
Server = Callable[..., NatsServer]

ROLLUP = b"NATS/1.0\r\nA: 1\r\na:2 \r\nA: 3\r\nNats-Rollup: all\r\nNats-Expected-Last-Sequence: 7\r\n\r\n"


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(work)


def connection(url: str, **options: Any) -> Connection:
    return source_connection(ConnectionOptions(server=url, **options), {})


def make(url: str, name: str = "S", **config: Any) -> None:
    async def making() -> None:
        async with connected(url) as nc:
            whole: JSON = {"name": name, "subjects": ["s.>"], "storage": "file", **config}
            await call(nc, f"STREAM.CREATE.{name}", whole)

    run(making())


def rows_of(count: int, *, first: int = 0) -> list[NewRow]:
    return [NewRow(f"s.{n % 7}".encode(), b"%d" % n, None, None) for n in range(first, first + count)]


def begin(url: str, resume: str = "", *, new_ids: bool = False, stream: str = "S") -> RowTarget:
    return run(begin_write(connection(url), stream, resume, new_ids=new_ids))


def write(
    url: str, target: RowTarget, rows: Sequence[NewRow], *, partition: int = 0, again: bool = False
) -> WrittenRows:
    batches = iter([rows[start : start + 50] for start in range(0, len(rows), 50)])
    return run(write_rows(connection(url), target, batches, partition=partition, again=again))


def stored(url: str, name: str = "S") -> list[StoredMessage]:
    async def reading() -> list[StoredMessage]:
        async with connect_jetstream(connection(url)) as js:
            info = await js.stream(name)
            found = [await js.message(name, n) for n in range(1, info.state.last_seq + 1)]
            return [one for one in found if one is not None]

    return run(reading())


@pytest.mark.by_turns
def test_rows_become_messages_in_order(nats_server: Server) -> None:
    url = nats_server(NEWEST).url
    make(url)
    target = begin(url)
    rows = rows_of(3000)
    assert write(url, target, rows) == WrittenRows(rows=3000)
    found = stored(url)
    assert [(one.subject.encode(), one.data) for one in found] == [(row.subject, row.data) for row in rows]
    assert found[17].headers == (
        f"NATS/1.0\r\nNats-Expected-Stream: S\r\nNats-Msg-Id: {target.write}-0-17\r\n\r\n".encode()
    )
    # Once more, as a task that Spark runs again: half of it is there.
    again = write(url, target, rows_of(4000), again=True)
    assert (again.rows, again.repeated, again.stored, len(stored(url))) == (4000, 3000, 1000, 4000)
    assert run(check_written(connection(url), target, again)) == ""


def test_headers_stay_but_for_those_that_a_server_acts_on(nats_server: Server) -> None:
    url = nats_server(NEWEST).url
    make(url)
    rows = [
        NewRow(b"s.1", b"x", ROLLUP, "mine"),
        NewRow(b"s.1", b"y", b"NATS/1.0\r\nNats-Msg-Id: its\r\n\r\n", None),
        NewRow(b"s.1", b"z", b"NATS/1.0\r\nNats-Msg-Id: its2\r\n\r\n", "other"),
    ]
    target = begin(url)
    written = write(url, target, rows)
    assert written.left_out == {"nats-rollup", "nats-expected-last-sequence"}
    assert (written.own, written.stored) == (3, 3)
    expected = b"Nats-Expected-Stream: S\r\n"
    assert [one.headers for one in stored(url)] == [
        b"NATS/1.0\r\nA: 1\r\na:2 \r\nA: 3\r\n" + expected + b"Nats-Msg-Id: mine\r\n\r\n",
        b"NATS/1.0\r\nNats-Msg-Id: its\r\n" + expected + b"\r\n",
        b"NATS/1.0\r\n" + expected + b"Nats-Msg-Id: other\r\n\r\n",
    ]
    # The same messages of a later write: they are there.
    assert write(url, begin(url), rows).repeated == 3
    # Others with the same ids, which the server would drop.
    with pytest.raises(UsageError, match=r"row 0 .* has the message id 'its' of message 2 .*another one"):
        write(url, begin(url), [NewRow(b"s.1", b"else", None, "its")])
    assert write(url, begin(url, new_ids=True), [NewRow(b"s.1", b"else", None, "its")]).stored == 1


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (NewRow(b"t.1", b"", None, None), "stream S does not listen to the subject t.1"),
        (NewRow(b"s.*", b"", None, None), "not a subject that can be published to"),
        (NewRow(b"s.\xff", b"", None, None), "is not UTF-8"),
        (NewRow(None, b"", None, None), "the column subject is null"),
        (NewRow(b"s.1", None, None, None), "the column data is null"),
        (NewRow(b"s.1", b"", b"Name: value", None), "header block is damaged"),
        (NewRow(b"s.1", b"", b"NATS/1.0\r\nNats-Schedule: @every 1s\r\n\r\n", None), "it is a schedule"),
        (NewRow(b"s.1", b"", b"NATS/1.0\r\nNats-TTL: 1h\r\n\r\n", None), "does not allow that .allow_msg_ttl"),
        (NewRow(b"s.1", b"", None, "a\r\nb"), "message id has a line break"),
        (NewRow(b"s.1", b"", b"NATS/1.0\r\nA: " + b"x" * 65_500 + b"\r\n\r\n", None), "headers are too large"),
    ],
)
def test_what_cannot_be_a_message_is_refused_before_it_is_sent(nats_server: Server, row: NewRow, problem: str) -> None:
    url = nats_server(NEWEST).url
    make(url)
    make(url, "T", subjects=["t.>"])
    target = begin(url)
    with pytest.raises(UsageError, match=f"row 100 of partition 3 cannot be a message: .*{problem}") as caught:
        write(url, target, [*rows_of(100), row], partition=3)
    hint = caught.value.hint or ""
    assert hint.startswith("The same row fails again: mend it or leave it out") and "write the same rows" not in hint
    assert f"then write all rows again, the others as they were, with the option 'resume' {target.write}" in hint
    assert stored(url, "T") == []
    # And that helps, with another row in its place, or without it.
    for rows in ([*rows_of(100), NewRow(b"s.1", b"mended", None, None)], rows_of(100)):
        write(url, begin(url, resume=str(target.write)), rows, partition=3)
    assert len(stored(url)) == 101


def test_streams_that_take_no_rows_are_refused(nats_server: Server) -> None:
    server = nats_server(NEWEST)
    make(server.url)
    make(server.url, "M", subjects=None, mirror={"name": "S"})
    make(server.url, "NOACK", subjects=["n"], no_ack=True)
    make(server.url, "FULL", subjects=["f"], max_msgs=5, discard="new")
    with pytest.raises(UsageError, match="there is no stream s on nats") as caught:
        begin(server.url, stream="s")
    assert caught.value.hint == "Did you mean S?"
    for name, problem in (("M", "is a mirror of S"), ("NOACK", "does not acknowledge")):
        with pytest.raises(UsageError, match=problem):
            begin(server.url, stream=name)
    with pytest.raises(TargetConflict, match=r"did not store a message: maximum messages exceeded.*; 5 rows .* before"):
        write(server.url, begin(server.url, stream="FULL"), [NewRow(b"f", b"", None, None)] * 9)


@pytest.mark.by_turns
def test_a_lost_server_fails_the_partition_and_the_write_goes_on_later(nats_server: Server) -> None:
    server = nats_server(NEWEST)
    make(server.url)
    target = begin(server.url)
    rows = rows_of(5000)

    def batches() -> Iterator[Sequence[NewRow]]:
        yield rows[:3000]
        server.kill()
        yield rows[3000:]

    with pytest.raises(
        NatsError, match=r"the connection to .* was lost.* rows of the partition were stored before"
    ) as e:
        run(write_rows(connection(server.url), target, batches(), partition=0, again=False))
    assert f"'resume' {target.write}" in (e.value.hint or "")
    server.start()
    resumed = begin(server.url, str(target.write))
    assert resumed == replace(target, resumed=True)
    assert write(server.url, resumed, rows).rows == 5000
    assert [one.data for one in stored(server.url)] == [row.data for row in rows]


def test_other_rows_than_before_are_noticed(nats_server: Server) -> None:
    url = nats_server(NEWEST).url
    make(url)
    target = begin(url)
    write(url, target, rows_of(100))
    with pytest.raises(
        IncompleteError, match=r"row \d+ of partition 0 is another one than when it was stored as message \d+"
    ):
        write(url, target, rows_of(100, first=1), again=True)

    async def remove() -> None:
        async with connected(url) as nc:
            await call(nc, "STREAM.PURGE.S", {})

    run(remove())
    with pytest.raises(IncompleteError, match="removed since: whether it was the same row cannot be known"):
        write(url, target, rows_of(100), again=True)
    assert stored(url) == []


def test_fewer_rows_than_before_are_noticed(nats_server: Server) -> None:
    url = nats_server(NEWEST).url
    make(url)
    target = begin(url)
    write(url, target, rows_of(100))
    # Others that write are no reason.
    write(url, begin(url), rows_of(10))
    whole = write(url, target, rows_of(100), again=True)
    assert run(check_written(connection(url), target, whole)) == ""
    fewer = write(url, target, rows_of(60), again=True)
    with pytest.raises(IncompleteError, match=r"stream S has 40 messages of the write .* more than there are rows"):
        run(check_written(connection(url), target, fewer))
    none = write(url, target, [], again=True)
    with pytest.raises(IncompleteError, match=r"stream S has 100 messages of the write"):
        run(check_written(connection(url), target, none))


def test_a_write_resumed_with_other_partitions_is_noticed(nats_server: Server) -> None:
    """As after `coalesce(1)`: the rows of the second partition get new ids in the first one."""
    url = nats_server(NEWEST).url
    make(url)
    target = begin(url)
    write(url, target, rows_of(50))
    write(url, target, rows_of(50, first=50), partition=1)
    resumed = begin(url, str(target.write))
    joined = write(url, resumed, rows_of(100))
    with pytest.raises(IncompleteError, match=r"stream S has 50 messages of the write .* more than there are rows"):
        run(check_written(connection(url), resumed, joined))


def test_rows_are_counted_with_the_permissions_of_the_manual(nats_server: Server) -> None:
    """A user who may make no consumer gets messages one by one; one who may not even do that is told."""
    users = "{ user: all, password: p }"
    for name, more in (("gets", ', "$JS.API.STREAM.MSG.GET.S"'), ("puts", "")):
        allow = f'permissions: {{ publish: {{ allow: ["s.>", "$JS.API.STREAM.INFO.S"{more}] }} }}'
        users += f", {{ user: {name}, password: p, {allow} }}"
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [{users}] }} }}")
    url = server.url.replace("nats://", "nats://all:p@")
    make(url)
    target = begin(url)
    write(url, target, rows_of(100))
    write(url, begin(url), rows_of(10))
    gets = connection(server.url, user="gets", password="p")
    whole = run(write_rows(gets, target, iter([rows_of(100)]), partition=0, again=True))
    assert run(check_written(gets, target, whole)) == ""
    fewer = run(write_rows(gets, target, iter([rows_of(99)]), partition=0, again=True))
    with pytest.raises(IncompleteError, match=r"stream S has 1 message of the write .* more than there are rows"):
        run(check_written(gets, target, fewer))
    puts = connection(server.url, user="puts", password="p")
    new = run(write_rows(puts, target, iter([rows_of(100)]), partition=1, again=True))
    note = run(check_written(puts, target, new))
    assert "others write to the stream, too, and whether an earlier try had more rows is not known" in note


@pytest.mark.parametrize("again", [False, True])
def test_an_error_before_the_first_row_says_how_to_go_on(
    nats_server: Server, monkeypatch: pytest.MonkeyPatch, again: bool
) -> None:
    """Other partitions may have stored rows."""
    monkeypatch.setattr(row_sender, "_PATIENCE_SECONDS", 1.0)
    server = nats_server(NEWEST)
    make(server.url)
    target = begin(server.url)
    server.kill()
    with pytest.raises(NatsError) as caught:
        write(server.url, target, rows_of(10), again=again)
    assert f"'resume' {target.write}" in (caught.value.hint or "")


def test_nothing_is_written_again_once_the_stream_has_forgotten(nats_server: Server) -> None:
    url = nats_server(NEWEST).url
    make(url, duplicate_window=4 * 10**9)
    target = begin(url)
    written = write(url, target, rows_of(100))
    time.sleep(4.5)
    with pytest.raises(IncompleteError, match="is written again, and row 0 may be in stream S already"):
        write(url, target, rows_of(100), again=True)
    with pytest.raises(UsageError, match=r"began .* ago, and stream S recognizes messages for 4.0 s only"):
        begin(url, str(target.write))
    assert run(check_written(connection(url), target, written)) == ""
    # A stage that ran again without anyone knowing.
    twice = write(url, target, rows_of(30))
    assert len(stored(url)) == 130
    with pytest.raises(IntegrityError, match=r"30 messages of the write .* were stored twice"):
        run(check_written(connection(url), target, written))
    # Messages of others are no reason.
    other = begin(url)
    write(url, begin(url), rows_of(10))
    third = write(url, other, rows_of(20))
    late = replace(other, window_ns=1)
    assert run(check_written(connection(url), late, third)) == ""
    assert twice.repeated == 0


@pytest.mark.by_turns
def test_two_at_once_write_each_row_once_in_order(nats_server: Server) -> None:
    """As with speculation."""
    url = nats_server(NEWEST).url
    make(url)
    target, results = begin(url), []
    rows = rows_of(4000)
    threads = [threading.Thread(target=lambda: results.append(write(url, target, rows))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.rows for one in results] == [4000, 4000]
    assert sum(one.stored for one in results) == 4000
    assert [one.data for one in stored(url)] == [row.data for row in rows]


def test_a_denied_subject_is_named(nats_server: Server) -> None:
    deny = 'permissions: { publish: { deny: ["s.3"] } }'
    users = f"users: [{{ user: all, password: p }}, {{ user: some, password: p, {deny} }}]"
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}")
    make(server.url.replace("nats://", "nats://all:p@"))
    some = connection(server.url, user="some", password="p")
    target = run(begin_write(some, "S", "", new_ids=False))
    with pytest.raises(JsBackupError, match=r"does not allow publishing to s\.3"):
        run(write_rows(some, target, iter([rows_of(600)]), partition=0, again=False))


def test_a_write_has_an_id() -> None:
    write_id = WriteId(1_795_000_000, 20_000, "0a1b2c3d")
    assert WriteId.parse(str(write_id)) == write_id
    with pytest.raises(UsageError, match="not the id of a write: 'again'"):
        WriteId.parse("again")


@pytest.mark.parametrize("limit", ["max_msg_size", "max_payload"])
def test_a_row_that_is_too_large_is_named_before_it_is_sent(nats_server: Server, limit: str) -> None:
    """To the byte. No row behind it is stored either, so that the write can go on in order."""
    url = nats_server(NEWEST, config="max_payload: 1024" if limit == "max_payload" else "").url
    config: dict[str, Any] = {"max_msg_size": 1024} if limit == "max_msg_size" else {}
    make(url, **config)
    target = begin(url)
    write(url, target, [NewRow(b"s.1", b"", None, None)], partition=1)
    (block,) = [one.headers for one in stored(url)]
    assert block is not None
    fits = NewRow(b"s.1", bytes(1024 - len(block)), None, None)
    rows = [*rows_of(5)[1:], fits, NewRow(b"s.1", bytes(1025 - len(block)), None, None), *rows_of(9)]
    sentence = rf"row 5 of partition 0 cannot be a message: it has 1,025 bytes with its headers, .* 1,024 .*{limit}"
    with pytest.raises(UsageError, match=sentence) as caught:
        write(url, target, [fits, *rows[:4], *rows[5:]])
    assert f"'resume' {target.write}" in (caught.value.hint or "")
    assert len(stored(url)) == 6
    assert write(url, begin(url, str(target.write)), [fits, *rows[:4], *rows_of(20)]).rows == 25


def test_a_row_that_the_stream_refuses_is_named(nats_server: Server) -> None:
    """The limit was lowered after the write had looked at the stream."""
    server = nats_server(NEWEST)
    make(server.url)
    target = begin(server.url)

    async def lower() -> None:
        async with connected(server.url) as nc:
            config: JSON = {"name": "S", "subjects": ["s.>"], "storage": "file", "max_msg_size": 400}
            await call(nc, "STREAM.UPDATE.S", config)

    def batches() -> Iterator[Sequence[NewRow]]:
        yield rows_of(5)
        run(lower())
        yield [NewRow(b"s.1", bytes(500), None, None)]

    with pytest.raises(NatsError, match=r"^row 5 of partition 0: .*exceeds maximum allowed"):
        run(write_rows(connection(server.url), target, batches(), partition=0, again=False))
    assert len(stored(server.url)) == 5


def test_a_later_try_waits_for_a_server_that_starts(nats_server: Server) -> None:
    server = nats_server(NEWEST)
    make(server.url)
    target = begin(server.url)
    server.kill()
    # From this thread: a server ends with the thread that has started it.
    with ThreadPoolExecutor() as threads:
        writing = threads.submit(write, server.url, target, rows_of(10), again=True)
        time.sleep(3)
        assert not writing.done()
        server.start()
        assert writing.result(60).rows == 10
