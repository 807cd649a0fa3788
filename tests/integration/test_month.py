"""A month of backups by a fake clock: retention, status and metrics are right on every day.

There is one every hour, or as often as `JSBACKUP_TEST_MONTH_MINUTES` says: every ten minutes takes ten seconds.

Backups are committed under leases, forgotten by a policy and pruned each night, verified each week and drilled every
ten days, all by the code that commands use, in a store in memory. Things go wrong on some days: backups stop for hours,
one is killed, one is partial, streams come and go, a verify finds damage, a drill fails, nobody drills. What should be
found then is computed here from the history alone, by rules written down once more in another way.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

import pytest
from prometheus_client.parser import text_string_to_metric_families

from jsbackup.cli.notify.metrics import status_metrics
from jsbackup.cli.output.html_pages import status_page
from jsbackup.cli.output.status_report import Report, growth_of_line
from jsbackup.engine.check.health_rules import Limits
from jsbackup.engine.check.status import take_status
from jsbackup.errors import RepositoryLocked
from jsbackup.formats.digest import StreamDigest
from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.checks.ledger import DrillOutcome, VerifyOutcome, record_run
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.keep.forget import plan_by_policy, remove_decided
from jsbackup.repository.keep.leases import Mode, Terms, acquire, commit
from jsbackup.repository.keep.prune import prune
from jsbackup.repository.keep.retention import Policy
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    SegmentRef,
    Selection,
    SkippedStream,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.read.sources import Grouping
from jsbackup.repository.repository import Repository
from jsbackup.times import format_time, parse_time
from tests.harness.backups import CREATED, INCARNATION, make_repository
from tests.harness.history import Scene

DAYS = 30
MINUTES = int(os.environ.get("JSBACKUP_TEST_MONTH_MINUTES", "60"))
STEP = timedelta(minutes=MINUTES)
A_DAY = 1440 // MINUTES
BEGIN = datetime(2026, 11, 2, tzinfo=UTC)  # a Monday
FIRST = timedelta(minutes=50 % MINUTES)  # of each day, so that the last is at ten to midnight
NIGHT = timedelta(hours=23, minutes=57)  # of each day, when it is tidied up and looked at

POLICY = Policy(last=12, hourly=24, daily=7, weekly=3)
SEGMENT_BYTES = 500

LIMITS = Limits(
    max_age_seconds=1800,
    max_verify_age_seconds=8 * 86_400,
    verify_level=Level.OBJECTS,
    max_drill_age_seconds=11 * 86_400,
    min_backups=30,
    min_history_seconds=86_400,
)

STOPPED = range(9 * A_DAY + A_DAY * 7 // 10, 10 * A_DAY)  # steps: the last seven hours of day 9
PARTIAL = {13 * A_DAY - 1: "it did not answer", 5 * A_DAY + A_DAY // 2: "it did not answer"}
KILLED = 19 * A_DAY - 1  # it holds its lease when the day is looked at
VERIFIES = {0: True, 6: True, 13: False, 16: True, 29: True}  # day → whether nothing was wrong
DRILLS = {1: True, 11: False, 12: True}  # and then none: too old from day 24 on
STREAMS = {"ORDERS": (0, DAYS), "OLD": (0, 14), "NEW": (16, DAYS)}  # name → days from and to


@dataclass
class Made:
    """One backup as the history has it; `segments` are the days whose segments it names."""

    moment: datetime
    id: str
    complete: bool
    messages: int
    segments: frozenset[tuple[str, int]]


@dataclass
class Month:
    """The world: what has happened, which is all that expectations are made from."""

    scene: Scene
    repository: Repository
    made: list[Made] = field(default_factory=list)
    killed: bool = False

    def at(self, moment: datetime) -> None:
        self.scene.now = moment.timestamp()


def day_of(number: int) -> int:
    return number // A_DAY


def streams_of(number: int) -> list[str]:
    return [name for name, (first, end) in STREAMS.items() if first <= day_of(number) < end]


def ref_of(name: str, day: int) -> SegmentRef:
    """The segment of one day, of a thousand messages."""
    digest = hashlib.sha256(f"{name} {day}".encode()).hexdigest()
    first, last = day * 1000 + 1, day * 1000 + 1000
    key = layout.segment_key(layout.stream_folder(name, INCARNATION), first, last, digest)
    begin = int((BEGIN + timedelta(days=day)).timestamp()) * 10**9
    fingerprint = StreamDigest.from_hex(digest)
    return SegmentRef(key, first, last, 1000, 10_000, begin, begin + 1, SEGMENT_BYTES, digest, digest, fingerprint)


def days_kept(name: str, number: int) -> range:
    """Streams keep what came today and the day before."""
    return range(max(STREAMS[name][0], day_of(number) - 1), day_of(number) + 1)


def back_up(month: Month, number: int) -> None:
    moment = BEGIN + FIRST + number * STEP
    month.at(moment)
    scene, repository = month.scene, month.repository
    skipped = [SkippedStream("ORDERS", PARTIAL[number])] if number in PARTIAL else []
    names = [name for name in streams_of(number) if not (skipped and name == "ORDERS")]
    terms = Terms(Mode.SHARED, "backup", "jsbackup tests", "host", format_time(int(moment.timestamp()) * 10**9))
    lease = acquire(
        scene.store, terms, wait_seconds=0, clock=lambda: scene.now, sleep=lambda _: None, random=scene.random
    )
    streams = []
    for name in names:
        refs = tuple(ref_of(name, day) for day in days_kept(name, number))
        if number % A_DAY == 0:
            scene.store.put(refs[-1].key, bytes(SEGMENT_BYTES))
        total = total_of(refs)
        streams.append(
            StreamBackup(
                name=name,
                incarnation=INCARNATION,
                config={"name": name},
                created=CREATED,
                state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
                captured=Captured.of(total, CREATED, CREATED),
                archive_format=ArchiveFormat.V2,
                digest=total.digest,
                segments=refs,
            )
        )
    if number == KILLED:
        month.killed = True
        return  # before the manifest, and without a word to anybody
    seconds = int(moment.timestamp())
    manifest = Manifest(
        id=layout.backup_id(seconds * 10**9, number.to_bytes(3, "big")),
        created=format_time(seconds * 10**9),
        tool="jsbackup tests",
        source=Source("2.15.1", cluster="C1", account="A"),
        result=BackupResult.PARTIAL if skipped else BackupResult.COMPLETE,
        streams=tuple(streams),
        skipped=tuple(skipped),
        selection=Selection(),
    )
    commit(repository, manifest, lease)
    lease.release()
    segments = frozenset((name, day) for name in names for day in days_kept(name, number))
    messages = sum(1000 * len(days_kept(name, number)) for name in names)
    month.made.append(Made(moment, manifest.id, not skipped, messages, segments))


# --- what should be ---


def survivors(made: Sequence[Made]) -> list[Made]:
    """What the policy keeps, in its own words: of each of the newest periods with a complete backup the newest one."""
    newest_first = sorted(made, key=lambda one: one.moment, reverse=True)
    keep: set[str] = set()

    def periods(name: str, count: int) -> Iterator[str]:
        forms = {"hourly": "%Y%m%d%H", "daily": "%Y%m%d", "weekly": "%G%V", "last": "%Y%m%d%H%M%S"}
        groups: dict[str, list[Made]] = {}
        for one in newest_first:
            groups.setdefault(one.moment.strftime(forms[name]), []).append(one)
        counted = besides = 0
        for group in groups.values():
            whole = [one for one in group if one.complete]
            if counted == count or (not whole and besides == count):
                continue
            counted, besides = counted + bool(whole), besides + (not whole)
            yield (whole or group)[0].id

    for name, count in (("last", 12), ("hourly", 24), ("daily", 7), ("weekly", 3)):
        keep.update(periods(name, count))
    keep.add(newest_first[0].id)
    keep.add(next(one.id for one in newest_first if one.complete))
    return [one for one in made if one.id in keep]


def expected_rules(day: int, kept: Sequence[Made], now: datetime) -> list[str]:
    """The breaches of the day, in the order in which they are told."""
    complete = [one for one in kept if one.complete]
    rules = []
    if (now - complete[-1].moment).total_seconds() > 1800:
        rules.append("backup-age")
    if not kept[-1].complete:
        rules.append("incomplete-backup")
    verified = [at for at in VERIFIES if at <= day]
    if not VERIFIES[verified[-1]]:
        rules.append("verify-failed")
    good = [at for at in verified if VERIFIES[at]]
    if not good or day - good[-1] > 8:
        rules.append("verify-age")
    drilled = [at for at in DRILLS if at <= day]
    if drilled and not DRILLS[drilled[-1]]:
        rules.append("drill-failed")
    went_well = [at for at in drilled if DRILLS[at]]
    if not went_well or day - went_well[-1] > 11:
        rules.append("drill-age")
    if len(complete) < 30:
        rules.append("few-backups")
    if (now - complete[0].moment).total_seconds() < 86_400:
        rules.append("short-history")
    return rules


def grown(kept: Sequence[Made]) -> list[tuple[int, int]]:
    """Days, and how many messages more there are than so many days before."""
    complete = [one for one in kept if one.complete]
    newest = complete[-1]
    found = []
    for days in (1, 7, 30):
        before = [one for one in complete if one.moment <= newest.moment - timedelta(days=days)]
        if before:
            found.append((days, newest.messages - before[-1].messages))
    return found


# --- the days ---


@pytest.mark.by_turns
@pytest.mark.slow
def test_retention_status_and_metrics_are_right_on_every_day() -> None:
    scene = Scene("plain")
    month = Month(scene, make_repository(scene.store))
    kept: list[Made] = []
    unused: frozenset[tuple[str, int]] = frozenset()
    seen_rules: set[str] = set()
    for day in range(DAYS):
        for number in range(day * A_DAY, (day + 1) * A_DAY):
            if number not in STOPPED:
                back_up(month, number)
        now = BEGIN + timedelta(days=day) + NIGHT
        month.at(now)
        check(month, day, now)

        kept = survivors(month.made)
        forget(month, now)
        assert month.repository.backups() == [one.id for one in kept], day
        month.made = kept

        named = frozenset(segment for one in kept for segment in one.segments)
        there = {(name, at) for name in STREAMS for at in range(day + 1) if _is_there(scene, ref_of(name, at).key)}
        locked = prune_it(month)
        assert locked == (day == day_of(KILLED)), day
        # What was found unused yesterday, and still is, has been deleted by now; what is found today waits a day.
        deleted = frozenset() if locked else unused - named
        unused = frozenset(there) - named - deleted
        assert sum(1 for _ in scene.store.list(layout.SEGMENTS)) == len(named | unused), day

        seen_rules |= look(month, day, now, kept, len(named | unused), len(unused))
    assert seen_rules >= {
        "backup-age",
        "incomplete-backup",
        "verify-failed",
        "verify-age",
        "drill-failed",
        "drill-age",
        "short-history",
    }
    assert len(month.repository.backups()) < 60


def check(month: Month, day: int, now: datetime) -> None:
    """The verify and the drill of the day, if there is one."""
    documents, moment = month.repository.documents, format_time(int(now.timestamp()) * 10**9)
    if day in VERIFIES:
        ok = VERIFIES[day]
        damaged = () if ok else (month.made[-1].id,)
        outcome = VerifyOutcome(moment, moment, ok, Level.OBJECTS, True, False, 1, len(damaged), (), damaged)
        record_run(documents, outcome, "tests", month.scene.random)
    if day in DRILLS:
        newest = month.made[-1]
        created = format_time(int(newest.moment.timestamp()) * 10**9)
        code = 0 if DRILLS[day] else 14
        record_run(documents, DrillOutcome(moment, moment, not code, code, newest.id, created), "tests", bytes)


def forget(month: Month, now: datetime) -> None:
    plan = plan_by_policy(month.repository, POLICY, Grouping.SELECTION, now_ns=int(now.timestamp()) * 10**9)
    remove_decided(month.repository, plan.decisions)


def prune_it(month: Month) -> bool:
    """Whether somebody who was killed stands in its way."""
    scene = month.scene
    try:
        prune(
            month.repository,
            lambda mode: scene.lease(scene.store, mode, "prune"),
            grace_seconds=86_400,
            tool="tests",
            random=scene.random,
        )
    except RepositoryLocked:
        return True
    return False


def _is_there(scene: Scene, key: str) -> bool:
    return any(True for _ in scene.store.list(key))


def look(month: Month, day: int, now: datetime, kept: Sequence[Made], objects: int, unused: int) -> set[str]:
    """Compare status, metrics and page with what should be; the rules that are broken."""
    now_ns = int(now.timestamp()) * 10**9
    report = Report(take_status(Repository.open(month.scene.store), now_ns=now_ns), LIMITS, None)
    status = report.status
    rules = [str(one.rule) for one in report.breaches]
    assert rules == expected_rules(day, kept, now), day
    [line] = status.lines
    complete = [one for one in kept if one.complete]
    assert [one.id for one in line.backups] == [one.id for one in kept]
    assert line.newest_complete is not None and status.newest_complete is not None
    assert line.newest_complete.id == status.newest_complete.id == complete[-1].id
    assert line.newest_complete.messages == complete[-1].messages
    assert [(one["days"], one["messages"]) for one in growth_of_line(line)] == grown(kept), day
    # The one before in the repository may have been forgotten by now.
    names = {name for name, _ in kept[-1].segments}
    before = {name for name, _ in kept[-2].segments}
    lacking = {"ORDERS"} if not kept[-1].complete else set()
    assert (set(line.new), set(line.gone)) == (names - before, before - names - lacking), day
    stopped = day == day_of(KILLED)
    assert [work.live for work in status.work] == ([True] if stopped else []), day

    families = {
        family.name: family.samples
        for family in text_string_to_metric_families(status_metrics(status, report.breaches, None, 17).decode())
    }

    def value(name: str, **labels: str) -> float:
        [found] = [one.value for one in families[f"jsbackup_{name}"] if labels.items() <= one.labels.items()]
        return float(found)

    assert value("status_up") == 1
    assert value("newest_backup_timestamp_seconds") == complete[-1].moment.timestamp()
    assert value("line_oldest_backup_timestamp_seconds", account="A") == complete[0].moment.timestamp()
    assert value("backups", result="complete") == len(complete)
    assert value("backups", result="partial") == len(kept) - len(complete)
    assert value("line_messages", cluster="C1") == complete[-1].messages
    assert (value("stored_objects"), value("stored_bytes")) == (objects, objects * SEGMENT_BYTES)
    assert (value("unused_objects"), value("unused_bytes")) == (unused, unused * SEGMENT_BYTES)
    assert value("leases", state="live") == stopped
    for rule in {str(one.labels["rule"]) for one in families["jsbackup_breaches"]}:
        assert value("breaches", rule=rule) == rules.count(rule)
    if day in DRILLS or day - 1 in DRILLS:
        assert value("last_drill_ok") == DRILLS[day if day in DRILLS else day - 1]
    verified = max(at for at in VERIFIES if at <= day and VERIFIES[at])
    ended = BEGIN + timedelta(days=verified) + NIGHT
    assert value("last_good_verify_timestamp_seconds", level="objects") == ended.timestamp()

    if day == DAYS - 1:
        page = status_page(report, "memory:").decode()
        for one in kept[-20:]:
            assert one.id in page
        assert parse_time(format_time(now_ns)) == now_ns
    return set(rules)
