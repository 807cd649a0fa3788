"""`latest`, chosen among backups of any kind: what is never taken, and what is said."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.config import Glob
from jsbackup.errors import FormatError, IntegrityError, JsBackupError, KeyUnavailable, UsageError
from jsbackup.repository.inventory import Inventory, UnreadableBackup
from jsbackup.repository.keep.retention import TagRule
from jsbackup.repository.manifest import (
    BackupResult,
    Manifest,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    summary_of,
)
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.read.latest import Wanted, choose_latest, find_unselected
from jsbackup.repository.read.sources import Connected, Life, about_another_server
from tests.harness.many import some_stream

HOUR = 3600
SHOP, PAY = Source("2.15.1", "C1", "SHOP"), Source("2.15.1", "C1", "PAY")


@dataclass
class Backups:
    """A repository of manifests alone. `made` are by id; `reads` counts how many were read."""

    made: dict[str, Manifest] = field(default_factory=dict)
    broken: dict[str, FormatError] = field(default_factory=dict)
    reads: int = 0
    lost: dict[str, JsBackupError] = field(default_factory=dict)  # known from the catalog, and cannot be read

    def add(
        self,
        hours: float,
        *streams: str,
        source: Source = SHOP,
        selection: Selection | None = Selection(),  # noqa: B008
        result: BackupResult = BackupResult.COMPLETE,
        lacking: tuple[str, ...] = (),
        tags: dict[str, str] | None = None,
    ) -> str:
        """A backup so many hours after the first moment, of streams with messages; its id."""
        seconds = round(hours * HOUR)
        day, rest = divmod(seconds, 24 * HOUR)
        clock = f"{rest // HOUR:02}:{rest % HOUR // 60:02}:{rest % 60:02}"
        created = f"2026-{day // 28 + 1:02}-{day % 28 + 1:02}T{clock}Z"
        backup = f"{created.replace('-', '').replace(':', '')}-{len(self.made):06x}"
        self.made[backup] = Manifest(
            id=backup,
            created=created,
            tool="tests",
            source=source,
            result=BackupResult.PARTIAL if lacking else result,
            streams=tuple(some_stream(name, 1) for name in streams),
            skipped=tuple(SkippedStream(name, "no answer") for name in lacking),
            tags=tags or {},
            selection=selection,
        )
        return backup

    def backups(self) -> list[str]:
        return sorted([*self.made, *self.broken])

    def manifest(self, backup: str) -> Manifest:
        self.reads += 1
        if backup in self.broken or backup in self.lost:
            raise self.broken.get(backup) or self.lost[backup]
        return self.made[backup]

    def inventory(self) -> Inventory:
        from jsbackup.repository.catalog import CatalogEntry

        entries = [CatalogEntry(summary_of(self.made[one]), 1, "") for one in sorted(self.made)]
        return Inventory(tuple(entries), tuple(UnreadableBackup(one, error) for one, error in self.broken.items()))

    def latest(self, *streams: str, **wanted: object) -> str:
        return choose_latest(self, Wanted(tuple(map(Glob, streams)), **wanted)).manifest.id  # type: ignore[arg-type]


@pytest.fixture
def some() -> Backups:
    return Backups()


ALL = Selection()
OF_SHOP = {"origin": origin_of(SHOP)}


def test_a_repository_without_backups_says_so(some: Backups) -> None:
    with pytest.raises(UsageError, match="the repository has no backup yet"):
        some.latest()


def test_where_the_newest_is_plainly_meant_nothing_else_is_read(some: Backups) -> None:
    for hour in range(9):
        some.add(hour, "A", "B")
    newest = some.add(9, "A", "B")
    assert some.latest("A", **OF_SHOP) == newest and some.reads == 1
    assert some.latest(**OF_SHOP) == newest and some.reads == 3  # and the one before it


@pytest.mark.parametrize("error", [IntegrityError("object X is missing"), KeyUnavailable("no key", hint="Give one.")])
def test_if_none_can_be_read_the_error_of_the_newest_is_raised(some: Backups, error: JsBackupError) -> None:
    """Its manifest is known from the catalog, and names a page that is lost: an older one is not meant instead."""
    older = some.add(0, "A", "B")
    newest = some.add(1, "A", "B")
    some.lost = {newest: error}
    for streams, hint in (((), False), (("A",), True), (("C",), False)):
        with pytest.raises(type(error), match=f"backup {newest}: {error.message}") as raised:
            some.latest(*streams)
        about = f"The newest that can be read and is meant is {older}: name it by its id." if hint else None
        assert raised.value.hint == (" ".join(filter(None, (error.hint, about))) or None)
    some.lost[older] = IntegrityError("object Y is missing")
    with pytest.raises(type(error), match=newest):
        some.latest()


def test_one_that_is_dated_in_the_future_is_not_meant_unless_there_is_no_other(some: Backups) -> None:
    right = some.add(0, "A", "B")
    ahead = "20960101T000000Z-00ffff"
    some.made[ahead] = replace(some.made[right], id=ahead, created="2096-01-01T00:00:00Z")
    choice = choose_latest(some, Wanted(**OF_SHOP))  # type: ignore[arg-type]
    assert choice.manifest.id == right
    assert choice.notes[0].startswith(f"{ahead} is not used: it is dated in the future: a clock was wrong")
    del some.made[right]
    choice = choose_latest(some, Wanted(**OF_SHOP))  # type: ignore[arg-type]
    assert (choice.manifest.id, choice.notes[0]) == (ahead, f"{ahead} is dated in the future: a clock was wrong")


def test_a_wider_backup_is_meant_by_all_until_it_is_out_of_date(some: Backups) -> None:
    wide = some.add(0, "A", "B")
    narrow = some.add(30, "A", selection=Selection(("A",)))
    assert some.latest() == wide and some.latest("A") == narrow
    some.add(35, "A", selection=Selection(("A",)))
    assert some.latest() == wide
    newest = some.add(37, "A", selection=Selection(("A",)))
    choice = choose_latest(some, Wanted())
    assert choice.manifest.id == newest  # the other one has not been made for more than a day and a half
    assert [(one.stream, one.backup) for one in choice.elsewhere] == [("B", wide)]
    assert some.latest("B") == wide


def test_what_comes_once_a_week_is_not_out_of_date_after_two(some: Backups) -> None:
    week = 7 * 24
    some.add(0, "A", "B")
    wide = some.add(week, "A", "B")
    for day in range(8, 21):
        some.add(day * 24, "A", selection=Selection(("A",)))
    assert some.latest() == wide


def test_what_a_chosen_backup_leaves_out_is_named_with_the_backup_that_has_it(some: Backups) -> None:
    tmp = some.add(0, "TMP", selection=Selection(("TMP",)))
    chosen = some.add(1, "A", "B", selection=Selection(exclude=("TMP",)))
    choice = choose_latest(some, Wanted())
    assert choice.manifest.id == chosen
    assert [(one.stream, one.backup) for one in choice.elsewhere] == [("TMP", tmp)]
    assert choose_latest(some, Wanted(exclude=(Glob("T*"),))).elsewhere == ()


def test_a_stream_that_was_gone_is_not_missed_by_all_and_found_by_its_name(some: Backups) -> None:
    for hour in range(20):
        some.add(hour, "A", "B")
    had = some.backups()[-1]
    for hour in range(20, 200):
        some.add(hour, "A")
    newest = some.backups()[-1]
    choice = choose_latest(some, Wanted())
    assert (choice.manifest.id, choice.elsewhere) == (newest, ())
    said = f"stream B is not in {newest}; the newest backup that has it is {had}, made {some.made[had].created}"
    for wanted in (Wanted(), Wanted(**OF_SHOP), Wanted((Glob("A"), Glob("B*")), all_needed=False)):  # type: ignore[arg-type]
        some.reads = 0
        choice = choose_latest(some, wanted)
        if choice.manifest.id == newest:
            assert choice.notes == (said,) and some.reads <= 4
    assert choose_latest(some, Wanted(exclude=(Glob("B"),), **OF_SHOP)).notes == ()  # type: ignore[arg-type]
    assert choose_latest(some, Wanted((Glob("A"),), **OF_SHOP)).notes == ()  # type: ignore[arg-type]
    some.reads = 0
    assert some.latest("B") == some.latest("B*") == had
    assert some.reads < 60  # not all of them


def test_streams_that_are_gone_are_named_with_the_last_backup_that_has_them(some: Backups) -> None:
    some.add(0, "LONG-AGO", "A", "B", "C", "D")
    some.add(24 * 20, "A", "B", "C", "D")
    had = some.add(24 * 40, "A", "B", "C", "D")
    some.add(24 * 41, "A", "B", "HAND", selection=Selection(("A",)))
    later = some.add(24 * 42, "A", "D")
    some.add(24 * 43, "A", "D", lacking=("E",))
    newest = some.add(24 * 44, "A", "NEW")  # as many as before
    first, second = choose_latest(some, Wanted(**OF_SHOP)).notes  # type: ignore[arg-type]
    assert first.startswith(f"stream D is not in {newest}; the newest backup that has it is {later}, made ")
    assert second.startswith(f"streams B, C are not in {newest}; the newest backup that has them is {had}, made ")


def test_consumers_are_part_of_all(some: Backups) -> None:
    whole = some.add(0, "A")
    some.add(1, "A", selection=Selection(consumers=False))
    assert some.latest() == whole


def test_partial_ones_and_configurations_are_taken_where_there_is_nothing_else(some: Backups) -> None:
    config = some.add(0, "A", selection=Selection(config_only=True))
    assert some.latest() == config
    partial = some.add(1, "A", lacking=("B",))
    some.add(2, "A", selection=Selection(config_only=True))
    assert some.latest() == partial
    whole = some.add(3, "A", "B")
    later = some.add(4, "A", lacking=("B",))
    choice = choose_latest(some, Wanted())
    assert choice.manifest.id == whole
    assert choice.notes == (f"{later} is newer but not used: it is partial, in B: no answer",)
    assert some.latest("A") == later and some.latest("B") == some.latest("A", "B") == whole


def test_imports_and_transformed_ones_are_taken_where_there_is_nothing_else(some: Backups) -> None:
    transformed = some.add(0, "A", source=replace(SHOP, transformed={"backup": "x", "options": ["--mask"]}))
    assert some.latest() == transformed
    imported = some.add(1, "A", source=Source(imported={"from": "nats-cli"}), selection=None)
    assert some.latest() == imported
    server = some.add(0.5, "A")
    choice = choose_latest(some, Wanted())
    assert choice.manifest.id == server and choice.notes == (
        f"{imported} is newer but not used: it was imported (nats-cli)",
    )


def test_among_imports_a_newer_one_is_not_left_out_as_an_import(some: Backups) -> None:
    folder, store = (Source(imported={"from": kind}) for kind in ("nats-cli", "server-store"))
    whole = some.add(0, "A", "B", source=folder, selection=None)
    partial = some.add(1, "A", source=folder, selection=None, lacking=("B",))
    other = some.add(2, "C", source=store, selection=None)
    choice = choose_latest(some, Wanted((Glob("A"), Glob("B"))))
    assert choice.manifest.id == whole
    assert choice.notes == (
        f"{other} is newer but not used: it was imported (server-store)",
        f"{partial} is newer but not used: it is partial, in B: no answer",
    )


def test_an_empty_one_after_a_full_one_is_taken_by_nobody(some: Backups) -> None:
    empty = some.add(0)
    assert some.latest() == empty
    full = some.add(1, "A")
    some.add(2)
    some.add(3, lacking=("A",))
    assert some.latest() == some.latest("A") == full
    accepted = some.add(4, selection=Selection(allow_empty=True))
    some.add(5)
    assert some.latest() > accepted


def test_a_newer_one_that_cannot_be_read_is_an_error_with_a_way_out(some: Backups) -> None:
    good = some.add(1, "A")
    some.broken["20270101T000000Z-000000"] = FormatError("damaged", hint="Look.")
    with pytest.raises(FormatError) as raised:
        some.latest(**OF_SHOP)
    assert raised.value.hint == f"Look. The newest that can be read and is meant is {good}: name it by its id."
    some.broken = {"20200101T000000Z-000000": FormatError("damaged")}
    assert some.latest() == good


def test_tags_and_origins_choose(some: Backups) -> None:
    shop = some.add(0, "A", tags={"env": "prod"})
    pay = some.add(1, "A", source=PAY)
    assert some.latest(tags=(TagRule("env"),)) == some.latest(origins=(Glob("SHOP"),)) == shop
    assert some.latest(origins=(Glob("C1/PAY"),)) == some.latest(origin=origin_of(PAY)) == pay
    # What is said wins over what is connected to.
    assert some.latest(origin=origin_of(PAY), origins=(Glob("SHOP"),)) == shop
    with pytest.raises(UsageError, match="no backup is of source 'C2' or 'C3' and tagged 'env'") as raised:
        some.latest(origins=(Glob("C2"), Glob("C3")), tags=(TagRule("env"),))
    assert raised.value.hint is not None and "There are backups of C1/PAY, C1/SHOP. " in raised.value.hint


def test_each_candidate_can_be_chosen_by_what_the_refusal_says(some: Backups) -> None:
    sources = [
        Source("", "C1", "A"),
        Source("", "C2", "A"),
        Source("", "C1", "B"),
        Source("", "C1", "A", "hub"),
        Source("", "C1", "A", api_prefix="JS.pay.API"),
        Source("", "C1", "", login="00112233"),
        Source("", "C1", "", login="44556677"),
        Source("", "N" + "A" * 55, "A"),
    ]
    made = {some.add(number, "S", source=source): origin_of(source) for number, source in enumerate(sources)}
    with pytest.raises(UsageError, match=f"backups of {len(sources)} sources") as raised:
        some.latest(choosable=True)
    for backup, origin in made.items():
        assert f"(newest {backup}, by --origin {origin})" in raised.value.message
        assert some.latest(origins=(Glob(str(origin)),)) == backup


def test_a_source_that_never_had_a_stream_is_no_candidate(some: Backups) -> None:
    shop = some.add(0, "A")
    empty = some.add(1, source=PAY)
    assert some.latest() == shop and some.latest(origin=origin_of(PAY)) == empty


def test_a_drill_of_an_import_or_of_few_streams_is_none_of_all(some: Backups) -> None:
    wide = some.add(0, "A", "B")
    narrow = some.add(1, "A", selection=Selection(("A",)))
    imported = some.add(2, "C", source=Source(imported={"from": "nats-cli"}), selection=None)
    later = some.add(3, "A", "B", "NEW")

    def left_out(backup: str) -> list[str]:
        return [one.stream for one in find_unselected(some, some.made[backup])]

    assert left_out(wide) == left_out(later) == []  # NEW was not there
    assert left_out(narrow) == ["B", "NEW"] and left_out(imported) == ["A", "B", "NEW"]


def test_servers_without_a_name_are_told_apart_by_their_streams(some: Backups) -> None:
    ids = ["N" + letter * 55 for letter in "ABCD"]
    prod, test = (Source("2.15.1", one, "$G") for one in ids[:2])
    old = some_stream("S", 1)
    old = replace(old, state=replace(old.state, messages=1, first_ns=10**18))
    new = replace(old, created="2026-02-01T00:00:00Z", state=replace(old.state, first_ns=10**18 + 1))

    def add(hour: float, source: Source, stream: StreamBackup) -> str:
        backup = some.add(hour, "S", source=source)
        some.made[backup] = replace(some.made[backup], streams=(stream,))
        return backup

    def said(source: Source, stream: StreamBackup, **tags: str) -> list[str]:
        return list(about_another_server(some, source, ALL, tags, lives=lives(stream)))

    def lives(stream: StreamBackup) -> dict[str, Life]:
        return {stream.name: Life(stream.created, stream.state.first_ns)}

    def latest(server: str, stream: StreamBackup | None) -> str:
        connected = Connected("2.15.1", server, "$G", lives={} if stream is None else lives(stream))
        return choose_latest(some, Wanted(origin=origin_of(connected)), connected).manifest.id

    first = add(0, prod, old)
    restored = replace(old, created="2026-03-01T00:00:00Z")  # its messages are those of the backup
    # It was started again, restored, or its stream was made anew: none of these is another server for certain.
    for server, stream in ((ids[2], old), (ids[3], restored), (ids[0], new), (ids[3], None), (ids[3], new)):
        assert latest(server, stream) == first
    assert said(Source("", ids[2], "$G"), old) == said(Source("", ids[3], "$G"), restored) == said(prod, new) == []
    (sentence,) = said(test, new)
    assert f"another server than that of backup {first}" in sentence and "server_name" in sentence
    assert said(test, new, env="test") == said(replace(test, cluster="C1"), new) == []

    second = add(1, test, new)
    assert latest(ids[1], new) == latest(ids[2], new) == latest(ids[3], None) == second
    for server in (ids[0], ids[2]):
        with pytest.raises(UsageError, match="'latest' is ambiguous") as raised:
            latest(server, old)
        assert first in raised.value.message and second in raised.value.message


# --- any repository ---

NAMES = ("A", "B", "C")
_sources = st.sampled_from([SHOP, PAY, replace(SHOP, cluster="C2"), Source(imported={"from": "x"})])
_names = st.sets(st.sampled_from(NAMES), max_size=3)
_selections = st.builds(
    Selection,
    _names.map(lambda names: tuple(sorted(names))),
    _names.map(lambda names: tuple(sorted(names))),
    consumers=st.booleans(),
    config_only=st.booleans(),
)
_backups = st.lists(
    st.tuples(st.integers(0, 500), _sources, _selections, _names, st.booleans()), min_size=1, max_size=12
)


@given(_backups, st.sampled_from([None, origin_of(SHOP), origin_of(PAY), Origin("C9", "X", "")]), _names)
def test_whatever_there_is_no_other_source_is_taken_and_nothing_is_missing_unsaid(
    made: list[tuple[int, Source, Selection, set[str], bool]], origin: Origin | None, named: set[str]
) -> None:
    some = Backups()
    for hours, source, selection, names, partial in sorted(made, key=lambda one: one[0]):
        there = sorted(name for name in names if selection.selects(name))
        some.add(hours, *there, source=source, selection=selection, lacking=("D",) if partial else ())
    try:
        choice = choose_latest(some, Wanted(tuple(map(Glob, sorted(named))), origin=origin))
    except UsageError:
        return
    chosen = choice.manifest
    of_servers = {origin_of(one.source) for one in some.made.values() if one.source.imported is None}
    if of_servers:
        assert chosen.source.imported is None
        assert origin_of(chosen.source) == origin or origin not in of_servers
    else:
        of_servers = {origin_of(chosen.source)}
    mine = [one for one in some.made.values() if origin_of(one.source) == origin_of(chosen.source)]
    # Named streams are in it; of others nothing is newer, or only elsewhere, without a word.
    has = {stream.name for stream in chosen.streams}
    assert named <= has
    elsewhere = {one.stream for one in choice.elsewhere}
    for one in mine:
        asked = one.selection
        assert asked is not None
        wide = not asked.streams and not asked.exclude and asked.consumers and not asked.config_only
        if wide and one.result is BackupResult.COMPLETE and one.streams and one.id > chosen.id:
            assert named, "a newer complete backup of everything is never passed over"
    if not named and chosen.result is BackupResult.COMPLETE and not summary_of(chosen).selection.config_only:
        newest = max(mine, key=lambda one: one.id)
        if newest.result is BackupResult.COMPLETE and not summary_of(newest).selection.config_only:
            assert {stream.name for stream in newest.streams} <= has | elsewhere
