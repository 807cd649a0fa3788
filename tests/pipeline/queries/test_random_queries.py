"""Random queries of random backups, asked of DuckDB, of Spark and of plain Python; and statistics, by three ways.

A failure says the query, and the numbers that repeat it alone. `JSBACKUP_TEST_FUZZ_ROUNDS=50` asks that many backups
forty queries each; `JSBACKUP_TEST_SEED` draws others.
"""

from __future__ import annotations

import math
import os
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from jsbackup.pipeline.jobs.direct_stats import collect_stats_here
from jsbackup.pipeline.jobs.distribution import SizeClass, TimeBin
from jsbackup.pipeline.jobs.query import run_query
from jsbackup.pipeline.jobs.stats import collect_stats
from jsbackup.pipeline.jobs.stats_model import Sizes, StreamStats
from jsbackup.pipeline.messages import chosen
from jsbackup.pipeline.messages.backup_frames import open_backup
from jsbackup.pipeline.messages.chosen import ChosenBackup
from jsbackup.pipeline.queries.duckdb_query import run_duckdb_query
from tests.harness.batches import Message
from tests.pipeline.queries.random_backups import random_streams
from tests.pipeline.queries.random_sql import Queries, Query

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROUNDS = int(os.environ.get("JSBACKUP_TEST_FUZZ_ROUNDS", "0"))
SEED = os.environ.get("JSBACKUP_TEST_SEED", "1")

_DAILY_ROUNDS, _DAILY_QUERIES, _QUERIES = 4, 8, 40
_MOST_MESSAGES, _MOST_ROWS = 45, 100_000


def _canonical(value: Any) -> Any:
    """A value that is equal to others of its type only; numbers without a point are equal whatever their size is."""
    if isinstance(value, Decimal) and value == value.to_integral_value():
        return int, int(value)
    if isinstance(value, dict):
        return dict, frozenset(value.items())
    return type(value), value


def _differences(query: Query, found: list[tuple[Any, ...]]) -> list[str]:
    rows, wanted = ([tuple(map(_canonical, row)) for row in some] for some in (found, query.rows))
    if query.is_ordered:
        wrong = [f"row {n}: {a} is to be {b}" for n, (a, b) in enumerate(zip(rows, wanted, strict=False)) if a != b]
        return wrong[:5] + ([f"{len(rows)} rows, not {len(wanted)}"] if len(rows) != len(wanted) else [])
    more, less = Counter(rows) - Counter(wanted), Counter(wanted) - Counter(rows)
    return [f"too many: {one}" for one in list(more)[:3]] + [f"missing: {one}" for one in list(less)[:3]]


@pytest.mark.by_turns
@pytest.mark.timeout(300 + 60 * ROUNDS)
@pytest.mark.parametrize("number", range(ROUNDS or _DAILY_ROUNDS))
def test_duckdb_and_spark_find_what_python_finds(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    chance = random.Random(f"{SEED} {number}")
    backup = random_streams(chance, _MOST_MESSAGES)
    kept = backup.keep(tmp_path / "plain", chance.choice([600, 3000, 100_000]))
    if number % 2:  # as with many segments: our own readers, which skip by ranges
        monkeypatch.setattr(chosen, "_MANY", 0)
    places = {"Spark": kept}
    if number % 4 == 3:
        places["Spark, encrypted"] = backup.keep(tmp_path / "sealed", 3000, encrypted=True)
    here = ChosenBackup(kept.place, kept.manifest)
    frames = {name: open_backup(spark, one.place, one.manifest.id) for name, one in places.items()}
    queries = Queries(chance, backup.views(kept), is_text=backup.is_text)
    for count in range(_QUERIES if ROUNDS else _DAILY_QUERIES):
        query = queries.query()
        sql = query.sql('"')
        found = {"DuckDB": _asked(lambda: run_duckdb_query(here, sql, most_rows=_MOST_ROWS).rows)}  # noqa: B023
        for name, frame in frames.items():
            sql = query.sql("`")
            found[name] = _asked(lambda: run_query(frame, sql, most_rows=_MOST_ROWS).rows)  # noqa: B023
        wrong = {name: [rows] if isinstance(rows, str) else _differences(query, rows) for name, rows in found.items()}
        if any(wrong.values()):
            shown = "\n".join(f"{name}: {line}" for name, lines in wrong.items() for line in lines or ["right"])
            raise AssertionError(f"JSBACKUP_TEST_SEED={SEED}, backup {number}, query {count}\n{sql}\n{shown}")


def _asked(ask: Callable[[], list[tuple[Any, ...]]]) -> list[tuple[Any, ...]] | str:
    try:
        return ask()
    except Exception as error:  # noqa: BLE001
        return f"{type(error).__name__}: {error}"


# --- statistics ---


@pytest.mark.by_turns
@pytest.mark.timeout(300)
@pytest.mark.parametrize("number", range(ROUNDS or 2))
def test_statistics_are_those_of_python(spark: SparkSession, tmp_path: Path, number: int) -> None:
    chance = random.Random(f"statistics {SEED} {number}")
    backup = random_streams(chance, 200)
    kept = backup.keep(tmp_path, chance.choice([3000, 100_000]), encrypted=bool(number % 2))
    here = collect_stats_here(
        kept.repository, kept.manifest, kept.manifest.streams, most_subjects=1000, duplicates=True
    )
    frames = open_backup(spark, kept.place, kept.manifest.id)
    told = f"JSBACKUP_TEST_SEED={SEED}, backup {number}"
    for in_driver in (0, 100_000):
        found = collect_stats(frames, most_subjects=1000, duplicates=True, most_in_driver=in_driver)
        assert found == here, told
    for one, (name, messages) in zip(here, backup.streams.items(), strict=True):
        assert one.stream == name
        assert _facts(one) == _counted(messages, one.distribution.bucket_ns), f"{told}, stream {name}"


def _facts(one: StreamStats) -> dict[str, Any]:
    """What statistics say, as `_counted` has it."""
    assert one.subject_count == len(one.subjects)
    subjects = {s.subject: (s.messages, s.bytes, s.oldest_ns, s.newest_ns, s.sizes) for s in one.subjects}
    return {
        "whole": (one.messages, one.bytes, one.oldest_ns, one.newest_ns, one.sizes),
        "subjects": subjects,
        "in order": [(-s.bytes, -s.messages, s.subject) for s in one.subjects]
        == sorted((-s.bytes, -s.messages, s.subject) for s in one.subjects),
        "duplicates": one.duplicates,
        "buckets": one.distribution.buckets,
        "classes": one.distribution.classes,
        "largest": [(large.bytes, large.sequence) for large in one.distribution.largest],
    }


def _counted(messages: Sequence[Message], bucket_ns: int) -> dict[str, Any]:
    by_subject, buckets, classes = defaultdict(list), defaultdict(list), defaultdict(list)
    for one in messages:
        by_subject[one.subject].append(one)
        buckets[one.timestamp_ns // bucket_ns * bucket_ns].append(_size(one))
        classes[1 << (_size(one).bit_length() - 1)].append(_size(one))
    found = (re.search(rb"\r\n(?i:nats-msg-id):[ \t]*([^\r\n]+)", one.headers or b"") for one in messages)
    ids = [match[1] for match in found if match]
    return {
        "whole": _totals(messages),
        "subjects": {subject: _totals(some) for subject, some in by_subject.items()},
        "in order": True,
        "duplicates": len(ids) - len(set(ids)),
        "buckets": tuple(TimeBin(start, len(some), sum(some)) for start, some in sorted(buckets.items())),
        "classes": tuple(SizeClass(least, len(some), sum(some)) for least, some in sorted(classes.items())),
        "largest": sorted(((_size(m), m.sequence) for m in messages), key=lambda one: (-one[0], one[1]))[:5],
    }


def _totals(messages: Sequence[Message]) -> tuple[int, int, int, int, Sizes]:
    if not messages:
        return 0, 0, 0, 0, Sizes()
    sizes, times = sorted(map(_size, messages)), [one.timestamp_ns for one in messages]
    percentiles = (sizes[math.ceil(len(sizes) * percent / 100) - 1] for percent in (50, 90, 99, 100))
    return len(sizes), sum(sizes), min(times), max(times), Sizes(*percentiles)


def _size(one: Message) -> int:
    """Raw bytes, as `formats/digest.py` has them: five numbers, seven bits to a byte, and three texts."""
    texts = [str(one.subject).encode(), one.headers or b"", one.data]
    zigzag = one.timestamp_ns * 2 if one.timestamp_ns >= 0 else -one.timestamp_ns * 2 - 1
    numbers = [zigzag, one.sequence, *map(len, texts)]
    return sum(max(1, -(-number.bit_length() // 7)) for number in numbers) + sum(map(len, texts))
