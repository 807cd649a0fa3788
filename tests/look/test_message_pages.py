"""Pages of messages, one after the other in either direction, are all messages; whatever stops them in between."""

from __future__ import annotations

import itertools

import pytest

from jsbackup.formats.digest import encode_rows
from jsbackup.look.message import MessageFilter
from jsbackup.look.stream import read_message_page
from jsbackup.look.subject_counts import SubjectCount, largest_subjects
from jsbackup.look.timeline import timeline_of
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, AtTime, Cut
from tests.harness.backups import store_stream
from tests.harness.batches import Message, batch_of, some_messages

ROWS = some_messages(200, 300)
FILTERS = [
    MessageFilter(),
    MessageFilter(subjects=("orders.3", "orders.5")),
    MessageFilter(Cut(AtSequence(40), AtSequence(ROWS[150].sequence))),
    MessageFilter(Cut(AtTime(ROWS[20].timestamp_ns), AtTime(ROWS[150].timestamp_ns)), ("orders.*",)),
    MessageFilter(subjects=("none",)),
]


@pytest.fixture(scope="module")
def stored() -> tuple[Objects, StreamBackup]:
    objects = Objects(MemoryStore())
    stream = store_stream(objects, "S", ROWS)
    assert len(stream.segments) > 20
    return objects, stream


def _matches(wanted: MessageFilter, row: Message) -> bool:
    since, until = wanted.cut.since, wanted.cut.until
    for edge, low in ((since, True), (until, False)):
        if edge is not None:
            value, mine = (
                (edge.sequence, row.sequence) if isinstance(edge, AtSequence) else (edge.time_ns, row.timestamp_ns)
            )
            if (mine < value) if low else (mine > value):
                return False
    return not wanted.subjects or "orders.*" in wanted.subjects or row.subject in wanted.subjects


@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("impatient", [False, True])
def test_pages_are_all_messages(
    stored: tuple[Objects, StreamBackup], wanted: MessageFilter, back: bool, impatient: bool
) -> None:
    found: list[int] = []
    start = 0
    for number in itertools.count():
        page = read_message_page(*stored, wanted, start=start, back=back, most=7, is_over=lambda: impatient)
        here = [one.sequence for one in page.messages]
        assert len(here) <= 7 and (impatient or len(here) == 7 or page.more is None) and page.stopped <= impatient
        found = here + found if back else found + here
        if page.more is None:
            break
        start = page.more
        assert number < 300
    assert found == [row.sequence for row in ROWS if _matches(wanted, row)]


def test_a_timeline_has_all_messages(stored: tuple[Objects, StreamBackup], monkeypatch: pytest.MonkeyPatch) -> None:
    objects, stream = stored
    timeline = timeline_of(objects, stream)
    assert timeline is not None and timeline.exact and sum(timeline.messages) == len(ROWS)
    monkeypatch.setattr("jsbackup.look.timeline._MOST_MESSAGES", 10)
    spread = timeline_of(objects, stream)
    assert spread is not None and not spread.exact and sum(spread.messages) == len(ROWS)
    days = [Message(n, n * 86_400 * 10**9 * 700, "s", None, b"x") for n in range(1, 30)]
    long = timeline_of(objects, store_stream(objects, "LONG", days))
    assert long is not None and len(long.messages) <= 60 and sum(long.messages) == 29
    assert timeline_of(objects, store_stream(objects, "EMPTY", [])) is None


def test_the_largest_subjects_are_the_first_of_all(stored: tuple[Objects, StreamBackup]) -> None:
    every = []
    for subject in {str(row.subject) for row in ROWS}:
        rows = [row for row in ROWS if row.subject == subject]
        times, size = [row.timestamp_ns for row in rows], encode_rows(batch_of(rows)).size
        every.append(SubjectCount(subject, len(rows), size, min(times), max(times)))
    every.sort(key=lambda counted: (-counted.bytes, -counted.messages, counted.subject))
    for most in (0, 3, 100):
        assert largest_subjects(*stored, most) == (every[:most], 7)
    objects, _ = stored
    assert largest_subjects(objects, store_stream(objects, "NONE", []), 5) == ([], 0)
