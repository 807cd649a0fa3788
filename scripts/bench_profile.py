"""Where the processor time of a backup and a restore goes, by thread: `scripts/bench profile`.

Each command runs in a process that looks at the times of its threads every hundredth of a second. `start` is what the
same command takes for a stream of one message. Seconds of processor for each GB of messages, the median of the runs.

The floors are what the same bytes take with nothing around them (`bench_floors.py`). The least run of each step counts.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from scripts.bench_cases import busy_seconds
from scripts.bench_floors import FLOORS, floors
from scripts.bench_load import Text, fill, request
from tests.harness.servers import NEWEST, NatsServer

__all__ = ["STAGES", "measure", "table"]

_TICKS = os.sysconf("SC_CLK_TCK")
_LOOK_SECONDS = 0.01
# What threads do, by the names that they have.
_THREADS = {"MainThread": "link", "jsbackup": "decode", "compress": "compress", "store": "store", "ahead": "read"}
STAGES = ("start", "link", "decode", "compress", "store", "read", "other", "server")
_MEANING = {
    "start": "Python, imports, requests",
    "link": "the connection and the event loop",
    "decode": "an archive to columns, and digests; in a restore columns to an archive, and the proof",
    "compress": "columns to Parquet",
    "store": "SHA-256, encryption and writing",
    "read": "in a restore: stored segments to columns",
    "other": "all other threads",
    "server": "nats-server",
}


def _watched(told: Path) -> None:
    """Run the command line of this process, and write the seconds of each stage to a file."""
    names: dict[int, str] = {}
    seconds: dict[int, float] = {}
    ended = threading.Event()

    def look() -> None:
        for thread in threading.enumerate():
            names[thread.native_id or 0] = thread.name
        for folder in Path("/proc/self/task").iterdir():
            with suppress(OSError):
                user, system = (folder / "stat").read_text().rpartition(")")[2].split()[11:13]
                seconds[int(folder.name)] = (int(user) + int(system)) / _TICKS

    def watch() -> None:
        while not ended.wait(_LOOK_SECONDS):
            look()

    watcher = threading.Thread(target=watch, name="watcher", daemon=True)
    watcher.start()
    from jsbackup.cli.main import main

    try:
        main()
    finally:
        ended.set()
        watcher.join()
        look()
        stages: dict[str, float] = {}
        for number, spent in seconds.items():
            name = names.get(number, "")
            if name != "watcher":
                stage = _THREADS.get(name.rstrip("0123456789").rstrip("_"), "other")
                stages[stage] = stages.get(stage, 0.0) + spent
        told.write_text(json.dumps(stages))


def _run(server: NatsServer, *words: str) -> dict[str, float]:
    before = busy_seconds(server)
    with tempfile.NamedTemporaryFile() as told:
        line = [sys.executable, "-m", "scripts.bench_profile", "--watched", told.name, *words, "--no-progress"]
        subprocess.run([*line, "-s", server.url], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        stages: dict[str, float] = json.loads(Path(told.name).read_text())
    return {**stages, "server": busy_seconds(server) - before}


def measure(version: str, message_bytes: int, total_bytes: int, runs: int) -> Iterator[tuple[str, Mapping[str, float]]]:
    """Yield a name and the seconds of each stage for each GB, for a backup, for restores with and without proof, and
    for the floor of each.
    """
    text = Text(length=4 << 20)
    with tempfile.TemporaryDirectory(prefix="jsbackup-profile-") as folder, NatsServer(version) as server:
        for name, count in (("ONE", 1), ("MANY", max(1, total_bytes // message_bytes))):
            request(server.url, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "file"})
            fill(
                server.url,
                lambda number, name=name: f"{name}.{number % 1000}",  # type: ignore[misc]
                lambda number: text.record(number, message_bytes),
                range(count),
            )
        found: dict[str, list[dict[str, float]]] = {}
        for run in range(runs):
            repositories = {name: str(Path(folder) / f"{name}-{run}") for name in ("ONE", "MANY")}
            took = {name: _run(server, "backup", name, "-r", repositories[name]) for name in repositories}
            found.setdefault("backup", []).append(_by_size(took, total_bytes))
            for proof in ("none", "full"):
                with NatsServer(version) as target:
                    took = {
                        name: _run(target, "restore", "latest", "-r", repositories[name], "--verify", proof)
                        for name in repositories
                    }
                found.setdefault(f"restore, --verify {proof}", []).append(_by_size(took, total_bytes))
        for _ in range(runs):
            with NatsServer(version) as target:
                file = Path(folder) / "floor"
                least = floors(server, target, "MANY", file, total_bytes=total_bytes)
            for name in FLOORS:
                found.setdefault(name, []).append({stage: least[name].get(stage, 0.0) for stage in STAGES})
        for name in FLOORS:
            found[name] = [{stage: min(row[stage] for row in found[name]) for stage in STAGES}]
    for case, rows in found.items():
        yield case, {stage: statistics.median(row[stage] for row in rows) for stage in STAGES}


def _by_size(took: Mapping[str, Mapping[str, float]], total_bytes: int) -> dict[str, float]:
    """Return the seconds of each stage beyond `start`, for each GB; `start` itself as it is."""
    gigabytes = total_bytes / 10**9
    start = sum(spent for stage, spent in took["ONE"].items() if stage != "server")
    found = {stage: took["MANY"].get(stage, 0.0) - took["ONE"].get(stage, 0.0) for stage in STAGES}
    return {stage: max(0.0, spent) / gigabytes for stage, spent in found.items()} | {"start": start}


def table(rows: Sequence[tuple[str, Mapping[str, float]]]) -> str:
    """Return the rows as a Markdown table, stages below each other."""
    lines = ["| seconds of processor for each GB | " + " | ".join(case for case, _ in rows) + " |"]
    lines.append("| --- |" + " ---: |" * len(rows))
    for stage in STAGES:
        unit = ", for each command" if stage == "start" else ""
        cells = " | ".join(f"{spent[stage]:.2f}" for _, spent in rows)
        lines.append(f"| {stage}{unit}: {_MEANING[stage]} | {cells} |")
    total = " | ".join(f"{sum(spent[one] for one in STAGES[1:-1]):.2f}" for _, spent in rows)
    return "\n".join([*lines, f"| all of jsbackup but start | {total} |"])


def main() -> None:
    if sys.argv[1:2] == ["--watched"]:
        told = Path(sys.argv[2])
        sys.argv[1:] = sys.argv[3:]
        _watched(told)
        return
    parser = argparse.ArgumentParser(prog="scripts/bench profile", description=__doc__)
    parser.add_argument("--version", default=NEWEST, help="of nats-server")
    parser.add_argument("--message-bytes", type=int, default=1024)
    parser.add_argument("--stream-bytes", type=int, default=400_000_000)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    rows = list(measure(asked.version, asked.message_bytes, asked.stream_bytes, asked.runs))
    if asked.json:
        print(json.dumps({"rows": [{"case": case, **spent} for case, spent in rows]}, indent=2))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
