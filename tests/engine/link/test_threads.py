"""A run has threads of its own, however few the event loop has, and ends with them."""

from __future__ import annotations

import ast
import asyncio
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import jsbackup
from jsbackup.engine.check import drill
from jsbackup.engine.link.concurrency import in_thread, with_own_threads


class _Unused(ThreadPoolExecutor):
    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        raise AssertionError(f"{fn} was given to the executor of the loop")


def _ours() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("jsbackup")]


@with_own_threads
async def _meet(parties: int) -> int:
    """Ends only if so many threads run at the same time."""
    barrier = threading.Barrier(parties)
    await asyncio.gather(*(in_thread(barrier.wait, 30) for _ in range(parties)))
    return len(_ours())


def test_a_run_does_not_use_the_threads_of_its_loop() -> None:
    async def work() -> int:
        asyncio.get_running_loop().set_default_executor(_Unused(1))
        return await _meet(130)

    assert asyncio.run(work()) == 130
    assert not _ours()


def test_a_run_within_a_run_shares_its_threads() -> None:
    seen: list[set[str]] = []

    @with_own_threads
    async def inner() -> None:
        seen.append({await in_thread(lambda: threading.current_thread().name)})

    @with_own_threads
    async def outer() -> None:
        await inner()
        await inner()
        seen.append({thread.name for thread in _ours()})

    asyncio.run(outer())
    assert seen[0] == seen[1] == seen[2]


def test_a_failed_run_waits_for_its_threads() -> None:
    ended: list[str] = []

    def slow() -> None:
        time.sleep(0.3)
        ended.append("slow")

    @with_own_threads
    async def run() -> None:
        in_thread(slow)
        await in_thread(time.sleep, 0)
        raise ValueError

    async def work() -> None:
        with pytest.raises(ValueError):
            await run()
        assert ended == ["slow"] and not _ours()

    asyncio.run(work())


def test_a_cancelled_run_leaves_threads_that_wait_to_their_own() -> None:
    go_on = threading.Event()
    ended: list[bool] = []

    @with_own_threads
    async def run() -> None:
        await in_thread(lambda: ended.append(go_on.wait(30)))

    async def work() -> None:
        task = asyncio.create_task(run())
        while not _ours():
            await asyncio.sleep(0.01)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not ended

    asyncio.run(work())
    assert not ended
    go_on.set()
    for thread in _ours():
        thread.join()
    assert ended == [True]


_TALKING = ("jsbackup.engine.", "jsbackup.putting_back.")


def _called_by_others() -> Iterator[tuple[str, str]]:
    """(module, name) of what is imported from the packages that talk to servers by those above them."""
    root = Path(jsbackup.__file__).parent
    for path in root.rglob("*.py"):
        if path.relative_to(root).parts[0] not in ("engine", "putting_back"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(_TALKING):
                    yield from ((str(node.module), alias.name) for alias in node.names)


@pytest.mark.slow
def test_what_others_call_has_threads_of_its_own() -> None:
    found = {(module, name): getattr(importlib.import_module(module), name) for module, name in _called_by_others()}
    works = {name: one for (_, name), one in found.items() if inspect.iscoroutinefunction(one)}
    assert works.keys() >= {"run_backup", "run_restore", "run_clone", "follow_streams", "run_put_back"}
    works["run_drill"] = drill.run_drill  # the room calls it itself, in a loop of the caller
    assert [name for name, one in works.items() if not hasattr(one, "__wrapped__")] == []
