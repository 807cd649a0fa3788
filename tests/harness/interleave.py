"""The orders in which the store operations of several actors can happen: a small model checker.

An actor is a function of a store; it runs in a thread, but only ever one at a time, from one store operation to the
next. `explore` tries all orders with a few interruptions: each run begins anew with a prefix of choices, and states
that another order has led to (the same objects, the same answers to everybody) are not gone on from twice. `wander`
tries random ones, in which time passes too.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from jsbackup.errors import JsBackupError, StoreError
from jsbackup.stores.base import Data, ObjectInfo, Store
from jsbackup.stores.memory import MemoryStore

T = TypeVar("T")


class Abandoned(BaseException):
    """The run is over; the thread ends."""


@dataclass(slots=True)
class Actor:
    """`pending` is the operation that waits for its turn; `heard` all answers so far, which is all its state."""

    run: Callable[[Store], Any]
    pending: tuple[str, str] | None = None
    late_seconds: float = 0.0  # how long the pending operation has waited
    heard: list[str] = field(default_factory=list)
    turn: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    result: Any = None
    error: BaseException | None = None
    done: bool = False


class World:
    """One run: a store with a clock, and its actors. Keys outside of `places` matter to nobody else: no turns there."""

    def __init__(
        self,
        prepare: Callable[[MemoryStore], None],
        runs: Sequence[Callable[[World, Store], Any]],
        places: tuple[str, ...],
        halved: tuple[str, ...],
    ) -> None:
        self.now = 1000.0
        self.places = places
        self.halved = halved
        self.store = MemoryStore(lambda: self.now)
        prepare(self.store)
        self.switches = 0
        self.last: int | None = None
        self._waits = threading.Semaphore(0)
        self._over = False
        self.actors = [Actor(lambda store, run=run: run(self, store)) for run in runs]  # type: ignore[misc]
        self._threads = [threading.Thread(target=self._act, args=(number,), daemon=True) for number in range(len(runs))]
        for thread in self._threads:
            thread.start()
            self._wait()

    def step(self, number: int) -> None:
        """Let one actor do its pending operation and go on to the next."""
        self.switches += self._interrupts(number)
        self.last = number
        self.actors[number].turn.release()
        self._wait()

    def may_go_on(self, number: int, switches: int) -> bool:
        return not self.actors[number].done and self.switches + self._interrupts(number) <= switches

    def _interrupts(self, number: int) -> bool:
        return self.last not in (None, number) and not self.actors[self.last].done

    def jump(self, seconds: float) -> None:
        """Time passes, for everybody."""
        self.now += seconds
        for actor in self.actors:
            if actor.pending is not None:
                actor.late_seconds += seconds

    def state(self) -> object:
        objects = tuple((info.key, info.modified_seconds) for info in self.store.list())
        actors = tuple((tuple(actor.heard), actor.pending, actor.late_seconds, actor.done) for actor in self.actors)
        return objects, actors, self.switches, self.last

    def close(self) -> None:
        self._over = True
        for actor, thread in zip(self.actors, self._threads, strict=True):
            actor.turn.release(1000)
            thread.join()

    def gate(self, number: int, name: str, key: str, do: Callable[[], T]) -> T:
        """An operation of actor `number`: wait for the turn, do it, remember what came of it."""
        actor = self.actors[number]
        actor.pending, actor.late_seconds = (name, key), 0.0
        self._waits.release()
        actor.turn.acquire()
        if self._over:
            raise Abandoned
        actor.pending = None
        try:
            answer = do()
        except StoreError as error:
            actor.heard.append(f"{self.now} {error!r}")
            raise
        actor.heard.append(f"{self.now} {answer!r}")
        return answer

    def _act(self, number: int) -> None:
        actor = self.actors[number]
        try:
            actor.result = actor.run(_Gated(self, number))
        except Abandoned:
            return
        except JsBackupError as error:
            actor.error = error
        actor.done = True
        self._waits.release()

    def _wait(self) -> None:
        if not self._waits.acquire(timeout=30):
            raise TimeoutError("an actor hangs")


class _Gated(Store):
    """A store whose operations wait for their turn."""

    def __init__(self, world: World, number: int) -> None:
        self._world = world
        self.number = number
        self._store = world.store

    @property
    def location(self) -> str:
        return self._store.location

    def put(self, key: str, data: Data) -> None:
        self._gate("put", key, lambda: self._store.put(key, data))

    def get(self, key: str) -> bytes:
        return self._gate("get", key, lambda: self._store.get(key))

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        return self._gate("get_range", key, lambda: self._store.get_range(key, offset, length))

    def head(self, key: str) -> ObjectInfo:
        return self._gate("head", key, lambda: self._store.head(key))

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        # A listing is no snapshot: what changes behind the first half is seen, what changes before it is not. But that
        # makes many states, so only where it may matter.
        first = self._gate("list", prefix, lambda: list(self._store.list(prefix)))
        if len(first) < 2 or not prefix.startswith(self._world.halved):
            return iter(first)
        begin = first[: len(first) // 2]
        rest = self._gate("list on", prefix, lambda: [i for i in self._store.list(prefix) if i.key > begin[-1].key])
        return iter([*begin, *rest])

    def delete(self, key: str) -> None:
        self._gate("delete", key, lambda: self._store.delete(key))

    def is_temporary(self, error: StoreError) -> bool:
        return False

    def _gate(self, name: str, key: str, do: Callable[[], T]) -> T:
        return self._world.gate(self.number, name, key, do) if key.startswith(self._world.places) else do()


def explore(make: Callable[[], World], check: Callable[[World], None], *, switches: int) -> int:
    """Run all orders in which actors are interrupted up to `switches` times in favour of another one.

    `check` is called in every new state. Gives the number of states.
    """
    seen: set[object] = set()
    # Each entry is a run to be made: choices that lead to a state whose successors are not known yet.
    waiting: list[tuple[int, ...]] = [()]
    while waiting:
        choices = waiting.pop()
        world = make()
        try:
            for choice in choices:
                world.step(choice)
            while (state := world.state()) not in seen:
                seen.add(state)
                check(world)
                possible = [n for n in range(len(world.actors)) if world.may_go_on(n, switches)]
                if not possible:
                    break
                waiting += [(*choices, other) for other in possible[1:]]
                choices = (*choices, possible[0])
                world.step(possible[0])
        finally:
            world.close()
    return len(seen)


def wander(
    make: Callable[[], World],
    check: Callable[[World], None],
    *,
    runs: int,
    jump_seconds: float,
    latest_seconds: float,
) -> None:
    """Make runs in random orders, always the same ones, in which time jumps now and then.

    An operation that changes something never waits for longer than `latest_seconds`.
    """
    for seed in range(runs):
        chance = random.Random(seed)
        world = make()
        try:
            number = 0
            while possible := [n for n, actor in enumerate(world.actors) if not actor.done]:
                if number not in possible or chance.random() < 0.15:
                    number = chance.choice(possible)
                world.step(number)
                if chance.random() < 0.1 and _may_wait(world, jump_seconds, latest_seconds):
                    world.jump(jump_seconds)
                check(world)
        finally:
            world.close()


def _may_wait(world: World, jump_seconds: float, latest_seconds: float) -> bool:
    return all(
        actor.late_seconds + jump_seconds <= latest_seconds
        for actor in world.actors
        if actor.pending is not None and actor.pending[0] in ("put", "delete")
    )
