"""The state of backups at a glance, for `browse` and for the page of `status`: a verdict, figures, the newest backups.

It needs no package that is not always installed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise

from jsbackup.config import format_bytes
from jsbackup.engine.check.backup_series import BackupSeries
from jsbackup.engine.check.health_rules import Breach, last_good_drill, span
from jsbackup.engine.check.status import RepositoryStatus
from jsbackup.html.charts import spark
from jsbackup.html.page import Markup, clipped, element
from jsbackup.html.page_parts import cell, number_cell, table
from jsbackup.html.tiles import Tile
from jsbackup.readable import format_count, format_seconds, in_short
from jsbackup.repository.catalog import CatalogEntry
from jsbackup.repository.inventory import Inventory
from jsbackup.repository.keep.groups import Grouping
from jsbackup.repository.keep.retention import Policy, apply_policy
from jsbackup.repository.manifest import Result
from jsbackup.repository.origin import origin_of
from jsbackup.repository.summary import BackupSummary
from jsbackup.times import format_time, parse_time

__all__ = [
    "NO_POLICY",
    "growth_of_series",
    "key_figures",
    "next_removal",
    "recent_table",
    "shared_part",
    "state_mark",
    "verdict",
]

_log = logging.getLogger(__name__)

_GAPS = 20

NO_POLICY = Tile("Next expiry", "not known", "Start with --profile to see it: its table for 'forget' decides.")
"""What is removed next, without a policy."""

_POINTS = 60


def verdict(breaches: Sequence[Breach]) -> Markup:
    """Return what is wrong, and what to do about each; or that nothing is."""
    if not breaches:
        return element("div", element("p", element("strong", "All is well.")), class_="verdict good", role="status")
    items = [
        element(
            "li",
            element("strong", one.rule),
            f": {_clipped(one.reason)}.",
            element("div", one.hint, class_="quiet"),
        )
        for one in breaches
    ]
    count = len(breaches)
    said = element("p", element("strong", f"{count} {'thing is' if count == 1 else 'things are'} wrong."))
    return element("div", said, element("ul", *items), class_="verdict bad", role="status")


def key_figures(status: RepositoryStatus, breaches: Sequence[Breach], expiry: Tile) -> list[Tile]:
    """Return age, recovery point, recovery time, size, and `expiry`, the tile of what is removed next."""
    rules = {one.rule for one in breaches}
    return [_age(status, rules), _point(status), _time(status, rules), _size(status), expiry]


def _age(status: RepositoryStatus, rules: Collection[str]) -> Tile:
    newest = status.newest_complete
    if newest is None:
        return Tile("Newest complete backup", "none", "Make one with 'jsbackup backup'.", "bad")
    bad = {"no-backup", "backup-age", "incomplete-backup", "empty-backup"} & set(rules)
    age = span((status.now_ns - parse_time(newest.created)) / 1e9)
    return Tile("Newest complete backup", f"{age} old", newest.id, "warn" if bad else "good")


def _point(status: RepositoryStatus) -> Tile:
    """The longest time without a complete backup lately: what could have been lost."""
    newest = status.newest_complete
    line = next((one for one in status.lines if newest in one.complete), None)
    if newest is None or line is None:
        return Tile("Recovery point (RPO)", "unknown", "There is no complete backup.", "bad")
    moments = [parse_time(one.created) for one in line.complete[-_GAPS:]]
    gaps = [later - earlier for earlier, later in pairwise([*moments, status.now_ns])]
    note = f"longest gap of the last {len(gaps)}" if len(moments) > 1 else "since the only backup"
    return Tile("Recovery point (RPO)", span(max(gaps) / 1e9), note)


def _time(status: RepositoryStatus, rules: Collection[str]) -> Tile:
    drill = last_good_drill(status)
    if drill is None:
        return Tile("Recovery time (RTO)", "unknown", "No drill has succeeded: run 'jsbackup drill'.", "warn")
    age = span((status.now_ns - parse_time(drill.ended)) / 1e9)
    bad = {"drill-age", "drill-failed"} & set(rules)
    return Tile(
        "Recovery time (RTO)", format_seconds(drill.seconds), f"as a drill took {age} ago", "bad" if bad else "good"
    )


def _size(status: RepositoryStatus) -> Tile:
    stored = status.stored
    raw = sum(backup.bytes for backup in status.backups)
    note = format_count(len(status.existing), "backup")
    if stored.bytes is None:
        return Tile("Stored", "not counted", f"{note}, in too many objects to list them")
    if 0 < stored.bytes < raw:
        note += f", {raw / stored.bytes:,.1f} times as much uncompressed"
    return Tile("Stored", format_bytes(stored.bytes), note)


def shared_part(line: BackupSeries) -> str:
    """Return what the newest backup of a series added of what it needs; "" if that is not known."""
    added, needed = line.newest.stored_bytes, sum(one.stored_bytes for one in line.streams)
    if added is None or not needed:
        return ""
    return f"The newest one uses {format_bytes(needed)} of storage; {format_bytes(min(added, needed))} of that was new."


def next_removal(
    inventory: Inventory,
    held: Collection[str],
    policy: Policy | None,
    *,
    now_ns: int,
    profile: str = "",
    damaged: Collection[str] = (),
) -> Tile:
    """Return the tile of what `forget` removes next by the policy, now or at the next backup."""
    name = NO_POLICY.name
    if policy is None or policy.is_empty:
        return NO_POLICY
    removed = partial(_removed, policy, held=held, profile=profile, damaged=damaged)
    due = removed(inventory, now_ns=now_ns)
    if due:
        return Tile(name, "now", f"'forget' would remove {format_count(len(due), 'backup')}, {due[0]} first", "warn")
    known = {one.id for one in inventory.summaries}
    with_next = replace(inventory, entries=(*inventory.entries, *_next_of(inventory, now_ns)))
    gone = [one for one in removed(with_next, now_ns=now_ns + 2) if one in known]
    if gone:
        return Tile(name, "at the next backup", in_short(gone, most=1))
    return Tile(name, "not soon", "The next backup replaces none.")


def _next_of(inventory: Inventory, now_ns: int) -> list[CatalogEntry]:
    """Return an entry like the newest one, made now."""
    newest = inventory.entries[-1:]
    return [replace(one, summary=replace(one.summary, id="next", created=format_time(now_ns))) for one in newest]


def _removed(
    policy: Policy,
    inventory: Inventory,
    *,
    held: Collection[str],
    now_ns: int,
    profile: str,
    damaged: Collection[str],
) -> list[str]:
    grouping = Grouping.SELECTION
    decided = apply_policy(policy, inventory, held, now_ns=now_ns, grouping=grouping, profile=profile, damaged=damaged)
    return [one.backup for one in decided.removed]


def growth_of_series(line: BackupSeries) -> Markup:
    """Return a small line of the bytes in the complete backups of a series."""
    points = line.complete[-_POINTS:]
    if len(points) < 2:
        return Markup("")
    first, last = format_bytes(points[0].bytes), format_bytes(points[-1].bytes)
    return spark(f"Bytes in the last {len(points)} complete backups, from {first} to {last}", [p.bytes for p in points])


def recent_table(
    summaries: Sequence[BackupSummary],
    held: Collection[str],
    damaged: Collection[str],
    *,
    now_ns: int,
    caption: str,
    link: Callable[[str], str] | None = None,
) -> Markup:
    """Return a table of backups, in this order, with ids to copy. `link` gives the address of a backup's page."""
    rows = [list(_row(one, _marks(one, held, damaged), now_ns, link)) for one in summaries]
    header = ["Backup", ">Age", "Result", ">Streams", ">Messages", ">Bytes", ">Added", "Source", "Tags"]
    return table(caption, header, rows)


def _marks(one: BackupSummary, held: Collection[str], damaged: Collection[str]) -> list[Markup | str]:
    marks = [state_mark("damaged"), " "] if one.id in damaged else []
    return [*marks, state_mark(one.result), *([" held"] if one.id in held else [])]


def _row(
    one: BackupSummary, marks: Sequence[Markup | str], now_ns: int, link: Callable[[str], str] | None
) -> Iterator[Markup]:
    if link is None:
        yield element("td", element("span", one.id, class_="id"))
    else:
        copy = element("button", "copy", type="button", class_="copy", data_copy=one.id, hidden="hidden")
        named = element("a", one.id, href=link(one.id), class_="id")
        yield element("td", element("span", named, Markup(" "), copy), class_="time")
    age = (now_ns - parse_time(one.created)) / 1e9
    yield element("td", span(age) if age >= 0 else "in the future", class_="number", title=one.created)
    yield element("td", *marks)
    yield number_cell(format_count(one.streams))
    yield number_cell(format_count(one.messages))
    yield number_cell(format_bytes(one.bytes))
    yield number_cell("-" if one.stored_bytes is None else format_bytes(one.stored_bytes))
    made = "import" if one.imported is not None else "transform" if one.transformed is not None else ""
    yield cell(clipped(made or origin_of(one).short), "any")
    yield cell(clipped(", ".join(f"{key}={value}" for key, value in sorted(one.tags.items()))), "any")


def state_mark(result: str) -> Markup:
    """Return a result, or "damaged", in its colour."""
    colour = {Result.COMPLETE: "good", "damaged": "bad"}.get(result, "warn")
    return element("span", result, class_=f"state {colour}")


def _clipped(text: str) -> str:
    return text if len(text) <= 600 else text[:600] + "…"
