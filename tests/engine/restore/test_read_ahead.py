"""What a restore sends is read by a thread of its own, which breaks and ends with it."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest

from jsbackup.engine.restore.send_archive import _read_ahead
from jsbackup.errors import IntegrityError
from jsbackup.formats.digest import MessageBatch
from tests.harness.batches import batch_of, messages_of, some_messages

BATCHES = [batch_of(some_messages(20, 100, first=first)) for first in range(1, 5000, 100)]


def test_all_that_is_read_ahead_comes_in_order() -> None:
    reader = threading.current_thread()

    def read() -> Iterator[MessageBatch]:
        for batch in BATCHES:
            assert threading.current_thread() is not reader
            yield batch

    with closing(_read_ahead(read())) as ahead:
        assert messages_of(ahead) == messages_of(BATCHES)


def test_what_breaks_the_reading_is_raised_where_it_is_taken() -> None:
    def read() -> Iterator[MessageBatch]:
        yield BATCHES[0]
        raise IntegrityError("segment 7 is damaged")

    with closing(_read_ahead(read())) as ahead, pytest.raises(IntegrityError, match="segment 7"):
        list(ahead)


def test_given_up_it_reads_no_further() -> None:
    ended = threading.Event()

    def read() -> Iterator[MessageBatch]:
        try:
            yield from itertools.repeat(BATCHES[0])
        finally:
            ended.set()

    with closing(_read_ahead(read())) as ahead:
        next(ahead)
    assert ended.wait(20)
