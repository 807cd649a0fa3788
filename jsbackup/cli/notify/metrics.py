"""Results of `status` as metrics for Prometheus: for node_exporter's textfile collector or a push.

All are gauges. Times are Unix seconds, so that an alert can say `time() - jsbackup_newest_backup_timestamp_seconds` and
fires also if the metrics are not written any more. Names of streams, clusters and accounts are untrusted: they are only
in labels, and no series is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from jsbackup.engine.check.backup_series import BackupSeries
from jsbackup.engine.check.health_rules import Breach, BreachRule, LiveStreams, not_backed_up
from jsbackup.engine.check.status import RepositoryStatus
from jsbackup.repository.checks.outcomes import DrillOutcome
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.manifest import Result
from jsbackup.times import parse_time

__all__ = ["Metrics", "failure_metrics", "status_metrics"]

# As much as one scrape should have; the largest are included.
_MOST_STREAMS = 10_000
_MOST_DRILLED = 1_000

_Series = tuple[Mapping[str, str], float]


class Metrics:
    """A collector of `prometheus_client`, with families in the order of their creation."""

    def __init__(self) -> None:
        self._families: list[GaugeMetricFamily] = []

    def collect(self) -> list[GaugeMetricFamily]:
        return self._families

    def family(self, name: str, about: str, series: Iterable[_Series]) -> None:
        """Add a gauge with its series, unless there are none. The first of equal series counts."""
        values: dict[tuple[str, ...], float] = {}
        names: list[str] = []
        for labels, value in series:
            names = list(labels)
            values.setdefault(tuple(map(_whole, labels.values())), value)
        if values:
            family = GaugeMetricFamily(f"jsbackup_{name}", about, labels=names)
            for texts, value in values.items():
                family.add_metric(texts, value)
            self._families.append(family)

    def one(self, name: str, about: str, value: float | None) -> None:
        self.family(name, about, [] if value is None else [({}, value)])

    def encode(self) -> bytes:
        return generate_latest(self)


def _whole(text: str) -> str:
    """Return the text with lone surrogates escaped."""
    return text.encode("utf-8", "backslashreplace").decode()


def failure_metrics(now_ns: int, code: int) -> Metrics:
    """Return the metrics if the repository could not be examined, and status ended with this code."""
    found = Metrics()
    _head(found, now_ns, 0, code)
    return found


def _head(found: Metrics, now_ns: int, up: int, code: int) -> None:
    found.one("status_up", "Whether the repository could be read.", up)
    found.one("status_timestamp_seconds", "When it was read.", now_ns // 10**9)
    found.one("status_exit_code", "What jsbackup status ended with: 0 for all is well, 17 for a breach.", code)


def status_metrics(
    status: RepositoryStatus,
    breaches: Sequence[Breach],
    live: LiveStreams | None,
    code: int,
    *,
    accounts: Sequence[LiveStreams] = (),
) -> Metrics:
    """Return all metrics. `accounts` are the streams of each account of a system."""
    found = Metrics()
    _head(found, status.now_ns, 1, code)
    counts = dict.fromkeys(BreachRule, 0)
    for breach in breaches:
        counts[breach.rule] += 1
    found.family("breaches", "What is wrong, by rule.", (({"rule": rule}, count) for rule, count in counts.items()))
    _lines(found, status.lines)
    named_accounts = {line.origin.account: line.origin for line in status.lines if line.origin.account_name}
    found.family(
        "account_info",
        "What the operator calls an account that is known by its key.",
        (({"account": key, "account_name": one.account_name}, 1) for key, one in sorted(named_accounts.items())),
    )
    newest = status.newest_complete
    found.one(
        "newest_backup_timestamp_seconds",
        "When the newest complete backup of all began.",
        None if newest is None else _seconds(newest.created),
    )
    found.one("backups_unreadable", "Backups whose manifest cannot be read.", len(status.unreadable))
    found.one("backups_from_the_future", "Backups dated in the future.", len(status.ahead))
    _verifies(found, status)
    _drills(found, status.drills_of(None))
    stored = status.stored
    found.one("stored_objects", "Stored objects of streams.", stored.objects)
    found.one("stored_bytes", "Their bytes.", stored.bytes)
    found.one("unused_objects", "Objects that the last prune found not needed by any backup.", stored.unused_objects)
    found.one("unused_bytes", "Their bytes.", stored.unused_bytes)
    found.one("interrupted_runs", "Interrupted backups whose objects are left.", stored.interrupted_runs)
    at_work = sum(work.live for work in status.work)
    leases = [({"state": "live"}, at_work), ({"state": "expired"}, len(status.work) - at_work)]
    found.family("leases", "Leases in the repository, active and expired.", leases)
    if live is not None:
        missing = not_backed_up(status, live)
        found.one("server_streams", "Streams on the server.", len(live.names))
        found.one(
            "server_streams_not_backed_up",
            "Streams missing from the newest backups, except excluded ones.",
            len(missing),
        )
        named = (({"stream": name}, 1) for name in missing[:_MOST_STREAMS])
        found.family("stream_not_backed_up", "A stream on the server that is in no newest backup.", named)
    found.family(
        "account_streams",
        "Streams of an account on the servers.",
        ((_account_labels(one), len(one.names)) for one in accounts),
    )
    found.family(
        "account_streams_not_backed_up",
        "Those in no newest backup, without those left out.",
        ((_account_labels(one), len(not_backed_up(status, one))) for one in accounts),
    )
    return found


def _account_labels(live: LiveStreams) -> dict[str, str]:
    origin = live.origin
    return {"account": origin.account, "account_name": origin.account_name, "domain": origin.domain}


def _lines(found: Metrics, lines: Sequence[BackupSeries]) -> None:
    known = [(_labels(line), line) for line in lines]
    found.family(
        "backups",
        "Number of backups.",
        (
            ({**labels, "result": result}, sum(backup.result is result for backup in line.backups))
            for labels, line in known
            for result in Result
        ),
    )
    newest = [(labels, line, line.newest_complete) for labels, line in known]
    complete = [(labels, line, one) for labels, line, one in newest if one is not None]
    found.family(
        "line_newest_backup_timestamp_seconds",
        "When the newest complete backup began.",
        ((labels, _seconds(one.created)) for labels, _, one in complete),
    )
    found.family(
        "line_oldest_backup_timestamp_seconds",
        "When the oldest complete backup began.",
        ((labels, _seconds(line.complete[0].created)) for labels, line, _ in complete),
    )
    found.family(
        "line_covered",
        "Whether newer backups of other series have all of its streams.",
        ((labels, line.covered) for labels, line in known),
    )
    for name, about in (("streams", "Streams"), ("messages", "Messages"), ("bytes", "Bytes of messages")):
        found.family(
            f"line_{name}",
            f"{about} in the newest complete backup.",
            ((labels, getattr(one, name)) for labels, _, one in complete),
        )
    found.family(
        "line_streams_skipped",
        "Streams that the newest backup lacks, or has a part of.",
        ((labels, len(line.skipped) + len(line.warned)) for labels, line in known),
    )
    streams = sorted(
        (({**labels, "stream": one.name}, one) for labels, line in known if not line.covered for one in line.streams),
        key=lambda pair: -pair[1].bytes,
    )[:_MOST_STREAMS]
    found.family(
        "stream_messages", "Messages in the newest backup.", ((labels, one.messages) for labels, one in streams)
    )
    found.family("stream_bytes", "Their bytes.", ((labels, one.bytes) for labels, one in streams))
    found.family(
        "stream_stored_bytes",
        "Bytes of its objects, which other backups use too.",
        ((labels, one.stored_bytes) for labels, one in streams),
    )


def _labels(line: BackupSeries) -> dict[str, str]:
    origin = line.origin
    return {"cluster": origin.cluster, "account": origin.account, "domain": origin.domain, "line": line.words}


def _verifies(found: Metrics, status: RepositoryStatus) -> None:
    good = {level: next((one for one in status.verifies if one.ok and one.level is level), None) for level in Level}
    found.family(
        "last_good_verify_timestamp_seconds",
        "When the last verify of this level ended that found nothing wrong.",
        (({"level": level}, _seconds(one.ended)) for level, one in good.items() if one is not None),
    )
    newest = next(iter(status.verifies), None)
    if newest is not None:
        found.one("last_verify_timestamp_seconds", "When the last verify ended.", _seconds(newest.ended))
        found.one("last_verify_ok", "Whether it found nothing wrong.", newest.ok)
        found.one("last_verify_problems", "What it found.", newest.problems)


def _drills(found: Metrics, drills: Sequence[DrillOutcome]) -> None:
    good = next((one for one in drills if one.ok and one.everything), None)
    if good is not None:
        found.one(
            "last_good_drill_timestamp_seconds", "When the last drill ended that succeeded.", _seconds(good.ended)
        )
    newest = next(iter(drills), None)
    if newest is None:
        return
    found.one("last_drill_timestamp_seconds", "When the last drill ended.", _seconds(newest.ended))
    found.one("last_drill_ok", "Whether it restored and proved everything.", newest.ok)
    found.one("last_drill_duration_seconds", "How long it took.", newest.seconds)
    found.one("last_drill_messages", "Messages that it restored.", newest.messages)
    found.family(
        "last_drill_stream_duration_seconds",
        "What each stream took.",
        (({"stream": one.name}, one.seconds) for one in newest.streams[:_MOST_DRILLED]),
    )


def _seconds(moment: str) -> float:
    return parse_time(moment) / 1e9
