"""The JetStream API over a link: requests of `protocol/api.py` sent, answers decoded, lists read to their end.

A cluster answers "not available" while it elects a leader, and "no suitable peers, peer offline" until each of its
servers has been heard of; those answers, and only those, are asked again here.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from jsbackup.config import Connection
from jsbackup.engine.link.link import Link
from jsbackup.engine.link.restore_mutex import Turn
from jsbackup.errors import ApiError, FormatError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import Version
from jsbackup.protocol import api
from jsbackup.protocol.info import (
    AccountInfo,
    ConsumerInfo,
    StoredMessage,
    StreamInfo,
    account_info,
    consumer_info,
    stored_message,
    stream_info,
)
from jsbackup.protocol.paging import Listing, Page, Pager, consumer_list_page, stream_list_page, stream_names_page
from jsbackup.protocol.responses import ErrCode, is_temporary, lacks_peers

__all__ = ["MAX_DELETED", "JetStream", "connect_jetstream"]

_log = logging.getLogger(__name__)

T = TypeVar("T")

# A meta or stream election takes a second or two; four tries with these pauses outlast it.
_PAUSES_SECONDS = (0.25, 1.0, 2.0)
# Server source: servers tell of themselves every ten seconds (`statsHBInterval`), and what is known of one is forgotten
# when its route is made anew (`addRoute`), as after the start of a cluster.
_GATHERING_SECONDS = 15.0
_GATHERING_PAUSE_SECONDS = 0.5
# Refusals so far apart have nothing to do with each other.
_APART_SECONDS = 60.0
_DELETE_ATTEMPTS = 6
# API level -> the first release that had it (`JSApiLevel` in nats-server's jetstream_versioning.go).
_RELEASES: tuple[tuple[int, Version], ...] = (
    (5, (2, 15)),
    (4, (2, 14)),
    (2, (2, 12)),
    (1, (2, 11)),
    (0, (2, 10)),
)
# A cluster waits up to four seconds for streams and consumers that do not answer before it lists the others.
_LIST_SECONDS = 15.0
# Deleted sequences that are asked for; beyond, the answer would be too large (some 8 bytes each).
MAX_DELETED = 2_000_000
_SUBJECTS_A_PAGE = 100_000  # Server source: JSMaxSubjectDetails


class JetStream:
    """One account's JetStream, seen through `link`. All methods raise ApiError, NatsError or FormatError."""

    def __init__(self, link: Link, prefix: api.ApiPrefix, timeout_seconds: float) -> None:
        self.link = link
        self.prefix = prefix
        self.timeout_seconds = timeout_seconds
        self._gathered_by = self._missed_at = -math.inf

    async def ask(self, request: api.Request, timeout_seconds: float | None = None) -> JsonObject:
        """Send a request and give its decoded answer."""
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        pauses = iter(_PAUSES_SECONDS)
        while True:
            connected = self.link.connected
            try:
                return await self.link.api(request, timeout)
            except TransferError:
                pause = next(pauses, None)
                # If the connection broke under it: all these requests may be sent twice. Else none could be made.
                if not connected or pause is None:
                    raise
            except ApiError as error:
                if await self.gathers(error):
                    continue
                pause = next(pauses, None)
                if pause is None or not is_temporary(error):
                    raise
            await asyncio.sleep(pause)

    async def gathers(self, error: ApiError) -> bool:
        """Whether a request was refused for servers that the cluster may hear of yet; then a pause has passed.

        That is believed for the first seconds only, whatever is asked: a server that stays away delays a run once.
        """
        if not lacks_peers(error):
            return False
        now = time.monotonic()
        if now - self._missed_at > _APART_SECONDS:
            self._gathered_by = now + _GATHERING_SECONDS
            _log.info("%s; asked again for %.0f s", error.message, _GATHERING_SECONDS)
        self._missed_at = now
        if now > self._gathered_by:
            return False
        await asyncio.sleep(_GATHERING_PAUSE_SECONDS)
        return True

    def turn(self) -> Turn:
        """For what a single server must not be asked to do together. One that may be single is taken for it."""
        return Turn(not (self._is_own and self.link.cluster_name is not None))

    @property
    def _is_own(self) -> bool:
        """Whether it is the link's own server that answers, not one of another domain or account."""
        link = self.link
        return link.jetstream and self.prefix.text in ("$JS.API", f"$JS.{link.domain}.API")

    async def account(self) -> AccountInfo:
        return account_info(await self.ask(api.account_info(self.prefix)))

    async def serving(self) -> tuple[Version, bool | None]:
        """Version of the servers that answer, and whether they are a cluster; None if the user may not learn that.

        That is the link's own server, unless the API is that of another domain or account, or the server is one
        without JetStream. Then its API level tells the first release that had it, and a request that only clusters
        take, for a stream that is not there, tells the rest.
        """
        if self._is_own:
            return self.link.server_version, self.link.cluster_name is not None
        level = (await self.account()).api_level
        version = next(release for since, release in _RELEASES if level >= since)
        try:
            await self.ask(api.leader_step_down(self.prefix, "jsbackup-probe"))
        except NatsPermissionDenied:
            return version, None
        except ApiError as error:
            return version, error.err_code != ErrCode.CLUSTER_REQUIRED
        return version, True

    async def streams(self) -> Listing[StreamInfo]:
        """All streams of the account, with those that did not answer. One by one if no more is allowed."""
        try:
            return await self._list(
                "list of streams", lambda offset: api.stream_list(self.prefix, offset), stream_list_page
            )
        except NatsPermissionDenied:
            names = await self.stream_names()
        entries: dict[str, StreamInfo] = {}
        missing: list[str] = []
        for name in names.entries:
            try:
                info = await self.find_stream(name)
            except NatsTimeout:
                missing.append(name)
            else:
                entries.update({name: info} if info is not None else {})
        return Listing(entries, tuple(missing), {})

    async def stream_names(self, subject: str | None = None) -> Listing[None]:
        """The names of all streams of the account, or of those that listen to `subject`."""
        return await self._list(
            "list of stream names", lambda offset: api.stream_names(self.prefix, offset, subject), stream_names_page
        )

    async def consumers(self, stream: str) -> Listing[ConsumerInfo]:
        """All consumers of a stream, with those that did not answer."""
        return await self._list(
            f"list of consumers of {stream}",
            lambda offset: api.consumer_list(self.prefix, stream, offset),
            lambda document: consumer_list_page(document, stream),
        )

    async def _list(
        self, what: str, request: Callable[[int], api.Request], page: Callable[[JsonObject], Page[T]]
    ) -> Listing[T]:
        pager: Pager[T] = Pager(what)
        while (offset := pager.offset) is not None:
            pager.receive(page(await self.ask(request(offset), max(self.timeout_seconds, _LIST_SECONDS))))
        return pager.result

    async def stream(self, name: str, *, deleted_details: bool = False) -> StreamInfo:
        timeout = max(self.timeout_seconds, _LIST_SECONDS) if deleted_details else None
        request = api.stream_info(self.prefix, name, deleted_details=deleted_details)
        return stream_info(await self.ask(request, timeout))

    async def subjects(self, name: str, pattern: str) -> dict[str, int]:
        """How many messages the stream has of each subject that matches."""
        found: dict[str, int] = {}
        while True:
            request = api.stream_info(self.prefix, name, subjects_filter=pattern, offset=len(found))
            page = stream_info(await self.ask(request, max(self.timeout_seconds, _LIST_SECONDS))).subjects or {}
            before = len(found)
            found |= page
            if len(page) < _SUBJECTS_A_PAGE or len(found) == before:
                return found

    async def holds(self, name: str, pattern: str) -> bool:
        """Whether the stream has a message of a subject that matches."""
        request = api.stream_info(self.prefix, name, subjects_filter=pattern)
        return bool(stream_info(await self.ask(request, max(self.timeout_seconds, _LIST_SECONDS))).subjects)

    async def find_stream(self, name: str, *, deleted_details: bool = False) -> StreamInfo | None:
        """The stream, or None if JetStream says that there is none."""
        try:
            return await self.stream(name, deleted_details=deleted_details)
        except ApiError as error:
            if error.err_code == ErrCode.STREAM_NOT_FOUND:
                return None
            raise

    async def create_stream(self, config: JsonObject) -> StreamInfo:
        async with self.turn():
            return stream_info(await self.ask(api.stream_create(self.prefix, config)))

    async def update_stream(self, config: JsonObject) -> StreamInfo:
        return stream_info(await self.ask(api.stream_update(self.prefix, config)))

    async def delete_stream(self, name: str) -> None:
        """Remove a stream; that it is gone already is as good.

        Removing many blocks takes the server longer than an ordinary answer, and a cluster without a meta leader never
        answers what it was asked meanwhile: so it is asked again.
        """
        for attempt in range(_DELETE_ATTEMPTS):
            try:
                async with self.turn():
                    await self.ask(api.stream_delete(self.prefix, name))
                return
            except ApiError as error:
                if error.err_code == ErrCode.STREAM_NOT_FOUND:
                    return
                raise
            except NatsTimeout:
                if attempt == _DELETE_ATTEMPTS - 1:
                    raise

    async def create_consumer(self, stream: str, config: JsonObject) -> ConsumerInfo:
        return consumer_info(await self.ask(api.consumer_create(self.prefix, stream, config)))

    async def consumer(self, stream: str, name: str) -> ConsumerInfo:
        return consumer_info(await self.ask(api.consumer_info(self.prefix, stream, name)))

    async def delete_consumer(self, stream: str, name: str) -> None:
        await self.ask(api.consumer_delete(self.prefix, stream, name))

    async def delete_message(self, stream: str, sequence: int) -> None:
        """Delete a message; that it is gone already is as good. ApiError where the stream does not allow it."""
        try:
            await self.ask(api.message_delete(self.prefix, stream, sequence))
        except ApiError as error:
            # Server source: stores that report it as an error give it the number of any failure.
            if error.err_code != ErrCode.SEQUENCE_NOT_FOUND and "no message found" not in error.message:
                raise

    async def message(self, stream: str, sequence: int) -> StoredMessage | None:
        """The message, or None if it was deleted."""
        try:
            found = stored_message(await self.ask(api.message_get(self.prefix, stream, sequence)))
            if found.sequence != sequence:
                raise FormatError(f"stream {stream}: asked for message {sequence}, got message {found.sequence}")
            return found
        except ApiError as error:
            if error.err_code == ErrCode.NO_MESSAGE_FOUND:
                return None
            raise

    async def next_message(self, stream: str, sequence: int, subject: str = ">") -> StoredMessage | None:
        """The first message at or after a sequence whose subject matches, or None if there is none."""
        try:
            return stored_message(await self.ask(api.message_get_next(self.prefix, stream, sequence, subject)))
        except ApiError as error:
            if error.err_code == ErrCode.NO_MESSAGE_FOUND:
                return None
            raise


@asynccontextmanager
async def connect_jetstream(connection: Connection, name: str = "jsbackup") -> AsyncIterator[JetStream]:
    """A link of its own with the JetStream API on it."""
    async with await Link.connect(connection, name=name) as link:
        yield JetStream(link, api.ApiPrefix(connection.api_prefix), connection.timeout_seconds)
