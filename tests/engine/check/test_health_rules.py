"""What counts as a breach, rule by rule, in repositories in memory; what status reads, in how many requests."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import pytest

from jsbackup.config import Glob
from jsbackup.engine.check.health_rules import (
    BreachRule,
    Limits,
    LiveStreams,
    find_breaches,
    last_good_verify,
    not_backed_up,
)
from jsbackup.engine.check.live_streams import LiveAccounts, find_account_breaches
from jsbackup.engine.check.status import RepositoryStatus, take_status
from jsbackup.errors import ObjectExists
from jsbackup.readable import span
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import DrillOutcome, FailedStream, VerifyOutcome, record_run
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.keep.retention import TagRule
from jsbackup.repository.layout import ReceiptKey
from jsbackup.repository.manifest import BackupResult, Manifest, Selection, SkippedStream, Source
from jsbackup.repository.origin import Origin
from jsbackup.repository.repository import Repository
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import format_time
from tests.harness.backups import make_repository
from tests.harness.counting import PAGE, CountingStore
from tests.harness.held import held
from tests.harness.many import ManyBackups, some_stream

NOW_NS = 1_795_225_500 * 10**9  # 2026-11-21T01:45:00Z
HOUR = 3600
_KEEP_MORE = (BreachRule.FEW_BACKUPS, BreachRule.SHORT_HISTORY)


@dataclass
class World:
    """A repository and its clock, which is now."""

    store: MemoryStore
    repository: Repository
    numbers: itertools.count[int]

    def back_up(self, hours_ago: float, *names: str, lacking: Sequence[str] = (), **more: object) -> Manifest:
        """A backup of these streams."""
        created_ns = NOW_NS - round(hours_ago * HOUR) * 10**9
        manifest = Manifest(
            id=layout.backup_id(created_ns, next(self.numbers).to_bytes(3, "big")),
            created=format_time(created_ns),
            tool="tests",
            source=Source("2.15.1", cluster="C1", account="A"),
            result=BackupResult.PARTIAL if lacking else BackupResult.COMPLETE,
            streams=tuple(some_stream(name, 1) for name in names),
            skipped=tuple(SkippedStream(name, "it did not answer") for name in lacking),
            selection=Selection(),
        )
        manifest = replace(manifest, **more)  # type: ignore[arg-type]
        for ref in (ref for stream in manifest.streams for ref in stream.segments):
            with suppress(ObjectExists):
                self.store.put(ref.key, bytes(ref.size))
        self.repository.commit(manifest)
        return manifest

    def verify(self, hours_ago: float, *, ok: bool = True, level: Level = Level.OBJECTS, **more: object) -> None:
        moment = format_time(NOW_NS - round(hours_ago * HOUR) * 10**9)
        outcome = VerifyOutcome(moment, moment, ok, level, True, False, 1, 0 if ok else 3)
        outcome = replace(outcome, **more)  # type: ignore[arg-type]
        record_run(self.repository.documents, outcome, "tests", lambda count: next(self.numbers).to_bytes(count, "big"))

    def drill(self, hours_ago: float, backup: str, *, code: int = 0, **more: object) -> None:
        moment = format_time(NOW_NS - round(hours_ago * HOUR) * 10**9)
        outcome = replace(DrillOutcome(moment, moment, not code, code, backup, moment), **more)  # type: ignore[arg-type]
        record_run(self.repository.documents, outcome, "tests", lambda count: next(self.numbers).to_bytes(count, "big"))

    def status(self, **more: object) -> RepositoryStatus:
        return take_status(self.repository, now_ns=NOW_NS, **more)  # type: ignore[arg-type]

    def rules(self, live: LiveStreams | None = None, **limits: object) -> list[str]:
        found = find_breaches(self.status(), Limits(**limits), live)  # type: ignore[arg-type]
        assert all(one.hint.endswith(".") and one.hint[0].isupper() and not one.reason.endswith(".") for one in found)
        # What is broken is mended: no hint gives up a backup or a stream for it.
        given_up = ("jsbackup forget", "backup --exclude")
        at_risk = [one for one in found if one.rule not in (BreachRule.NOT_BACKED_UP, *_KEEP_MORE)]
        assert not [one for one in at_risk for words in given_up if words in one.hint.partition("Only if no copy")[0]]
        return [str(one.rule) for one in found]


@pytest.fixture
def world() -> World:
    store = MemoryStore(lambda: NOW_NS / 1e9)
    return World(store, make_repository(store), itertools.count())


def test_an_empty_repository_has_no_backup_and_nothing_was_verified_or_drilled(world: World) -> None:
    assert world.rules() == ["no-backup"]
    asked = {"max_age_seconds": 1, "max_verify_age_seconds": 1, "max_drill_age_seconds": 1, "min_backups": 1}
    assert world.rules(**asked) == ["no-backup", "verify-age", "drill-age"]


def test_a_complete_backup_may_be_as_old_as_the_limit_says(world: World) -> None:
    world.back_up(25, "A")
    assert world.rules() == world.rules(max_age_seconds=25 * HOUR) == []
    assert world.rules(max_age_seconds=25 * HOUR - 1) == ["backup-age"]


def test_a_partial_backup_does_not_make_the_complete_one_younger(world: World) -> None:
    world.back_up(25, "A", "B")
    world.back_up(1, "A", lacking=["B"])
    assert world.rules(max_age_seconds=24 * HOUR) == ["backup-age", "incomplete-backup"]
    [line] = world.status().lines
    assert (line.new, line.gone) == ((), ())
    world.back_up(0, "A", "B")
    assert world.rules(max_age_seconds=24 * HOUR) == []


def test_there_may_be_partial_backups_only(world: World) -> None:
    world.back_up(1, "A", lacking=["B"])
    assert world.rules(min_backups=1, min_history_seconds=1) == ["no-backup", "incomplete-backup"]


def test_a_server_that_has_lost_all_streams_is_told_for_as_long_as_backups_had_some(world: World) -> None:
    world.back_up(3)
    assert world.rules() == []
    world.back_up(2, "A", "B")
    assert world.rules() == []
    world.back_up(1)
    world.back_up(0)
    assert world.rules() == ["empty-backup"]
    [breach] = find_breaches(world.status(), Limits())
    assert breach.hint.endswith("once: 'latest' means that backup then.")


def test_a_backup_of_one_stream_by_hand_does_not_stand_in_for_that_of_all(world: World) -> None:
    world.back_up(30, "A", "B")
    world.back_up(1, "A", selection=Selection(("A",)))
    assert world.rules(max_age_seconds=24 * HOUR) == ["backup-age"]
    world.back_up(0, "A", "B")
    assert world.rules(max_age_seconds=24 * HOUR) == []


def test_a_backup_by_hand_need_not_be_made_again_where_others_have_its_streams(world: World) -> None:
    world.back_up(300, "A", selection=Selection(("A",)))
    world.back_up(1, "A", "B")
    assert world.rules(max_age_seconds=24 * HOUR, min_backups=1) == []
    assert [line.covered for line in world.status().lines] == [False, True]


@pytest.mark.parametrize("selection", [Selection(("*",)), Selection(consumers=False)])
def test_what_finds_no_new_streams_or_has_no_consumers_covers_less(world: World, selection: Selection) -> None:
    world.back_up(300, "A")
    world.back_up(1, "A", selection=selection)
    assert world.rules(max_age_seconds=24 * HOUR) == ["backup-age"]


def test_a_newer_backup_that_leaves_a_stream_out_does_not_stand_for_it(world: World) -> None:
    world.back_up(300, "A", "TMP_1")
    world.back_up(1, "A", selection=Selection(exclude=("TMP*",)))
    assert world.rules(max_age_seconds=24 * HOUR) == ["backup-age"]
    assert [line.covered for line in world.status().lines] == [False, False]


def test_another_account_is_not_covered(world: World) -> None:
    world.back_up(300, "A", source=Source("2.15.1", cluster="C1", account="OTHER"))
    world.back_up(1, "A")
    assert world.rules(max_age_seconds=24 * HOUR) == ["backup-age"]
    only = world.status(origins=[Glob("A")])
    assert find_breaches(only, Limits(max_age_seconds=24 * HOUR)) == []
    assert (len(only.lines), only.others) == (1, 1)


def test_a_server_that_nobody_has_named_stays_the_same_when_it_starts_anew(world: World) -> None:
    for hours, name in ((30, "N" + "A" * 55), (1, "N" + "B" * 55)):
        world.back_up(hours, "A", source=Source("2.15.1", cluster=name, account="A"))
    [line] = world.status().lines
    assert (len(line.backups), line.origin) == (2, Origin("", "A", ""))


def test_imports_transforms_and_configurations_stand_for_nothing(world: World) -> None:
    world.back_up(1, "A", source=Source(imported={"from": "nats-cli"}))
    world.back_up(1, "A", source=Source(transformed={"backup": "x", "options": ["--mask"]}))
    world.back_up(1, "A", selection=Selection(config_only=True))
    assert world.rules() == ["no-backup"]
    assert world.status().others == 3


def test_tags_choose_backups(world: World) -> None:
    world.back_up(30, "A", tags={"keep": "yes"})
    world.back_up(1, "A")
    status = world.status(tags=[TagRule("keep")])
    assert [str(one.rule) for one in find_breaches(status, Limits(max_age_seconds=24 * HOUR))] == ["backup-age"]


def test_a_backup_from_the_future_hides_nothing(world: World) -> None:
    world.back_up(30, "A")
    world.back_up(-2, "A")
    assert world.rules(max_age_seconds=24 * HOUR) == ["clock", "backup-age"]
    world.back_up(-0.05, "A")  # clocks are never quite the same
    assert world.rules(max_age_seconds=24 * HOUR) == ["clock"]


def test_a_manifest_that_cannot_be_read_is_named(world: World) -> None:
    world.back_up(2, "A")
    manifest = world.back_up(1, "A")
    key = layout.manifest_key(manifest.id)
    world.store.delete(key)
    world.store.put(key, b"{")
    [breach] = find_breaches(world.status(), Limits())
    assert (breach.rule, breach.about) == ("unreadable-backup", manifest.id)


def test_a_verify_has_to_look_deep_enough_and_to_go_well(world: World) -> None:
    world.back_up(1, "A")
    world.verify(10, level=Level.MANIFEST)
    assert world.rules(max_verify_age_seconds=24 * HOUR) == []
    assert world.rules(max_verify_age_seconds=24 * HOUR, verify_level=Level.OBJECTS) == ["verify-age"]
    world.verify(9, level=Level.DATA)
    assert world.rules(max_verify_age_seconds=24 * HOUR, verify_level=Level.OBJECTS) == []
    assert world.rules(max_verify_age_seconds=8 * HOUR) == ["verify-age"]
    good = last_good_verify(world.status(), Level.MANIFEST)
    assert good is not None and good.level is Level.DATA


def test_damage_stays_until_a_run_that_looks_as_deep_finds_it_mended(world: World) -> None:
    manifest = world.back_up(1, "A")
    other = world.back_up(1, "A")
    world.verify(9, ok=False, damaged=(manifest.id,))
    world.verify(8, level=Level.MANIFEST)
    world.verify(7, everything=False, chosen=(other.id,))
    assert world.rules() == ["verify-failed"]
    world.verify(6, everything=False, chosen=(manifest.id,))
    assert world.rules() == []
    world.verify(5, ok=False)  # the repository itself
    assert world.rules() == ["verify-failed"]
    world.verify(4, everything=False, chosen=(manifest.id, other.id))
    assert world.rules() == ["verify-failed"]
    world.verify(3, part=True)
    assert world.rules() == []


def test_damage_of_a_backup_that_is_forgotten_is_none(world: World) -> None:
    world.back_up(1, "A")
    world.verify(9, ok=False, damaged=("20250101T000000Z-000000",))
    assert world.rules() == []


def test_the_last_drill_has_to_go_well_and_only_one_of_everything_counts(world: World) -> None:
    manifest = world.back_up(1, "A")
    world.drill(10, manifest.id)
    assert world.rules(max_drill_age_seconds=10 * HOUR) == []
    assert world.rules(max_drill_age_seconds=9 * HOUR) == ["drill-age"]
    world.drill(5, manifest.id, everything=False)
    assert world.rules(max_drill_age_seconds=9 * HOUR) == ["drill-age"]
    world.drill(4, manifest.id, code=1, failed=(FailedStream("A\n", "no answer"),))
    [breach] = find_breaches(world.status(), Limits())
    assert (breach.rule, breach.about) == ("drill-failed", manifest.id) and "A\n failed" in breach.reason


def test_retention_that_leaves_too_little(world: World) -> None:
    world.back_up(30, "A")
    world.back_up(20, "A", lacking=["B"])
    world.back_up(1, "A")
    assert world.rules(min_backups=2, min_history_seconds=30 * HOUR) == []
    assert world.rules(min_backups=3, min_history_seconds=31 * HOUR) == ["few-backups", "short-history"]


def test_streams_of_the_server_have_to_be_in_a_newest_backup_or_left_out_on_purpose(world: World) -> None:
    world.back_up(2, "OLD", "A")
    world.back_up(1, "A", "B", selection=Selection(exclude=("TMP*",)))
    world.back_up(1, "D", source=Source("2.15.1", cluster="C1", account="OTHER"))
    live = LiveStreams(Origin("C1", "A", ""), ("A", "B", "C", "D", "TMP_7", "X_1"), (Glob("X*"),))
    assert not_backed_up(world.status(), live) == ["C", "D"]
    assert world.rules(live) == ["streams-not-backed-up"]
    nowhere = LiveStreams(Origin("C2", "A", ""), ("A",))
    assert not_backed_up(world.status(), nowhere) == ["A"]


def test_new_and_gone_streams_are_told_and_no_breach(world: World) -> None:
    world.back_up(2, "A", "B")
    world.back_up(1, "B", "C")
    [line] = world.status().lines
    assert (line.new, line.gone) == (("C",), ("A",))
    assert world.rules() == []


def test_what_is_stored_and_who_is_at_work(world: World) -> None:
    manifest = world.back_up(1, "A")
    (ref,) = manifest.streams[0].segments
    orphan = layout.segment_key(layout.stream_folder("GONE", "1a2b3c4d"), 1, 2, "ab" * 32)
    world.store.put(orphan, bytes(30))
    held(world.store)
    world.store.put(layout.receipt_key(ReceiptKey("00112233445566ff", 1)), b"{}")
    from jsbackup.repository.document import encode_document

    frame = {"format": 1, "required_features": [], "tool": "tests"}
    marks = {**frame, "unused": [{"key": orphan, "seen": "2026-11-20T00:00:00Z", "size": 30}]}
    world.store.put(layout.mark_key("1a2b"), encode_document(marks, "marks"))
    status = world.status()
    stored = status.stored
    assert (stored.objects, stored.bytes, stored.unused_objects, stored.unused_bytes) == (2, ref.size + 30, 1, 30)
    assert stored.interrupted_runs == 1
    [work] = status.work
    assert work.live and work.text is not None
    assert world.rules(max_unused_bytes=30) == []
    assert world.rules(max_unused_bytes=29) == ["unused-objects"]


@pytest.mark.slow
def test_ten_thousand_backups_take_few_requests() -> None:
    """As a listing does (`test_scale.py`), and the manifests of one line, checks, leases and marks besides."""
    uncovered = 90
    many = ManyBackups(10_000, uncovered=uncovered)
    counting = CountingStore(many)
    status = take_status(Repository.open(counting), now_ns=1_775_000_000 * 10**9)
    assert counting.total <= 5 + 10_000 // PAGE + 1 + uncovered + 3 + 13, counting.requests
    assert len(status.backups) == 10_000


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "119 min"),
        (7200, "2 h"),
        (90_060, "25 h 1 min"),
        (172_800, "2 d"),
        (400_000, "4 d 15 h"),
    ],
)
def test_durations_are_said_as_people_do(seconds: float, said: str) -> None:
    assert span(seconds) == said


# --- many accounts ---


def of_account(account: str, name: str = "") -> Source:
    return Source("2.15.1", cluster="C1", account=account, account_name=name or None)


def test_no_account_of_many_is_left_out(world: World) -> None:
    for number in range(120):
        world.back_up(2, "ORDERS", source=of_account(f"A{number}"))
    status = world.status()
    assert len(status.lines) == 120 and status.others == 0
    assert len(find_breaches(status, Limits(max_age_seconds=HOUR))) == 120


def test_of_one_account_the_newest_series_are_looked_at(world: World) -> None:
    for number in range(60):
        world.back_up(100 - number, "ORDERS", selection=Selection((f"S{number}",)))
    world.back_up(100, "ORDERS", source=of_account("B"))
    status = world.status()
    assert len(status.lines) == 51 and status.others == 10


def test_a_series_has_the_present_name_of_its_account(world: World) -> None:
    key = "A" * 56
    world.back_up(3, "ORDERS", source=of_account(key, "before"))
    world.back_up(2, "ORDERS", source=of_account(key, "after"))
    [line] = world.status().lines
    assert line.words == f"cluster C1, account {key}, all streams"
    assert line.title == f"cluster C1, account {key} (after), all streams"
    [breach] = find_breaches(world.status(), Limits(max_age_seconds=HOUR))
    assert f"account {key} (after)" in breach.reason and breach.about == line.words


def test_what_of_all_accounts_is_not_backed_up(world: World) -> None:
    world.back_up(2, "ORDERS", source=of_account("A"))
    accounts = (
        LiveStreams(Origin("C1", "A", ""), ("ORDERS",)),
        LiveStreams(Origin("C1", "NEW", "", account_name="new one"), ("A", "B")),
        LiveStreams(Origin("C1", "EMPTY", ""), ()),
        LiveStreams(Origin("C1", "TMP", ""), ("TMP-1",), (Glob("TMP-*"),)),
    )
    status = world.status()
    [breach] = find_account_breaches(status, LiveAccounts(accounts))
    assert (breach.rule, breach.about) == ("account-not-backed-up", "C1/NEW")
    assert "NEW (new one) has 2 streams, and no backup" in breach.reason
    single = (LiveStreams(Origin("C1", "HR", ""), ("A",)),)
    [breach] = find_account_breaches(status, LiveAccounts(single))
    assert "HR has 1 stream, and no backup" in breach.reason
    found = list(find_account_breaches(status, LiveAccounts((LiveStreams(Origin("C1", "A", ""), ("ORDERS", "X")),))))
    assert [one.rule for one in found] == ["streams-not-backed-up"]
    found = list(find_account_breaches(status, LiveAccounts((), ("1 of 2 servers answered",))))
    assert [(one.rule, one.reason) for one in found] == [("servers-not-answering", "1 of 2 servers answered")]


@pytest.mark.parametrize(("free_bytes", "rules"), [(None, []), (300 << 20, []), (299 << 20, ["little-space"])])
def test_there_is_room_for_the_next_backup(world: World, free_bytes: int | None, rules: list[str]) -> None:
    world.back_up(1, "ORDERS", stored_bytes=300 << 20)
    status = replace(world.status(), free_bytes=free_bytes)
    assert [str(one.rule) for one in find_breaches(status, Limits())] == rules
    assert find_breaches(replace(status, free_bytes=127 << 20), Limits())
