"""A status to tell of, with names of streams that nobody can trust."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from jsbackup.cli.output.status_report import Report
from jsbackup.config import Glob
from jsbackup.engine.check.health_rules import Limits, LiveStreams
from jsbackup.engine.check.status import BackupSeries, RepositoryStatus, SeenWork, StoredTotals, StreamSize
from jsbackup.repository.checks.ledger import DrilledStream, DrillOutcome, FailedStream, VerifyOutcome
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.keep.leases import LeaseText
from jsbackup.repository.manifest import BackupResult, BackupSummary, Selection, SkippedStream
from jsbackup.repository.origin import Origin
from tests.cli.pages import HOSTILE

NOW = datetime(2026, 11, 21, 1, 45, tzinfo=UTC)
NOW_NS = int(NOW.timestamp()) * 10**9


def moment(days_ago: float) -> str:
    return f"{NOW - timedelta(days=days_ago):%Y-%m-%dT%H:%M:%SZ}"


def summary(days_ago: int, result: BackupResult = BackupResult.COMPLETE) -> BackupSummary:
    created = NOW - timedelta(days=days_ago)
    size = 1000 * (400 - days_ago)
    return BackupSummary(f"{created:%Y%m%dT%H%M%SZ}-{days_ago:06x}", moment(days_ago), result, 3, size // 10, size)


def some_drill(days_ago: float, *, ok: bool = True) -> DrillOutcome:
    begun = NOW - timedelta(days=days_ago, minutes=7)
    return DrillOutcome(
        begun=f"{begun:%Y-%m-%dT%H:%M:%SZ}",
        ended=moment(days_ago),
        ok=ok,
        code=0 if ok else 14,
        backup=summary(31).id,
        backup_created=moment(31),
        error="" if ok else HOSTILE[0],
        server="2.15.1",
        streams=tuple(DrilledStream(name, 7, 70, True, 0.25 + at) for at, name in enumerate(HOSTILE)),
        failed=() if ok else (FailedStream(HOSTILE[1], HOSTILE[2]),),
    )


def some_report(names: tuple[str, ...] = HOSTILE, *, days: int = 200) -> Report:
    """A line of daily backups, one of them partial and a week without; another line without any complete one."""
    daily = [
        summary(ago, BackupResult.PARTIAL if ago == 20 else BackupResult.COMPLETE)
        for ago in range(days, -1, -1)
        if not 50 <= ago < 57
    ]
    line = BackupSeries(
        words=f"cluster {names[0]}, all streams",
        origin=Origin(names[0], "A", ""),
        selection=Selection(),
        backups=tuple(daily),
        streams=tuple(StreamSize(name, 10 + at, 1000 * at, 300 * at) for at, name in enumerate(names)),
        new=names[:1],
        gone=names[1:3],
        complete_streams=names,
    )
    partial = BackupSeries(
        words="account B",
        origin=Origin("C1", "B", "hub"),
        selection=Selection(exclude=("TMP*",)),
        backups=(summary(3, BackupResult.PARTIAL),),
        skipped=tuple(SkippedStream(name, "no answer\nat all") for name in names),
    )
    backups = [one.id for one in (*line.backups, *partial.backups)]
    text = LeaseText("backup", "jsbackup 1", names[0], moment(1))
    status = RepositoryStatus(
        now_ns=NOW_NS,
        existing=frozenset(backups),
        lines=(line, partial),
        others=2,
        ahead=(),
        unreadable=(),
        verifies=(
            VerifyOutcome(moment(1), moment(1), True, Level.OBJECTS, False, True, 1, 0),
            VerifyOutcome(moment(2), moment(2), False, Level.DATA, True, False, 9, 2, damaged=(backups[0],)),
        ),
        drills=(some_drill(2, ok=False), some_drill(33)),
        stored=StoredTotals(1000, 1_500_000, 3, 3000, 1),
        work=(SeenWork(text, False, False, NOW_NS),),
    )
    live = LiveStreams(Origin(names[0], "A", ""), (*names, "MISSING\\n", 'QUOTED"'), (Glob("X*"),))
    return Report(status, Limits(max_age_seconds=3600, max_drill_age_seconds=86_400), live)
