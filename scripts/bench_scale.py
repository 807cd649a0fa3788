"""What commands cost as a repository grows: `scripts/bench scale`.

Repositories are fabricated (`bench_repositories.py`) with so many segments, streams and backups, in a folder or in
SeaweedFS, beside a real nats-server that has the streams. Then each command runs as a process of its own:

    wall time; the processor's seconds; its peak memory, as the operating system accounts for it
    requests to the store by kind, bytes read and written (`bench_counted.py`, in that process)

A commit of `follow` is what lies between the manifests of two backups that it makes, ten messages a second coming in;
its time is how far behind it was at most. What takes longer than the limit is ended, and its row says so.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench_cases import LAUNCHER
from scripts.bench_load import Text, fill, request, request_each
from scripts.bench_repositories import MESSAGE_BYTES, Extent, recut
from scripts.bench_tables import markdown
from tests.harness.commands import command_line, environment
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import BUNDLED, NatsServer

KINDS = ("list", "get", "head", "put", "delete", "other")
HEAD = ("command", "seconds", "processor", *KINDS, "read", "written", "MiB")
NEW_MESSAGES = 10
FORGOTTEN = 3
_NO_COUNTS = {"requests": {}, "read_bytes": 0, "written_bytes": 0}
_PROVED_SEGMENTS = 1000  # the fabricated backups of smaller repositories are verified
_HOURS = 240  # of the stream: a restore of one hour is of one part in so many


@dataclass(frozen=True, slots=True)
class Cost:
    """What a command took. `failed` says in words why there are no figures."""

    command: str
    seconds: float = 0.0
    processor_seconds: float = 0.0
    requests: Mapping[str, int] = field(default_factory=dict)
    read_bytes: int = 0
    written_bytes: int = 0
    peak_bytes: int = 0
    failed: str = ""

    def document(self, about: Mapping[str, Any]) -> dict[str, Any]:
        return {
            **about,
            "command": self.command,
            "seconds": round(self.seconds, 2),
            "processor_seconds": round(self.processor_seconds, 2),
            "requests": {kind: self.requests.get(kind, 0) for kind in KINDS},
            "read_bytes": self.read_bytes,
            "written_bytes": self.written_bytes,
            "peak_bytes": self.peak_bytes,
            "failed": self.failed,
        }

    def cells(self) -> tuple[str, ...]:
        if self.failed:
            return (self.command, self.failed, *("" for _ in HEAD[2:]))
        asked = (f"{self.requests.get(kind, 0):,}" for kind in KINDS)
        sizes = (f"{size / 1024:,.0f} KiB" for size in (self.read_bytes, self.written_bytes))
        times = (f"{self.seconds:.2f}", f"{self.processor_seconds:.2f}")
        return (self.command, *times, *asked, *sizes, f"{self.peak_bytes / 2**20:.0f}")


class Commands:
    """Runs commands on a repository, and says what they cost."""

    def __init__(self, variables: Mapping[str, str], folder: Path, limit_seconds: float) -> None:
        self._variables = dict(variables)
        self._folder = folder
        self._limit_seconds = limit_seconds

    def run(self, *words: str | Path) -> dict[str, Any]:
        """Run a command that is not measured, and return its JSON."""
        done = subprocess.run(
            command_line(*words, "--json", "--no-progress"),
            capture_output=True,
            text=True,
            env=environment(XDG_CONFIG_HOME="/nonexistent", **self._variables),
        )
        if done.returncode:
            raise RuntimeError(f"{words} failed with {done.returncode}:\n{done.stdout}{done.stderr}")
        document: dict[str, Any] = json.loads(done.stdout)
        return document

    def cost(
        self, name: str, *words: str | Path, fine: Sequence[int] = (0,), as_json: bool = True, counted: bool = True
    ) -> tuple[Cost, dict[str, Any]]:
        """Run a command; return its cost, and its counts and what it prints `as_json`. If it is not `counted`, it runs
        as users run it, and there are no counts.
        """
        launched, counts_file, printed = (self._folder / part for part in ("launched", "counted", "printed"))
        for file in (launched, counts_file):
            file.unlink(missing_ok=True)
        typed = [*map(str, words), *["--json"] * as_json]
        counting = [sys.executable, "-m", "scripts.bench_counted", str(counts_file), *typed]
        command = [sys.executable, "-S", "-c", LAUNCHER, str(launched)]
        command += counting if counted else command_line(*typed)
        with printed.open("wb") as out, (self._folder / "said").open("wb") as said:
            process = subprocess.Popen(
                [*command, "--no-progress"],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=said,
                env=environment(XDG_CONFIG_HOME="/nonexistent", **self._variables),
                start_new_session=True,
            )
            try:
                process.wait(self._limit_seconds)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                return Cost(name, failed=f"more than {self._limit_seconds:.0f} s"), {}
        seconds, peak_bytes, busy, code = launched.read_text().split()
        if int(code) not in fine or (counted and not counts_file.exists()):
            text = printed.read_text(errors="replace") + (self._folder / "said").read_text(errors="replace")
            print(f"{name} ended with {code}: {text[-2000:]}", file=sys.stderr)
            return Cost(name, failed="partial" if code == "3" else f"ended with {code}"), {}
        counts = json.loads(counts_file.read_text()) if counted else _NO_COUNTS
        document = json.loads(printed.read_text() or "{}") if as_json else {}
        cost = Cost(
            name,
            float(seconds),
            float(busy),
            counts["requests"],
            counts["read_bytes"],
            counts["written_bytes"],
            int(peak_bytes),
        )
        return cost, {"counts": counts, "document": document}


def publish(url: str, stream: str, count: int, text: Text) -> None:
    fill(
        url, lambda number: f"{stream}.{number % 100}", lambda number: text.record(number, MESSAGE_BYTES), range(count)
    )


def fill_streams(url: str, extent: Extent, text: Text) -> None:
    """Make the streams and publish what their segments will hold."""
    names, each = stream_names(extent), extent.messages_per_stream
    configs = ({"name": name, "subjects": [f"{name}.>"], "storage": "file"} for name in names)
    request_each(url, ((f"STREAM.CREATE.{config['name']}", config) for config in configs))
    fill(
        url,
        lambda number: f"{names[number // each]}.{number % 100}",
        lambda number: text.record(number, MESSAGE_BYTES),
        range(each * len(names)),
    )


def stream_names(extent: Extent) -> list[str]:
    return [f"S{number:05}" for number in range(extent.streams)]


@dataclass(frozen=True, slots=True)
class Scene:
    """A repository, the server whose streams it has, and another server for restores."""

    commands: Commands
    repository: str
    server: NatsServer
    target: NatsServer
    extent: Extent
    text: Text
    hour: tuple[str, str]  # an hour of the first stream


def costs(scene: Scene, follow_seconds: float) -> Iterator[Cost]:
    """Run each command."""
    run, repo = scene.commands.cost, ("-r", scene.repository)
    names = stream_names(scene.extent)
    source, target = ("-s", scene.server.url), ("-s", scene.target.url)
    newest, _ = run("list", "list", *repo)
    yield newest
    yield run("show", "show", "latest", *repo, as_json=False)[0]  # in JSON it lists all objects
    yield run("status", "status", *repo, fine=(0, 17))[0]
    yield run("verify --level manifest", "verify", "latest", "--level", "manifest", *repo)[0]
    publish(scene.server.url, names[0], NEW_MESSAGES, scene.text)
    backup, _ = run(f"backup after {NEW_MESSAGES} new messages", "backup", *source, *repo)
    yield backup
    since, until = scene.hour
    cut = ("--since", since, "--until", until)
    yield run("restore of one hour", "restore", "latest", names[0], *cut, *target, *repo)[0]
    with contextlib.suppress(RuntimeError):
        request(scene.target.url, f"STREAM.DELETE.{names[0]}", {})
    if len(names) > 1:
        yield run("restore of one stream", "restore", "latest", names[-1], *target, *repo)[0]
    yield follow_cost(scene, follow_seconds + 3 * backup.seconds)
    listed = scene.commands.run("list", *repo)["backups"]
    oldest = [one["backup"] for one in sorted(listed, key=lambda one: str(one["created"]))[:FORGOTTEN]]
    yield run("forget --prune --dry-run", "forget", *oldest, "--prune", "--dry-run", *repo)[0]
    # At once, without the time that unused objects are marked for.
    yield run("forget --prune", "forget", *oldest, "--prune", "--grace", "0s", *repo)[0]


def follow_cost(scene: Scene, seconds: float) -> Cost:
    """A commit of `follow`: the medians of what lies between two manifests."""
    name, done = "a commit of follow", threading.Event()

    def keep_publishing() -> None:
        while not done.wait(1.0):
            publish(scene.server.url, stream_names(scene.extent)[0], NEW_MESSAGES, scene.text)

    publishing = threading.Thread(target=keep_publishing, daemon=True)
    publishing.start()
    words = ("follow", "-s", scene.server.url, "-r", scene.repository, "--for", f"{seconds:.0f}s")
    try:
        whole, ran = scene.commands.cost(name, *words)
    finally:
        done.set()
        publishing.join()
    if whole.failed:
        return whole
    commits = ran["counts"]["commits"]
    if len(commits) < 2:
        return Cost(name, failed=f"{len(commits)} commits in {seconds:.0f} s")
    pairs = list(itertools.pairwise(commits))

    def middle(value: Callable[[dict[str, Any]], float]) -> float:
        return statistics.median(value(after) - value(before) for before, after in pairs)

    return Cost(
        name,
        float(ran["document"]["longest_seconds_behind"]),
        middle(lambda one: one["processor_seconds"]),
        {kind: int(middle(lambda one, kind=kind: one["requests"].get(kind, 0))) for kind in KINDS},
        int(middle(lambda one: one["read_bytes"])),
        int(middle(lambda one: one["written_bytes"])),
        whole.peak_bytes,
    )


@contextlib.contextmanager
def scene_of(extent: Extent, store: S3Server | None, folder: Path, limit_seconds: float, text: Text) -> Iterator[Scene]:
    """Fabricate a repository; say on stderr how long that took."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    plain, variables = str(folder / "plain"), {} if store is None else store.environment
    target = str(folder / "repo") if store is None else f"s3://{BUCKET}/{folder.name}"
    commands = Commands(variables, folder, limit_seconds)
    began = time.monotonic()
    with NatsServer(BUNDLED) as server, NatsServer(BUNDLED) as other:
        fill_streams(server.url, extent, text)
        told(extent, "filled", began)
        commands.run("backup", "-s", server.url, "-r", plain)
        told(extent, "backed up", began)
        with _variables(variables):
            newest = recut(plain, target, extent.backups)
        shutil.rmtree(plain)
        segments = [ref for stream in newest.streams for ref in stream.segments]
        told(extent, f"cut into {len(segments):,} segments", began)
        if len(segments) <= _PROVED_SEGMENTS:
            commands.run("verify", "--level", "data", "-r", target)
        first = newest.streams[0].segments
        middle = len(first) // 2
        last = min(middle + max(1, len(first) // _HOURS), len(first) - 1)
        hour = (_time(first[middle].min_ns), _time(first[last].max_ns))
        yield Scene(commands, target, server, other, extent, text, hour)
    shutil.rmtree(folder)


def told(extent: Extent, what: str, began: float) -> None:
    print(f"{extent}: {what} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


@contextlib.contextmanager
def _variables(variables: Mapping[str, str]) -> Iterator[None]:
    """For the processes that write segments."""
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


def _time(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{rest:09}Z"


def _numbers(text: str) -> list[int]:
    """`1k,300` as numbers."""
    return [int(float(one.removesuffix("k")) * (1000 if one.endswith("k") else 1)) for one in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench scale", description=__doc__)
    parser.add_argument("--segments", default="1k,10k,100k", help="how many of all streams, such as 1k,10k,100k,300k")
    parser.add_argument("--streams", default="1", help="how many, such as 1,100,10000")
    parser.add_argument("--backups", default="10", help="how many, such as 10,1000")
    parser.add_argument("--store", default="local", choices=["local", "seaweed"])
    parser.add_argument("--limit", type=float, default=600, help="seconds after which a command is ended")
    parser.add_argument("--follow", type=float, default=10, help="seconds of follow, besides three times a backup's")
    parser.add_argument(
        "--folder", type=Path, help="where repositories are made, for a moment; a temporary one without"
    )
    parser.add_argument("--short", action="store_true", help="60 segments of 3 streams, 5 backups: seconds")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of tables")
    parser.add_argument("--save", type=Path, help="also write the JSON document to this file, for scripts.bench_tables")
    asked = parser.parse_args()
    if asked.short:
        asked.segments, asked.streams, asked.backups, asked.follow = "60", "3", "5", 5
    extents = [
        Extent(segments, streams, backups)
        for streams in _numbers(asked.streams)
        for segments in _numbers(asked.segments)
        for backups in _numbers(asked.backups)
    ]
    rows: list[dict[str, Any]] = []
    text = Text()
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(S3Server()) if asked.store == "seaweed" else None
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-scale-", dir=asked.folder))
        for number, extent in enumerate(extents):
            about = {
                "segments": extent.segments_per_stream * extent.streams,
                "streams": extent.streams,
                "backups": extent.backups,
                "store": asked.store,
            }
            if not asked.json:
                print(f"\n{', '.join(f'{value} {key}' for key, value in about.items())}\n")
                print(markdown(HEAD), markdown(["---"] * len(HEAD)), sep="\n", flush=True)
            with scene_of(extent, store, Path(folder) / f"scale-{number}", asked.limit, text) as scene:
                for cost in costs(scene, asked.follow):
                    rows.append(cost.document(about))
                    if asked.save:
                        asked.save.write_text(json.dumps({"rows": rows}, indent=2))
                    if not asked.json:
                        print(markdown(cost.cells()), flush=True)
    if asked.json:
        print(json.dumps({"rows": rows}, indent=2))


if __name__ == "__main__":
    main()
