"""Micro-batches that are run again on streams that remove messages: what holds of them then, and what it costs."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from jsbackup.engine.link.jetstream import JetStream
from jsbackup.errors import IntegrityError
from jsbackup.putting_back import row_sender
from jsbackup.putting_back.batch_ids import BatchId
from jsbackup.putting_back.new_rows import NewRow
from tests.harness.servers import NEWEST, NatsServer
from tests.putting_back.test_batch_writing import SECOND, Query, contents, forget, of
from tests.putting_back.test_row_writing import begin, make, rows_of

Server = Callable[..., NatsServer]


class Requests:
    """How many messages are asked for one by one, and how many at once at most."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = self.most = self._open = 0
        ask = JetStream.message

        async def counted(js: JetStream, stream: str, sequence: int) -> Any:
            self.count += 1
            self._open += 1
            self.most = max(self.most, self._open)
            try:
                return await ask(js, stream, sequence)
            finally:
                self._open -= 1

        monkeypatch.setattr(JetStream, "message", counted)


def keys(count: int, values: int, *, first: int = 0) -> list[NewRow]:
    """Of each key so many values, one key after the other."""
    found = [(key, value) for key in range(count) for value in range(first, first + values)]
    return [NewRow(b"s.%d" % key, b"%d" % value, None, None) for key, value in found]


def values_of(query: Query, subject: bytes) -> list[bytes]:
    return [data for key, data in contents(query) if key == subject]


@pytest.mark.parametrize("most", [1, 2])
def test_a_key_with_equal_rows_ends_with_the_last(nats_server: Server, most: int) -> None:
    """The server has forgotten the ids of the first rows, and knows that of the last, which is equal to the first."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=6 * SECOND, max_msgs_per_subject=most)
    query.start()
    rows = [NewRow(b"s.key", data, None, None) for data in (b"same", *(b"%d" % n for n in range(most)), b"same")]
    query.batch(0, [NewRow(b"s.first", b"", None, None)])
    query.target = begin(query.url)
    query.part(1, 0, rows[:-1])
    time.sleep(4.5)
    query.part(1, 0, rows)
    assert values_of(query, b"s.key") == [row.data for row in rows[-most:]]
    time.sleep(2)
    query.start()
    query.batch(1, rows)
    assert values_of(query, b"s.key") == [row.data for row in rows[-most:]]


def test_what_a_bucket_has_is_not_asked_for(nats_server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """The acknowledgements say it: a newer message of a key removes the older one."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, max_msgs_per_subject=1)
    query.start()
    query.batch(0, rows_of(1))
    rows = keys(400, 3)
    query.batch(1, rows)
    forget()
    query.start()
    requests = Requests(monkeypatch)
    assert query.batch(1, rows).rows.rows == 1200
    # Of the two batches before, the last message of each is read back.
    assert requests.count <= 2
    assert Counter(contents(query)[-400:]) == Counter(of(rows[2::3]))


def test_what_a_subject_with_a_history_has_is_asked_for_at_once(
    nats_server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, max_msgs_per_subject=2)
    query.start()
    query.batch(0, rows_of(1))
    rows = keys(400, 3)
    query.batch(1, rows)
    forget()
    query.start()
    requests = Requests(monkeypatch)
    query.batch(1, rows)
    assert 10 < requests.most <= 64 and requests.count <= 2 + 800
    found = contents(query)
    for key in range(400):
        assert [data for subject, data in found if subject == b"s.%d" % key] == [b"1", b"2"]


@pytest.mark.by_turns
@pytest.mark.parametrize("own", [False, True], ids=["ours", "theirs"])
@pytest.mark.parametrize("most", [1, 3, 5])
def test_rows_behind_one_that_was_removed_stay_behind_it(
    nats_server: Server, most: int, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of some keys the first rows were stored, of others none; the rest is more than is put off."""
    monkeypatch.setattr(row_sender, "_PUT_OFF_ROWS", 200)  # and the rows are four times that, as with the real limit
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, max_msgs_per_subject=most)
    query.start()
    rows = [NewRow(b"s.%d" % (n % 7), b"%d" % n, None, f"id {n}" if own else None) for n in range(800)]
    query.batch(0, rows_of(1))
    query.target = begin(query.url)
    query.part(1, 0, rows[:70])
    forget()
    query.start()
    assert query.batch(1, [*rows[:5], *rows[7:]]).rows.rows == 798
    found = contents(query)
    for key in range(7):
        wanted = [row.data for row in rows if row.subject == b"s.%d" % key][-most:]
        assert [data for subject, data in found if subject == b"s.%d" % key] == wanted


def test_what_somebody_else_has_written_since_is_not_replaced(nats_server: Server) -> None:
    """Where nothing that is sent here has removed the row."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, max_msgs_per_subject=1)
    query.start()
    rows = keys(5, 2)
    query.batch(0, rows_of(1))
    query.batch(1, rows)
    query.start()
    other = Query(query.url)
    other.start()
    other.batch(0, [NewRow(b"s.3", b"newer", None, None)])
    query.batch(1, rows)
    assert values_of(query, b"s.3") == [b"newer"]


def test_a_batch_without_rows_that_had_some_is_noticed(query: Query) -> None:
    query.batch(0, rows_of(20))
    query.batch(1, rows_of(10, first=100))
    query.start()
    sentence = r"stream S has 10 messages of the batch s\w+-1 more than it has rows"
    with pytest.raises(IntegrityError, match=sentence) as caught:
        query.batch(1, [], [])
    assert f"ids that begin with {BatchId(query.id, 1)}-" in (caught.value.hint or "")
    # One that never had any.
    query.batch(2, [])
    query.start()
    assert query.batch(2, []).rows.rows == 0


@pytest.fixture
def query(nats_server: Server) -> Query:
    """Into a stream whose server forgets ids after half a second."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2)
    query.start()
    return query


@pytest.mark.by_turns
@pytest.mark.parametrize("limits", [{"max_msgs": 100}, {"max_bytes": 100 * 150}], ids=["messages", "bytes"])
def test_a_stream_that_has_less_than_a_batch(nats_server: Server, limits: dict[str, Any]) -> None:
    """Rows that it had, and removed, are stored again, as the manual says; that some are removed is known."""
    query = Query(nats_server(NEWEST).url)
    make(query.url, duplicate_window=SECOND // 2, **limits)
    query.start()
    query.batch(0, rows_of(1))
    rows = rows_of(500)
    query.batch(1, rows)
    before = contents(query)
    assert 50 < len(before) < 150 and before == of(rows)[-len(before) :]
    forget()
    query.start()
    ended = query.batch(1, rows)
    assert (ended.rows.rows, ended.repeated) == (500, len(before))
    after = contents(query)
    assert ended.removed == 500 - len(after) and set(after) < set(of(rows))
    # One of a batch that fits is all there, and pushes out what is older.
    query.batch(2, rows_of(50, first=1000))
    forget()
    query.start()
    ended = query.batch(2, rows_of(50, first=1000))
    assert (ended.repeated, ended.removed) == (50, 0)
    assert contents(query)[-50:] == of(rows_of(50, first=1000))
