"""What tests of environments share: fill a server, look at it with the witness, and what the tool has announced."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection, Iterable
from pathlib import Path

from tests.harness.api import Refused, call, connected, paged
from tests.harness.awkward import fill
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.oracle import ObservedStream, observe

Observed = dict[str, ObservedStream]

# "No suitable peers" and "temporarily unavailable": a cluster on a busy machine loses sight of a peer for a moment.
_PASSING = (10005, 10008)
STATE_FIELDS = ("delivered", "ack_floor", "num_ack_pending", "num_redelivered", "num_pending")


def filled(
    url: str, version: str, only: Collection[str] | None = None, *, replicas: int = 1, prefix: str = "$JS.API"
) -> Observed:
    """Makes awkward streams and reads them back."""

    async def run() -> Observed:
        async with connected(url) as nc:
            for patience in (True, True, False):
                try:
                    await fill(nc, version, only=only, replicas=replicas, prefix=prefix)
                    break
                except* (Refused, TimeoutError) as failed:
                    if not patience or not all(_passes(one, replicas) for one in _leaves(failed)):
                        raise
                    for name in await paged(nc, "STREAM.NAMES", "streams", prefix=prefix):
                        await call(nc, f"STREAM.DELETE.{name}", prefix=prefix)
            return await observe(nc, prefix=prefix)

    return asyncio.run(run())


def _passes(error: Refused | TimeoutError, replicas: int) -> bool:
    if isinstance(error, Refused):
        return error.err_code in _PASSING
    return replicas > 1


def _leaves(group: BaseExceptionGroup[Refused | TimeoutError]) -> Iterable[Refused | TimeoutError]:
    for one in group.exceptions:
        if isinstance(one, BaseExceptionGroup):
            yield from _leaves(one)
        else:
            yield one


def seen(url: str, *, prefix: str = "$JS.API") -> Observed:
    """All streams as the witness reads them."""

    async def run() -> Observed:
        async with connected(url) as nc:
            return await observe(nc, prefix=prefix)

    return asyncio.run(run())


def back_up(url: str, repository: Path, *options: str) -> Ran:
    """A complete backup, verified."""
    backup = jsbackup("backup", "-s", url, "-r", repository, *PATIENT, *options).ok()
    assert (backup.document["result"], backup.document["skipped"]) == ("complete", [])
    jsbackup("verify", "-r", repository, "--level", "data").ok()
    return backup


def restore(url: str, repository: Path, *options: str, wire: str = "auto") -> Ran:
    """A restore of the latest backup, proved."""
    restored = jsbackup("restore", "latest", "-s", url, "-r", repository, *PATIENT, *options, wire=wire).ok()
    assert restored.document["failed"] == []
    assert all(stream["verified"] for stream in restored.document["streams"])
    return restored


def fidelities(ran: Ran) -> dict[str, dict[str, str]]:
    """Of a backup or a restore: stream → consumer → fidelity."""
    return {
        stream.get("as", stream["name"]): {one["name"]: one["fidelity"] for one in stream["consumers"]}
        for stream in ran.document["streams"]
    }


def announced(restored: Ran) -> list[str]:
    """Differences that the restore has announced, as patterns for the witness."""
    allowed = []
    for stream in restored.document["streams"]:
        if any(note.startswith("its last message was deleted") for note in stream["notes"]):
            allowed.append(f"{stream['as']}:state.last_ts")
        if any("would be copied again" in note for note in stream["notes"]):
            allowed += [f"{stream['as']}:message.headers", f"{stream['as']}:state.bytes"]
        if any(re.match(r"[\d,]+ messages? (is|are) gone already", note) for note in stream["notes"]):
            allowed += [f"{stream['as']}:{path}" for path in ("messages", "missing", "deleted", "subjects", "state.*")]
            allowed.append(f"{stream['as']}:consumer.*.num_pending")
        for consumer in stream["consumers"]:
            if consumer["fidelity"] != "exact":
                assert consumer["note"], consumer
                allowed += [f"{stream['as']}:consumer.{consumer['name']}.{field}" for field in STATE_FIELDS]
    return allowed
