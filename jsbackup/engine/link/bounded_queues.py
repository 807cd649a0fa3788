"""Bounded hand-over between the event loop and one worker thread, in either direction, or between two threads.

The loop speaks NATS; decoding, compressing and storing block, so they run in a thread. The queues are bounded by bytes,
not items, because that limits the memory of the process. No operation blocks the loop.

`Intake`: loop → thread (backup). The loop never waits to put: the NATS window bounds what can arrive, and the loop
decides by `queued_bytes` when to acknowledge, which is what lets more arrive.
`Outlet`: thread → loop (restore). The thread waits while the loop has enough.
`Relay`: thread → thread (clone), of anything that has a size. Either side waits for the other.

Either side may `abort` with an error, which the other then raises.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from typing import Generic, TypeVar

__all__ = ["Intake", "Outlet", "Relay"]

T = TypeVar("T")


class Intake:
    """Chunks from the loop to a worker thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ready = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._queued = 0
        self._closed = False
        self._error: BaseException | None = None
        self._taken = asyncio.Event()

    @property
    def queued_bytes(self) -> int:
        """Bytes that were offered and not taken yet."""
        return self._queued

    def offer(self, chunk: bytes) -> None:
        """Loop side: hand over a chunk. Never waits."""
        with self._ready:
            self._chunks.append(chunk)
            self._queued += len(chunk)
            self._ready.notify()

    def close(self) -> None:
        """Loop side: no more chunks; the thread sees the end after the last one."""
        with self._ready:
            self._closed = True
            self._ready.notify()

    def abort(self, error: BaseException) -> None:
        """Loop side: make the thread's next `take` raise `error`; drop the queue."""
        with self._ready:
            self._error = error
            self._chunks.clear()
            self._queued = 0
            self._ready.notify()

    def take(self) -> bytes | None:
        """Thread side: the next chunk, or None at the end. Waits."""
        with self._ready:
            while not self._chunks:
                if self._error is not None:
                    raise self._error
                if self._closed:
                    return None
                self._ready.wait()
            chunk = self._chunks.popleft()
            self._queued -= len(chunk)
        self._loop.call_soon_threadsafe(self._taken.set)
        return chunk

    async def wait_taken(self, timeout_seconds: float) -> bool:
        """Loop side: wait until the thread takes a chunk. False if it took none in time."""
        self._taken.clear()
        try:
            # Not `wait_for`: in Python 3.11 it swallows a cancellation that comes with the event, and we would wait on.
            async with asyncio.timeout(timeout_seconds):
                await self._taken.wait()
        except TimeoutError:
            return False
        return True


class Outlet:
    """Chunks from a worker thread to the loop, at most `limit_bytes` of them (or one, if that is bigger)."""

    def __init__(self, limit_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._limit = limit_bytes
        self._room = threading.Condition()
        self._chunks: deque[bytes] = deque()
        self._queued = 0
        self._closed = False
        self._error: BaseException | None = None
        self._changed = asyncio.Event()

    def put(self, chunk: bytes) -> None:
        """Thread side: hand over a chunk; waits while the loop has enough."""
        with self._room:
            while self._queued and self._queued + len(chunk) > self._limit and self._error is None:
                self._room.wait()
            if self._error is not None:
                raise self._error
            self._chunks.append(chunk)
            self._queued += len(chunk)
        self._wake()

    def hurried(self) -> bool:
        """Thread side: whether the loop will soon be idle, because it takes chunks faster than they are made."""
        return self._queued < self._limit // 2

    @property
    def closed(self) -> bool:
        """Whether the thread has put its last chunk."""
        return self._closed

    def close(self) -> None:
        """Thread side: no more chunks."""
        with self._room:
            self._closed = True
        self._wake()

    def _wake(self) -> None:
        self._loop.call_soon_threadsafe(self._changed.set)

    def abort(self, error: BaseException) -> None:
        """Loop side: make the thread's next `put` raise `error`."""
        with self._room:
            self._error = error
            self._chunks.clear()
            self._queued = 0
            self._room.notify()

    def _filled(self) -> bool:
        return self._closed or self._queued >= self._limit // 2

    async def next(self) -> bytes | None:
        """Loop side: the next chunk, or None at the end. Waits."""
        while True:
            self._changed.clear()
            with self._room:
                if self._chunks:
                    chunk = self._chunks.popleft()
                    self._queued -= len(chunk)
                    self._room.notify()
                    return chunk
                if self._closed:
                    return None
            await self._changed.wait()

    async def wait_filled(self) -> None:
        """Loop side: wait until the thread is ahead by half the limit, or has put its last chunk."""
        while not self._filled():
            self._changed.clear()
            if self._filled():
                return
            await self._changed.wait()


class Relay(Generic[T]):
    """Items from one worker thread to another, at most `limit_bytes` of them (or one, if that is bigger)."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._changed = threading.Condition()
        self._things: deque[tuple[T, int]] = deque()
        self._queued = 0
        self._full = False
        self._closed = False
        self._error: BaseException | None = None

    @property
    def error(self) -> BaseException | None:
        """What it was aborted with."""
        return self._error

    @property
    def queued_bytes(self) -> int:
        """Bytes that were put and not taken yet."""
        return self._queued

    def put(self, thing: T, size: int) -> None:
        """Putting thread: hand over an item of `size` bytes; waits while the queue is full."""
        with self._changed:
            while self._queued and self._queued + size > self._limit and self._error is None:
                self._full = True
                self._changed.notify_all()
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._things.append((thing, size))
            self._queued += size
            self._changed.notify_all()

    def close(self) -> None:
        """Putting thread: no more items."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def abort(self, error: BaseException) -> None:
        """Make both threads raise `error` on their next call; drop the queue. The first error stays."""
        with self._changed:
            self._error = self._error or error
            self._things.clear()
            self._queued = 0
            self._changed.notify_all()

    def wait_filled(self) -> None:
        """Taking thread: wait until the queue is full or closed."""
        with self._changed:
            while not (self._full or self._closed or self._error):
                self._changed.wait()

    def __iter__(self) -> Iterator[T]:
        """Taking thread: yield everything, to the end. Waits."""
        while True:
            with self._changed:
                while not self._things and not self._closed and self._error is None:
                    self._changed.wait()
                if self._error is not None:
                    raise self._error
                if not self._things:
                    return
                thing, size = self._things.popleft()
                self._queued -= size
                self._changed.notify_all()
            yield thing
