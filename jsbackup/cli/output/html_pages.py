"""The results of `status` and `stats` as pages, by the templates beside it: here values are gathered."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.browse.overview import NO_POLICY, Tile, key_figures, overview_environment
from jsbackup.cli.output.result import format_count
from jsbackup.cli.output.status_report import Report
from jsbackup.engine.check.health_rules import not_backed_up
from jsbackup.readable import format_width

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.stats import StreamStats

__all__ = ["stats_page", "status_page"]


def status_page(report: Report, location: str, *, expiry: Tile = NO_POLICY, held: Collection[str] = ()) -> bytes:
    """Return the page in UTF-8. `location` has no login; `expiry` is the tile of what is removed next."""
    status, live = report.status, report.live
    accounts = () if report.accounts is None else report.accounts.accounts
    asked = "" if report.accounts is None else f"system has {format_count(len(accounts), 'account')} with JetStream"
    lacking: list[tuple[str, str]] = []
    if live is not None:
        asked = f"server has {format_count(len(live.names), 'stream')}"
        lacking += [(name, "on the server, and in no newest backup") for name in not_backed_up(status, live)]
    for account in accounts:
        why = f"of {account.origin.words}, and in no newest backup"
        lacking += [(name, why) for name in not_backed_up(status, account)]
    for line in status.lines:
        if not line.covered:
            lacking += [(skip.name, f"{line.newest.id} lacks it: {skip.reason}") for skip in line.skipped]
    return _rendered(
        "status.html",
        status=status,
        backups=status.backups,
        location=location,
        breaches=report.breaches,
        figures=key_figures(status, report.breaches, expiry),
        held=held,
        lacking=lacking,
        asked=asked,
    )


def stats_page(backup: str, created: str, streams: Sequence[StreamStats]) -> bytes:
    """Return the page in UTF-8. `created` is RFC 3339, as in the manifest."""
    by_size = sorted(streams, key=lambda stream: -stream.bytes)
    return _rendered("stats.html", backup=backup, created=created, streams=by_size)


def _rendered(template: str, **values: object) -> bytes:
    pages = overview_environment(Path(__file__).with_name("templates"))
    pages.filters["width"] = lambda ns: format_width(ns // 10**9)
    return pages.get_template(template).render(values).encode()
