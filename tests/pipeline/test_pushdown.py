"""A query for one hour reads the segments that may hold it, and no others: in bytes that leave the store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from jsbackup.formats import segment
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.backup_frames import open_backup
from tests.cli.typed import Typed
from tests.harness import backups
from tests.harness.batches import Message, some_messages
from tests.harness.proxy import Direction, Proxy
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

GROUP = 256 << 10
SEGMENT = 8 * GROUP
START = datetime(2026, 11, 20, tzinfo=UTC)


def _day() -> list[Message]:
    """24 hours, 12 MiB: one message of 4 KiB in 30 seconds; subjects of six tenants by turns, one has a few alone."""
    first_ns = int(START.timestamp()) * 10**9
    found = []
    for number, message in enumerate(some_messages(2880, 4096)):
        subject = "orders.rare" if number % 960 == 5 else f"orders.{number % 6}"
        found.append(message._replace(timestamp_ns=first_ns + number * 30 * 10**9, subject=subject, headers=None))
    return found


DAY = _day()
HOUR = f"time >= timestamp'{START + timedelta(hours=7)}' AND time < timestamp'{START + timedelta(hours=8)}'"
IN_HOUR = [m for m in DAY if 7 <= (m.timestamp_ns // 10**9 - START.timestamp()) / 3600 < 8]

# A segment, of messages that cannot be compressed.
LARGEST = SEGMENT + (64 << 10)
# What is read beside objects: the repository's own documents, by each process that opens it, and what HTTP says.
BESIDE = 200 << 10


@dataclass(frozen=True, slots=True)
class Metered:
    """A repository in S3, behind a proxy that counts."""

    kept: Kept
    proxy: Proxy

    def read_by(self, doing: Callable[[], object]) -> int:
        before = self.proxy.passed[Direction.TO_CLIENT]
        doing()
        return self.proxy.passed[Direction.TO_CLIENT] - before


@pytest.fixture(scope="module")
def metered(s3_server: S3Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Metered]:
    with pytest.MonkeyPatch.context() as patch, Proxy(s3_server.port) as proxy:
        for name, value in s3_server.credentials().items():
            patch.setenv(name, value)
        patch.setattr(segment, "BATCH_BYTES", GROUP)
        patch.setattr(backups, "SEGMENT_BYTES", SEGMENT)
        s3 = S3Settings(endpoint=f"http://127.0.0.1:{proxy.port}", region=REGION)
        kept = keep(tmp_path_factory.mktemp("metered"), {"ORDERS": DAY}, s3=s3, location=f"s3://{BUCKET}/metered")
        assert len(kept.manifest.streams[0].segments) >= 6
        yield Metered(kept, proxy)


def _query(metered: Metered, typed: Type, where: str) -> tuple[int, int]:
    """What `query` counts, and bytes read."""
    s3 = metered.kept.place.s3
    options = ["--s3-endpoint", str(s3.endpoint), "--s3-region", REGION]
    line = ["query", "latest", f"SELECT count(*), sum(length(data)) FROM orders WHERE {where}", "--json"]
    done: list[Typed] = []
    read = metered.read_by(lambda: done.append(typed(*line, *metered.kept.line, *options)))
    assert done[0].code == 0, done[0].err
    return done[0].document["rows"][0][0], read


@pytest.mark.by_turns
@pytest.mark.s3
def test_a_query_for_one_hour_reads_the_segments_of_that_hour(metered: Metered, typed: Type) -> None:
    size = sum(ref.size for ref in metered.kept.manifest.streams[0].segments)
    assert size > 11_000_000
    found, read = _query(metered, typed, "length(data) > 0")
    assert found == len(DAY) and read > size
    # An hour is 480 KiB, in two segments at most; each is read whole, because only so it is known to be the stored one.
    found, read = _query(metered, typed, f"subject = 'orders.3' AND {HOUR}")
    assert found == sum(m.subject == "orders.3" for m in IN_HOUR) > 10
    assert read < 2 * LARGEST + BESIDE < size / 2
    # Bounds of segments do not say what subjects they have.
    found, read = _query(metered, typed, "subject = 'orders.rare'")
    assert found == 3 and size < read < size + BESIDE
    found, read = _query(metered, typed, "sequence = -1 AND subject LIKE 'orders.%'")
    assert (found, read < BESIDE) == (0, True)


@pytest.mark.s3
def test_messages_are_counted_without_reading_them(metered: Metered, typed: Type) -> None:
    s3 = metered.kept.place.s3
    line = ["query", "latest", "SELECT count(*) FROM orders", "--json", *metered.kept.line]
    done: list[Typed] = []
    read = metered.read_by(lambda: done.append(typed(*line, "--s3-endpoint", str(s3.endpoint), "--s3-region", REGION)))
    assert done[0].document["rows"] == [[len(DAY)]]
    assert read < BESIDE


@pytest.mark.by_turns
@pytest.mark.s3
def test_the_data_source_reads_the_segments_that_filters_leave(spark: SparkSession, metered: Metered) -> None:
    backup = open_backup(spark, metered.kept.place)
    middle = DAY[1700]
    for where, wanted, segments in (
        (f"sequence = {middle.sequence}", [middle], 1),
        (f"timestamp_ns = {middle.timestamp_ns}", [middle], 1),
        (f"sequence > {DAY[-3].sequence}", DAY[-2:], 1),
        (f"subject LIKE 'orders.r%' AND sequence <= {DAY[960].sequence}", [DAY[5]], 2),
        (f"subject IN ('orders.rare', 'x') AND sequence <= {DAY[480].sequence}", [DAY[5]], 1),
        (f"stream = 'OTHER' OR sequence = {middle.sequence}", [middle], 100),
        ("stream = 'OTHER'", [], 0),
    ):
        found: list[int] = []

        def run(where: str = where, found: list[int] = found) -> None:
            frame = backup.messages(["ORDERS"], pushdown=True)
            found += [row.sequence for row in frame.where(where).select("sequence", "data").collect()]

        read = metered.read_by(run)
        assert found == [m.sequence for m in wanted], where
        assert read < segments * LARGEST + BESIDE, where
