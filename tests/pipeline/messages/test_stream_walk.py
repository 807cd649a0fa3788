"""Each message once: a walk over backups that come, go, and lose what the source has removed. No Spark."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

import pytest

from jsbackup.errors import FormatError
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import StreamState
from jsbackup.pipeline.messages.stream_offsets import ReadPosition, StreamOffsets
from jsbackup.pipeline.messages.stream_walk import BackupWalk, FollowedBackup, MessageRange, ReadLimits
from jsbackup.repository.manifest import LOST_SINCE, ArchiveFormat, Captured, SegmentRef, StreamBackup, total_of

Found: TypeAlias = list[tuple[str, int]]

DAY = 86_400 * 10**9
SIZE = 10  # bytes of a message


def backup_id(number: int) -> str:
    return f"202611{1 + number // 1440:02}T{number // 60 % 24:02}{number % 60:02}00Z-00000a"


@dataclass
class Shelf:
    """Backups whose streams are sets of sequences, cut into segments of ten."""

    backups: dict[str, FollowedBackup] = field(default_factory=dict)
    stored: dict[str, list[int]] = field(default_factory=dict)  # sequences by key of a segment
    told: list[str] = field(default_factory=list)

    def add(
        self, number: int, *, previous: int | None = None, warnings: tuple[str, ...] = (), **streams: Iterable[int]
    ) -> str:
        """`ORDERS=range(1, 9)`, or `ORDERS_i2=…` for another incarnation."""
        before = max(self.backups, default=None) if previous is None else backup_id(previous)
        made = tuple(self._stream(name, sorted(sequences), warnings) for name, sequences in streams.items())
        backup = FollowedBackup(backup_id(number), before, made)
        self.backups[backup.id] = backup
        return backup.id

    def _stream(self, name: str, sequences: Sequence[int], warnings: tuple[str, ...]) -> StreamBackup:
        name, _, incarnation = name.partition("_")
        refs = []
        for start in range(0, len(sequences), 10):
            part = list(sequences[start : start + 10])
            key = f"{name}{incarnation}-{part}"
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
            captured=Captured.of(total, "", ""),
            archive_format=ArchiveFormat.V2,
            segments=tuple(refs),
            warnings=warnings,
        )

    def walk(
        self, start: StreamOffsets, *, limits: ReadLimits | None = None, until: StreamOffsets | None = None
    ) -> BackupWalk:
        walk = BackupWalk(
            start,
            set(self.backups),
            sequences=lambda ref: self.stored[ref.key],
            told=self.told.append,
            limits=limits,
            until=until,
        )
        for _, backup in sorted(self.backups.items()):
            if not walk.add(backup):
                break
        return walk

    def messages(self, ranges: Iterable[MessageRange]) -> Found:
        return [
            (one.stream, sequence)
            for one in ranges
            for sequence in self.stored[one.ref.key]
            if one.first_seq <= sequence <= one.last_seq
        ]

    def step(
        self, start: StreamOffsets, limits: ReadLimits | None = None
    ) -> tuple[list[tuple[str, int]], StreamOffsets]:
        """A micro-batch; planned again it has the same messages."""
        walk = self.walk(start, limits=limits)
        if not walk.has_news:
            return [], start
        found = self.messages(walk.ranges)
        again = self.walk(start, until=StreamOffsets.from_json(walk.end.to_json()))
        again.finish()
        assert again.is_finished and sorted(self.messages(again.ranges)) == sorted(found)
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
    assert at.position(("ORDERS", "i1")) == ReadPosition(40, backup_id(3))
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
    again.finish()
    assert shelf.messages(again.ranges) == of("ORDERS", range(1, 16)) and not shelf.told
    shelf.backups.clear()
    shelf.add(3, ORDERS=range(1, 6))
    again = shelf.walk(EMPTY, until=end)
    again.finish()
    assert shelf.messages(again.ranges) == of("ORDERS", range(1, 6))
    assert "messages 6 to 15 of stream ORDERS were in backups that have been forgotten" in shelf.told[0]


def test_a_backup_that_is_committed_late_is_read_for_streams_that_only_it_has() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 11), OTHER=range(1, 6))
    _, at = shelf.step(EMPTY)
    shelf.add(9, ORDERS=range(1, 21))
    found, at = shelf.step(at)
    assert found == of("ORDERS", range(11, 21))
    shelf.add(5, ORDERS=range(1, 21), OTHER=range(1, 9), previous=1)
    found, at = shelf.step(at)
    assert found == of("OTHER", range(6, 9))
    assert shelf.step(at) == ([], at)


def test_sequences_that_a_server_gives_again_come_again() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 51))
    _, at = shelf.step(EMPTY)
    shelf.add(2, ORDERS=range(1, 31), warnings=(f"{LOST_SINCE}its end",))
    found, at = shelf.step(at)
    assert (found, at.position(("ORDERS", "i1")).sequence) == ([], 30)
    shelf.add(3, ORDERS=range(1, 36))
    assert shelf.step(at)[0] == of("ORDERS", range(31, 36))


def test_a_stream_that_lost_its_end_and_grew_beyond_is_told() -> None:
    shelf = Shelf()
    shelf.add(1, ORDERS=range(1, 51))
    _, at = shelf.step(EMPTY)
    shelf.add(2, ORDERS=range(1, 91), warnings=(f"{LOST_SINCE}its end",))
    assert not shelf.told
    found, at = shelf.step(at)
    assert "the server has lost messages of stream ORDERS, which goes on beyond sequence 50" in shelf.told[0]
    assert found == of("ORDERS", range(51, 91)) and shelf.step(at) == ([], at)


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


def test_random_histories_give_each_message_that_a_backup_had_once() -> None:
    chance = random.Random(11)
    for _ in range(60):
        shelf, at, found, seen = Shelf(), EMPTY, [], set()
        living: dict[str, list[int]] = {"ORDERS_i1": [], "OTHER_i1": []}
        for number in range(12):
            for name, sequences in living.items():
                first = (sequences or [0])[-1] + chance.choice([1, 1, 3])
                sequences += range(first, first + chance.randrange(15))
                living[name] = [one for one in sequences if chance.random() < 0.9 or one == sequences[-1]]
            chosen = {name: seqs for name, seqs in living.items() if chance.random() < 0.8}
            shelf.add(number, **chosen)
            seen |= {(name.split("_")[0], one) for name, seqs in chosen.items() for one in seqs}
            for _ in range(chance.randrange(3)):
                got, at = shelf.step(at, ReadLimits(chance.choice([None, 5, 40])))
                found += got
        while True:
            got, following = shelf.step(at)
            found += got
            if following == at:
                break
            at = following
        assert len(found) == len(set(found)) and set(found) == seen and not shelf.told


def test_offsets_are_small_and_checked() -> None:
    old, new = ReadPosition(5, backup_id(0)), ReadPosition(2, backup_id(5 * 1440))
    at = replace(EMPTY, backup=new.backup, streams={("A", "1"): old, ("A", "2"): new, ("B", "1"): old})
    assert at.without_replaced(2 * DAY).streams.keys() == {("A", "2"), ("B", "1")}
    assert at.without_replaced(9 * DAY) == at == StreamOffsets.from_json(at.to_json())
    for wrong in (
        {},
        {"version": 2},
        {**at.to_json(), "streams": {"A": 1}},
        {**at.to_json(), "streams": {"A": {"1": {}}}},
    ):
        with pytest.raises(FormatError, match="the checkpoint is"):
            StreamOffsets.from_json(wrong)
