"""An estate: two servers of three accounts each, two repositories, and what each backup has to hold by other means.

Streams are read message by message (`tests/harness/oracle.py`). Everything that is drawn comes from `chance`. Commands
run in this process. `done` are operations in words, for what a test says.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import random
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jsbackup.cli.main import run
from tests.harness.api import JSON, call, connected
from tests.harness.commands import PATIENT, Ran
from tests.harness.oracle import ObservedStream, observe
from tests.harness.servers import NatsServer
from tests.trials.accounts import ACCOUNTS, CONFIG, url


class Held(NamedTuple):
    """A message without its sequence."""

    time_ns: int
    subject: bytes
    headers: bytes
    data: bytes


Contents = dict[int, Held]
Streams = dict[str, Contents]


class Place(NamedTuple):
    """An account of one of the servers."""

    server: str  # near or far
    account: str


@dataclass(frozen=True, slots=True)
class Kept:
    """What a backup has to hold. `whole` if all streams of the account were asked for."""

    account: str
    streams: Streams
    whole: bool
    complete: bool
    consumers: dict[str, JSON] = field(default_factory=dict)


_FILE = {"storage": "file", "retention": "limits", "num_replicas": 1}
STREAMS: dict[str, JSON] = {
    "ORDERS": {"name": "ORDERS", "subjects": ["orders.>"], **_FILE},
    "LEDGER": {"name": "LEDGER", "subjects": ["ledger.>"], **_FILE, "max_msgs_per_subject": 3},
    "KV_config": {
        "name": "KV_config",
        "subjects": ["$KV.config.>"],
        **_FILE,
        "max_msgs_per_subject": 1,
        "allow_rollup_hdrs": True,
        "deny_delete": True,
        "allow_direct": True,
    },
}
SUBJECTS = {
    "ORDERS": ["orders.eu.1", "orders.eu.2", "orders.us.1"],
    "LEDGER": ["ledger.a", "ledger.b"],
    "KV_config": ["$KV.config.prices.eu", "$KV.config.prices.us", "$KV.config.limits"],
}


class Estate:
    """A context manager. `near` has the accounts' streams, `far` is where they are restored and cloned to."""

    def __init__(self, version: str, folder: Path, seed: str) -> None:
        self.chance = random.Random(seed)
        self.folder = folder
        self.servers = {name: NatsServer(version, config=CONFIG) for name in ("near", "far")}
        self.repositories = (folder / "repo", folder / "other")
        self.kept: dict[str, Kept] = {}
        self.held: dict[Path, set[str]] = {path: set() for path in self.repositories}
        self.done: list[str] = []

    def __enter__(self) -> Estate:
        with contextlib.ExitStack() as stack:
            for server in self.servers.values():
                stack.enter_context(server)
            self._stack = stack.pop_all()
        for account in ACCOUNTS[:2]:
            for name in STREAMS:
                self.create(Place("near", account), name)
                self.publish(Place("near", account), name, self.chance.randint(4, 12))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    # --- the servers ---

    def url(self, place: Place) -> str:
        return url(self.servers[place.server], place.account)

    def ask(self, place: Place, subject: str, body: JSON | None = None) -> JSON:
        async def work() -> JSON:
            async with connected(self.url(place)) as nc:
                return await call(nc, subject, body)

        return asyncio.run(work())

    def create(self, place: Place, name: str) -> None:
        self.ask(place, f"STREAM.CREATE.{name}", STREAMS[name])
        config = {"durable_name": "worker", "ack_policy": "explicit", "max_ack_pending": 100}
        self.ask(place, f"CONSUMER.DURABLE.CREATE.{name}.worker", {"stream_name": name, "config": config})

    def publish(self, place: Place, name: str, messages: int) -> None:
        async def work() -> None:
            async with connected(self.url(place)) as nc:
                for _ in range(messages):
                    value = {"name": self.chance.choice(["bob", "eve", "mallory"]), "of": place.account}
                    body = json.dumps({**value, "n": self.chance.randint(0, 9**9)}).encode()
                    headers = {"X-Of": place.account} if self.chance.random() < 0.2 else None
                    await nc.request(self.chance.choice(SUBJECTS[name]), body, timeout=30, headers=headers)

        asyncio.run(work())

    def consume(self, place: Place, name: str, messages: int) -> None:
        """Fetch and acknowledge so many, if there are so many."""

        async def work() -> None:
            async with connected(self.url(place)) as nc:
                for _ in range(messages):
                    with contextlib.suppress(Exception):  # of nothing that is left
                        request = json.dumps({"batch": 1, "no_wait": True}).encode()
                        got = await nc.request(f"$JS.API.CONSUMER.MSG.NEXT.{name}.worker", request, timeout=5)
                        if got.reply:
                            await nc.request(got.reply, b"+ACK", timeout=5)

        asyncio.run(work())

    def look(self, place: Place) -> dict[str, ObservedStream]:
        async def work() -> dict[str, ObservedStream]:
            async with connected(self.url(place)) as nc:
                return await observe(nc)

        return asyncio.run(work())

    # --- the commands ---

    def type(self, *words: str | Path) -> Ran:
        """A command in this process, with --json."""
        line = [str(word) for word in words]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = run([*line, "--json", "--no-progress"])
        self.done.append(f"{_short(line)} -> {code}")
        document: Any = {}
        with contextlib.suppress(ValueError):
            document = json.loads(out.getvalue())
        assert "Traceback" not in err.getvalue(), err.getvalue()
        return Ran(code, document, out.getvalue(), err.getvalue())

    def on(self, place: Place) -> tuple[str, ...]:
        return ("-s", self.url(place), *PATIENT)


def contents(stream: ObservedStream) -> Contents:
    return {one.sequence: Held(one.time_ns, one.subject, one.header_block or b"", one.data) for one in stream.messages}


def all_contents(streams: dict[str, ObservedStream]) -> Streams:
    return {name: contents(stream) for name, stream in streams.items()}


def floor(consumer: JSON) -> JSON:
    """What a consumer's state comes to, for those that wait for nothing."""
    parts = {name: consumer[name]["stream_seq"] for name in ("delivered", "ack_floor")}
    return {**parts, "num_ack_pending": consumer["num_ack_pending"]}


def floors(streams: dict[str, ObservedStream]) -> dict[str, JSON]:
    return {name: {one: floor(state) for one, state in stream.consumers.items()} for name, stream in streams.items()}


@dataclass(frozen=True, slots=True)
class Reshaping:
    """Options of a restore or a clone, and what they should come to."""

    subject: str | None = None
    until: int | None = None
    since: int | None = None
    mask: bool = False
    map: bool = False
    prefix: str = ""

    def words(self) -> Iterator[str]:
        for option, value in (("--subject", self.subject), ("--until", self.until), ("--since", self.since)):
            if value is not None:
                yield from (option, str(value))
        if self.mask:
            yield from ("--mask", ">:$.name=redact")
        if self.map:
            yield from ("--map-subject", "orders.eu.*=>orders.de.$1")
        if self.prefix:
            yield from ("--rename", f"*={self.prefix}*")

    def __bool__(self) -> bool:
        return self != Reshaping()

    @property
    def cuts(self) -> bool:
        return any(one is not None for one in (self.subject, self.until, self.since))

    def keeps(self, name: str, messages: Contents) -> Contents:
        """The messages that stay, as they were."""
        wanted = None if self.subject is None else _matcher(self.subject)
        return {
            sequence: one
            for sequence, one in messages.items()
            if (wanted is None or wanted.fullmatch(one.subject.decode()))
            and (self.until is None or sequence <= self.until)
            and (self.since is None or sequence >= self.since)
        }

    def name(self, name: str) -> str:
        if name.startswith("KV_"):
            return f"KV_{self.prefix}{name[3:]}"
        return self.prefix + name

    def expected(self, name: str, messages: Contents) -> Contents:
        """What has to be read back at the target."""
        return {sequence: self._message(name, one) for sequence, one in self.keeps(name, messages).items()}

    def _message(self, name: str, one: Held) -> Held:
        subject = one.subject.decode()
        if self.map and subject.startswith("orders.eu."):
            subject = "orders.de." + subject.removeprefix("orders.eu.")
        if name.startswith("KV_") and self.prefix:
            subject = subject.replace(f"$KV.{name[3:]}.", f"$KV.{self.prefix}{name[3:]}.", 1)
        data = one.data
        if self.mask:
            value = json.loads(data)
            data = json.dumps({**value, "name": "***"}, sort_keys=True).encode()
        return one._replace(subject=subject.encode(), data=data)


def comparable(messages: Contents, masked: bool) -> Contents:
    """Payloads that were masked are compared as JSON."""
    if not masked:
        return messages
    return {
        sequence: one._replace(data=json.dumps(json.loads(one.data), sort_keys=True).encode())
        for sequence, one in messages.items()
    }


def _matcher(subject: str) -> re.Pattern[str]:
    tokens = [re.escape(token) for token in subject.split(".")]
    text = r"\.".join("[^.]+" if token == r"\*" else token for token in tokens)
    return re.compile(text.removesuffix(">") + (".+" if subject.endswith(">") else ""))


def _short(line: list[str]) -> str:
    """Without server and repository, whose places are another one each time."""
    return " ".join(re.sub(r"^/.*/", "", re.sub(r"^nats://(\w+).*", r"\1", word)) for word in line)
