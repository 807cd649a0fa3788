"""Tasks that store small tables: one that cannot be read is left to Spark, and stands in no other's way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from jsbackup.errors import FormatError, StoreError
from jsbackup.pipeline.tasks import store_tables as module
from jsbackup.pipeline.tasks.runner import InProcess
from jsbackup.pipeline.tasks.store_tables import SmallTable, StoreTables, store_tables
from jsbackup.repository import layout
from jsbackup.repository.crypto.sealing import PlainSealing
from jsbackup.times import ZERO_TIME
from tests.harness.batches import Message, batch_of, some_messages
from tests.pipeline.places import keep

GOOD = some_messages(30, 10)


def _rows(*messages: Message) -> Callable[[], Iterator[pa.RecordBatch]]:
    return lambda: iter([batch_of([message]) for message in messages])


def _folder(stream: str) -> str:
    return PlainSealing().folder(stream, layout.incarnation("", "", stream, ZERO_TIME))


def _failing(error: Exception) -> Callable[[], Iterator[pa.RecordBatch]]:
    def read() -> Iterator[pa.RecordBatch]:
        yield batch_of(GOOD[:1])
        raise error

    return read


def test_messages_are_sorted_and_those_of_a_subject_counted(tmp_path: Path) -> None:
    kept = keep(tmp_path, {"S": GOOD})
    (want,) = kept.manifest.streams
    tables = {
        "S": SmallTable(_rows(*reversed(GOOD)), 1, _folder("S"), counts_subjects=True),
        "EMPTY": SmallTable(_rows(), 1, _folder("E"), counts_subjects=True),
    }
    found = store_tables(InProcess(), kept.place, tables, None)
    refs = found["S"].segments.refs
    assert [(ref.first_seq, ref.last_seq, ref.messages) for ref in refs] == [(GOOD[0].sequence, GOOD[-1].sequence, 30)]
    subjects = [message.subject for message in GOOD]
    assert found["S"].most == max(map(subjects.count, subjects))
    assert (found["EMPTY"].segments.refs, found["EMPTY"].most) == ((), 0)
    assert want.captured.messages == 30


@pytest.mark.parametrize("error", [FormatError("no"), OSError("no"), pa.ArrowInvalid("no"), ValueError("no")], ids=repr)
def test_a_table_that_cannot_be_read_is_left_out(tmp_path: Path, error: Exception) -> None:
    kept = keep(tmp_path, {})
    good = SmallTable(_rows(*GOOD), 1, _folder("GOOD"))
    twice = SmallTable(_rows(GOOD[0], GOOD[0]), 1, _folder("TWICE"))
    task = StoreTables(kept.place, (good, SmallTable(_failing(error), 1, _folder("BAD")), twice, good))
    assert [one is not None for one in task()] == [True, False, False, True]


def test_a_store_that_fails_is_not_asked_for_each_table(tmp_path: Path) -> None:
    kept = keep(tmp_path, {})
    good = SmallTable(_rows(*GOOD), 1, _folder("GOOD"))
    task = StoreTables(kept.place, (good, SmallTable(_failing(StoreError("no")), 1, _folder("BAD")), good))
    assert [one is not None for one in task()] == [True, False, False]


def test_a_table_that_takes_much_memory_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(tmp_path, {})
    monkeypatch.setattr(module, "_MOST_BYTES", sum(len(one.data) for one in GOOD))
    tables = {"A": SmallTable(_rows(*GOOD), 1, _folder("A")), "B": SmallTable(_rows(*GOOD[:3]), 1, _folder("B"))}
    assert store_tables(InProcess(), kept.place, tables, None).keys() == {"B"}
