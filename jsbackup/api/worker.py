"""Run work in a separate thread with its own event loop, while the caller waits: in a notebook the caller's thread has
a running loop.

If the caller is interrupted (Ctrl-C, a cancelled task, an exception of a signal handler), the work is stopped, and the
caller waits until it has cleaned up. A second interruption ends that wait.

Meanwhile progress is reported to a callback, and waiting for a lock to the log.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, replace
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

from jsbackup.errors import Interrupted, JsBackupError, RepositoryLocked
from jsbackup.progress import NullProgress, Progress, ignored

__all__ = [
    "OnProgress",
    "StreamProgress",
    "Work",
    "Worker",
    "blocking",
    "note_waiting",
    "progress_to",
    "raise_first",
    "twins",
]

_log = logging.getLogger(__name__)

P = ParamSpec("P")
T = TypeVar("T")

_LOOK_SECONDS = 0.2
_STOPPED = "interrupted; what was committed before is untouched"


class Worker:
    """The interface of a piece of work to its thread."""

    def __init__(self) -> None:
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._cancel: Callable[[], object] | None = None

    def complete(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end. Raises Interrupted if the caller was interrupted."""

        async def watched() -> T:
            loop, task = asyncio.get_running_loop(), asyncio.ensure_future(work)
            with self._lock:
                self._cancel = lambda: loop.call_soon_threadsafe(task.cancel)
                if self._stopped.is_set():
                    task.cancel()
            try:
                return await task
            finally:
                with self._lock:
                    self._cancel = None

        try:
            # Not `asyncio.run`, nor the loop of a policy: notebooks replace these.
            with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
                return runner.run(watched())
        except asyncio.CancelledError:
            raise Interrupted(_STOPPED) from None
        except BaseExceptionGroup as group:
            raise_first(group)

    def sleep(self, seconds: float) -> None:
        """Wait. Raises Interrupted as soon as the caller is interrupted."""
        if self._stopped.wait(seconds):
            raise Interrupted(_STOPPED)

    def stop(self) -> None:
        """Stop the work. Called from another thread."""
        with self._lock:
            self._stopped.set()
            if self._cancel is not None:
                self._cancel()


Work: TypeAlias = Callable[[Worker], T]


def blocking(work: Work[T]) -> T:
    """Run the work, and wait for its result."""
    worker, done = Worker(), Future[T]()
    try:
        _start(worker, work, done)
        _wait(done)
        return done.result()
    except BaseException:
        if not done.cancel():  # it has begun, or is done
            worker.stop()
            _wait(done)
        raise


def _wait(done: Future[T]) -> None:
    """Wait, waking up regularly to handle signals: one received by another thread does not wake this one."""
    while not done.done():
        wait([done], timeout=_LOOK_SECONDS)


async def _awaited(work: Work[T]) -> T:
    worker, done = Worker(), Future[T]()
    finished = asyncio.wrap_future(done)
    _start(worker, work, done)
    try:
        return await asyncio.shield(finished)
    except asyncio.CancelledError:
        if not done.cancel():
            worker.stop()
            await asyncio.wait([finished])
            finished.exception()  # marked as retrieved
        raise


def _start(worker: Worker, work: Work[T], done: Future[T]) -> None:
    def do() -> None:
        if not done.set_running_or_notify_cancel():
            return
        try:
            done.set_result(work(worker))
        except BaseException as error:  # noqa: BLE001 - raised where it is waited for
            done.set_exception(error)

    threading.Thread(target=do, name="jsbackup", daemon=True).start()


def twins(prepare: Callable[P, Work[T]]) -> tuple[Callable[P, T], Callable[P, Coroutine[Any, Any, T]]]:
    """Return two functions with the arguments and the docstring of `prepare`: one waits for its work, the other is
    awaited.
    """

    @wraps(prepare)
    def plain(*args: P.args, **kwargs: P.kwargs) -> T:
        return blocking(prepare(*args, **kwargs))

    @wraps(prepare)
    async def awaited(*args: P.args, **kwargs: P.kwargs) -> T:
        return await _awaited(prepare(*args, **kwargs))

    # For `help`: the public name, and the result of the work.
    signature = inspect.signature(prepare)
    given = str(signature.return_annotation).removeprefix("Work[").removesuffix("]")
    for suffix, function in (("", plain), ("_async", awaited)):
        function.__name__ = function.__qualname__ = prepare.__name__.removeprefix("_") + suffix
        function.__annotations__ = {**prepare.__annotations__, "return": given}
        function.__dict__["__signature__"] = signature.replace(return_annotation=given)
    return plain, awaited


def raise_first(group: BaseExceptionGroup[BaseException]) -> NoReturn:
    """Raise the first error of tasks that failed together, if all of them are ours; otherwise the group, which is a
    bug.
    """
    known, bugs = group.split(JsBackupError)
    if known is None or bugs is not None:
        raise group
    first: BaseException = known
    while isinstance(first, BaseExceptionGroup):
        first = first.exceptions[0]
    raise first from group


@dataclass(frozen=True, slots=True)
class StreamProgress:
    """The progress of a stream; in a restore it has its name at the server.

    Bytes are of messages, uncompressed. Totals are estimates, which may be off by some percent. A stream that is
    restarted after a failure is back at 0.
    """

    stream: str
    done_bytes: int = 0
    total_bytes: int = 0
    done_messages: int = 0
    total_messages: int = 0
    finished: bool = False


OnProgress: TypeAlias = Callable[[StreamProgress], object]
"""Called from other threads, but never concurrently. It should be quick, because the work waits for it. If it raises an
error, that is logged, and it is not called again.
"""


def note_waiting(error: RepositoryLocked) -> None:
    _log.warning("%s; waiting for it", error.message)


def progress_to(callback: OnProgress | None) -> Progress:
    return NullProgress() if callback is None else _Telling(callback)


class _Telling(NullProgress):
    """A progress watcher that calls a callback."""

    def __init__(self, callback: OnProgress) -> None:
        self._callback = callback
        self._streams: dict[str, StreamProgress] = {}
        self._lock = threading.Lock()

    def expect(self, totals: Mapping[str, int]) -> None:
        for name, total_bytes in totals.items():
            self.start(name, total_bytes, 0)

    def start(self, name: str, total_bytes: int, total_messages: int) -> None:
        self._tell(name, begun=StreamProgress(name, total_bytes=total_bytes, total_messages=total_messages))

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        self._tell(name, byte_count, messages)

    def finish(self, name: str) -> None:
        self._tell(name, finished=True)

    def _tell(
        self,
        name: str,
        byte_count: int = 0,
        messages: int = 0,
        *,
        begun: StreamProgress | None = None,
        finished: bool = False,
    ) -> None:
        with self._lock:
            before = begun or self._streams.get(name, StreamProgress(name))
            self._streams[name] = replace(
                before,
                done_bytes=before.done_bytes + byte_count,
                done_messages=before.done_messages + messages,
                finished=before.finished or finished,
            )
            try:
                self._callback(self._streams[name])
            except Exception:  # noqa: BLE001 - whatever it is, it is not the work that failed
                self._callback = ignored
                _log.warning("the progress callback failed, and is not called again", exc_info=True)
