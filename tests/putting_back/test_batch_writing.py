"""Micro-batches as new messages of a stream: each row once, however often the batch is run, and whenever."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from uuid import uuid4

import pytest

from jsbackup.errors import IncompleteError, IntegrityError, JsBackupError, NatsError, UsageError
from jsbackup.putting_back import batch_writing, row_reading
from jsbackup.putting_back.batch_ids import BatchId, BatchPart
from jsbackup.putting_back.batch_writing import BatchTask, EndedBatch, end_batch, write_batch
from jsbackup.putting_back.new_rows import NewRow, RowTarget
from tests.harness.api import JSON, call, connected
from tests.harness.clusters import NatsCluster
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.test_row_writing import begin, connection, make, rows_of, run, stored, write

Server = Callable[..., NatsServer]
SECOND = 10**9


class Query:
    """A streaming query, whose batches are run as Spark does."""

    def __init__(self, url: str) -> None:
        self.url, self.id = url, str(uuid4())
        self.target: RowTarget | None = None
        self.run = ""

    def start(self) -> None:
        """Another run of the query, in other processes."""
        self.run = str(uuid4())
        batch_writing._looked = None

    def part(
        self, number: int, partition: int, rows: Sequence[NewRow], *, again: bool = False, login: str = ""
    ) -> BatchPart:
        assert self.target is not None
        task = BatchTask(BatchId(self.id, number), partition, self.run, again)
        pieces = iter([rows[start : start + 50] for start in range(0, len(rows), 50)])
        return run(write_batch(connection(login or self.url), self.target, task, pieces))

    def end(self, number: int, parts: Sequence[BatchPart]) -> EndedBatch:
        assert self.target is not None
        return run(end_batch(connection(self.url), self.target, BatchId(self.id, number), parts))

    def batch(self, number: int, *partitions: Sequence[NewRow]) -> EndedBatch:
        self.target = begin(self.url)
        return self.end(number, [self.part(number, at, rows) for at, rows in enumerate(partitions)])


@pytest.fixture
def query(nats_server: Server) -> Query:
    """Into a stream whose server forgets ids after half a second."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2)
    query.start()
    return query


def change(url: str, request: str, body: JSON) -> None:
    async def changing() -> None:
        async with connected(url) as nc:
            await call(nc, request, body)

    run(changing())


def contents(query: Query) -> list[tuple[bytes, bytes]]:
    return [(one.subject.encode(), one.data) for one in stored(query.url)]


def of(rows: Sequence[NewRow]) -> list[tuple[bytes | None, bytes | None]]:
    return [(row.subject, row.data) for row in rows]


def forget() -> None:
    """Until the server knows no message ids any more."""
    time.sleep(0.7)


@pytest.mark.by_turns
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
def test_a_batch_that_is_run_again_stores_the_rest(nats_server: Server, later: bool) -> None:
    """In other partitions and another order, behind messages of others, with the server's window over or not."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2 if later else 120 * SECOND)
    query.start()
    query.batch(0, rows_of(100), rows_of(100, first=100))
    before = stored(query.url)
    query.target = begin(query.url)
    # Of three partitions one is whole, one half, one not there.
    query.part(1, 0, rows_of(100, first=1000))
    query.part(1, 1, rows_of(50, first=1100))
    write(query.url, begin(query.url), rows_of(300, first=5000))
    if later:
        forget()
    query.start()
    rows = rows_of(300, first=1000)
    ended = query.batch(1, rows[250:], rows[:120], rows[120:250])
    assert (ended.rows.rows, ended.repeated, ended.copies) == (300, 150, 0)
    found = stored(query.url)
    assert Counter((one.subject.encode(), one.data) for one in found[len(before) :]) == Counter(
        of([*rows, *rows_of(300, first=5000)])
    )
    # Once more, when all is there; and the next batch.
    query.start()
    assert query.batch(1, rows).repeated == 300
    assert query.batch(2, rows).repeated == 0
    assert len(stored(query.url)) == len(found) + 300
    message = found[len(before)].headers
    assert message is not None
    prefix = f"NATS/1.0\r\nNats-Expected-Stream: S\r\nNats-Msg-Id: s{query.id.replace('-', '')[:16]}-1-"
    assert message.startswith(prefix.encode())


def test_rows_are_stored_in_their_order(query: Query) -> None:
    rows = rows_of(3000)
    query.target = begin(query.url)

    def failing() -> Iterator[Sequence[NewRow]]:
        yield rows[:1000]
        time.sleep(0.3)
        raise NatsError("lost")

    task = BatchTask(BatchId(query.id, 0), 0)
    with pytest.raises(NatsError, match=r"^lost; [\d,]+ rows of the partition were stored before$") as caught:
        run(write_batch(connection(query.url), query.target, task, failing()))
    assert "Start the query again with its checkpoint" in (caught.value.hint or "")
    forget()
    query.start()
    assert query.batch(0, rows).rows.rows == 3000
    assert contents(query) == of(rows)


@pytest.mark.by_turns
@pytest.mark.parametrize("later", [False, True], ids=["at once", "later"])
@pytest.mark.parametrize("partitions", [1, 2, 3])
def test_equal_rows_are_all_stored(nats_server: Server, partitions: int, later: bool) -> None:
    """In one partition and in several, and when the batch is run again in others. What is equal in a backup is not."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2 if later else 120 * SECOND)
    query.start()
    same = NewRow(b"s.same", b"beat", None, None)
    query.batch(0, rows_of(5))
    query.target = begin(query.url)
    parts = [query.part(1, 0, [same, same, *rows_of(20)])]
    if later:
        forget()  # then the server does not take these for the same rows, although they have the same ids
    parts += [query.part(1, 1, [*rows_of(20, first=20), same]), query.part(1, 2, [same, same, same])]
    ended = query.end(1, parts)
    assert ended.repeated == 0
    assert ended.copies == 3 or later
    whole = Counter(of([*rows_of(5), *rows_of(40), *[same] * 6]))
    assert Counter(contents(query)) == whole
    if later:
        forget()
    query.start()
    rows = [*rows_of(40), *[same] * 6]
    ended = query.batch(1, *(rows[at::partitions] for at in range(partitions)))
    assert (ended.copies, ended.repeated) == (0, 46)
    assert Counter(contents(query)) == whole
    # In other batches they are others.
    query.batch(2, [same], [same])
    assert Counter(contents(query)) == whole + Counter(of([same, same]))
    places = [same._replace(place=b"1"), same._replace(place=b"2")]
    assert query.batch(3, places[:1], places[1:]).copies == 0
    assert Counter(contents(query)) == whole + Counter(of([same] * 4))


def test_copies_of_equal_rows_are_stored_once(nats_server: Server) -> None:
    """The driver was killed at the end of the batch: before, in the middle or after."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=4 * SECOND)
    query.start()
    same = NewRow(b"s.same", b"beat", b"NATS/1.0\r\nA: 1\r\n\r\n", None)
    query.target = begin(query.url)
    parts = [query.part(0, at, [same] * 3) for at in range(4)]
    assert len(stored(query.url)) == 3
    assert query.end(0, parts).copies == 9
    found = stored(query.url)
    assert [(one.data, one.subject) for one in found] == [(b"beat", "s.same")] * 12
    assert len({one.headers for one in found}) == 12
    assert all(one.headers is not None and one.headers.startswith(b"NATS/1.0\r\nA: 1\r\nNats-Exp") for one in found)
    assert query.end(0, parts).copies == 0
    time.sleep(4.2)
    for sequence in (5, 9):
        change(query.url, "STREAM.MSG.DELETE.S", {"seq": sequence})
    assert query.end(0, parts).copies == 2
    assert query.end(0, parts).copies == 0
    query.start()
    query.target = begin(query.url)
    parts = [query.part(0, at, [same] * 6) for at in range(2)]
    assert query.end(0, parts).copies == 0
    assert len(stored(query.url)) == 12
    # One that is gone cannot be copied.
    parts = [query.part(1, at, [same]) for at in range(2)]
    change(query.url, "STREAM.MSG.DELETE.S", {"seq": 15})
    with pytest.raises(IncompleteError, match=r"message 15 of stream S is one of several equal rows") as caught:
        query.end(1, parts)
    assert "repartition('subject')" in (caught.value.hint or "")


def test_messages_keep_their_own_ids(query: Query) -> None:
    block = b"NATS/1.0\r\nNats-Msg-Id: its\r\nNats-Rollup: all\r\nJsbackup-Row: another\r\n\r\n"
    rows = [NewRow(b"s.1", b"x", block, None), NewRow(b"s.1", b"y", None, "mine"), *rows_of(5)]
    ended = query.batch(0, rows)
    assert (ended.rows.own, ended.rows.left_out) == (2, {"nats-rollup"})
    found = [one.headers or b"" for one in stored(query.url)]
    prefix = f"s{query.id.replace('-', '')[:16]}-0-".encode()
    expected = b"Nats-Expected-Stream: S\r\n"
    assert found[0].startswith(b"NATS/1.0\r\nNats-Msg-Id: its\r\n" + expected + b"Jsbackup-Row: " + prefix)
    assert found[1].startswith(b"NATS/1.0\r\n" + expected + b"Nats-Msg-Id: mine\r\nJsbackup-Row: " + prefix)
    assert found[2].startswith(b"NATS/1.0\r\n" + expected + b"Nats-Msg-Id: " + prefix)
    # The same batch later.
    forget()
    query.start()
    assert query.batch(0, rows[3:], rows[:3]).repeated == 7
    # While the server knows them: the same message of another batch, and another one.
    change(query.url, "STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "storage": "file"})
    query.batch(1, [NewRow(b"s.1", b"z", None, "new")])
    assert query.batch(2, [NewRow(b"s.1", b"z", None, "new")]).repeated == 1
    query.batch(3, [NewRow(b"s.1", b"z", None, "newer")])
    with pytest.raises(UsageError, match=r"row 0 .* has the message id 'newer' of message \d+ .*another one"):
        query.batch(4, [NewRow(b"s.1", b"else", None, "newer")])
    assert len(stored(query.url)) == 9


def test_other_rows_than_before_are_noticed(query: Query) -> None:
    query.batch(0, rows_of(20))
    query.target = begin(query.url)
    query.part(1, 0, rows_of(10, first=100))
    query.start()
    sentence = r"stream S has 10 messages of the batch s\w+-1 more than it has rows"
    with pytest.raises(IntegrityError, match=sentence) as e:
        query.batch(1, rows_of(30, first=200))
    assert f"ids that begin with {BatchId(query.id, 1)}-" in (e.value.hint or "")


def test_a_task_that_is_run_again_late_reads_what_it_has_stored(query: Query) -> None:
    query.target = begin(query.url)
    whole = query.part(0, 1, rows_of(50, first=50))
    query.part(0, 0, rows_of(30))
    forget()
    again = query.part(0, 0, rows_of(50), again=True)
    assert (again.rows.repeated, again.rows.stored) == (30, 20)
    assert query.end(0, [again, whole]).rows.rows == 100
    # A stage that ran again without anyone knowing.
    forget()
    twice = query.part(0, 0, rows_of(5))
    assert twice.rows.repeated == 0
    with pytest.raises(IntegrityError, match=r"has 5 messages of the batch .* a stage of it ran twice"):
        query.end(0, [again, whole])


def test_the_stream_is_read_back_to_the_batch_before(query: Query, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not at all by a run that goes on, nor where nothing was stored; by one message where nobody else writes."""
    read: list[int] = []
    whole = row_reading._ids_between

    def counted(*given: Any, first: int, last: int) -> Any:
        read.append(last - first + 1)
        return whole(*given, first=first, last=last)

    monkeypatch.setattr(row_reading, "_ids_between", counted)
    query.batch(0, rows_of(100), rows_of(100, first=100))
    query.batch(1, rows_of(100), rows_of(100, first=100))
    assert read == []
    query.start()
    query.batch(2, rows_of(100), rows_of(100, first=100))
    assert read == [1]
    write(query.url, begin(query.url), rows_of(70))
    query.start()
    query.batch(3, rows_of(100))
    assert read == [1, 1, 64, 605]
    # One that has nothing before it.
    other = Query(query.url)
    other.start()
    other.batch(0, rows_of(1))
    assert sum(read[4:]) == 770


def test_a_stream_of_which_messages_are_removed_by_consumers(nats_server: Server) -> None:
    """A work queue, whose messages are read one by one."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, retention="workqueue")
    query.start()
    query.batch(0, rows_of(100))
    query.target = begin(query.url)
    query.part(1, 0, rows_of(50, first=500))
    forget()
    query.start()
    assert query.batch(1, rows_of(100, first=500)).repeated == 50
    assert len(stored(query.url)) == 200


@pytest.mark.parametrize("most", [1, 2, 3, 10])
@pytest.mark.parametrize("own", [False, True], ids=["ours", "theirs"])
def test_a_subject_that_keeps_few_messages_ends_with_the_last(nats_server: Server, most: int, own: bool) -> None:
    """As a key of a bucket: the values before it were removed by the limit, and come again."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, max_msgs_per_subject=most)
    query.start()
    rows = [NewRow(b"s.key", b"%d" % n, None, f"id {n}" if own else None) for n in range(6)]
    others = rows_of(10)
    query.batch(0, [NewRow(b"s.first", b"", None, None)])
    query.batch(1, [*others, *rows])
    forget()
    query.start()
    ended = query.batch(1, [*others[:5], *rows, *others[5:]])
    assert ended.rows.rows == 16
    found = [one.data for one in stored(query.url) if one.subject == "s.key"]
    assert found == [row.data for row in rows[-most:]]
    # Once more: those that were sent again are recognized.
    forget()
    query.start()
    assert query.batch(1, [*rows, *others]).rows.rows == 16
    assert [one.data for one in stored(query.url) if one.subject == "s.key"] == found
    query.batch(2, [rows[0]._replace(data=b"last", message_id=None)])
    assert [one.data for one in stored(query.url) if one.subject == "s.key"][-1] == b"last"


@pytest.mark.parametrize("own", [False, True], ids=["ours", "theirs"])
def test_a_subject_ends_with_the_last_while_the_server_knows_only_that(nats_server: Server, own: bool) -> None:
    """A message with an id of its own cannot be stored again for so long; without it the subject would end earlier."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=5 * SECOND, max_msgs_per_subject=1)
    query.start()
    rows = [NewRow(b"s.key", b"%d" % n, None, f"id {n}" if own else None) for n in range(2)]
    query.target = begin(query.url)
    query.part(0, 0, rows[:1])
    time.sleep(3.8)
    query.part(0, 0, rows[1:])
    time.sleep(1.6)
    query.start()
    if own:
        with pytest.raises(IncompleteError, match="row 1 of partition 0 was removed by an earlier row") as caught:
            query.batch(0, rows)
        assert "duplicate_window" in (caught.value.hint or "")
        time.sleep(5.2)
        query.start()
    query.batch(0, rows)
    assert [one.data for one in stored(query.url)] == [b"1"]


def test_who_may_not_read_back_is_told(nats_server: Server) -> None:
    users = "{ user: all, password: p }"
    allow = 'permissions: { publish: { allow: ["s.>", "$JS.API.STREAM.INFO.S"] } }'
    users += f", {{ user: puts, password: p, {allow} }}"
    server = nats_server(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, users: [{users}] }} }}")
    query = Query(server.url.replace("nats://", "nats://all:p@"))
    make(query.url)
    query.start()
    query.batch(0, rows_of(10))
    query.start()
    query.target = begin(query.url)
    with pytest.raises(JsBackupError, match=r"not allow.*STREAM\.MSG\.GET\.S"):
        query.part(1, 0, rows_of(5), login=server.url.replace("nats://", "nats://puts:p@"))


@pytest.mark.by_turns
@pytest.mark.parametrize("replicas", [1, 3])
def test_two_runs_of_a_batch_at_once_store_each_row_once(
    nats_cluster: Callable[..., NatsCluster], replicas: int
) -> None:
    """Tasks of a driver that was killed may go on for a moment. Replicas refuse ids on which they do not agree yet."""
    urls = nats_cluster(NEWEST).urls
    make(urls[0], num_replicas=replicas)
    query = Query(urls[0])
    query.target = target = begin(query.url)
    rows = rows_of(2000)
    task = BatchTask(BatchId(query.id, 0), 0)

    async def both() -> list[BatchPart]:
        pieces = [iter([rows[at : at + 50] for at in range(0, 2000, 50)]) for _ in range(2)]
        return await asyncio.gather(
            *(write_batch(connection(url), target, task, one) for url, one in zip(urls, pieces, strict=False))
        )

    parts = run(both())
    assert [part.rows.rows for part in parts] == [2000, 2000]
    assert sum(part.rows.stored for part in parts) == 2000
    assert contents(query) == of(rows)
    assert query.end(0, parts[1:]).copies == 0


def test_a_stream_that_is_created_again_is_another_one(query: Query) -> None:
    query.target = begin(query.url)
    change(query.url, "STREAM.DELETE.S", {})
    make(query.url)
    with pytest.raises(UsageError, match="stream S was deleted and created again"):
        query.part(0, 0, rows_of(10))
