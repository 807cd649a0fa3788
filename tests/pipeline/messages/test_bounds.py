"""Bounds never lose a message, and spare what nobody asked for."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.formats.digest import StreamDigest
from jsbackup.formats.segment import GroupBounds
from jsbackup.pipeline.messages.bounds import ALL, Bounds
from jsbackup.repository.manifest import SegmentRef
from jsbackup.repository.objects import PageRef
from jsbackup.repository.pages.segment_list import SegmentList, parts_where
from jsbackup.stores.memory import MemoryStore
from tests.harness.backups import FIRST, make_repository, store_backup
from tests.harness.batches import Message, batch_of, message_lists, some_messages
from tests.harness.small_pages import make_pages_small
from tests.pipeline.places import keep

ROOT = Path(__file__).parent.parent.parent.parent


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[Message], Bounds, list[Message]]:
    """Messages, bounds at values of theirs, and which messages they leave."""
    messages = draw(message_lists(max_size=20))
    sequences = [message.sequence for message in messages] or [1]
    times = [message.timestamp_ns for message in messages] or [1]
    first, last = draw(st.sampled_from(sequences)), draw(st.sampled_from(sequences))
    since, until = draw(st.sampled_from(times)), draw(st.sampled_from(times))
    only = tuple(sorted(draw(st.sets(st.sampled_from(sequences), max_size=4))))
    left = [
        message
        for message in messages
        if first <= message.sequence <= last
        and since <= message.timestamp_ns <= until
        and (not only or message.sequence in only)
    ]
    return messages, Bounds((first, last), (since, until), only), left


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_what_is_wanted_is_kept_and_its_parts_are_read(case: tuple[list[Message], Bounds, list[Message]]) -> None:
    messages, bounds, left = case
    kept = bounds.keep(batch_of(messages)).column("sequence").to_pylist()
    assert kept == [message.sequence for message in left]
    if not left:
        return
    first, last = messages[0].sequence, messages[-1].sequence
    times = sorted(message.timestamp_ns for message in messages)
    group = GroupBounds((first, last), (times[0], times[-1]), None)
    ref = SegmentRef("", first, last, 1, 1, times[0], times[-1], 1, "", "", StreamDigest())
    assert bounds.wants_part(ref) and bounds.wants_group(group) and bounds.wants_group(GroupBounds(None, None, None))


def test_no_damage_of_a_footer_ends_the_process(tmp_path: Path) -> None:
    """It would, and take an executor with it, if bytes were read that nobody has compared."""
    kept = keep(tmp_path, {"A": some_messages(40, 20)})
    code = [sys.executable, "-m", "tests.pipeline.messages.damaged_reads", kept.place.location, "29"]
    done = subprocess.run(code, cwd=ROOT, capture_output=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert int(done.stdout) > 100


def test_pages_without_wanted_messages_are_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    make_pages_small(monkeypatch)
    repository = make_repository(MemoryStore())
    given_refs = store_backup(repository, FIRST, count=1000).streams[0].segments
    stored = repository.manifest(FIRST).streams[0].segments
    assert isinstance(stored, SegmentList)
    read: list[PageRef] = []

    def noting(page: PageRef) -> Sequence[PageRef | SegmentRef]:
        read.append(page)
        return stored.read(page)

    segments = SegmentList(stored.parts, noting)
    pages = len(list(stored.pages()))
    for ref in given_refs:
        for bounds in (Bounds((ref.first_seq, ref.first_seq)), Bounds(timestamp_ns=(ref.max_ns, ref.max_ns))):
            read.clear()
            found = list(parts_where(segments, bounds.wants_part))
            assert ref in found and all(isinstance(one, SegmentRef) for one in found)
            assert len(found) < len(given_refs) / 4 and len(read) < pages / 3
    read.clear()
    assert list(parts_where(segments, ALL.wants_part)) == list(given_refs) and len(read) == pages
    read.clear()
    assert list(parts_where(segments, Bounds((-9, -1)).wants_part)) == [] == read
