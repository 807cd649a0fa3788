"""Clones of streams that copy from others, while messages come between the reading of an origin and of its copies.

What a copy gets after its origin was read, the cloned origin lacks. A copy that was cloned with it would be ahead, and
wait until its origin has passed that point: what is published until then would never be copied.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from jsbackup.engine.clone.clone import run_clone
from jsbackup.engine.restore.restore import RestoreReport
from jsbackup.engine.restore.run import RestoreRun, RestoreSettings
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import NullProgress
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.reshape import Reshape
from tests.engine.restores import connection_to
from tests.harness.copied import make, read, settled
from tests.harness.filling import publish
from tests.harness.servers import ENDS, NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(180)]

Starter = Callable[..., NatsServer]

_ORIG: dict[str, Any] = {"name": "ORIG"}
# How many of twenty messages each has (`orig.a` only), and how many of ten that come later (half of them `orig.b`).
SCENE: dict[str, tuple[int, int, dict[str, Any]]] = {
    "ORIG": (20, 10, {"subjects": ["orig.>"]}),
    "ALL": (20, 10, {"sources": [_ORIG]}),
    "FROM": (0, 10, {"sources": [{**_ORIG, "opt_start_seq": 21}]}),
    "ONLY_B": (0, 5, {"sources": [{**_ORIG, "filter_subject": "orig.b"}]}),
    "CHAIN": (0, 10, {"sources": [{"name": "FROM"}]}),
    "MIRROR_B": (0, 5, {"mirror": {**_ORIG, "filter_subject": "orig.b"}}),
    "MIRROR_FROM": (0, 10, {"mirror": {"name": "FROM"}}),
}


async def _ten_more(url: str, what: str) -> None:
    for subject in ("orig.a", "orig.b"):
        await publish(url, subject, (f"{what}-{subject}-{number}" for number in range(5)))


class AfterOrigin(NullProgress):
    """Does something as soon as ORIG was cloned, before any copy of it is read."""

    def __init__(self, then: Callable[[], object]) -> None:
        self._then = then

    def finish(self, name: str) -> None:
        if name == "ORIG":
            with ThreadPoolExecutor(1) as thread:
                thread.submit(self._then).result()


def cloned(source: str, target: str, reshape: Reshape, had: Mapping[str, int]) -> RestoreReport:
    """A clone of all streams, of which ORIG gets ten messages when it has been read."""

    async def meanwhile() -> None:
        await _ten_more(source, "meanwhile")
        await settled(source, {name: count + SCENE[name][1] for name, count in had.items()})

    run = RestoreRun(
        connection_to(target),
        RestoreOptions(reshape=reshape),
        RestoreSettings(jobs=1),
        AfterOrigin(lambda: asyncio.run(meanwhile())),
    )
    return asyncio.run(run_clone(run, connection_to(source)))


def continue_alike(target: str, had: Mapping[str, int]) -> None:
    """No stream has more than when the clone began, and what is published from then on comes once."""
    later = {name: SCENE[name][1] for name in had}
    asyncio.run(settled(target))
    assert {name: len(copied.payloads) for name, copied in asyncio.run(read(target)).items()} == had
    asyncio.run(_ten_more(target, "new"))
    asyncio.run(settled(target, {name: many + later[name] for name, many in had.items()}))
    for name, copied in asyncio.run(read(target)).items():
        assert len([payload for payload in copied.payloads if payload.startswith("new")]) == later[name], name
        assert len(copied.payloads) == had[name] + later[name], name


@pytest.mark.parametrize(
    ("version", "count", "reshape"),
    [
        pytest.param(ENDS[0], 20, Reshape(), id="their origin has messages"),
        pytest.param(NEWEST, 0, Reshape(), id="their origin is empty"),
        pytest.param(NEWEST, 20, Reshape(filters=Filters(("orig.a",))), id="in part"),
    ],
)
def test_a_copy_that_was_empty_when_the_clone_began_is_not_ahead_of_its_origin(
    version: str, count: int, reshape: Reshape, nats_server: Starter
) -> None:
    source, target = nats_server(version).url, nats_server(version).url
    had = {name: min(many, count) for name, (many, _, _) in SCENE.items()}
    if not count:
        del had["FROM"], had["CHAIN"], had["MIRROR_FROM"]  # they would start behind the end
    # Server source: a source that starts at a sequence starts at the first if its origin is still empty then.
    asyncio.run(make(source, [{"name": "ORIG", **SCENE["ORIG"][2]}]))
    asyncio.run(publish(source, "orig.a", (f"m{number}" for number in range(count))))
    asyncio.run(make(source, [{"name": name, **SCENE[name][2]} for name in had if name != "ORIG"]))
    asyncio.run(settled(source, had))

    report = cloned(source, target, reshape, had)

    assert not report.failures
    assert {one.name for one in report.streams} == had.keys()
    continue_alike(target, had)
