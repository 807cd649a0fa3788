"""Results of `status` as metrics: Prometheus' text format 0.0.4, for node_exporter's textfile collector or a push.

All are gauges. Times are Unix seconds, so that an alert can say `time() - jsbackup_newest_backup_timestamp_seconds` and
fires also if the metrics are not written any more. Names of streams, clusters and accounts are untrusted: they are
escaped in labels, and no series is repeated.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from jsbackup.engine.check.health_rules import Breach, BreachRule, LiveStreams, not_backed_up
from jsbackup.engine.check.status import BackupSeries, RepositoryStatus
from jsbackup.repository.checks.outcomes import DrillOutcome
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.manifest import Result
from jsbackup.times import parse_time

__all__ = ["failure_metrics", "status_metrics"]

# As much as one scrape should have; the largest are included.
_MOST_STREAMS = 10_000
_MOST_DRILLED = 1_000

_Series = tuple[Mapping[str, str], float]


class _Text:
    """Families one after the other, as the format requires."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def family(self, name: str, about: str, series: Iterable[_Series]) -> None:
        """Add a gauge with its series, unless there are none. The first of equal series counts."""
        values: dict[str, float] = {}
        for labels, value in series:
            values.setdefault(",".join(f'{key}="{_escaped(text)}"' for key, text in labels.items()), value)
        if values:
            self._lines += [f"# HELP jsbackup_{name} {about}", f"# TYPE jsbackup_{name} gauge"]
        for labels_text, value in values.items():
            shown = f"{{{labels_text}}}" if labels_text else ""
            self._lines.append(f"jsbackup_{name}{shown} {_number(value)}")

    def one(self, name: str, about: str, value: float | None) -> None:
        self.family(name, about, [] if value is None else [({}, value)])

    def encode(self) -> bytes:
        return "".join(f"{line}\n" for line in self._lines).encode()


def _escaped(text: str) -> str:
    """Escape a label's value: line feeds, quotes and backslashes as in the format, and lone surrogates."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def _number(value: float) -> str:
    """Format a number, whole ones without an exponent, which `repr` of a large float has."""
    return str(int(value)) if float(value).is_integer() else repr(float(value))


def failure_metrics(now_ns: int, code: int) -> bytes:
    """Return the metrics if the repository could not be examined, and status ended with this code."""
    text = _Text()
    _head(text, now_ns, 0, code)
    return text.encode()


def _head(text: _Text, now_ns: int, up: int, code: int) -> None:
    text.one("status_up", "Whether the repository could be looked at.", up)
    text.one("status_timestamp_seconds", "When it was looked at.", now_ns // 10**9)
    text.one("status_exit_code", "What jsbackup status ended with: 0 for all is well, 17 for a breach.", code)


def status_metrics(status: RepositoryStatus, breaches: Sequence[Breach], live: LiveStreams | None, code: int) -> bytes:
    """Return all metrics."""
    text = _Text()
    _head(text, status.now_ns, 1, code)
    counts = dict.fromkeys(BreachRule, 0)
    for breach in breaches:
        counts[breach.rule] += 1
    text.family("breaches", "What is wrong, by rule.", (({"rule": rule}, count) for rule, count in counts.items()))
    _lines(text, status.lines)
    newest = status.newest_complete
    text.one(
        "newest_backup_timestamp_seconds",
        "When the newest complete backup of all began.",
        None if newest is None else _seconds(newest.created),
    )
    text.one("backups_unreadable", "Backups whose manifest cannot be read.", len(status.unreadable))
    text.one("backups_from_the_future", "Backups that a wrong clock has dated.", len(status.ahead))
    _verifies(text, status)
    _drills(text, status.drills_of(None))
    stored = status.stored
    text.one("stored_objects", "Stored objects of streams.", stored.objects)
    text.one("stored_bytes", "Their bytes.", stored.bytes)
    text.one("unused_objects", "Objects that the last prune found not needed by any backup.", stored.unused_objects)
    text.one("unused_bytes", "Their bytes.", stored.unused_bytes)
    text.one("interrupted_runs", "Backups that were stopped and have left what they stored.", stored.interrupted_runs)
    at_work = sum(work.live for work in status.work)
    leases = [({"state": "live"}, at_work), ({"state": "expired"}, len(status.work) - at_work)]
    text.family("leases", "Who is at work in the repository, and who was stopped.", leases)
    if live is not None:
        missing = not_backed_up(status, live)
        text.one("server_streams", "Streams on the server.", len(live.names))
        text.one("server_streams_not_backed_up", "Those in no newest backup, without those left out.", len(missing))
        named = (({"stream": name}, 1) for name in missing[:_MOST_STREAMS])
        text.family("stream_not_backed_up", "A stream on the server that is in no newest backup.", named)
    return text.encode()


def _lines(text: _Text, lines: Sequence[BackupSeries]) -> None:
    known = [(_labels(line), line) for line in lines]
    text.family(
        "backups",
        "Backups that there are.",
        (
            ({**labels, "result": result}, sum(backup.result is result for backup in line.backups))
            for labels, line in known
            for result in Result
        ),
    )
    newest = [(labels, line, line.newest_complete) for labels, line in known]
    complete = [(labels, line, one) for labels, line, one in newest if one is not None]
    text.family(
        "line_newest_backup_timestamp_seconds",
        "When the newest complete backup began.",
        ((labels, _seconds(one.created)) for labels, _, one in complete),
    )
    text.family(
        "line_oldest_backup_timestamp_seconds",
        "When the oldest complete backup began.",
        ((labels, _seconds(line.complete[0].created)) for labels, line, _ in complete),
    )
    text.family(
        "line_covered",
        "Whether newer backups of other series have all of its streams.",
        ((labels, line.covered) for labels, line in known),
    )
    for name, about in (("streams", "Streams"), ("messages", "Messages"), ("bytes", "Bytes of messages")):
        text.family(
            f"line_{name}",
            f"{about} in the newest complete backup.",
            ((labels, getattr(one, name)) for labels, _, one in complete),
        )
    text.family(
        "line_streams_skipped",
        "Streams that the newest backup lacks, or has a part of.",
        ((labels, len(line.skipped) + len(line.warned)) for labels, line in known),
    )
    streams = sorted(
        (({**labels, "stream": one.name}, one) for labels, line in known if not line.covered for one in line.streams),
        key=lambda pair: -pair[1].bytes,
    )[:_MOST_STREAMS]
    text.family(
        "stream_messages", "Messages in the newest backup.", ((labels, one.messages) for labels, one in streams)
    )
    text.family("stream_bytes", "Their bytes.", ((labels, one.bytes) for labels, one in streams))
    text.family(
        "stream_stored_bytes",
        "Bytes of its objects, which other backups use too.",
        ((labels, one.stored_bytes) for labels, one in streams),
    )


def _labels(line: BackupSeries) -> dict[str, str]:
    origin = line.origin
    return {"cluster": origin.cluster, "account": origin.account, "domain": origin.domain, "line": line.words}


def _verifies(text: _Text, status: RepositoryStatus) -> None:
    good = {level: next((one for one in status.verifies if one.ok and one.level is level), None) for level in Level}
    text.family(
        "last_good_verify_timestamp_seconds",
        "When the last verify of this level ended that found nothing wrong.",
        (({"level": level}, _seconds(one.ended)) for level, one in good.items() if one is not None),
    )
    newest = next(iter(status.verifies), None)
    if newest is not None:
        text.one("last_verify_timestamp_seconds", "When the last verify ended.", _seconds(newest.ended))
        text.one("last_verify_ok", "Whether it found nothing wrong.", newest.ok)
        text.one("last_verify_problems", "What it found.", newest.problems)


def _drills(text: _Text, drills: Sequence[DrillOutcome]) -> None:
    good = next((one for one in drills if one.ok and one.everything), None)
    if good is not None:
        text.one("last_good_drill_timestamp_seconds", "When the last drill ended that succeeded.", _seconds(good.ended))
    newest = next(iter(drills), None)
    if newest is None:
        return
    text.one("last_drill_timestamp_seconds", "When the last drill ended.", _seconds(newest.ended))
    text.one("last_drill_ok", "Whether it restored and proved everything.", newest.ok)
    text.one("last_drill_duration_seconds", "What it took.", newest.seconds)
    text.one("last_drill_messages", "Messages that it restored.", newest.messages)
    text.family(
        "last_drill_stream_duration_seconds",
        "What each stream took.",
        (({"stream": one.name}, one.seconds) for one in newest.streams[:_MOST_DRILLED]),
    )


def _seconds(moment: str) -> float:
    return parse_time(moment) / 1e9
