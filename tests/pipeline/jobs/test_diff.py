"""`diff --spark-master`: the same document as without, whatever differs and whatever goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from jsbackup.pipeline.jobs.diff import SparkComparer
from jsbackup.pipeline.tasks import packing
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import Manifest, Result, Source
from jsbackup.repository.read.diff import DiffReport, DiffRun, diff_backups
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.backups import CREATED, FIRST, SECOND, store_opaque, store_stream
from tests.harness.batches import Message, some_messages
from tests.pipeline.places import Kept, keep
from tests.repository.read.test_diff import histories, stored

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]
Pair = tuple[list[Message], list[Message]]

ON_SPARK = ("--spark-master", "local[2]")


def _nobody() -> NoReturn:
    raise AssertionError("nothing has to be read")


@pytest.mark.by_turns
@settings(max_examples=3, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.lists(histories(), min_size=2, max_size=5), st.integers(100, 1000), st.sampled_from([0, 3, 10_000]))
def test_the_same_is_found_on_spark_as_here(
    spark: SparkSession,
    tmp_path_factory: pytest.TempPathFactory,
    pairs: list[Pair],
    segment_bytes: int,
    named: int,
) -> None:
    kept = keep(tmp_path_factory.mktemp("random"), {})
    objects = kept.repository.objects
    manifests = [
        Manifest(
            backup,
            CREATED,
            "t",
            Source(),
            Result.COMPLETE,
            tuple(
                replace(stored(objects, pair[side], size), name=f"S{number}")
                for number, (pair, size) in enumerate((pair, segment_bytes * (1 + side)) for pair in pairs)
            ),
        )
        for side, backup in enumerate((FIRST, SECOND))
    ]

    def run(compare: SparkComparer | None) -> DiffReport:
        return diff_backups(DiffRun(objects, lambda names: names, consumers=True, named=named), *manifests, compare)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "_LEAST_BYTES", 1000)
        assert run(SparkComparer(lambda: spark, kept.place, NullProgress())) == run(None)


def _two(folder: Path, *, encrypted: bool = False) -> Kept:
    """Two backups: A has lost, changed and got messages, B is the same, C is in the first alone, D is undecoded."""
    messages = some_messages(400, 100)
    kept = keep(folder, {"A": messages, "B": messages[:50], "C": messages[:9]}, encrypted=encrypted)
    repository = kept.repository
    changed = [m._replace(data=b"other") if n % 90 == 7 else m for n, m in enumerate(messages) if n % 100 != 9]
    changed += some_messages(5, 9, first=10_000)
    streams = (store_stream(repository.objects, "A", changed), kept.manifest.streams[1])
    first = kept.manifest
    if not encrypted:
        first, second = (
            Manifest(
                backup, CREATED, "t", Source(), Result.COMPLETE, (*some, store_opaque(repository.store, "D", data))
            )
            for backup, some, data in ((SECOND, first.streams, b"x" * 3000), (FIRST[:-1] + "9", streams, b"y" * 3000))
        )
        repository.commit(first)
        repository.commit(second)
    else:
        repository.commit(replace(first, id=SECOND, previous=FIRST, streams=streams))
    return kept


def _both_ways(typed: Type, *line: str | Path) -> tuple[int, dict[str, Any]]:
    """Exit code and document, which are the same on Spark, but for what executors did."""
    here, there = (typed("diff", *line, "--json", *more) for more in ((), ON_SPARK))
    theirs = {name: value for name, value in check("diff", there).items() if name != "spark"}
    assert (here.code, check("diff", here)) == (there.code, theirs)
    return here.code, here.document


def test_the_document_is_the_same(typed: Type, tmp_path: Path) -> None:
    kept = _two(tmp_path)
    sides = (SECOND, FIRST[:-1] + "9")
    code, document = _both_ways(typed, *sides, *kept.line, "--messages", "3")
    assert code == 13 and [one["name"] for one in document["failed"]] == ["D"]
    a, b, c = document["streams"]
    assert (a["added"], a["removed"], a["changed"], b["equal"], c["only_in"]) == (5, 4, 5, True, "a")
    assert len(a["messages"]) == 9
    text = typed("diff", *sides, "A", *kept.line, *ON_SPARK)
    assert text.code == 1 and text.out == typed("diff", *sides, "A", *kept.line).out and text.err == ""
    refs = kept.manifest.streams[0].segments
    for ref in refs:
        path = Path(kept.place.location) / ref.key
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    code, document = _both_ways(typed, *sides, "A", "B", "C", *kept.line)
    assert code == 14 and [one["name"] for one in document["failed"]] == ["A"]


def test_an_encrypted_repository_takes_its_key_to_the_executors(typed: Type, tmp_path: Path) -> None:
    kept = _two(tmp_path, encrypted=True)
    code, document = _both_ways(typed, FIRST, SECOND, *kept.line)
    assert (code, document["streams"][0]["changed"]) == (1, 5)
    code, document = _both_ways(typed, FIRST, SECOND, "-r", kept.place.location, "--writer-key", kept.writer_key or "")
    assert code == 12 and [one["name"] for one in document["failed"]] == ["A"]


def test_where_nothing_has_to_be_read_spark_is_not_started(tmp_path: Path, typed: Type) -> None:
    kept = keep(tmp_path, {"A": some_messages(20, 10)})
    run = DiffRun(kept.repository.objects, lambda names: names, consumers=True, named=5)
    nothing = replace(kept.manifest, streams=())
    report = diff_backups(run, kept.manifest, nothing, SparkComparer(_nobody, kept.place, NullProgress()))
    assert report.streams[0].messages.removed == 20
    done = typed("diff", "latest", "live", *kept.line, "-s", "nats://127.0.0.1:1", *ON_SPARK)
    assert done.code == 2 and "between two backups only" in done.err
