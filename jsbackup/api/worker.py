"""Run work in a separate thread with its own event loop, while the caller waits: in a notebook the caller's thread has
a running loop.

If the caller is interrupted (Ctrl-C, a cancelled task, an exception of a signal handler), the work is stopped, and the
caller waits until it has cleaned up. A second interruption ends that wait.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, wait
from functools import wraps
from typing import Any, NoReturn, ParamSpec, TypeAlias, TypeVar

from jsbackup.errors import Interrupted, JsBackupError

__all__ = ["Work", "Worker", "blocking", "raise_first", "twins"]

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

    for suffix, function in (("", plain), ("_async", awaited)):
        _name(function, prepare, suffix)
    return plain, awaited


def _name(function: Callable[..., Any], prepare: Callable[..., Any], suffix: str) -> None:
    """Set name and signature for `help`: the public name, and the result of the work."""
    signature = inspect.signature(prepare)
    given = str(signature.return_annotation).removeprefix("Work[").removesuffix("]")
    function.__name__ = function.__qualname__ = prepare.__name__.removeprefix("_") + suffix
    function.__annotations__ = {**prepare.__annotations__, "return": given}
    function.__dict__["__signature__"] = signature.replace(return_annotation=given)


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
