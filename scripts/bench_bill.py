"""What a repository in S3 asks of it, for a table of costs: `scripts/bench bill`.

Two repositories of different size are made by real backups of a real server into SeaweedFS, in segments of 64 KiB, each
with all that a bill has: the first backup, backups each night of one percent that is new, `follow`, a prune, a restore.
Counted are HTTP requests (`bench_counted.py`). Each count is a line through the two sizes, read off at a terabyte and
at ten: there segments have 32 MiB, and what is asked for each of them is the same. Segments' own bytes are left out of
the counts and put in again as the terabytes they are.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jsbackup.repository.layout import SEGMENTS, ObjectKind, kind_of
from scripts.bench_load import Text, request
from scripts.bench_repositories import MESSAGE_BYTES, Extent
from scripts.bench_scale import KINDS, Commands, Cost, Scene, follow_cost, publish
from scripts.bench_tables import markdown
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import BUNDLED, NatsServer

__all__: list[str] = []

STREAM = "S00000"  # as `stream_names` calls the first
SEGMENT_BYTES = 64 << 10
NIGHTS = 14
FORGOTTEN = 10
SHORT_NIGHTS = 2  # then two backups are forgotten
REAL_SEGMENT_BYTES = 32 << 20
TERABYTES = (1, 10)
YEAR_SECONDS = 365 * 86_400
FOLLOW_SECONDS = 2
# Amazon S3 Standard in us-east-1: dollars for a request, and for a gigabyte moved out of the region.
PRICES = {"put": 5e-6, "list": 5e-6, "other": 0.4e-6, "get": 0.4e-6, "head": 0.4e-6, "delete": 0.0}


@dataclass(frozen=True, slots=True)
class Asked:
    """Requests by kind, and bytes beside those of segments, of a command. Floats where they are read off a line."""

    requests: Mapping[str, float]
    read_bytes: float
    written_bytes: float

    @classmethod
    def of(cls, cost: Cost, *, read: int = 0, written: int = 0) -> Asked:
        """What a command cost, without these bytes of segments."""
        if cost.failed:
            raise RuntimeError(f"{cost.command}: {cost.failed}")
        return cls(cost.requests, cost.read_bytes - read, cost.written_bytes - written)

    def times(self, factor: float) -> Asked:
        requests = {kind: count * factor for kind, count in self.requests.items()}
        return Asked(requests, self.read_bytes * factor, self.written_bytes * factor)

    @property
    def dollars(self) -> float:
        return sum(PRICES[kind] * count for kind, count in self.requests.items())


@dataclass(frozen=True, slots=True)
class Measured:
    """A repository of so many segments, and what each command asked."""

    segments: int
    asked: Mapping[str, Asked]


def on_a_line(small: Measured, large: Measured, name: str, segments: float) -> Asked:
    """What a command would ask at so many segments."""
    part = (segments - small.segments) / (large.segments - small.segments)

    def read_off(one: float, other: float) -> float:
        return one + (other - one) * part if other > one else max(one, other)

    first, second = small.asked[name], large.asked[name]
    return Asked(
        {kind: read_off(first.requests.get(kind, 0), second.requests.get(kind, 0)) for kind in KINDS},
        read_off(first.read_bytes, second.read_bytes),
        read_off(first.written_bytes, second.written_bytes),
    )


def measure(segments: int, nights: int, store: S3Server, folder: Path) -> Measured:
    """Make a repository of about so many segments, and run everything on it."""
    name = f"bill-{segments}"
    repo = f"s3://{BUCKET}/{name}"
    commands = Commands(store.environment, folder, 600)
    text = Text()
    with NatsServer(BUNDLED) as server, NatsServer(BUNDLED) as target:
        request(server.url, f"STREAM.CREATE.{STREAM}", {"name": STREAM, "subjects": [f"{STREAM}.>"]})
        publish(server.url, STREAM, segments * SEGMENT_BYTES // MESSAGE_BYTES, text)
        commands.run("init", "-r", repo, "--segment-size", f"{SEGMENT_BYTES >> 10}KiB")
        source = ("-s", server.url, "-r", repo)
        first, _ = commands.cost("first backup", "backup", *source)
        made, stored = _stored(store, name)
        asked = {"first": Asked.of(first, written=stored)}
        for _ in range(nights):
            publish(server.url, STREAM, made * SEGMENT_BYTES // MESSAGE_BYTES // 100, text)
            _, before = _stored(store, name)
            night, _ = commands.cost("a night", "backup", *source)
            # What is read is the last segment, which new messages are joined to.
            asked["night"] = Asked.of(night, read=night.read_bytes, written=_stored(store, name)[1] - before)
        restored, _ = commands.cost("a restore", "restore", "latest", "-s", target.url, "-r", repo)
        asked["restore"] = Asked.of(restored, read=_stored(store, name)[1])
        scene = Scene(commands, repo, server, target, Extent(segments, 1, nights + 1), text, ("", ""))
        followed = follow_cost(scene, 20)
        asked["follow"] = Asked.of(followed, read=followed.read_bytes, written=followed.written_bytes)
        listed = sorted(commands.run("list", "-r", repo)["backups"], key=lambda one: str(one["created"]))
        oldest = [one["backup"] for one in listed[: FORGOTTEN if nights >= NIGHTS else 2]]
        pruned, _ = commands.cost("a prune", "forget", *oldest, "--prune", "--grace", "0s", "-r", repo)
        asked["prune"] = Asked.of(pruned)
    return Measured(made, asked)


def _stored(store: S3Server, name: str) -> tuple[int, int]:
    """How many segments the repository of this name has, and their bytes."""
    pages = store.client.get_paginator("list_objects_v2").paginate(Bucket=BUCKET, Prefix=f"{name}/{SEGMENTS}")
    objects = (found for page in pages for found in page.get("Contents", []))
    sizes = [int(one["Size"]) for one in objects if kind_of(one["Key"].partition("/")[2]) is ObjectKind.SEGMENT]
    return len(sizes), sum(sizes)


def bill(small: Measured, large: Measured) -> list[dict[str, Any]]:
    """The rows of the table."""
    rows = []
    commit = large.asked["follow"]  # the same whatever is stored
    for terabytes in TERABYTES:
        segments = terabytes * 10**12 / REAL_SEGMENT_BYTES
        stored = terabytes * 1e12

        def at(name: str, times: float = 1.0, segments: float = segments) -> Asked:
            return on_a_line(small, large, name, segments).times(times)

        for what, asked, read, written in (
            ("the first backup", at("first"), 0.0, stored),
            ("a backup each night, 1 % of it new: a year", at("night", 365), 0.0, stored * 0.01 * 365),
            ("`follow`, a backup every two seconds: a year", commit.times(YEAR_SECONDS / FOLLOW_SECONDS), 0.0, 0.0),
            ("`follow --every 1m`: a year", commit.times(YEAR_SECONDS / 60), 0.0, 0.0),
            ("`forget --prune` of ten backups", at("prune"), 0.0, 0.0),
            ("a restore of everything", at("restore"), stored, 0.0),
        ):
            rows.append(
                {
                    "terabytes": terabytes,
                    "what": what,
                    "requests": {kind: round(asked.requests.get(kind, 0)) for kind in KINDS},
                    "read_bytes": round(asked.read_bytes),
                    "written_bytes": round(asked.written_bytes),
                    "segments_read_bytes": round(read),
                    "segments_written_bytes": round(written),
                    "dollars": round(asked.dollars, 4),
                }
            )
    return rows


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the bill as Markdown."""
    lines = [
        markdown(["TB", "", "put and list", "get and head", "read", "written", "dollars"]),
        markdown(["---:", "---", "---:", "---:", "---:", "---:", "---:"]),
    ]
    for row in rows:
        dear = sum(row["requests"][kind] for kind in ("put", "list"))
        cheap = sum(row["requests"][kind] for kind in ("get", "head", "other"))
        read, written = (_size(row, way) for way in ("read", "written"))
        dollars = f"{row['dollars']:,.{0 if row['dollars'] >= 10 else 2 if row['dollars'] >= 0.01 else 3}f}"
        lines.append(markdown([str(row["terabytes"]), row["what"], f"{dear:,}", f"{cheap:,}", read, written, dollars]))
    return "\n".join(lines)


def _size(row: Mapping[str, Any], way: str) -> str:
    """Bytes of segments, and of all else."""
    segments, rest = row[f"segments_{way}_bytes"], row[f"{way}_bytes"]
    return f"{_decimal(segments)} + {_decimal(rest)}" if segments else _decimal(rest) if rest >= 1000 else ""


def _decimal(size: float) -> str:
    for unit, factor in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if size >= factor:
            return f"{size / factor:,.{0 if size >= 100 * factor else 1}f} {unit}"
    return f"{size / 1e3:,.0f} kB"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench bill", description=__doc__)
    parser.add_argument("--segments", default="400,2000", help="of the two repositories, such as 400,2000")
    parser.add_argument("--short", action="store_true", help="100 and 200 segments: a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of the table")
    asked = parser.parse_args()
    sizes = [100, 200] if asked.short else [int(one) for one in asked.segments.split(",")]
    if len(sizes) != 2 or not 100 <= sizes[0] < sizes[1]:
        parser.error("--segments takes two numbers, the second one larger, and 100 or more")
    measured = []
    with ExitStack() as stack:
        store = stack.enter_context(S3Server())
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-bill-")))
        for size in sizes:
            measured.append(measure(size, SHORT_NIGHTS if asked.short else NIGHTS, store, folder))
            print(f"{measured[-1].segments} segments: measured", file=sys.stderr, flush=True)
    rows = bill(*measured)
    print(json.dumps({"rows": rows}, indent=2) if asked.json else table(rows))


if __name__ == "__main__":
    main()
