"""The streams of a server, to check whether all of them are backed up."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.config import Connection, Glob
from jsbackup.engine.check.health_rules import LiveStreams
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.source import describe_source
from jsbackup.engine.link.threads import with_own_threads
from jsbackup.planning.interrupted import useless_copies
from jsbackup.repository.origin import origin_of

__all__ = ["list_live_streams"]


@with_own_threads
async def list_live_streams(connection: Connection, exclude: Sequence[Glob] = ()) -> LiveStreams:
    """Return all streams of the account, including those that do not answer. Raises NatsError.

    Copies that backups leave out (`interrupted.py`) are not included.
    """
    async with connect_jetstream(connection) as js:
        await js.account()
        source = await describe_source(js, connection)
        listing = await js.streams()
    names = {*listing.entries, *listing.missing, *listing.offline} - useless_copies(listing.entries)
    return LiveStreams(origin_of(source), tuple(sorted(names)), tuple(exclude))
