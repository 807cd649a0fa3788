"""What queries and statistics cost on a stream of many segments: `scripts/bench segments --segments 300k`.

The repository is made here, without a server: segments of a few short messages, which cost as much to list, to open and
to check as large ones. Each command then runs as users run it:

    wall time, and the processor's seconds of all its processes: the command, Java and the Python workers of Spark
    peak memory of the command's own process, of Java, and of the largest worker

The clock says something only on a quiet machine; the load at the beginning is printed beside it. A folder that is given
keeps the repository, and another run uses it again.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path

import pyarrow as pa

from jsbackup.formats.batch import BATCH_SCHEMA
from jsbackup.model import StreamState
from jsbackup.repository import layout
from jsbackup.repository.manifest import (
    ArchiveFormat,
    BackupResult,
    Captured,
    Manifest,
    SegmentRef,
    Source,
    StreamBackup,
    total_of,
)
from jsbackup.repository.objects import Objects
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.stores import posix
from jsbackup.stores.local import LocalStore
from jsbackup.times import format_time
from jsbackup.tool import TOOL
from scripts.bench_load import Text
from scripts.bench_tables import markdown
from tests.harness.commands import command_line, environment

__all__ = ["MESSAGES_PER_SEGMENT", "Cost", "fabricate", "measured"]

STREAM = "ORDERS"
MESSAGES_PER_SEGMENT = 4
_MESSAGE_BYTES = 300
_INCARNATION = "1a2b3c4d"
_FIRST_NS = 1_790_000_000 * 10**9
_EVERY_NS = 250_000_000  # from one message to the next
_PROCESSES = max(2, len(os.sched_getaffinity(0)))
_LOOK_SECONDS = 0.1
_TICKS = os.sysconf("SC_CLK_TCK")

HEAD = ("command", "seconds", "load", "processor", "driver MiB", "Java MiB", "worker MiB")


# --- the repository ---


def fabricate(folder: Path, segments: int) -> None:
    """Make a repository with one backup of one stream of so many segments. Nothing is flushed to the disk."""
    posix.fsync = lambda _file: None
    now = format_time(time.time_ns())
    repository = Repository.create(
        LocalStore(folder), repository_id=secrets.token_hex(16), created=now, tool=TOOL, segment_bytes=4096
    )
    step = max(1, min(1000, segments // _PROCESSES))
    ranges = [(folder, first, min(first + step, segments)) for first in range(0, segments, step)]
    # Not forked: threads of pyarrow do not survive that.
    with ProcessPoolExecutor(_PROCESSES, mp_context=get_context("spawn")) as pool:
        refs = tuple(ref for found in pool.map(_store, ranges) for ref in found)
    total = total_of(refs)
    stream = StreamBackup(
        name=STREAM,
        incarnation=_INCARNATION,
        config={"name": STREAM, "subjects": [f"{STREAM}.>"]},
        created=now,
        state=StreamState(messages=total.messages, first_seq=total.first_seq, last_seq=total.last_seq),
        captured=Captured.of(total, now, now),
        archive_format=ArchiveFormat.MESSAGES,
        digest=total.digest,
        segments=refs,
    )
    backup = layout.backup_id(time.time_ns(), secrets.token_bytes(3))
    repository.commit(Manifest(backup, now, TOOL, Source("2.15.3"), BackupResult.COMPLETE, (stream,)))


def _store(piece: tuple[Path, int, int]) -> list[SegmentRef]:
    posix.fsync = lambda _file: None
    folder, first, end = piece
    objects, text = Repository.open(LocalStore(folder)).objects, Text(length=1 << 20)
    stream = layout.stream_folder(STREAM, _INCARNATION)
    return [ref for number in range(first, end) for ref in _segment(objects, stream, number, text)]


def _segment(objects: Objects, stream: str, number: int, text: Text) -> list[SegmentRef]:
    sequences = range(number * MESSAGES_PER_SEGMENT + 1, (number + 1) * MESSAGES_PER_SEGMENT + 1)
    columns = (
        list(sequences),
        [_FIRST_NS + sequence * _EVERY_NS for sequence in sequences],
        [f"{STREAM}.{sequence % 100}" for sequence in sequences],
        [None] * MESSAGES_PER_SEGMENT,
        [text.record(sequence, _MESSAGE_BYTES) for sequence in sequences],
    )
    arrays = [pa.array(column, field.type) for column, field in zip(columns, BATCH_SCHEMA, strict=True)]
    with closing(SegmentWriter(objects, stream)) as writer:
        writer.add(pa.RecordBatch.from_arrays(arrays, schema=BATCH_SCHEMA))
        return writer.finish()


# --- what commands cost ---


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took. Memory is 0 where no process of the kind was seen. `failed` says what went wrong."""

    command: str
    seconds: float
    load: float
    processor_seconds: float
    driver_bytes: int
    java_bytes: int
    worker_bytes: int
    failed: str = ""

    @property
    def cells(self) -> tuple[str, ...]:
        if self.failed:
            return (self.command, self.failed, *("" for _ in HEAD[2:]))
        sizes = (f"{size / 2**20:.0f}" for size in (self.driver_bytes, self.java_bytes, self.worker_bytes))
        return (self.command, f"{self.seconds:.1f}", f"{self.load:.1f}", f"{self.processor_seconds:.1f}", *sizes)


class _Watch:
    """Looks at a process and those below it, until it ends."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self.ticks: dict[int, int] = {}
        self.peaks: dict[int, int] = {}
        self.names: dict[int, str] = {}
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(_LOOK_SECONDS):
            waiting = [self._pid]
            while waiting:
                pid = waiting.pop()
                try:
                    folder = Path(f"/proc/{pid}")
                    name, _, rest = (folder / "stat").read_text().partition("(")[2].rpartition(")")
                    user, system = rest.split()[11:13]
                    self.names[pid], self.ticks[pid] = name, int(user) + int(system)
                    for line in (folder / "status").read_text().splitlines():
                        if line.startswith("VmHWM:"):
                            self.peaks[pid] = int(line.split()[1]) * 1024
                    for task in (folder / "task").iterdir():
                        waiting += map(int, (task / "children").read_text().split())
                except OSError:
                    continue  # it has ended

    def peak(self, *, java: bool) -> int:
        found = [peak for pid, peak in self.peaks.items() if pid != self._pid and (self.names[pid] == "java") is java]
        return max(found, default=0)


def measured(name: str, words: Sequence[str], limit_seconds: float, variables: Mapping[str, str]) -> Cost:
    """Run a command, which is ended after so many seconds."""
    load, began = os.getloadavg()[0], time.perf_counter()
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(
            command_line(*words, "--no-progress"),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            env=environment(XDG_CONFIG_HOME="/nonexistent", **variables),
        )
        watch, failed = _Watch(process.pid), ""
        try:
            process.wait(limit_seconds)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()
            failed = f"more than {limit_seconds:.0f} s"
        seconds = time.perf_counter() - began
        watch.close()
        said.seek(0)
        text = said.read().decode(errors="replace")
    if process.returncode and not failed:
        print(f"{name} ended with {process.returncode}: {text[-2000:]}", file=sys.stderr)
        failed = f"ended with {process.returncode}"
    busy = sum(watch.ticks.values()) / _TICKS
    driver = watch.peaks.get(process.pid, 0)
    return Cost(name, seconds, load, busy, driver, watch.peak(java=True), watch.peak(java=False), failed)


def costs(folder: Path, segments: int, limit_seconds: float, only: str) -> Iterator[Cost]:
    """Run each command whose name contains `only`."""
    middle = segments * MESSAGES_PER_SEGMENT // 2
    at = (_FIRST_NS + middle * _EVERY_NS) // 10**9
    hour = f"time >= to_timestamp({at}) AND time < to_timestamp({at + 3600})"
    spark_hour = hour.replace("to_timestamp", "timestamp_seconds")
    queries = {
        "all": f"SELECT count(*) FROM {STREAM}",
        "one sequence": f"SELECT count(*) FROM {STREAM} WHERE sequence = {middle}",
        "one hour": f"SELECT count(*) FROM {STREAM} WHERE {hour}",
        "a subject": f"SELECT count(*) FROM {STREAM} WHERE subject = '{STREAM}.7'",
        "text": f"SELECT count(*) FROM {STREAM} WHERE text LIKE '%7%'",
    }
    commands: dict[str, list[str]] = {}
    for engine in ("duckdb", "spark"):
        for what, sql in queries.items():
            typed = sql.replace(hour, spark_hour) if engine == "spark" else sql
            there = ["--spark", "local"] if engine == "spark" else []
            commands[f"query count of {what}, {engine}"] = ["query", "latest", typed, *there]
    commands["stats"] = ["stats", "latest"]
    commands["stats on Spark"] = ["stats", "latest", "--spark", "local"]
    for name, words in commands.items():
        if only in name:
            yield measured(name, [*words, "-r", str(folder)], limit_seconds, {})


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench segments", description=__doc__)
    parser.add_argument("--segments", default="300k", help="how many, such as 300k")
    parser.add_argument("--folder", type=Path, help="where the repository is kept; it is made if it is not there")
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a command is ended")
    parser.add_argument("--only", default="", help="only commands whose name contains this")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    asked = parser.parse_args()
    text = asked.segments
    segments = int(float(text.removesuffix("k")) * (1000 if text.endswith("k") else 1))
    with ExitStack() as stack:
        folder = asked.folder or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-segments-")))
        repository = folder / f"{segments}"
        if not repository.exists():
            began = time.monotonic()
            fabricate(repository, segments)
            print(f"{segments:,} segments after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
        rows = []
        if not asked.json:
            print(markdown(HEAD), markdown(["---"] * len(HEAD)), sep="\n", flush=True)
        for cost in costs(repository, segments, asked.limit, asked.only):
            rows.append(asdict(cost))
            if not asked.json:
                print(markdown(cost.cells), flush=True)
        if asked.json:
            print(json.dumps({"segments": segments, "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
