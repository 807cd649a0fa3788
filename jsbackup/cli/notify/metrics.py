"""Results of `status` as metrics for Prometheus: for node_exporter's textfile collector or a push.

All are gauges. Times are Unix seconds, so that an alert can say `time() - jsbackup_newest_backup_timestamp_seconds` and
fires also if the metrics are not written any more. Names of streams, clusters and accounts are untrusted: they are only
in labels, and no series is repeated.

A push is one PUT to a Pushgateway, which replaces the previous metrics of the same job. A login in the URL is sent as
HTTP basic authentication, and never shown. Redirects are not followed.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from http.client import HTTPException
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from prometheus_client import generate_latest
from prometheus_client.core import GaugeMetricFamily

from jsbackup.engine.check.health_rules import Breach, BreachRule, LiveStreams, not_backed_up
from jsbackup.engine.check.status import BackupSeries, RepositoryStatus
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.repository.checks.verify import Level
from jsbackup.repository.manifest import BackupResult
from jsbackup.times import parse_time

__all__ = ["failure_metrics", "push_metrics", "status_metrics"]

# As much as one scrape should have; the largest are included.
_MOST_STREAMS = 10_000

_Series = Iterable[tuple[Mapping[str, str], float | None]]
_Family = tuple[str, str, float | _Series | None]
"""The name of a metric without its prefix, what it is, and its value, or labels with values. None is left out."""


@dataclass(frozen=True, slots=True)
class _Metrics:
    """A collector of `prometheus_client`. The first of equal series counts; a family without values is left out."""

    families: Iterable[_Family]

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, about, given in self.families:
            values: dict[tuple[str, ...], float] = {}
            names: list[str] = []
            for labels, value in given if isinstance(given, Iterable) else [({}, given)]:
                if value is not None:
                    names = list(labels)
                    # Lone surrogates are escaped.
                    texts = tuple(text.encode("utf-8", "backslashreplace").decode() for text in labels.values())
                    values.setdefault(texts, value)
            if values:
                family = GaugeMetricFamily(f"jsbackup_{name}", about, labels=names)
                for texts, value in values.items():
                    family.add_metric(texts, value)
                yield family


def failure_metrics(now_ns: int, code: int) -> bytes:
    """Return the metrics if the repository could not be examined, and status ended with this code."""
    return generate_latest(_Metrics(_head(now_ns, 0, code)))


def _head(now_ns: int, up: int, code: int) -> list[_Family]:
    return [
        ("status_up", "Whether the repository could be read.", up),
        ("status_timestamp_seconds", "When it was read.", now_ns // 10**9),
        ("status_exit_code", "What jsbackup status ended with: 0 for all is well, 17 for a breach.", code),
    ]


def status_metrics(
    status: RepositoryStatus,
    breaches: Sequence[Breach],
    live: LiveStreams | None,
    code: int,
    *,
    accounts: Sequence[LiveStreams] = (),
) -> bytes:
    """Return all metrics. `accounts` are the streams of each account of a system."""
    broken = [breach.rule for breach in breaches]
    named = {line.origin.account: line.origin.account_name for line in status.lines if line.origin.account_name}
    newest, stored = status.newest_complete, status.stored
    at_work = sum(work.live for work in status.work)
    families: list[_Family] = [
        *_head(status.now_ns, 1, code),
        ("breaches", "What is wrong, by rule.", [({"rule": rule}, broken.count(rule)) for rule in BreachRule]),
        *_of_lines(status.lines),
        (
            "account_info",
            "What the operator calls an account that is known by its key.",
            [({"account": key, "account_name": name}, 1) for key, name in sorted(named.items())],
        ),
        (
            "newest_backup_timestamp_seconds",
            "When the newest complete backup of all began.",
            None if newest is None else _seconds(newest.created),
        ),
        ("backups_unreadable", "Backups whose manifest cannot be read.", len(status.unreadable)),
        ("backups_from_the_future", "Backups dated in the future.", len(status.ahead)),
        *_of_checks(status),
        ("stored_objects", "Stored objects of streams.", stored.objects),
        ("stored_bytes", "Their bytes.", stored.bytes),
        ("unused_objects", "Objects that the last prune found not needed by any backup.", stored.unused_objects),
        ("unused_bytes", "Their bytes.", stored.unused_bytes),
        ("interrupted_runs", "Interrupted backups whose objects are left.", stored.interrupted_runs),
        (
            "leases",
            "Leases in the repository, active and expired.",
            [({"state": "live"}, at_work), ({"state": "expired"}, len(status.work) - at_work)],
        ),
    ]
    if live is not None:
        missing = not_backed_up(status, live)
        families += [
            ("server_streams", "Streams on the server.", len(live.names)),
            (
                "server_streams_not_backed_up",
                "Streams missing from the newest backups, except excluded ones.",
                len(missing),
            ),
            (
                "stream_not_backed_up",
                "A stream on the server that is in no newest backup.",
                [({"stream": name}, 1) for name in missing[:_MOST_STREAMS]],
            ),
        ]
    known = [
        ({"account": o.account, "account_name": o.account_name, "domain": o.domain}, account)
        for account in accounts
        for o in [account.origin]
    ]
    families += [
        (
            "account_streams",
            "Streams of an account on the servers.",
            [(labels, len(account.names)) for labels, account in known],
        ),
        (
            "account_streams_not_backed_up",
            "Those in no newest backup, without those left out.",
            [(labels, len(not_backed_up(status, account))) for labels, account in known],
        ),
    ]
    return generate_latest(_Metrics(families))


def _of_lines(lines: Sequence[BackupSeries]) -> list[_Family]:
    known = [
        ({"cluster": o.cluster, "account": o.account, "domain": o.domain, "line": line.words}, line)
        for line in lines
        for o in [line.origin]
    ]
    complete = [(labels, line, newest) for labels, line in known if (newest := line.newest_complete) is not None]
    streams = sorted(
        (
            ({**labels, "stream": stream.name}, stream)
            for labels, line in known
            if not line.covered
            for stream in line.streams
        ),
        key=lambda pair: -pair[1].bytes,
    )[:_MOST_STREAMS]
    return [
        (
            "backups",
            "Number of backups.",
            [
                ({**labels, "result": result}, sum(backup.result is result for backup in line.backups))
                for labels, line in known
                for result in BackupResult
            ],
        ),
        (
            "line_newest_backup_timestamp_seconds",
            "When the newest complete backup began.",
            [(labels, _seconds(newest.created)) for labels, _, newest in complete],
        ),
        (
            "line_oldest_backup_timestamp_seconds",
            "When the oldest complete backup began.",
            [(labels, _seconds(line.complete[0].created)) for labels, line, _ in complete],
        ),
        (
            "line_covered",
            "Whether newer backups of other series have all of its streams.",
            [(labels, line.covered) for labels, line in known],
        ),
        *(
            (
                f"line_{name}",
                f"{about} in the newest complete backup.",
                [(labels, getattr(newest, name)) for labels, _, newest in complete],
            )
            for name, about in (("streams", "Streams"), ("messages", "Messages"), ("bytes", "Bytes of messages"))
        ),
        (
            "line_streams_skipped",
            "Streams that the newest backup lacks, or has a part of.",
            [(labels, len(line.skipped) + len(line.warned)) for labels, line in known],
        ),
        (
            "stream_messages",
            "Messages in the newest backup.",
            [(labels, stream.messages) for labels, stream in streams],
        ),
        ("stream_bytes", "Their bytes.", [(labels, stream.bytes) for labels, stream in streams]),
        (
            "stream_stored_bytes",
            "Bytes of its objects, which other backups use too.",
            [(labels, stream.stored_bytes) for labels, stream in streams],
        ),
    ]


def _of_checks(status: RepositoryStatus) -> list[_Family]:
    """Return those of `verify` and `drill`; without any, there is no value."""
    verifies, drills = status.verifies, status.drills_of(None)
    verify, drill = next(iter(verifies), None), next(iter(drills), None)
    good_verifies = {each.level: _seconds(each.ended) for each in reversed(verifies) if each.ok}
    good = next((each for each in drills if each.ok and each.everything), None)
    return [
        (
            "last_good_verify_timestamp_seconds",
            "When the last verify of this level ended that found nothing wrong.",
            [({"level": level}, good_verifies.get(level)) for level in Level],
        ),
        (
            "last_verify_timestamp_seconds",
            "When the last verify ended.",
            None if verify is None else _seconds(verify.ended),
        ),
        ("last_verify_ok", "Whether it found nothing wrong.", None if verify is None else verify.ok),
        ("last_verify_problems", "What it found.", None if verify is None else verify.problems),
        (
            "last_good_drill_timestamp_seconds",
            "When the last drill ended that succeeded.",
            None if good is None else _seconds(good.ended),
        ),
        (
            "last_drill_timestamp_seconds",
            "When the last drill ended.",
            None if drill is None else _seconds(drill.ended),
        ),
        ("last_drill_ok", "Whether it restored and proved everything.", None if drill is None else drill.ok),
        ("last_drill_duration_seconds", "How long it took.", None if drill is None else drill.seconds),
        ("last_drill_messages", "Messages that it restored.", None if drill is None else drill.messages),
        (
            "last_drill_stream_duration_seconds",
            "What each stream took.",
            [({"stream": each.name}, each.seconds) for each in (drill.streams[:_MOST_STREAMS] if drill else ())],
        ),
    ]


def _seconds(moment: str) -> float:
    return parse_time(moment) / 1e9


_PATH = "/metrics/job/jsbackup"


def push_metrics(url: str, metrics: bytes) -> None:
    """Push metrics to `http://host:9091`, or to a whole path such as `…/metrics/job/backup/instance/a`.

    Raises UsageError for another URL, and JsBackupError if they are not accepted.
    """
    try:
        parts = urlsplit(url.strip())
        usable = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
        usable = usable and not (parts.query or parts.fragment)
    except ValueError:  # not chained: it may contain the login
        usable = False
    if not usable:
        hint = f"Write http://HOST:9091, which stands for http://HOST:9091{_PATH}, or the whole path."
        raise UsageError("--push: not the URL of a Pushgateway", hint=hint)
    path = _PATH if parts.path in ("", "/") else parts.path
    target = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}"
    headers = {"Content-Type": "text/plain; version=0.0.4; charset=utf-8"}
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {b64encode(login.encode()).decode()}"
    try:
        with build_opener(ProxyHandler({})).open(Request(target, metrics, headers, method="PUT"), timeout=10):
            return
    except HTTPError as error:
        with error:
            answer = " ".join(error.read(2000).decode(errors="replace").split())[:300]
        problem = f"it answered {error.code} {answer}".rstrip()
    except (OSError, HTTPException, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        problem = (getattr(cause, "strerror", None) or str(cause) or type(cause).__name__).lower()[:300]
    raise JsBackupError(f"cannot push metrics to {target}: {problem}", hint="See the URL, and the gateway's log.")
