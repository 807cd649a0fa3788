"""Each message once: a walk over backups that come, go, and lose what the source has removed. No Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest

from jsbackup.errors import FormatError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import StreamState
from jsbackup.pipeline.messages import stream_walk
from jsbackup.pipeline.messages.stream_walk import (
    BackupWalk,
    FollowedBackup,
    MessageRange,
    ReadLimits,
    ReadPosition,
    StreamKey,
    StreamOffsets,
)
from jsbackup.repository.manifest import ArchiveFormat, Captured, SegmentRef, StreamBackup, total_of
from jsbackup.times import format_time, parse_time

Found: TypeAlias = list[tuple[str, int]]

MINUTE = 60 * 10**9
DAY = 1440 * MINUTE
FIRST_NS = 1793491200 * 10**9  # when the month of the backups begins
SIZE = 10  # bytes of a message


def backup_id(number: int) -> str:
    return f"202611{1 + number // 1440:02}T{number // 60 % 24:02}{number % 60:02}00Z-00000a"


def moment(number: float) -> int:
    return FIRST_NS + int(number * MINUTE)


@dataclass
class Shelf:
    """Backups whose streams are sets of sequences, cut into segments of ten."""

    backups: dict[str, FollowedBackup] = field(default_factory=dict)
    stored: dict[str, list[int]] = field(default_factory=dict)  # sequences by key of a segment
    told: list[str] = field(default_factory=list)
    previous: dict[str, str] = field(default_factory=dict)

    def add(self, number: int, *, previous: int | None = None, minutes: float = 0.5, **streams: Iterable[int]) -> str:
        """`ORDERS=range(1, 9)`, or `ORDERS_i2=…` for another incarnation, `ORDERS_i1_L` for another life. The backup
        takes so many minutes.
        """
        backup = self.made(number, minutes=minutes, **streams)
        before = max(self.backups, default="") if previous is None else backup_id(previous)
        self.backups[backup.id], self.previous[backup.id] = backup, before
        return backup.id

    def made(self, number: int, *, minutes: float = 0.5, **streams: Iterable[int]) -> FollowedBackup:
        span = format_time(moment(number)), format_time(moment(number + minutes))
        made = tuple(self._stream(name, sorted(sequences), span) for name, sequences in streams.items())
        return FollowedBackup(backup_id(number), "", made)

    def _stream(self, name: str, sequences: Sequence[int], span: tuple[str, str]) -> StreamBackup:
        name, incarnation, life = (*name.split("_"), "", "")[:3]
        refs = []
        for start in range(0, len(sequences), 10):
            part = list(sequences[start : start + 10])
            key = f"{name}{incarnation}{life}-{part}"
            self.stored[key] = part
            size = SIZE * len(part)
            refs.append(SegmentRef(key, part[0], part[-1], len(part), size, 0, 0, size, "", "", StreamDigest()))
        total = total_of(refs)
        return StreamBackup(
            name=name,
            incarnation=incarnation or "i1",
            config={},
            created="",
            state=StreamState(last_seq=total.last_seq),
            captured=Captured.of(total, *span),
            archive_format=ArchiveFormat.V2,
            segments=tuple(refs),
            life=life,
        )

    def ended(self, backup: FollowedBackup) -> int:
        return max((parse_time(stream.captured.ended) for stream in backup.streams), default=0)

    def read(self, backups: Sequence[str]) -> Iterator[FollowedBackup]:
        for one in backups:
            if one in self.backups:
                before = self.previous.get(one, "")
                yield replace(self.backups[one], missing="" if before in self.backups else before)

    def walk(
        self, start: StreamOffsets, *, limits: ReadLimits | None = None, until: StreamOffsets | None = None
    ) -> BackupWalk:
        walk = BackupWalk(
            start,
            {backup.id: self.ended(backup) for backup in self.backups.values()},
            read=self.read,
            sequences=lambda ref: self.stored[ref.key],
            told=self.told.append,
            limits=limits,
            until=until,
        )
        walk.run()
        return walk

    def messages(self, ranges: Iterable[MessageRange]) -> Found:
        return [(key[0], sequence) for key, sequence in self.of_lives(ranges)]

    def of_lives(self, ranges: Iterable[MessageRange]) -> list[tuple[StreamKey, int]]:
        return [
            (one.key, sequence)
            for one in ranges
            for sequence in self.stored[one.ref.key]
            if (sequence in one.only if one.only else one.first_seq <= sequence <= one.last_seq)
        ]

    def step(
        self, start: StreamOffsets, limits: ReadLimits | None = None
    ) -> tuple[list[tuple[str, int]], StreamOffsets]:
        """A micro-batch; planned again it has the same messages."""
        found, end = self.step_of_lives(start, limits)
        return [(key[0], sequence) for key, sequence in found], end

    def step_of_lives(
        self, start: StreamOffsets, limits: ReadLimits | None = None
    ) -> tuple[list[tuple[StreamKey, int]], StreamOffsets]:
        walk = self.walk(start, limits=limits)
        if not walk.has_news:
            return [], start
        found, told = self.of_lives(walk.ranges), len(self.told)
        again = self.walk(start, until=StreamOffsets.from_json(walk.end.to_json()))
        assert sorted(self.of_lives(again.ranges)) == sorted(found)
        del self.told[told:]
        return found, walk.end


EMPTY = StreamOffsets("00ff", "C1/A")


def of(name: str, sequences: Iterable[int]) -> Found:
    return [(name, sequence) for sequence in sequences]


def test_each_message_comes_from_the_first_backup_that_has_it() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 26))
    found, at = shelf.step(EMPTY)
    assert found == of("ORDERS", range(1, 26))
    assert shelf.step(at) == ([], at)
    # 1 to 20 are removed at the source, and 30 to 35, which one backup has.
    shelf.add(2, ORDERS=range(21, 36))
    shelf.add(3, ORDERS=[*range(21, 30), *range(36, 41)], OTHER=[7])
    found, at = shelf.step(at)
    assert found == [*of("ORDERS", range(26, 41)), ("OTHER", 7)]
    assert at.streams[StreamKey("ORDERS", "i1")] == ReadPosition(40, moment(3.5))
    # Created anew, it begins at 1 again.
    shelf.add(4, ORDERS_i2=range(1, 4))
    found, at = shelf.step(at)
    assert found == of("ORDERS", range(1, 4)) and not shelf.told


def test_a_purged_stream_goes_on() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 11))
    _, at = shelf.step(EMPTY)
    shelf.add(2, ORDERS=[])
    assert shelf.step(at) == ([], at)
    shelf.add(3, ORDERS=range(11, 13))
    assert shelf.step(at)[0] == of("ORDERS", (11, 12))


def test_a_forgotten_backup_is_told_only_if_messages_may_have_been_in_it_alone() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 11))
    _, at = shelf.step(EMPTY)
    unread = shelf.add(2, ORDERS=range(1, 16))
    shelf.add(3, ORDERS=range(1, 21))
    del shelf.backups[unread]
    assert shelf.step(at)[0] == of("ORDERS", range(11, 21)) and not shelf.told
    shelf.add(4, ORDERS=range(14, 26), previous=3)
    del shelf.backups[backup_id(3)]
    found, at = shelf.step(at)
    assert found == of("ORDERS", range(14, 26))
    assert "backup 20261101T000300Z-00000a was forgotten" in shelf.told[0] and "lacks 3 of the" in shelf.told[0]
    # What was forgotten before the query began does not matter.
    shelf.told.clear()
    del shelf.backups[backup_id(1)]
    shelf.step(EMPTY)
    assert not shelf.told


def test_a_micro_batch_whose_backup_was_forgotten_is_read_from_a_later_one() -> None:
    shelf = Shelf()
    first = shelf.add(1, ORDERS=range(1, 16))
    end = shelf.walk(EMPTY).end
    shelf.add(2, ORDERS=range(1, 21))
    del shelf.backups[first]
    again = shelf.walk(EMPTY, until=end)
    assert shelf.messages(again.ranges) == of("ORDERS", range(1, 16)) and not shelf.told
    shelf.backups.clear()
    shelf.add(3, ORDERS=range(1, 6))
    again = shelf.walk(EMPTY, until=end)
    assert shelf.messages(again.ranges) == of("ORDERS", range(1, 6))
    assert "messages 6 to 15 of stream ORDERS were in backups that have been forgotten" in shelf.told[0]


def test_a_backup_that_comes_late_is_read_for_messages_that_only_it_has() -> None:
    shelf = Shelf()
    shelf.add(10, ORDERS=range(1, 11), OTHER=range(1, 6))
    shelf.add(90, ORDERS=[*range(1, 9), *range(13, 21)])
    found, at = shelf.step(EMPTY)
    shelf.add(50, ORDERS=[*range(1, 9), *range(11, 21)], OTHER=range(1, 9), NEW=range(1, 26))
    found, at = shelf.step(at, ReadLimits(1))
    assert found == [*of("ORDERS", (11, 12)), *of("OTHER", range(6, 9)), *of("NEW", range(1, 26))]
    assert shelf.step(at) == ([], at)
    # Older than all, of another incarnation; and what the next ones bring.
    shelf.add(5, ORDERS_i0=range(1, 31))
    shelf.add(6, ORDERS_i0=range(4, 33))
    shelf.add(7, ORDERS=range(1, 4))
    found, at = shelf.step(at)
    assert found == of("ORDERS", range(1, 33))
    shelf.add(95, ORDERS=range(14, 25), NEW=range(20, 28))
    assert shelf.step(at)[0] == [*of("ORDERS", range(21, 25)), *of("NEW", (26, 27))]
    assert not shelf.told


def test_a_late_backup_beside_a_forgotten_one_is_told() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 11))
    unread = shelf.add(3, ORDERS=range(1, 31))
    shelf.add(5, ORDERS=range(25, 36))
    _, at = shelf.step(EMPTY)
    del shelf.backups[unread]
    shelf.add(2, ORDERS=range(1, 21))
    assert shelf.step(at) == ([], at)
    sentence = f"backup {backup_id(2)} came late, and only it has messages from 11 to 20 of stream ORDERS"
    assert shelf.told[0].startswith(sentence) and f"backup {unread}, which was delivered" in shelf.told[0]


def test_a_late_backup_that_is_forgotten_after_the_plan_is_told() -> None:
    shelf = Shelf()
    shelf.add(5, ORDERS=range(1, 11))
    _, at = shelf.step(EMPTY)
    late = shelf.add(2, ORDERS=range(1, 3), OTHER=range(1, 3))
    end = shelf.walk(at).end
    del shelf.backups[late]
    assert not shelf.walk(at, until=end).ranges
    assert f"backup {late}, which came late, has been forgotten" in shelf.told[-1]


def test_a_nightly_backup_beside_many_short_ones() -> None:
    """It was begun first and committed last; or all are there when the query begins."""
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 11))
    shelf.add(11, ORDERS=range(1, 21))  # 16 to 18 are removed before the nightly one reads them
    shelf.add(12, ORDERS=[*range(1, 16), *range(19, 31)])
    slow = shelf.made(10, minutes=5, ORDERS=[*range(1, 16), *range(19, 41)])
    shelf.add(13, ORDERS=[*range(1, 16), *range(19, 36)])
    _, at = shelf.step(EMPTY)
    everything = of("ORDERS", range(1, 41))
    shelf.backups[slow.id] = slow
    found, at = shelf.step(at)
    assert found == of("ORDERS", range(36, 41)) and shelf.step(at) == ([], at)
    found, at = shelf.step(EMPTY)
    assert sorted(found) == everything and shelf.step(at) == ([], at)
    for limit in (1, 4, 15):
        at, got = EMPTY, []
        while (step := shelf.step(at, ReadLimits(limit)))[0]:
            got, at = got + step[0], step[1]
        assert sorted(got) == everything and not shelf.told


def test_backups_older_than_those_that_offsets_name_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_walk, "MOST_TAKEN", 3)
    shelf = Shelf()
    for number in range(10, 20):
        shelf.add(number, ORDERS=range(1, number))
    _, at = shelf.step(EMPTY)
    assert (at.taken, at.before, at.older) == (tuple(map(backup_id, (17, 18, 19))), backup_id(16), 7)
    assert StreamOffsets.from_json(at.to_json()) == at
    del shelf.backups[backup_id(12)], shelf.backups[backup_id(13)]
    _, at = shelf.step(at)
    assert not shelf.told
    shelf.add(30, ORDERS=range(1, 40))
    _, at = shelf.step(at)
    assert (at.before, at.older) == (backup_id(17), 6)
    shelf.add(3, ORDERS=range(1, 2), OTHER=range(1, 5))
    found, at = shelf.step(at)
    assert not found and "1 backups made up to 20261101T001700Z-00000a came after" in shelf.told[0]
    assert shelf.step(at) == ([], at) and len(shelf.told) == 1


def test_another_life_of_a_stream_begins_anew() -> None:
    """After a restore in place, or where a server has lost the end of a stream."""
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 51))
    _, at = shelf.step_of_lives(EMPTY)
    shelf.add(2, ORDERS_i1_L=range(1, 36))
    found, at = shelf.step_of_lives(at)
    life = StreamKey("ORDERS", "i1", "L")
    assert found == [(life, one) for one in range(1, 36)]
    shelf.add(3, ORDERS_i1_L=range(1, 38))
    found, at = shelf.step_of_lives(at)
    assert found == [(life, 36), (life, 37)] and not shelf.told


@pytest.mark.parametrize("limits", [(7, None), (None, 7 * SIZE), (1, None), (None, 1), (7, 1000)])
def test_a_micro_batch_has_a_limit(limits: tuple[int | None, int | None]) -> None:
    shelf = Shelf()
    chance = random.Random(3)
    orders = sorted(chance.sample(range(1, 200), 60))
    shelf.add(1, ORDERS=orders[:40], OTHER=range(1, 12))
    shelf.add(2, ORDERS=orders, OTHER=[])
    at, found = EMPTY, []
    while True:
        got, following = shelf.step(at, ReadLimits(*limits))
        if following == at:
            break
        assert 1 <= len(got) <= (1 if 1 in limits else 7)
        found += got
        at = following
    assert sorted(found) == [*of("ORDERS", orders), *of("OTHER", range(1, 12))]


@pytest.mark.parametrize("seed", range(60))
def test_random_histories_give_each_message_that_a_backup_had_once(seed: int) -> None:
    """Backups are committed in any order, some days late, and may take long. Streams are created anew."""
    chance = random.Random(seed)
    shelf, at, found, seen = Shelf(), EMPTY, [], set()
    living: dict[str, list[int]] = {"ORDERS_i1": [], "OTHER_i1": []}
    history: list[dict[str, list[int]]] = []  # streams as they were each minute
    for number in range(40):
        for name, sequences in list(living.items()):
            first = (sequences or [0])[-1] + chance.choice([1, 1, 3])
            grown = [*sequences, *range(first, first + chance.randrange(15))]
            living[name] = [one for one in grown if chance.random() < 0.9 or one == grown[-1]]
            if chance.random() < 0.03:
                del living[name]
                living[f"{name.split('_')[0]}_n{number}"] = []
        history.append({name: list(sequences) for name, sequences in living.items()})
    waiting: list[FollowedBackup] = []
    for number in sorted(chance.sample(range(34), 14)):
        minutes = chance.choice([0, 0, 0.5, 4])
        # What is read at a moment between its beginning and its end, each message at another one.
        chosen: dict[str, list[int]] = {}
        for name, sequences in history[number].items():
            if chance.random() < 0.8:
                end = history[number + int(minutes)].get(name)
                if end is None:
                    continue
                at_random = [
                    one
                    for one in sorted({*sequences, *end})
                    if one in end or (minutes >= 1 and one < min(end, default=1 << 30) and chance.random() < 0.5)
                ]
                chosen[name] = at_random if minutes >= 1 else sequences
        waiting.append(shelf.made(number, minutes=minutes, **chosen))
        seen |= {(StreamKey(*name.split("_")), one) for name, seqs in chosen.items() for one in seqs}
        chance.shuffle(waiting)
        for _ in range(chance.randrange(3)):
            if waiting:
                made = waiting.pop()
                shelf.backups[made.id] = made
            got, at = shelf.step_of_lives(at, ReadLimits(chance.choice([None, 5, 40])))
            found += got
    shelf.backups |= {made.id: made for made in waiting}
    while True:
        got, following = shelf.step_of_lives(at, ReadLimits(chance.choice([None, 25])))
        found += got
        if following == at:
            break
        at = following
    assert len(found) == len(set(found)) and set(found) == seen and not shelf.told


def test_offsets_are_small_and_checked() -> None:
    old, new = ReadPosition(5, moment(0)), ReadPosition(2, moment(5 * 1440))
    streams = {StreamKey("A", "1"): old, StreamKey("A", "2", "L"): new, StreamKey("B", "1"): old}
    at = replace(EMPTY, backup=backup_id(5 * 1440), taken=(backup_id(1),), streams=streams)
    assert at.without_replaced().streams.keys() == {("A", "2", "L"), ("B", "1", "")}
    assert StreamOffsets.from_json(at.to_json()) == at
    for wrong in (
        {},
        {"version": 2},
        {**at.to_json(), "streams": {"A": 1}},
        {**at.to_json(), "streams": [["A", "1", "", "x", 0]]},
        {**at.to_json(), "taken": None},
    ):
        with pytest.raises(FormatError, match="the checkpoint is"):
            StreamOffsets.from_json(wrong)
