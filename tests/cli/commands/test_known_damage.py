"""Damage that is known shows wherever people choose a backup, before a restore ends with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from jsbackup.stores.local import LocalStore
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import FIRST, SECOND, make_repository
from tests.harness.commands import jsbackup
from tests.harness.damage import flip, put_instead, store_restorable
from tests.harness.servers import NEWEST, NatsServer

KNOWN = f"{FIRST} is known to be damaged, in ORDERS: 'jsbackup show {FIRST}' says more"


@pytest.mark.nats
@pytest.mark.parametrize("how", ["flipped", "missing"])
def test_what_verify_found_is_shown_before_a_restore(
    how: str, typed: Callable[..., Typed], nats_server: Callable[..., NatsServer], tmp_path: Path
) -> None:
    store = LocalStore(tmp_path / "repo")
    repository = make_repository(store)
    orders = store_restorable(repository, FIRST).streams[1]
    lost = orders.segments[-1]
    right = store.get(lost.key)
    line = ["-r", tmp_path / "repo"]
    put_instead(store, lost.key, flip(right) if how == "flipped" else None)
    assert typed("verify", *line).code == 14
    _assert_shown(typed, line, lost.key)
    server = nats_server(NEWEST)
    to = [*line, "-s", server.url]
    for backup in (FIRST, "latest"):
        planned = jsbackup("plan", backup, "ORDERS", *to)
        assert planned.code == 14, planned
        (refusal,) = planned.document["refusals"]
        assert (refusal["stream"], refusal["rule"]) == ("ORDERS", "object-lost") and lost.key in refusal["reason"]
        assert KNOWN in planned.document["notes"] or backup == FIRST
        restored = jsbackup("restore", backup, "ORDERS", *to)
        assert restored.code == 14 and "nothing was restored" in restored.document["error"]["message"]
    # What does not need the segment is not refused.
    jsbackup("plan", "latest", "OTHER", *to).ok()
    before = str(lost.first_seq - 1)
    jsbackup("plan", "latest", "ORDERS", "--until", before, *to).ok()
    jsbackup("restore", "latest", "ORDERS", "--until", before, *to).ok()
    put_instead(store, lost.key, right)
    # The record is old: a restore looks again.
    beside = ["--rename", "ORDERS=AGAIN", "--map-subject", "orders.>=>again.>"]
    jsbackup("plan", "latest", "ORDERS", *beside, *to).ok()
    jsbackup("restore", "latest", "ORDERS", *beside, *to).ok()
    assert typed("show", "latest", *line).code == 0
    assert typed("verify", *line).code == 0
    assert typed("list", *line).code == 0


def _assert_shown(typed: Callable[..., Typed], line: list[str | Path], key: str) -> None:
    listed = typed("list", *line)
    assert listed.code == 14 and "damaged, complete" in listed.out
    (row,) = check("list", typed("list", *line, "--json"))["backups"]
    assert (row["result"], row["damaged"]) == ("complete", True)
    shown = typed("show", "latest", *line)
    assert shown.code == 14 and "  damaged, complete  " in shown.out and f"damaged: ORDERS: object {key} " in shown.out
    document = check("show", typed("show", FIRST, *line, "--json"))
    assert [(one["stream"], one["key"]) for one in document["problems"]] == [("ORDERS", key)]
    assert FIRST in typed("status", *line).out


def test_a_backup_that_shares_no_damaged_object_is_not_marked(typed: Callable[..., Typed], tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "repo")
    repository = make_repository(store)
    manifest = store_restorable(repository, FIRST)
    repository.commit(replace(manifest, id=SECOND, streams=manifest.streams[2:]))
    key = manifest.streams[1].segments[0].key
    put_instead(store, key, flip(store.get(key)))
    line = ["-r", tmp_path / "repo"]
    assert typed("verify", *line).code == 14
    rows = check("list", typed("list", *line, "--json"))["backups"]
    assert [(one["backup"], one["damaged"]) for one in rows] == [(FIRST, True), (SECOND, False)]
    assert typed("list", "--last", 1, *line).code == 0
