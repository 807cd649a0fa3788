"""Tasks of the repository without threads, where a store in memory answers at once and thousands of commands run.

To start a thread and to wait for it takes a fourth of the processor time of such a test. What threads do beside each
other is tested in `tests/repository/test_background.py` and wherever commands run as users start them.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

import pytest

from jsbackup.repository import background

__all__ = ["run_inline"]


class _Inline:
    """An executor that does each task at once, in the thread that gives it."""

    def __init__(self, *_: object, initializer: Callable[[], object] | None = None, **__: object) -> None:
        if initializer is not None:
            initializer()

    def submit(self, task: Callable[..., Any], *arguments: object) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(task(*arguments))
        except BaseException as error:  # noqa: BLE001 - of a thread, too, it goes to who asks for the result
            future.set_exception(error)
        return future

    def shutdown(self, *_: object, **__: object) -> None:
        pass


def run_inline(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on, until the test ends."""
    monkeypatch.setattr(background, "ThreadPoolExecutor", _Inline)
