"""Which streams a server has, for those who want to know whether all of them are backed up."""

from __future__ import annotations

from collections.abc import Sequence

from jsbackup.config import Connection, Glob
from jsbackup.engine.backup import describe_source
from jsbackup.engine.breaches import LiveStreams
from jsbackup.engine.jetstream import connect_jetstream
from jsbackup.engine.status import Origin
from jsbackup.repository.retention import named_cluster

__all__ = ["list_live_streams"]


async def list_live_streams(connection: Connection, exclude: Sequence[Glob] = ()) -> LiveStreams:
    """All streams of the account, those that do not answer included. Raises NatsError if the server cannot be asked."""
    async with connect_jetstream(connection) as js:
        await js.account()
        source = await describe_source(js, connection)
        listing = await js.streams()
    names = {*listing.entries, *listing.missing, *listing.offline}
    origin = Origin(named_cluster(source.cluster), source.account, source.domain or "")
    return LiveStreams(origin, tuple(sorted(names)), tuple(exclude))
