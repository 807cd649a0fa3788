"""jsbackup and the `nats` CLI in turn on the same streams of the same server, and the ratios of their times.

Each case is run in pairs, ours and then theirs, since a busy machine drifts: the ratio is taken pair by pair, and its
median, least and most are shown. Times are of whole processes, start-up included; memory is the operating system's own
account of the finished process, and so is the processor time; that of the server is what it took meanwhile. A ratio of
0.5 is half the time. Jobs on Spark are held against Spark itself, within a session that has been started
(`bench_spark.py`).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

from pyrage import x25519

from scripts.bench_load import Text, fill, request
from scripts.bench_rows import HEAD, Row, Run, line
from tests.harness.commands import command_line, environment
from tests.harness.natscli import CACHE
from tests.harness.servers import BUNDLED, NatsServer

GIB = 1 << 30
CLI = str(CACHE / "nats")
RESTORE_STREAM = "nats backup restore stream"


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much of everything."""

    stream_bytes: int
    slow_link_bytes: int  # over links with a round-trip time
    account_streams: int
    keys: int
    pairs: int
    round_trips_ms: tuple[int, ...]
    spark_bytes: int
    restores_into: tuple[str, ...] = ("2.14.6", "2.12.8", BUNDLED)


LONG = Sizes(GIB, 96 << 20, 50, 1_000_000, 5, (0, 10, 50, 150), 256 << 20)
SHORT = Sizes(48 << 20, 6 << 20, 10, 20_000, 1, (0, 50), 16 << 20, ("2.14.6", BUNDLED))


# The operating system counts into a process's peak what its parent held when it began, and this one holds a lot.
LAUNCHER = """
import os, subprocess, sys, time
began = time.perf_counter()
process = subprocess.Popen(sys.argv[2:])
_, status, used = os.wait4(process.pid, 0)
seconds = time.perf_counter() - began
busy = used.ru_utime + used.ru_stime
open(sys.argv[1], "w").write(f"{seconds} {used.ru_maxrss * 1024} {busy} {os.waitstatus_to_exitcode(status)}")
"""


def run(command: Sequence[str | Path], server: NatsServer | None = None, **extra: str) -> Run:
    """Runs a command to its end, beside a server that works for it; `extra` are environment variables.

    RuntimeError with what it said if it fails.
    """
    words = [str(word) for word in command]
    before = busy_seconds(server)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err, tempfile.NamedTemporaryFile() as told:
        subprocess.run(
            [sys.executable, "-S", "-c", LAUNCHER, told.name, *words],
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=err,
            env=environment(XDG_CONFIG_HOME="/nonexistent", **extra),
            check=True,
        )
        seconds, peak_bytes, busy, code = Path(told.name).read_text().split()
        printed, said = (_text(file) for file in (out, err))
    if code != "0":
        raise RuntimeError(f"{' '.join(words)} failed with {code}:\n{printed}{said}")
    return Run(float(seconds), int(peak_bytes), printed, float(busy), busy_seconds(server) - before)


def busy_seconds(server: NatsServer | None) -> float:
    """Of processors, since its start."""
    if server is None:
        return 0.0
    user, system = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace")


def ours(*words: str | Path, server: NatsServer | None = None) -> Run:
    return run([*command_line(*words), "--no-progress"], server)


def theirs(url: str, *words: str | Path) -> Run:
    return run([CLI, "--server", url, *words])


def with_restic(url: str, directory: Path, repository: Path) -> Run:
    """What an operator would do instead: the nats CLI into a folder, and restic to keep it."""
    shutil.rmtree(directory, ignore_errors=True)
    taken = theirs(url, "backup", "stream", "S", directory, "--no-progress")
    return taken.then(restic(repository, "backup", directory))


def restic(repository: Path, *words: str | Path) -> Run:
    return run(["restic", "--no-cache", "-q", "-r", repository, *words], RESTIC_PASSWORD="bench")


def limit(*words: str | Path) -> Run:
    return run([sys.executable, "-m", "scripts.bench_load", *words])


def on_spark(repository: Path, folder: Path, pairs: int) -> Run:
    return run([sys.executable, "-m", "scripts.bench_spark", repository, folder, str(pairs)])


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def randbytes(_number: int, size: int) -> bytes:
    """A payload that does not compress."""
    return os.urandom(size)


def remove(url: str, names: Sequence[str]) -> None:
    for name in names:
        request(url, f"STREAM.DELETE.{name}", {})


class Bench:
    """The cases. Each yields rows as they are ready; what it makes lies below `folder`."""

    def __init__(self, sizes: Sizes, folder: Path) -> None:
        self.sizes = sizes
        self.folder = folder
        self._text = Text()

    # What is measured on.

    def fill_stream(
        self,
        url: str,
        name: str,
        message_bytes: int,
        total_bytes: int,
        first: int = 0,
        payload: Callable[[int, int], bytes] | None = None,
    ) -> int:
        """Publishes as many messages of that size as there are in `total_bytes`; makes the stream at the first.

        `payload` makes one of its number and size.
        """
        if not first:
            request(url, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name}.>"], "storage": "file"})
        made = payload or (self._text.record_half_random if message_bytes > 100_000 else self._text.record)
        count = max(1, total_bytes // message_bytes)
        fill(
            url,
            lambda number: f"{name}.{number % 1000}",
            lambda number: made(number, message_bytes),
            range(first, first + count),
        )
        return first + count

    def fresh(self, name: str) -> Path:
        """A path below `folder` where nothing is."""
        path = self.folder / name
        shutil.rmtree(path, ignore_errors=True)
        return path

    # Cases.

    def backup(self) -> Iterator[Row]:
        for kind, size in (("256 B", 256), ("1 KiB", 1024), ("4 KiB", 4096), ("256 KiB", 256 << 10)):
            with NatsServer(BUNDLED) as server:
                self.fill_stream(server.url, "S", size, self.sizes.stream_bytes)
                against_cli = Row(f"backup, messages of {kind}", "nats backup stream", 1.0 if size < 100_000 else None)
                against_limit = Row(f"backup, messages of {kind}", "only receiving", 1.3)
                for _ in range(self.sizes.pairs):
                    repository, directory = self.fresh("repo"), self.fresh("dir")
                    taken = ours("backup", "S", "-s", server.url, "-r", repository, server=server)
                    against_cli.add(taken, theirs(server.url, "backup", "stream", "S", directory, "--no-progress"))
                    against_limit.add(taken, limit("receive", server.url, "S"))
                    share = size_of(repository) / size_of(directory)
                    against_cli.note = f"stores {share:.2f} of its bytes"
                yield against_cli
                yield against_limit

    def restore(self) -> Iterator[Row]:
        versions = self.sizes.restores_into
        archive_v1 = self.folder / f"dir-{versions[0]}"
        for version in versions:
            goal = 0.35 if version == BUNDLED else 0.8
            repository, directory = self.fresh("repo"), self.fresh(f"dir-{version}")
            with NatsServer(version) as server:
                self.fill_stream(server.url, "S", 4096, self.sizes.stream_bytes)
                ours("backup", "S", "-s", server.url, "-r", repository)
                theirs(server.url, "backup", "stream", "S", directory, "--no-progress")
                proved = Row(f"restore into {version}, proved", RESTORE_STREAM, goal)
                unproved = Row(f"restore into {version}, --verify none", RESTORE_STREAM, goal)
                against_limit = Row(f"restore into {version}, --verify none", "only sending (v1)")
                for _ in range(self.sizes.pairs):
                    taken = self._restore_pair(server, server.url, repository, directory, proved, unproved)
                    remove(server.url, ["S"])
                    against_limit.add(taken, limit("send", server.url, archive_v1))
                yield from (proved, unproved, against_limit)

    def _restore_pair(
        self, server: NatsServer, url: str, repository: Path, directory: Path, proved: Row, unproved: Row
    ) -> Run:
        """The run without a proof."""
        remove(url, ["S"])
        other = theirs(url, "backup", "restore", "stream", directory, "--no-progress")
        remove(url, ["S"])
        proved.add(ours("restore", "latest", "-s", url, "-r", repository, server=server), other)
        remove(url, ["S"])
        taken = ours("restore", "latest", "-s", url, "-r", repository, "--verify", "none", server=server)
        unproved.add(taken, other)
        return taken

    def links(self) -> Iterator[Row]:
        """Over links with a round-trip time."""
        repository, directory = self.fresh("repo"), self.fresh("dir")
        with NatsServer(BUNDLED) as server:
            self.fill_stream(server.url, "S", 4096, self.sizes.slow_link_bytes)
            for milliseconds in self.sizes.round_trips_ms:
                with delayed(server.port, milliseconds) as url:
                    backup = Row(f"backup at {milliseconds} ms round trip", "nats backup stream")
                    restore = Row(f"restore at {milliseconds} ms round trip, proved", RESTORE_STREAM)
                    unproved = Row(f"restore at {milliseconds} ms round trip, --verify none", RESTORE_STREAM)
                    unproved.bound = 0.05 if milliseconds == 50 else None
                    restore.bound = unproved.bound
                    for _ in range(min(self.sizes.pairs, 2)):
                        repository, directory = self.fresh("repo"), self.fresh("dir")
                        taken = ours("backup", "S", "-s", url, "-r", repository, server=server)
                        backup.add(taken, theirs(url, "backup", "stream", "S", directory, "--no-progress"))
                        self._restore_pair(server, url, repository, directory, restore, unproved)
                    yield from (backup, restore, unproved)

    def account(self) -> Iterator[Row]:
        names = [f"S{number}" for number in range(self.sizes.account_streams)]
        with NatsServer(BUNDLED) as server:
            for name in names:
                self.fill_stream(server.url, name, 1024, self.sizes.stream_bytes // len(names))
            yield from self._of_account(server, names, f"{len(names)} streams", 0.6)

    def random(self) -> Iterator[Row]:
        """Nothing compresses, which is what takes most memory."""
        names = [f"S{number}" for number in range(12)]
        with NatsServer(BUNDLED) as server:
            for name in names:
                self.fill_stream(server.url, name, 256 << 10, self.sizes.stream_bytes // len(names), payload=randbytes)
            yield from self._of_account(server, names, f"{len(names)} random streams")

    def _of_account(
        self, server: NatsServer, names: Sequence[str], kind: str, goal: float | None = None
    ) -> Iterator[Row]:
        backup = Row(f"backup of {kind}", "nats backup account", goal)
        restore = Row(f"restore of {kind}, proved", "nats backup restore account", goal)
        unproved = Row(f"restore of {kind}, --verify none", "nats backup restore account", goal)
        for _ in range(self.sizes.pairs):
            repository, directory = self.fresh("repo"), self.fresh("dir")
            taken = ours("backup", "-s", server.url, "-r", repository, server=server)
            backup.add(taken, theirs(server.url, "backup", "account", directory, "--force"))
            remove(server.url, names)
            other = theirs(server.url, "backup", "restore", "account", directory)
            remove(server.url, names)
            command = ("restore", "latest", "-s", server.url, "-r", repository)
            restore.add(ours(*command, server=server), other)
            remove(server.url, names)
            unproved.add(ours(*command, "--verify", "none", server=server), other)
        yield from (backup, restore, unproved)

    def increment(self) -> Iterator[Row]:
        row = Row("second backup after 1 % more", "nats backup stream", 0.15)
        total = 2 * self.sizes.stream_bytes
        with NatsServer(BUNDLED) as server:
            repository = self.fresh("repo")
            at = self.fill_stream(server.url, "S", 4096, total)
            first = json.loads(ours("backup", "S", "-s", server.url, "-r", repository, "--json").out)
            for _ in range(self.sizes.pairs):
                at = self.fill_stream(server.url, "S", 4096, total // 100, at)
                taken = ours("backup", "S", "-s", server.url, "-r", repository, "--json", server=server)
                row.add(taken, theirs(server.url, "backup", "stream", "S", self.fresh("dir"), "--no-progress"))
                added = json.loads(taken.out)["streams"][0]["stored_bytes_added"]
                row.note = f"stores {added / first['streams'][0]['stored_bytes_added']:.1%} of the first"
        yield row

    def instead(self) -> Iterator[Row]:
        """What an operator would pick instead: the nats CLI followed by restic, which encrypts; so do we."""
        first = Row("first backup, encrypted", "nats CLI, then restic", 0.6)
        second = Row("second backup after 1 % more, encrypted", "nats CLI, then restic", 0.2)
        restore = Row("restore of it, proved", "restic, then nats CLI", 0.5)
        total = self.sizes.stream_bytes
        with NatsServer(BUNDLED) as server:
            at = self.fill_stream(server.url, "S", 4096, total)
            for _ in range(self.sizes.pairs):
                keys, repository = self.fresh("keys"), self.fresh("repo")
                directory, kept = self.fresh("dir"), self.fresh("restic")
                keys.mkdir()
                identity = x25519.Identity.generate()
                (keys / "identity").write_text(str(identity))
                recipient = str(identity.to_public())
                ours("init", "-r", repository, "--encrypt-to", recipient, "--writer-key", keys / "writer")
                restic(kept, "init")
                command = ("backup", "S", "-s", server.url, "-r", repository, "--writer-key", keys / "writer")
                first.add(ours(*command, server=server), with_restic(server.url, directory, kept))
                at = self.fill_stream(server.url, "S", 4096, total // 100, at)
                second.add(ours(*command, server=server), with_restic(server.url, directory, kept))
                shutil.rmtree(directory)
                remove(server.url, ["S"])
                other = restic(kept, "restore", "latest", "--target", "/")
                other = other.then(theirs(server.url, "backup", "restore", "stream", directory, "--no-progress"))
                remove(server.url, ["S"])
                restored = ("restore", "latest", "-s", server.url, "-r", repository, "--identity", keys / "identity")
                restore.add(ours(*restored, server=server), other)
        yield from (first, second, restore)

    def keys(self) -> Iterator[Row]:
        with NatsServer(BUNDLED) as server:
            config = {"name": "KV_b", "subjects": ["$KV.b.>"], "max_msgs_per_subject": 1, "allow_direct": True}
            config |= {"discard": "new", "deny_delete": True, "allow_rollup_hdrs": True, "storage": "file"}
            request(server.url, "STREAM.CREATE.KV_b", config)
            fill(server.url, lambda n: f"$KV.b.key.{n}", lambda n: self._text.record(n, 128), range(self.sizes.keys))
            backup = Row(f"backup of {self.sizes.keys:,} keys", "nats backup stream", 1.0)
            restore = Row(f"restore of {self.sizes.keys:,} keys, proved", RESTORE_STREAM)
            for _ in range(self.sizes.pairs):
                repository, directory = self.fresh("repo"), self.fresh("dir")
                taken = ours("backup", "-s", server.url, "-r", repository, server=server)
                backup.add(taken, theirs(server.url, "backup", "stream", "KV_b", directory, "--no-progress"))
                remove(server.url, ["KV_b"])
                other = theirs(server.url, "backup", "restore", "stream", directory, "--no-progress")
                remove(server.url, ["KV_b"])
                restore.add(ours("restore", "latest", "-s", server.url, "-r", repository, server=server), other)
            yield backup
            yield restore

    def verify(self) -> Iterator[Row]:
        row = Row("verify --level objects", "a GB read in a second", 1.0)
        repository = self.fresh("repo")
        with NatsServer(BUNDLED) as server:
            self.fill_stream(server.url, "S", 4096, self.sizes.stream_bytes)
            ours("backup", "S", "-s", server.url, "-r", repository)
        size = size_of(repository)
        empty = ours("--version").seconds
        for _ in range(self.sizes.pairs):
            taken = ours("verify", "--level", "objects", "-r", repository)
            row.add(Run(taken.seconds - empty, taken.peak_bytes, ""), Run(size / 1e9, 0, ""))
        row.note = "start-up not counted"
        yield row

    def spark(self) -> Iterator[Row]:
        """Jobs on two cores beside Spark alone reading the same Parquet, and beside themselves on one core."""
        repository = self.fresh("repo")
        with NatsServer(BUNDLED) as server:
            self.fill_stream(server.url, "S", 1024, self.sizes.spark_bytes)
            ours("backup", "S", "-s", server.url, "-r", repository)
        told = json.loads(on_spark(repository, self.fresh("tables"), self.sizes.pairs).out)
        peak = told["peak_bytes"]
        for job, goal in (("the data source", 2.0), ("verify --level data", None), ("stats", None), ("export", None)):
            beside = Row(f"{job} on Spark", "Spark alone reading it", goal)
            # The source alone keeps a Python worker and Java busy at once: two cores even on local[1].
            wider = Row(f"{job} on local[2]", "on local[1]", None if job == "the data source" else 0.625)
            for two, one in zip(told["local[2]"], told["local[1]"], strict=True):
                beside.add(Run(two[job], peak, ""), Run(two["alone"], 0, ""))
                wider.add(Run(two[job], peak, ""), Run(one[job], 0, ""))
            beside.note = wider.note = "start-up not counted; memory is the driver's"
            yield beside
            yield wider

    def startup(self) -> Iterator[Row]:
        row = Row("jsbackup --version", "0.15 s", 1.0)
        for _ in range(3 * self.sizes.pairs):
            row.add(run(command_line("--version")), Run(0.15, 0, ""))
        yield row
        with NatsServer(BUNDLED) as server:
            self.fill_stream(server.url, "S", 1024, 1 << 20)
            small = Row("backup of a stream of 1 MiB", "nats backup stream")
            for _ in range(self.sizes.pairs):
                taken = ours("backup", "S", "-s", server.url, "-r", self.fresh("repo"))
                small.add(taken, theirs(server.url, "backup", "stream", "S", self.fresh("dir"), "--no-progress"))
            yield small


CASES: dict[str, Callable[[Bench], Iterator[Row]]] = {
    "startup": Bench.startup,
    "backup": Bench.backup,
    "restore": Bench.restore,
    "links": Bench.links,
    "account": Bench.account,
    "random": Bench.random,
    "increment": Bench.increment,
    "instead": Bench.instead,
    "keys": Bench.keys,
    "verify": Bench.verify,
    "spark": Bench.spark,
}


@contextlib.contextmanager
def delayed(port: int, milliseconds: int) -> Iterator[str]:
    """The URL of a link to that port with a round-trip time, by a process of its own."""
    command = [sys.executable, "-m", "scripts.bench_load", "delay", str(port), str(milliseconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield f"nats://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.kill()


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument("cases", nargs="*", choices=[[], *CASES], help="which of them; all without")
    parser.add_argument("--short", action="store_true", help="small streams, one pair each: under two minutes")
    parser.add_argument("--pairs", type=int, help="runs of each side")
    parser.add_argument("--stream-bytes", type=int, help="size of a stream")
    parser.add_argument("--spark-bytes", type=int, help="size of the stream for the case spark")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    asked = parser.parse_args()
    sizes = SHORT if asked.short else LONG
    sizes = replace(
        sizes,
        stream_bytes=asked.stream_bytes or sizes.stream_bytes,
        pairs=asked.pairs or sizes.pairs,
        spark_bytes=asked.spark_bytes or sizes.spark_bytes,
    )
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="jsbackup-bench-") as folder:
        bench = Bench(sizes, Path(folder))
        if not asked.json:
            print(line(HEAD), flush=True)
        for name in asked.cases or CASES:
            for row in CASES[name](bench):
                rows.append(row)
                if not asked.json:
                    print(line(row.cells()), flush=True)
    if asked.json:
        print(json.dumps({"rows": [row.document() for row in rows]}, indent=2))


if __name__ == "__main__":
    main()
