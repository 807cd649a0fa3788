"""Fixtures of all tests: real servers, started on demand and ended with the test that asked for them.

Tests are plain functions and run their coroutines with `asyncio.run` themselves. What a test needs and the machine
lacks makes it skip, with the reason; under CI (`CI=true`) it fails instead, so that nothing is skipped there unnoticed.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import logging
import os
import signal
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest
from hypothesis import settings

from tests.harness import s3_models, turns, warm
from tests.harness.clusters import NatsCluster
from tests.harness.s3server import S3Server
from tests.harness.servers import NatsServer

# The same examples in every run. Random ones only in `./scripts/test explore`: see `_explores`. Examples take
# their time on a machine that is busy: no test is about that.
_PROFILE = os.environ.get("JSBACKUP_TEST_PROFILE", "same")
_FAST = _PROFILE == "fast"  # `./scripts/test fast`
_FAST_EXAMPLES = 6
settings.register_profile("same", deadline=None, derandomize=True, database=None, max_examples=50)
settings.register_profile("fast", settings.get_profile("same"), max_examples=_FAST_EXAMPLES)
settings.register_profile("explore", deadline=None, print_blob=True, max_examples=300)
settings.load_profile(_PROFILE)


def _with_few_examples(make: Callable[..., None]) -> Callable[..., None]:
    """Tests that ask for a number of examples get no more than others."""

    @functools.wraps(make)
    def few(made: settings, *parent: settings, **given: Any) -> None:
        if "max_examples" in given:
            given["max_examples"] = min(given["max_examples"], _FAST_EXAMPLES)
        make(made, *parent, **given)

    return few


if _FAST:
    settings.__init__ = _with_few_examples(settings.__init__)  # type: ignore[method-assign]

warm.install()
s3_models.keep_models()

# Some thousands of tests are collected in each process, and stay. Looking through them took a third of the time of
# collecting them, and as much again later.
gc.disable()


# Groups that take longest, in this order. Others take the longer, the more tests they have.
_LONGEST = ("spark-apart", "spark", "readme")


# Before tests are chosen by their marks; and after pytest has put those together that share a parameter.
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None, None, None]:
    for item in items:
        if not {"nats_server", "nats_cluster"}.isdisjoint(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.nats)
        if _explores(item):
            item.add_marker(pytest.mark.explore)
        if item.get_closest_marker("xdist_group") is None and (name := "s3" if _in_s3(item) else _together(item)):
            item.add_marker(pytest.mark.xdist_group(name))
    if (turn := turns.this_turn()) is not None:
        _leave_to_other_turns(config, items, turn)
    yield
    if config.getoption("loadgroup", default=False):  # set by pytest-xdist in its processes
        _sort_longest_first(items)


def _leave_to_other_turns(config: pytest.Config, items: list[pytest.Item], turn: int) -> None:
    others = turns.not_due((item.nodeid for item in items if item.get_closest_marker("by_turns")), turn)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
    items[:] = [item for item in items if item.nodeid not in others]


def _sort_longest_first(items: list[pytest.Item]) -> None:
    """With `--no-loadscope-reorder` groups begin in the order of their first tests."""
    marked = [sorted(mark.args[0] for mark in item.iter_markers("xdist_group")) for item in items]
    groups = ["_".join(dict.fromkeys(names)) or item.nodeid for names, item in zip(marked, items, strict=True)]
    sizes, ranks = Counter(groups), {name: rank for rank, name in enumerate(_LONGEST)}
    order = sorted(range(len(items)), key=lambda at: (ranks.get(groups[at], len(ranks)), -sizes[groups[at]]))
    items[:] = [items[at] for at in order]


def _explores(item: pytest.Item) -> bool:
    """Tests whose examples are made up by hypothesis; others that draw have the mark."""
    return getattr(getattr(item, "obj", None), "is_hypothesis_test", False)


def _in_s3(item: pytest.Item) -> bool:
    """Tests with a real S3 server run in one process, and so on one server: six would do little else than be there."""
    return item.get_closest_marker("s3") is not None or "s3_server" in getattr(item, "fixturenames", ())


def _together(item: pytest.Item) -> str:
    """The group of tests that share fixtures of their module or folder: one process runs them, and makes these once.

    With `--dist loadgroup` each of six would. Fixtures with parameters are shared by the tests of one of them. Empty
    where there are none.
    """
    definitions = getattr(item, "_fixtureinfo", None)
    found = definitions.name2fixturedefs if definitions is not None else {}
    shared = sorted(name for name, known in found.items() if known and known[-1].scope in ("module", "package"))
    if not shared:
        return ""
    chosen = getattr(getattr(item, "callspec", None), "indices", {})
    return " ".join([item.nodeid.partition("::")[0], *(f"{name}-{chosen[name]}" for name in shared if name in chosen)])


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


# A shell without job control starts what runs in the background with SIGINT ignored, and children inherit that: the
# commands under test could not be interrupted.
signal.signal(signal.SIGINT, signal.default_int_handler)


_LOGGERS = [logging.getLogger(name) for name in ("jsbackup", "asyncio")]
_UNTOUCHED = [(logger.handlers[:], logger.level, logger.propagate) for logger in _LOGGERS]


@pytest.fixture(autouse=True)
def untouched_log() -> None:
    """A command that ran in the process of the tests, in one before or in a fixture of many, took the log over."""
    for logger, (handlers, level, propagate) in zip(_LOGGERS, _UNTOUCHED, strict=True):
        logger.handlers[:] = handlers
        logger.setLevel(level)
        logger.propagate = propagate


@pytest.fixture
def nats_server() -> Iterator[Callable[..., NatsServer]]:
    """`nats_server(version, **options)` → a running NatsServer; any number of them in one test."""
    with contextlib.ExitStack() as stack:

        def start(version: str, **options: Any) -> NatsServer:
            return stack.enter_context(NatsServer(version, **options))

        yield start


@pytest.fixture
def nats_cluster() -> Iterator[Callable[..., NatsCluster]]:
    """`nats_cluster(version, size, **options)` → a running NatsCluster with a meta leader."""
    with contextlib.ExitStack() as stack:

        def start(version: str, size: int = 3, **options: Any) -> NatsCluster:
            return stack.enter_context(NatsCluster(version, size, **options))

        yield start


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """A running S3 server, one for each test process: take a prefix or a bucket of your own."""
    with S3Server() as server:
        yield server
