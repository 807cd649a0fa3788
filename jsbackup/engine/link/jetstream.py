"""The JetStream API over a link: sends requests of `protocol/api.py`, decodes answers, reads all pages of lists.

While a cluster elects a leader, it answers "not available" or not at all; until all of its servers are known, "no
suitable peers, peer offline". Only these requests are repeated here, those without an answer only if they read.

A mutex for operations that a single nats-server must not do at once: beginning and ending restores, creating and
deleting streams.

Server source: `RestoreStream` (2.11 to 2.15, and the newest source) counts the account's streams without the lock that
guards them (`tieredReservation`), if the server is not a cluster. Go ends a process that reads a map during a write:
"fatal error: concurrent map iteration and map write" (measured: restores of 1,000 small streams, four at a time, ended
a server of 2.15.1 in ten of twelve runs, one of 2.14.6 in three of five, those of 2.11.11 and 2.12.8 in three of eight;
in turns none did in fourteen).

From 2.12.6 on streams are counted when a restore begins (2.15: when it has read the first frame), before that when its
end arrives. The map is written when a restore has ended, and when a stream is created or deleted. So these take turns
within this process. Other processes cannot be coordinated.

The server's advisories about snapshots and restores become log lines (`advisories`), only for information.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from types import TracebackType
from typing import Self, TypeVar
from weakref import WeakKeyDictionary

from jsbackup.config.connection import Connection
from jsbackup.engine.link.link import Link
from jsbackup.engine.link.subscription import Subscription
from jsbackup.errors import ApiError, FormatError, NatsError, NatsPermissionDenied, NatsTimeout, TransferError
from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import Version
from jsbackup.protocol import api
from jsbackup.protocol.advisories import advisory_subjects, decode_advisory
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
from jsbackup.protocol.paging import (
    Listing,
    Page,
    Pager,
    consumer_list_page,
    next_offsets,
    stream_list_page,
    stream_names_page,
)
from jsbackup.protocol.responses import ErrCode, lacks_peers, lacks_stream, may_pass
from jsbackup.readable import format_count, in_short

__all__ = ["MAX_DELETED", "JetStream", "advisories", "connect_jetstream"]

_lines: WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Lock] = WeakKeyDictionary()


class Turn:
    """A turn that can be taken and given back repeatedly; with `needed` False nothing waits."""

    def __init__(self, needed: bool) -> None:
        self._needed = needed
        self._taken = False

    async def take(self) -> None:
        """Wait for the turn, in the order of requests, unless it is already taken."""
        if self._needed and not self._taken:
            await _line().acquire()
            self._taken = True

    def give_back(self) -> None:
        if self._taken:
            self._taken = False
            _line().release()

    async def __aenter__(self) -> Self:
        await self.take()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.give_back()


def _line() -> asyncio.Lock:
    """Return the lock: one for all servers, because a run restores into one."""
    return _lines.setdefault(asyncio.get_running_loop(), asyncio.Lock())


_log = logging.getLogger(__name__)

T = TypeVar("T")

# An election after a leader stepped down takes a second or two; four tries with these pauses last longer.
_PAUSES_SECONDS = (0.25, 1.0, 2.0)
# Server source: servers begin an election four to nine seconds after they last heard of a leader (`minElectionTimeout`,
# `maxElectionTimeout`). They report every ten seconds (`statsHBInterval`), and what is known of a server is dropped
# when its route is made again (`addRoute`), as after the start of a cluster.
_UNSETTLED_SECONDS = 15.0
_UNSETTLED_PAUSE_SECONDS = 0.5
# Refusals this far apart are unrelated.
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
# A cluster waits up to four seconds for silent streams and consumers before it lists the others.
_LIST_SECONDS = 15.0
# The most deleted sequences that are requested; a longer answer would be too large (about 8 bytes each).
MAX_DELETED = 2_000_000
# How many pages of a list are asked for beside the one that is decoded. Measured, 10,000 streams in 40 pages: 0.41 s
# one after the other, 0.18 s with two or more at once.
_PAGES_AHEAD = 2
_SUBJECTS_A_PAGE = 100_000  # Server source: JSMaxSubjectDetails


class JetStream:
    """The JetStream of one account, over `link`. All methods raise ApiError, NatsError or FormatError."""

    def __init__(self, link: Link, prefix: api.ApiPrefix, timeout_seconds: float) -> None:
        self.link = link
        self.prefix = prefix
        self.timeout_seconds = timeout_seconds
        self._settled_by = self._missed_at = -math.inf

    async def ask(
        self, request: api.Request, timeout_seconds: float | None = None, *, of_meta_leader: bool = False
    ) -> JsonObject:
        """Send a request and return its decoded answer. `of_meta_leader`: it reads what only the meta leader of a
        cluster answers.
        """
        timeout = self.timeout_seconds if timeout_seconds is None else timeout_seconds
        pauses = iter(_PAUSES_SECONDS)
        while True:
            connected = self.link.connected
            try:
                return await self.link.api(request, timeout)
            except TransferError:
                pause = next(pauses, None)
                # If the connection was lost during the request: these requests may be sent twice. Else no connection
                # could be made.
                if not connected or pause is None:
                    raise
            except NatsTimeout as error:
                if not of_meta_leader or self.link.cluster_name is None or not await self._settles(error.message):
                    raise
                continue
            except ApiError as error:
                if await self.gathers(error):
                    continue
                if not may_pass(error):
                    raise
                pause = next(pauses, None)
                if pause is None:
                    if not await self._settles(error.message):
                        raise
                    continue
            await asyncio.sleep(pause)

    async def gathers(self, error: ApiError) -> bool:
        """Return whether a request failed because the cluster does not know all of its servers yet; waits a moment
        then.
        """
        return lacks_peers(error) and await self._settles(error.message)

    async def _settles(self, trouble: str) -> bool:
        """Return whether the cluster may answer otherwise in a moment, and wait for it then.

        That is only accepted for the first seconds of a run, so a server that stays away delays it once.
        """
        now = time.monotonic()
        if now - self._missed_at > _APART_SECONDS:
            self._settled_by = now + _UNSETTLED_SECONDS
            _log.warning("%s; asked again for %.0f s", trouble, _UNSETTLED_SECONDS)
        self._missed_at = now
        if now > self._settled_by:
            return False
        await asyncio.sleep(_UNSETTLED_PAUSE_SECONDS)
        return True

    def turn(self) -> Turn:
        """Return a turn for operations that a single server must not do at once, even if it may be a cluster."""
        return Turn(not (self._is_own and self.link.cluster_name is not None))

    @property
    def _is_own(self) -> bool:
        """Whether the link's own server answers, not one of another domain or account."""
        link = self.link
        return link.jetstream and self.prefix.text in ("$JS.API", f"$JS.{link.domain}.API")

    async def account(self) -> AccountInfo:
        return account_info(await self.ask(api.account_info(self.prefix), of_meta_leader=True))

    async def serving(self) -> tuple[Version, bool | None]:
        """Return the version of the answering servers, and whether they are a cluster; None if the user may not find
        out.

        Usually that is the link's own server, unless the API is that of another domain or account, or the server has no
        JetStream. Then the API level determines the first release that had it, and a request that only clusters accept,
        for a missing stream, shows the rest.
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
        """Return all streams of the account, and those that did not answer. One by one if a list is not allowed."""
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

    async def answering_streams(self, wanted: Callable[[str], bool]) -> Listing[StreamInfo]:
        """Return all streams. If wanted ones do not answer, perhaps for lack of a leader, asks again for a while."""
        while True:
            listing = await self.streams()
            silent = [name for name in listing.missing if wanted(name)]
            if not silent or not await self._settles(
                f"no answer from {format_count(len(silent), 'stream')}: {in_short(silent)}"
            ):
                return listing

    async def stream_names(self, subject: str | None = None) -> Listing[None]:
        """Return the names of all streams of the account, or of those that listen to `subject`."""
        return await self._list(
            "list of stream names", lambda offset: api.stream_names(self.prefix, offset, subject), stream_names_page
        )

    async def consumers(self, stream: str) -> Listing[ConsumerInfo]:
        """Return all consumers of a stream, and those that did not answer."""
        return await self._list(
            f"list of consumers of {stream}",
            lambda offset: api.consumer_list(self.prefix, stream, offset),
            lambda document: consumer_list_page(document, stream),
        )

    async def _list(
        self, what: str, request: Callable[[int], api.Request], page: Callable[[JsonObject], Page[T]]
    ) -> Listing[T]:
        """Read all pages of a list. The server makes the next ones while one is decoded: thousands of streams are some
        hundreds to a page.
        """
        pager: Pager[T] = Pager(what)
        ahead: dict[int, asyncio.Task[JsonObject]] = {}

        def ask(offset: int) -> asyncio.Task[JsonObject]:
            timeout = max(self.timeout_seconds, _LIST_SECONDS)
            return asyncio.create_task(self.ask(request(offset), timeout, of_meta_leader=True))

        try:
            while (offset := pager.offset) is not None:
                if offset not in ahead:  # the first, or others are listed than were expected
                    await _give_up(ahead)
                    ahead[offset] = ask(offset)
                document = await ahead[offset]
                del ahead[offset]
                for expected in next_offsets(document, _PAGES_AHEAD):
                    if expected not in ahead:
                        ahead[expected] = ask(expected)
                await asyncio.sleep(0)  # so that they are sent
                pager.receive(page(document))
        finally:
            await _give_up(ahead)
        return pager.result

    async def stream(self, name: str, *, deleted_details: bool = False) -> StreamInfo:
        timeout = max(self.timeout_seconds, _LIST_SECONDS) if deleted_details else None
        request = api.stream_info(self.prefix, name, deleted_details=deleted_details)
        return stream_info(await self.ask(request, timeout))

    async def subjects(self, name: str, pattern: str) -> dict[str, int]:
        """Return how many messages the stream has of each matching subject."""
        counts: dict[str, int] = {}
        while True:
            request = api.stream_info(self.prefix, name, subjects_filter=pattern, offset=len(counts))
            page = stream_info(await self.ask(request, max(self.timeout_seconds, _LIST_SECONDS))).subjects or {}
            before = len(counts)
            counts |= page
            if len(page) < _SUBJECTS_A_PAGE or len(counts) == before:
                return counts

    async def holds(self, name: str, pattern: str) -> bool:
        """Return whether the stream has a message of a matching subject."""
        request = api.stream_info(self.prefix, name, subjects_filter=pattern)
        return bool(stream_info(await self.ask(request, max(self.timeout_seconds, _LIST_SECONDS))).subjects)

    async def find_stream(self, name: str, *, deleted_details: bool = False) -> StreamInfo | None:
        """Return the stream, or None if JetStream reports that there is none."""
        try:
            return await self.stream(name, deleted_details=deleted_details)
        except ApiError as error:
            if lacks_stream(error):
                return None
            raise

    async def create_stream(self, config: JsonObject) -> StreamInfo:
        async with self.turn():
            return stream_info(await self.ask(api.stream_create(self.prefix, config)))

    async def update_stream(self, config: JsonObject) -> StreamInfo:
        return stream_info(await self.ask(api.stream_update(self.prefix, config)))

    async def delete_stream(self, name: str) -> None:
        """Delete a stream; succeeds if there is none.

        Removing many blocks takes longer than an ordinary answer, and a cluster without a meta leader never answers
        earlier requests: so the request is repeated.
        """
        for attempt in range(_DELETE_ATTEMPTS):
            try:
                async with self.turn():
                    await self.ask(api.stream_delete(self.prefix, name))
                return
            except ApiError as error:
                if lacks_stream(error):
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
        """Delete a message; succeeds if there is none. Raises ApiError if the stream does not allow it."""
        try:
            await self.ask(api.message_delete(self.prefix, stream, sequence))
        except ApiError as error:
            # Server source: stores that report this as an error use the general error code.
            if error.err_code != ErrCode.SEQUENCE_NOT_FOUND and "no message found" not in error.message:
                raise

    async def message(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message, or None if it was deleted."""
        stored = await self._message(api.message_get(self.prefix, stream, sequence))
        if stored is not None and stored.sequence != sequence:
            raise FormatError(f"stream {stream}: asked for message {sequence}, got message {stored.sequence}")
        return stored

    async def next_message(self, stream: str, sequence: int, subject: str = ">") -> StoredMessage | None:
        """Return the first message at or after a sequence whose subject matches, or None."""
        return await self._message(api.message_get_next(self.prefix, stream, sequence, subject))

    async def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the last message with a subject, or None."""
        return await self._message(api.message_get_last(self.prefix, stream, subject))

    async def _message(self, request: api.Request) -> StoredMessage | None:
        try:
            return stored_message(await self.ask(request))
        except ApiError as error:
            if error.err_code == ErrCode.NO_MESSAGE_FOUND:
                return None
            raise

    async def purge_subject(self, stream: str, subject: str) -> None:
        """Remove all messages with this subject."""
        await self.ask(api.stream_purge(self.prefix, stream, subject))


async def _give_up(asked: dict[int, asyncio.Task[JsonObject]]) -> None:
    """Cancel requests whose answers are not needed."""
    for task in asked.values():
        task.cancel()
    await asyncio.gather(*asked.values(), return_exceptions=True)
    asked.clear()


@asynccontextmanager
async def connect_jetstream(connection: Connection, name: str = "jsbackup") -> AsyncIterator[JetStream]:
    """Connect, and yield the JetStream API of the link."""
    async with await Link.connect(connection, name=name) as link:
        yield JetStream(link, api.ApiPrefix(connection.api_prefix), connection.timeout_seconds)


@asynccontextmanager
async def advisories(link: Link) -> AsyncIterator[None]:
    """Log advisories at level INFO until this exits. Does nothing if that level is not enabled.

    If the user may not subscribe to them, that is logged once and has no other effect.
    """
    if not _log.isEnabledFor(logging.INFO):
        yield
        return
    async with AsyncExitStack() as stack:
        tasks = []
        troubles: set[str] = set()
        for subject in advisory_subjects():
            subscription = await stack.enter_async_context(link.subscribe(subject))
            tasks.append(asyncio.create_task(_tell(subscription, troubles)))
        try:
            yield
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


async def _tell(subscription: Subscription, troubles: set[str]) -> None:
    with suppress(asyncio.CancelledError):
        try:
            async for message in subscription:
                advisory = decode_advisory(message.data)
                if advisory is not None:
                    _log.info("%s", advisory.line)
        except NatsError as error:
            if not troubles:
                _log.info("no server advisories: %s", error.message)
            troubles.add(error.message)
