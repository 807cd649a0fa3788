"""How far `follow` is behind on an account of many streams: `scripts/bench follow`.

    a server with so many streams ── backup ──▶ follow, for some time; messages come into a few of them
        behind      of each backup, what it says in its log: how long the oldest new message had waited for it at most
        waited      of each message, from the server's time of it to the first manifest that has it
        written     of each backup: its manifest, and pages
        processor   of `follow`, for each backup
        memory      of `follow` as the operating system accounts for it, in each tenth of the time

The first backup of the run is left out: it reads what the repository has.
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
import time
from collections.abc import Sequence
from pathlib import Path

import jsbackup
from jsbackup.repository import layout
from scripts.bench_load import Text, fill, request_each
from scripts.bench_tables import markdown
from tests.harness.commands import command_line, environment
from tests.harness.servers import BUNDLED, NatsServer

MESSAGE_BYTES = 1000
EVERY_SECONDS = 0.3


def publish(url: str, streams: Sequence[str], text: Text, done: threading.Event) -> None:
    """Publish a message to each of the streams, about three times a second, until it is done."""
    while not done.wait(EVERY_SECONDS):
        subjects = [f"{name}.new" for name in streams]
        fill(url, subjects.__getitem__, lambda number: text.record(number, MESSAGE_BYTES), range(len(subjects)))


def resident_bytes(pid: int) -> int:
    """Memory that a process has now; 0 if it has ended."""
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def processor_seconds(pid: int) -> float:
    words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def waits(repository: Path, changing: Sequence[str], backups: Sequence[str]) -> list[float]:
    """How many seconds each message of the streams waited until one of the backups, oldest first, had it."""
    opened = jsbackup.open(repository)
    newest = opened[backups[-1]]
    times = {name: _times_ns(newest[name]) for name in changing}
    reached = {name: opened[backups[0]][name].last_seq for name in changing}
    found = []
    for backup in backups[1:]:
        committed_ns = (repository / layout.manifest_key(backup)).stat().st_ctime_ns
        made = opened[backup]
        for name in changing:
            last = made[name].last_seq
            found += [(committed_ns - times[name][number]) / 1e9 for number in range(reached[name] + 1, last + 1)]
            reached[name] = last
    return found


def _times_ns(stream: jsbackup.Stream) -> dict[int, int]:
    """The times of its messages by their sequences."""
    found: dict[int, int] = {}
    for batch in stream.messages():
        found |= zip(batch["sequence"].to_pylist(), batch["timestamp_ns"].to_pylist(), strict=True)
    return found


def follow(server: NatsServer, folder: Path, changing: Sequence[str], text: Text, seconds: float) -> dict[str, object]:
    """Follow for so many seconds; return the figures."""
    repository, log = folder / "repo", folder / "log"
    done = threading.Event()
    publishing = threading.Thread(target=publish, args=(server.url, changing, text, done), daemon=True)
    words = ("follow", "-s", server.url, "-r", repository, "--for", f"{seconds:.0f}s", "-v", "--log-format", "json")
    with log.open("wb") as said:
        process = subprocess.Popen(
            command_line(*words, "--no-progress"), stdout=subprocess.DEVNULL, stderr=said, env=environment()
        )
        publishing.start()
        tenths: list[int] = []
        busy = 0.0
        end = time.monotonic() + seconds
        while process.poll() is None:
            time.sleep(1)
            memory = resident_bytes(process.pid)
            at = min(int((1 - (end - time.monotonic()) / seconds) * 10), 9)
            tenths += [0] * (at + 1 - len(tenths))
            tenths[at] = max(tenths[at], memory)
            if process.poll() is None:
                busy = processor_seconds(process.pid)
        done.set()
        publishing.join()
    lines = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    backups = [line for line in lines if "behind_seconds" in line]
    if process.returncode or len(backups) < 3:
        raise SystemExit(f"follow ended with {process.returncode}, {len(backups)} backups:\n{log.read_text()[-2000:]}")
    behind = sorted(float(one["behind_seconds"]) for one in backups[2:])
    waited = sorted(waits(repository, changing, [one["backup"] for one in backups[1:]]))
    manifests = sorted((repository / "backups").iterdir())[-len(behind) :]
    return {
        "backups": len(backups),
        "partial": sum(one["result"] != "complete" for one in backups),
        **_distribution("behind", behind),
        "messages": len(waited),
        **_distribution("waited", waited),
        "manifest, KiB": round(statistics.median(path.stat().st_size for path in manifests) / 1024, 1),
        "processor seconds a backup": round(busy / len(backups), 2),
        "MiB in each tenth": [round(size / 2**20) for size in tenths],
    }


def _distribution(what: str, seconds: Sequence[float]) -> dict[str, float]:
    """Its figures; `seconds` are sorted."""
    return {
        f"{what}, median": round(statistics.median(seconds), 3),
        f"{what}, 99 of 100": round(seconds[min(len(seconds) * 99 // 100, len(seconds) - 1)], 3),
        f"{what}, most": round(seconds[-1], 3),
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench follow", description=__doc__)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--changing", type=int, default=3, help="how many of them get messages")
    parser.add_argument("--seconds", type=float, default=600, help="how long to follow")
    parser.add_argument("--server", default=BUNDLED, help="version of nats-server")
    parser.add_argument("--short", action="store_true", help="100 streams, 10 seconds")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    if asked.short:
        asked.streams, asked.seconds = 100, 10
    names = [f"S{number:05}" for number in range(asked.streams)]
    changing = names[:: max(len(names) // asked.changing, 1)][: asked.changing]
    text = Text(length=1 << 20)
    with tempfile.TemporaryDirectory(prefix="jsbackup-follow-") as folder, NatsServer(asked.server) as server:
        request_each(
            server.url, ((f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"]}) for name in names)
        )
        fill(
            server.url,
            lambda number: f"{names[number]}.first",
            lambda number: text.record(number, MESSAGE_BYTES),
            range(len(names)),
        )
        words = command_line("backup", "-s", server.url, "-r", Path(folder) / "repo", "--no-progress")
        subprocess.run(words, check=True, stdout=subprocess.DEVNULL, env=environment())
        print(f"{len(names):,} streams are backed up", file=sys.stderr, flush=True)
        found = follow(server, Path(folder), changing, text, asked.seconds)
    if asked.json:
        print(json.dumps({"streams": asked.streams, "changing": asked.changing, "seconds": asked.seconds, **found}))
        return
    print(markdown(("figure", "")), markdown(("---", "---:")), sep="\n")
    for key, value in found.items():
        print(markdown((key, ", ".join(map(str, value)) if isinstance(value, list) else str(value))))


if __name__ == "__main__":
    main()
