"""Random histories of a server, its backups and tables of them that `export --append` extends, in any order.

The rows of the tables are compared with what was published, and what each export says with what it did. A failure
prints the history, without the steps that it does not need. `JSBACKUP_TEST_FUZZ_ROUNDS=1000` runs that many of each
format; with `JSBACKUP_TEST_SEED=7` they are others.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.pipeline.tables import export as exporting
from jsbackup.pipeline.tables.writing import TableFormat
from tests.harness.commands import environment
from tests.pipeline.appends.append_checks import Checked
from tests.pipeline.appends.append_world import NAMES, SUBJECTS, Backup, Target, World
from tests.pipeline.appends.store_faults import Fault

pytestmark = [pytest.mark.slow, pytest.mark.by_turns]

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")

_DAILY_ROUNDS = 6
_MOST_TRIES = 150  # to find a shorter history
_FILE_BYTES = 1000  # of messages: tables have several files


@dataclass(frozen=True, slots=True)
class Publish:
    stream: int
    count: int


@dataclass(frozen=True, slots=True)
class Delete:
    stream: int
    place: int
    count: int


@dataclass(frozen=True, slots=True)
class Purge:
    stream: int
    subject: str | None = None
    share: float = 1


@dataclass(frozen=True, slots=True)
class Remove:
    stream: int


@dataclass(frozen=True, slots=True)
class Recreate:
    stream: int


@dataclass(frozen=True, slots=True)
class Begin:
    pass


@dataclass(frozen=True, slots=True)
class BackUp:
    streams: tuple[int, ...] = ()
    begun: bool = False


@dataclass(frozen=True, slots=True)
class Forget:
    backup: int
    prune: bool = False


@dataclass(frozen=True, slots=True)
class Compact:
    backup: int


@dataclass(frozen=True, slots=True)
class Export:
    """`backup` counts from the newest; None is `latest`."""

    backup: int | None = None
    streams: tuple[int, ...] = ()
    skip_gaps: bool = False
    obey: bool = False
    table: int = 0


@dataclass(frozen=True, slots=True)
class Interrupted:
    """An export that a fault interrupts, and the same again."""

    fault: int
    is_late: bool = False
    is_hard: bool = False
    backup: int | None = None
    streams: tuple[int, ...] = ()
    table: int = 0


Step = Publish | Delete | Purge | Remove | Recreate | Begin | BackUp | Forget | Compact | Export | Interrupted


def _history(chance: random.Random) -> list[Step]:
    """Tables of all streams, and then anything."""
    begin: list[Step] = [Publish(number, chance.randint(1, 20)) for number in range(len(NAMES))]
    begin += [BackUp(), Export(), *([Export(table=chance.choice([1, 2]))] if chance.random() < 0.3 else [])]
    return [*begin, *(_step(chance) for _ in range(chance.randint(10, 50)))]


def _step(chance: random.Random) -> Step:
    def often(share: float) -> bool:
        return chance.random() < share

    stream, backup, table = chance.randrange(len(NAMES)), chance.randrange(5), chance.choice([0, 0, 0, 1, 2])
    some = tuple(sorted(chance.sample(range(len(NAMES)), chance.randint(1, 2))))
    chosen = some if often(0.4) else ()
    named = None if often(0.4) else backup
    kinds: list[tuple[float, Callable[[], Step]]] = [
        (10, lambda: Publish(stream, chance.randint(1, 20))),
        (3, lambda: Delete(stream, chance.randint(-3, 12), chance.randint(1, 6))),
        (7, lambda: Purge(stream, chance.choice([None, *SUBJECTS]), chance.choice([1, 0.5, 0.9]))),
        (0.2, lambda: Remove(stream)),
        (0.1, lambda: Recreate(stream)),
        (3, Begin),
        (9, lambda: BackUp(some if often(0.12) else (), often(0.5))),
        (2, lambda: Forget(backup, often(0.3))),
        (1, lambda: Compact(backup)),
        (6, lambda: Export(named, chosen, often(0.25), often(0.4), table)),
        (1, lambda: Interrupted(int(chance.expovariate(0.1)), often(0.5), often(0.3), named, chosen, table)),
    ]
    (_, make), *_ = chance.choices(kinds, [weight for weight, _ in kinds])
    return make()


def _run(folder: Path, kind: TableFormat, history: Sequence[Step]) -> None:
    world = World(folder)
    tables = [
        Checked(world, Target(folder / "all", kind)),
        Checked(world, Target(folder / "some", kind, "a.>")),
        Checked(world, Target(folder / "divided", kind, "a.>", is_divided=True)),
    ]
    for step in history:
        match step:
            case Publish(stream, count):
                world.publish(stream, count)
            case Delete(stream, place, count):
                world.delete(stream, place, count)
            case Purge(stream, subject, share):
                world.purge(stream, subject=subject, share=share)
            case Remove(stream):
                world.streams.pop(NAMES[stream], None)
            case Recreate(stream):
                world.create(stream)
            case Begin():
                world.begin()
            case BackUp(streams, begun):
                world.back_up(streams, begun=begun)
            case _ if not world.backups:
                continue
            case Forget(backup, prune):
                world.forget(_from_newest(world, backup), prune=prune)
            case Compact(backup):
                world.compact(_from_newest(world, backup))
            case Export(backup, streams, skip_gaps, obey, table):
                named = "latest" if backup is None else _from_newest(world, backup).id
                chosen = [NAMES[number] for number in streams]
                tables[table].export(named, chosen, skip_gaps=skip_gaps, obey=obey)
            case Interrupted(number, is_late, is_hard, backup, streams, table):
                named = "latest" if backup is None else _from_newest(world, backup).id
                chosen = [NAMES[number] for number in streams]
                tables[table].export_interrupted(named, chosen, Fault(number, is_late, is_hard))


def _from_newest(world: World, number: int) -> Backup:
    return world.backups[-1 - number % len(world.backups)]


def _failure(kind: TableFormat, history: Sequence[Step]) -> Exception | None:
    with tempfile.TemporaryDirectory() as folder:
        try:
            _run(Path(folder), kind, history)
        except Exception as error:  # noqa: BLE001 - a bug of the command, or what is asserted
            return error
    return None


def _shortened(kind: TableFormat, history: Sequence[Step]) -> list[Step]:
    """Leave out what it fails without."""
    found, tries, before = list(history), 0, -1
    while len(found) != before and tries < _MOST_TRIES:
        before = len(found)
        for at in reversed(range(len(found))):
            shorter = found[:at] + found[at + 1 :]
            tries += 1
            if _failure(kind, shorter) is not None:
                found = shorter
    return found


@pytest.fixture(autouse=True)
def _as_typed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands run in this process, in the environment of commands under test, and make several files of a table."""
    for name in [name for name in os.environ if name.startswith(("JSBACKUP_", "NATS_"))]:
        monkeypatch.delenv(name)
    for name, value in environment().items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(exporting, "SEGMENT_BYTES", _FILE_BYTES)


@pytest.mark.parametrize("kind", [TableFormat.PARQUET, TableFormat.DELTA, TableFormat.ICEBERG])
def test_tables_have_what_backups_had(kind: TableFormat) -> None:
    for number in range(ROUNDS or _DAILY_ROUNDS):
        history = _history(random.Random(f"{kind} {SEED} {number}"))
        if _failure(kind, history) is not None:
            shorter = _shortened(kind, history)
            steps = "".join(f"\n    {step}," for step in shorter)
            raise AssertionError(f"history {number} of seed {SEED}:{steps}") from _failure(kind, shorter)


@pytest.mark.parametrize("skip_gaps", [False, True])
def test_a_backup_that_began_later_may_have_read_a_stream_earlier(tmp_path: Path, skip_gaps: bool) -> None:
    """What only that one has is not "in no backup"."""
    start: list[Step] = [Publish(0, 5), BackUp(), Export(), Begin(), Publish(0, 5), BackUp(), Purge(0), Publish(0, 5)]
    _run(tmp_path, TableFormat.PARQUET, [*start, BackUp(begun=True), Export(1, (0,), skip_gaps, obey=True)])
