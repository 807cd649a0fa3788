"""Searching only what earlier backups do not have finds what reading every segment finds, and reads less."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from jsbackup.look.all_backups import FoundMessage, Series, Sighting, search_series
from jsbackup.look.message import MessageFilter
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from jsbackup.transforms.cut import AtSequence, Cut
from tests.harness.backups import CREATED, make_repository, store_stream
from tests.harness.batches import Message
from tests.harness.servers import EXPLORE

ORIGIN = "cluster/account"


def _series(repository: Repository, states: list[list[Message]], lame: frozenset[int]) -> Series:
    """Backups of these states; those in `lame` have a warning."""
    series = Series(ORIGIN, "S")
    end = 0
    for number, rows in enumerate(states):
        entry: StreamBackup = store_stream(repository.objects, "S", rows)
        end = max([end, *(one.sequence for one in rows)])
        warnings = ("something is missing",) if number in lame else ()
        entry = replace(entry, warnings=warnings, state=replace(entry.state, last_seq=end))
        series.sightings.append(Sighting(f"{number:03}", CREATED, entry))
    return series


def _plainly(
    states: list[list[Message]], matches: str, until: int
) -> dict[tuple[int, int, bytes], tuple[list[str], str]]:
    """Which backups have each message, and the first one without it after them."""
    held = [
        {(m.sequence, m.timestamp_ns, m.data) for m in rows if m.subject == matches and m.sequence <= until}
        for rows in states
    ]
    found = {}
    for one in set().union(*held):
        numbers = [number for number, rows in enumerate(held) if one in rows]
        found[one] = (
            [f"{number:03}" for number in numbers],
            f"{numbers[-1] + 1:03}" if numbers[-1] + 1 < len(held) else "",
        )
    return found


def _told(found: list[FoundMessage]) -> dict[tuple[int, int, bytes], tuple[list[str], str]]:
    return {(one.sequence, one.timestamp_ns, one.start): (list(one.backups), one.gone) for one in found}


_STEPS = st.lists(
    st.tuples(
        st.sampled_from(["on", "on", "on", "back"]),
        st.integers(0, 25),  # messages that come
        st.lists(st.integers(0, 60), max_size=12),  # rows that go
    ),
    min_size=1,
    max_size=6,
)


@settings(max_examples=200 if EXPLORE else 40)
@given(
    steps=_STEPS,
    lame=st.frozensets(st.integers(0, 5)),
    most=st.integers(1, 12) | st.just(1000),
    until=st.just(1000) | st.integers(1, 60),
)
def test_it_finds_what_is_there(
    steps: list[tuple[str, int, list[int]]], lame: frozenset[int], most: int, until: int
) -> None:
    """With streams that were put back to an older state: they give sequences again, to later messages."""
    rows: list[Message] = []
    states: list[list[Message]] = []
    clock = last = 0
    for what, coming, going in steps:
        if what == "back" and states:
            rows = list(states[len(going) % len(states)])
            last = max([0, *(one.sequence for one in rows)])
        for _ in range(coming):
            clock, last = clock + 1, last + 1
            subject = "wanted" if clock % 5 == 0 else "other"
            rows.append(Message(last, clock, subject, None, b"%d" % clock * 40))
        rows = [one for number, one in enumerate(rows) if number not in going]
        states.append(list(rows))
    repository = make_repository(MemoryStore())
    series = _series(repository, states, lame)
    wanted = MessageFilter(Cut(until=AtSequence(until)), ("wanted",))
    found, more = search_series(repository, [series], wanted, most=most)
    truth = _plainly(states, "wanted", until)
    newest = dict(sorted(truth.items(), key=lambda one: (one[0][1], one[0][0]))[-most:])
    assert _told(found) == newest
    assert more == (len(truth) > most) or (more and len(truth) == most)
