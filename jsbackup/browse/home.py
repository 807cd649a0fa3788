"""The home page: how backups stand. And the list of all backups."""

from __future__ import annotations

from starlette.requests import Request
from starlette.responses import Response

from jsbackup.browse.library import Library
from jsbackup.browse.overview import growth_of_series, key_figures, next_removal, recent_table, shared_part, verdict
from jsbackup.browse.query import Query, address
from jsbackup.browse.render import Renderer
from jsbackup.engine.check.health_rules import span
from jsbackup.repository.summary import BackupSummary

__all__ = ["HomePages"]

_RECENT = 20
_EACH = 100
_DRILLS = 10


class HomePages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def home(self, request: Request) -> Response:
        library = self._library
        taken = library.status(fresh=Query.of(request).flag("fresh"))
        status, summaries = taken.status, taken.inventory.summaries
        expiry = next_removal(
            taken.inventory,
            taken.held,
            library.policy,
            now_ns=status.now_ns,
            profile=library.profile,
            damaged=status.damaged,
        )
        return self._renderer.page(
            request,
            "home.html",
            verdict=verdict(taken.breaches),
            figures=key_figures(status, taken.breaches, expiry),
            recent=recent_table(
                summaries[: -_RECENT - 1 : -1],
                taken.held,
                status.damaged,
                now_ns=status.now_ns,
                caption="The newest backups",
                link=backup_address,
            ),
            backups=len(summaries),
            choices=summaries[:-_EACH:-1],
            lines=[(line, growth_of_series(line), shared_part(line)) for line in status.lines],
            drills=[(one, span((status.now_ns - _ns(one.ended)) / 1e9)) for one in status.drills_of(None)[:_DRILLS]],
            verifies=[(one, span((status.now_ns - _ns(one.ended)) / 1e9)) for one in status.verifies[:3]],
            work=status.work,
            warnings=status.warnings,
            age=round(taken.age_seconds),
        )

    def backups(self, request: Request) -> Response:
        query = Query.of(request)
        taken = self._library.status()
        asked = query.line("search")
        found = [one for one in reversed(taken.inventory.summaries) if _matches(one, asked)]
        start = query.number("start", 10**9)
        table = recent_table(
            found[start : start + _EACH],
            taken.held,
            taken.status.damaged,
            now_ns=taken.status.now_ns,
            caption=f"Backups {start + 1} to {min(start + _EACH, len(found))} of {len(found)}, the newest first"
            if found
            else "No such backups",
            link=backup_address,
        )
        return self._renderer.page(
            request,
            "backups.html",
            table=table,
            search=asked,
            unreadable=taken.status.unreadable,
            newer=address("/backups", search=asked, start=max(0, start - _EACH)) if start else "",
            older=address("/backups", search=asked, start=start + _EACH) if start + _EACH < len(found) else "",
        )


def backup_address(backup: str) -> str:
    return f"/backup/{backup}"


def _matches(one: BackupSummary, asked: str) -> bool:
    words = (
        one.id,
        one.created,
        one.result,
        one.cluster,
        one.account,
        one.account_name or "",
        *one.tags,
        *one.tags.values(),
    )
    return all(any(part.lower() in word.lower() for word in words) for part in asked.split())


def _ns(moment: str) -> int:
    from jsbackup.times import parse_time

    return parse_time(moment)
