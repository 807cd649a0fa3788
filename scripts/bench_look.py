"""What it costs to get single things out of a large repository: `scripts/bench look`.

A real server is filled, and a real backup taken of it, as many times as there are to be backups. A backup has its share
of each of

    EVENTS      2 KiB of JSON on 10,000 subjects; most of the bytes
    KV_config   5,000 keys, history 5; in each round 2,000 revisions of random keys
    KV_one      the same with history 1
    OBJ_files   a file of a fiftieth of all bytes, in the first backup

Then each command runs several times as a process of its own: in the folder, and in SeaweedFS behind a link with a
round-trip time. What it prints is compared with what was written. `bench_counted.py` counts requests and bytes. Times
are medians, memory is the most of all runs. The last rows are first paints of `browse`, told by a headless Chromium.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from base64 import urlsafe_b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from scripts.bench_cases import delayed
from scripts.bench_load import Text, fill, request
from scripts.bench_scale import Commands, Cost
from scripts.bench_tables import markdown
from tests.harness.browser import Browser
from tests.harness.s3server import BUCKET, S3Server
from tests.harness.servers import BUNDLED, NatsServer

HEAD = ("where", "command", "seconds", "most", "processor", "requests", "read", "MiB", "goal")
EVENT_BYTES = 2048
KEYS, WRITES = 5000, 2000
KEY = 7
FILE_SHARE = 50
CHUNK_BYTES = 128 << 10
PAINTED_STREAMS = 1000
_PAINT = "performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null"


@dataclass(slots=True)
class Written:
    """What is in the repository. `moments` are times after each round; `values` are those of the key then."""

    backups: int
    per_backup: int
    moments: list[str] = field(default_factory=list)
    values: list[str] = field(default_factory=list)
    revisions: int = 0
    file_sha256: str = ""

    @property
    def hour(self) -> tuple[str, str]:
        """The time of one round in the middle."""
        middle = self.backups // 2
        return self.moments[middle - 1], self.moments[middle]

    def events_in_hour(self, subject: str) -> int:
        first = self.backups // 2 * self.per_backup
        return sum(1 for number in range(first, first + self.per_backup) if event_subject(number) == subject)


def event_subject(number: int) -> str:
    return f"events.region{number % 10}.device{number * 7919 % 1000}"


def key_name(key: int) -> str:
    return f"svc{key % 50}.k{key}"


def make_streams(url: str) -> None:
    bucket = {"discard": "new", "deny_delete": True, "allow_rollup_hdrs": True, "allow_direct": True}
    for name, subjects, more in (
        ("EVENTS", "events.>", {}),
        ("KV_config", "$KV.config.>", {**bucket, "max_msgs_per_subject": 5}),
        ("KV_one", "$KV.one.>", {**bucket, "max_msgs_per_subject": 1}),
        ("OBJ_files", "$O.files.>", {"allow_rollup_hdrs": True, "discard": "new"}),
    ):
        subject = [subjects] if name != "OBJ_files" else ["$O.files.C.>", "$O.files.M.>"]
        request(url, f"STREAM.CREATE.{name}", {"name": name, "subjects": subject, "storage": "file", **more})


def fill_round(url: str, written: Written, number: int, text: Text, chance: random.Random) -> None:
    """Publish what one backup adds."""
    first = number * written.per_backup
    fill(url, event_subject, lambda one: text.record(one, EVENT_BYTES), range(first, first + written.per_backup))
    keys = [*(chance.randrange(KEYS) for _ in range(WRITES)), KEY] if number else list(range(KEYS))

    def value(at: int) -> bytes:
        return json.dumps({"round": number, "at": at, "text": "p" * 200}).encode()

    for bucket in ("config", "one"):
        fill(url, lambda at, bucket=bucket: f"$KV.{bucket}.{key_name(keys[at])}", value, range(len(keys)))
    last = max(at for at, key in enumerate(keys) if key == KEY)
    written.values.append(value(last).decode())
    written.revisions += keys.count(KEY)
    written.moments.append(str(request(url, "STREAM.INFO.EVENTS", {})["ts"]))


def fill_file(url: str, written: Written, size: int, text: Text) -> None:
    chunks = [text.record(number, CHUNK_BYTES) for number in range(max(1, size // CHUNK_BYTES))]
    digest = hashlib.sha256(b"".join(chunks))
    written.file_sha256 = digest.hexdigest()
    fill(url, lambda _: "$O.files.C.file1", lambda number: chunks[number], range(len(chunks)))
    about = {
        "name": "large.bin",
        "bucket": "files",
        "nuid": "file1",
        "size": sum(map(len, chunks)),
        "chunks": len(chunks),
        "digest": f"SHA-256={urlsafe_b64encode(digest.digest()).decode()}",
    }
    name = urlsafe_b64encode(b"large.bin").decode()
    fill(url, lambda _: f"$O.files.M.{name}", lambda _: json.dumps(about).encode(), range(1))


def build(folder: Path, total_bytes: int, backups: int) -> Written:
    """Make the repository `folder`/repo."""
    written = Written(backups, max(1, total_bytes // backups // EVENT_BYTES))
    text, chance, began = Text(7), random.Random(5), time.monotonic()
    commands = Commands({}, folder, 600)
    with NatsServer(BUNDLED) as server:
        make_streams(server.url)
        fill_file(server.url, written, total_bytes // FILE_SHARE, text)
        for number in range(backups):
            fill_round(server.url, written, number, text, chance)
            commands.run("backup", "-s", server.url, "-r", folder / "repo")
            if number % 10 == 9 or number == backups - 1:
                print(f"{number + 1} backups after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    return written


def made(folder: Path, total_bytes: int, backups: int) -> Written:
    """Return what is in the repository `folder`/repo; make it unless it is there."""
    about = folder / "written.json"
    if about.exists():
        return Written(**json.loads(about.read_text()))
    written = build(folder, total_bytes, backups)
    about.write_text(json.dumps(asdict(written)))
    return written


@dataclass(frozen=True, slots=True)
class Case:
    """A command, what it must print, and how long it may take in a folder and in S3; None where nothing is asked."""

    name: str
    words: tuple[str, ...]
    proves: Callable[[bytes], bool]
    goals: tuple[float | None, float | None] = (None, None)
    as_json: bool = False


def cases(written: Written, newest: str, file: Path) -> list[Case]:
    key, (since, until) = key_name(KEY), written.hour
    subject = event_subject(written.backups // 2 * written.per_backup)
    events = written.backups * written.per_backup
    at = written.backups - 2
    hour = ("--since", since, "--until", until)

    def found(out: bytes) -> list[Any]:
        document = json.loads(out)
        listed: list[Any] = document.get("messages", document.get("keys"))
        return listed

    def is_file(_: bytes) -> bool:
        return hashlib.sha256(file.read_bytes()).hexdigest() == written.file_sha256

    def is_value(number: int) -> Callable[[bytes], bool]:
        return lambda out: out.decode() == written.values[number]

    sequence = str(max(1, events // 2))
    get_at = ("config", key, "--at", written.moments[at])
    return [
        Case("kv latest KEY", ("kv", "latest", "config", key), is_value(-1)),
        Case("kv latest KEY --at", ("kv", "latest", *get_at), is_value(at), (0.6, 1.5)),
        Case("kv ID KEY --at", ("kv", newest, *get_at), is_value(at), (0.6, 1.5)),
        Case(
            "kv latest KEY --at, lost since",
            ("kv", "latest", "one", key, "--at", written.moments[at]),
            is_value(at),
        ),
        Case("kv latest", ("kv", "latest", "config"), lambda out: len(found(out)) == KEYS, as_json=True),
        Case(
            "history KEY",
            ("history", "config", "--key", key),
            lambda out: len(found(out)) == written.revisions,
            (2.0, None),
            as_json=True,
        ),
        Case(
            "history by subject and hour",
            ("history", "--subject", subject, *hour),
            lambda out: len(found(out)) == written.events_in_hour(subject),
            (2.0, 2.0),
            as_json=True,
        ),
        Case(
            "history by subject, at any time",
            ("history", "EVENTS", "--subject", "events.region0.nothing"),
            lambda out: found(out) == [],
            as_json=True,
        ),
        Case(
            "view EVENTS --sequence SEQ",
            ("view", newest, "EVENTS", "--sequence", sequence, "--raw"),
            lambda out: json.loads(out)["id"] == int(sequence) - 1,
        ),
        Case(
            "view --last 1", ("view", newest, "EVENTS", "--last", "1", "--raw"), lambda out: len(out) == EVENT_BYTES + 1
        ),
        Case("object", ("object", newest, "files", "large.bin", "-o", str(file), "--force"), is_file),
        Case(
            "show EVENTS --subjects",
            ("show", newest, "EVENTS", "--subjects", "10"),
            lambda out: json.loads(out)["streams"][0]["messages"] == events,
            as_json=True,
        ),
    ]


def measured(commands: Commands, case: Case, repository: str, *, runs: int, printed: Path) -> Iterator[Cost]:
    """Run it so many times as users do, and once counted, which takes longer. RuntimeError if it fails or prints
    something wrong.
    """
    for number in range(runs + 1):
        words = (*case.words, "-r", repository)
        cost, _ = commands.cost(case.name, *words, as_json=case.as_json, counted=number == runs)
        out = printed.read_bytes()
        if cost.failed or not case.proves(out):
            raise RuntimeError(f"{case.name}: {cost.failed or 'it printed something else'}: {out[:500]!r}")
        yield cost


def row_of(where: str, costs: Sequence[Cost], goal: float | None, counted: Cost | None = None) -> dict[str, Any]:
    """Medians of several runs of a command, and the most."""
    seconds = [one.seconds for one in costs]
    counts = counted or costs[-1]
    return {
        "where": where,
        "command": costs[0].command,
        "seconds": round(statistics.median(seconds), 3),
        "most_seconds": round(max(seconds), 3),
        "processor_seconds": round(statistics.median(one.processor_seconds for one in costs), 2),
        "requests": sum(counts.requests.values()),
        "read_bytes": counts.read_bytes,
        "peak_bytes": max(one.peak_bytes for one in costs),
        "goal_seconds": goal,
    }


def cells(row: dict[str, Any]) -> Sequence[str]:
    size = row["read_bytes"]
    return (
        row["where"],
        row["command"],
        f"{row['seconds']:.2f}",
        f"{row['most_seconds']:.2f}",
        f"{row['processor_seconds']:.2f}",
        f"{row['requests']:,}",
        f"{size / 1e6:,.1f} MB" if size < 10**9 else f"{size / 1e9:,.2f} GB",
        f"{row['peak_bytes'] / 2**20:.0f}",
        "" if row["goal_seconds"] is None else f"{row['goal_seconds']:.1f}",
    )


@contextlib.contextmanager
def places(folder: Path, stores: Sequence[str], delay_ms: int) -> Iterator[Iterator[tuple[str, str, dict[str, str]]]]:
    """The repository in each place: what that is called, its location, and variables to reach it."""
    with contextlib.ExitStack() as stack:

        def each() -> Iterator[tuple[str, str, dict[str, str]]]:
            for store in stores:
                if store == "local":
                    yield "folder", str(folder / "repo"), {}
                    continue
                server = stack.enter_context(S3Server())
                there = f"s3://{BUCKET}/look"
                to = {name.replace("JSBACKUP_", "JSBACKUP_TO_"): value for name, value in server.environment.items()}
                copying = Commands({**server.environment, **to}, folder, 3600)
                copying.run("copy", "-r", folder / "repo", "--to-repo", there)
                link = stack.enter_context(delayed(server.port, delay_ms)).replace("nats://", "http://")
                yield f"S3, {delay_ms} ms", there, {**server.environment, "JSBACKUP_S3_ENDPOINT": link}

        yield each()


def paints(folder: Path, runs: int) -> Iterator[dict[str, Any]]:
    """First paints of pages with many streams, in ms as the browser tells them."""
    from jsbackup.stores.local import LocalStore
    from tests.browse.client import Browsing
    from tests.harness.backups import FIRST, make_repository
    from tests.harness.many_streams import manifest_of, many_streams

    repository = folder / "many-streams"
    shutil.rmtree(repository, ignore_errors=True)
    make_repository(LocalStore(repository)).commit(manifest_of(many_streams(PAINTED_STREAMS)))
    pages = {"home": "/", "a backup": f"/backup/{FIRST}", "a plan": f"/plan?backup={FIRST}"}
    times: dict[str, list[float]] = {}
    with (
        Browsing("-r", repository) as page,
        Browser(reaches=page.address) as browser,
        browser.visit(page.url, width=1280) as shown,
    ):
        browser.until(lambda: len(shown.told("Page.loadEventFired")) == 2)
        for name in list(pages) * (runs + 1):
            shown.go(f"http://{page.address}{pages[name]}")
            shown.settle()
            while (paint := shown.evaluate(_PAINT)) is None:
                shown.settle()
            times.setdefault(name, []).append(paint / 1000)
        peak = page.memory_bytes()
    for name, found in times.items():
        costs = [Cost(f"first paint, {name}", seconds, peak_bytes=peak) for seconds in found[1:]]
        yield row_of(f"{PAINTED_STREAMS:,} streams", costs, 0.3)


def rows(folder: Path, asked: argparse.Namespace) -> Iterator[dict[str, Any]]:
    written = made(folder, asked.bytes, asked.backups)
    file = folder / "large.bin"
    with places(folder, asked.stores, asked.delay) as found:
        for where, repository, variables in found:
            commands = Commands(variables, folder, 600)
            newest = commands.run("list", "-r", repository)["backups"][-1]["backup"]
            for case in cases(written, newest, file):
                if asked.only and not any(text in case.name for text in asked.only):
                    continue
                *costs, counted = measured(commands, case, repository, runs=asked.runs, printed=folder / "printed")
                yield row_of(where, costs, case.goals[where != "folder"], counted)
    if asked.paint:
        yield from paints(folder, asked.runs)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench look", description=__doc__)
    parser.add_argument("--bytes", type=lambda text: int(float(text)), default=10**10, help="raw bytes, such as 1e9")
    parser.add_argument("--backups", type=int, default=40)
    parser.add_argument("--runs", type=int, default=5, help="of each command")
    parser.add_argument("--stores", nargs="*", choices=["local", "seaweed"], default=["local", "seaweed"])
    parser.add_argument("--delay", type=int, default=20, help="round-trip time to S3 in ms")
    parser.add_argument("--only", nargs="*", help="only commands whose names have one of these texts")
    parser.add_argument("--paint", action=argparse.BooleanOptionalAction, default=True, help="needs Chromium")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="make the repository there, or use it, and keep it")
    parser.add_argument("--short", action="store_true", help="4 MB in 4 backups, one run of each")
    parser.add_argument("--json", action="store_true", help="print one JSON document instead of a table")
    asked = parser.parse_args()
    if asked.short:
        asked.bytes, asked.backups, asked.runs = 4_000_000, 4, 1
    done: list[dict[str, Any]] = []
    if not asked.json:
        print(markdown(HEAD), markdown(["---"] * 2 + ["---:"] * (len(HEAD) - 2)), sep="\n", flush=True)
    with contextlib.ExitStack() as stack:
        folder = asked.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="jsbackup-look-")))
        folder.mkdir(exist_ok=True)
        for row in rows(folder, asked):
            done.append(row)
            if not asked.json:
                print(markdown(cells(row)), flush=True)
    if asked.json:
        print(json.dumps({"rows": done}, indent=2))


if __name__ == "__main__":
    main()
