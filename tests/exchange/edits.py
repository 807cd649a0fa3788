"""The filters of `nats backup edit` and ours, side by side: streams that tell them apart, options, and both results."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from jsbackup.model import ConsumerState
from jsbackup.stores.memory import MemoryStore
from jsbackup.times import format_time
from tests.exchange.folders import imported, stored_messages, take_in
from tests.harness.api import Wire, call, connected
from tests.harness.backups import make_repository
from tests.harness.batches import Message
from tests.harness.commands import jsbackup
from tests.harness.natscli import run_nats

ORDERS, BUCKET = "ORDERS", "KV_cfg"
FIRST_SEQ = 11
COUNT = 160

_PAYLOADS = (
    b"",
    b'{"id": 7, "status": "paid", "user": "anna"}',
    b'{"id": 17, "status": "PAID"}',
    "größe: 3 €".encode(),
    "GRÖSSE".encode(),
    b"one\ntwo\nthree",
    b"two",
    b"\xff\xfe\x00binary\x80",
    b"caf\xe9",
    b"cut \xe2\x82",
    b"\xed\xa0\x80surrogate",
    "a\ufffdb".encode(),
    "\u212aelvin".encode(),
    b"aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!",
    b"a.b*c\\d",
    b"\r\n",
)
_BLOCKS = (
    None,
    None,
    b"X-Batch: 7",
    b"X-Batch: 8",
    b"X-Batch: 7\r\nX-Batch: 8",
    b"x-batch:7",
    b"X-BATCH:   7",
    b"X-Batch: 7 ",
    b"X-Batch:",
    b"X-Batch: 7:8",
    b"X-Batch-Of: 7",
    b"Other: X-Batch: 7",
    b"Msg-Id: 7\r\nTra\xc3\xafn: \xc3\xa9t\xc3\xa9",
    b"TRA\xc3\x8fN: \xff",
    b"K-Sign: 1\r\n\xe2\x84\xaa-sign: 2",
    b"Empty: \r\nX-Batch: 9",
)
_MARKERS = (
    None,
    None,
    None,
    b"KV-Operation: DEL",
    b"KV-Operation: PURGE\r\nNats-Rollup: sub",
    b"KV-Operation: PUT",
    b"kv-operation: DEL",
    b"KV-Operation: DEL ",
    b"X-Batch: 7\r\nKV-Operation: DEL",
    b"Nats-Marker-Reason-Not: MaxAge",
)


async def fill(url: str) -> None:
    """The same streams on a server of any version: the same messages at the same sequences, some deleted."""
    chance = random.Random(18)
    async with connected(url) as nc:
        await call(
            nc,
            f"STREAM.CREATE.{ORDERS}",
            {"name": ORDERS, "subjects": ["orders.>", "audit.*"], "first_seq": FIRST_SEQ, "retention": "limits"},
        )
        await call(
            nc,
            f"STREAM.CREATE.{BUCKET}",
            {
                "name": BUCKET,
                "subjects": ["$KV.cfg.>"],
                "max_msgs_per_subject": 5,
                "allow_rollup_hdrs": True,
                "allow_direct": True,
                "discard": "new",
            },
        )
        await call(
            nc,
            f"CONSUMER.DURABLE.CREATE.{ORDERS}.reader",
            {"stream_name": ORDERS, "config": {"durable_name": "reader", "ack_policy": "explicit"}},
        )
        start = {"durable_name": "later", "ack_policy": "explicit", "deliver_policy": "by_start_sequence"}
        await call(
            nc,
            f"CONSUMER.DURABLE.CREATE.{ORDERS}.later",
            {"stream_name": ORDERS, "config": {**start, "opt_start_seq": FIRST_SEQ + 40}},
        )
    wire = await Wire.open(url)
    for number in range(COUNT):
        subject = chance.choice(["orders.eu.1", "orders.eu.2", "orders.us.1", "orders.us.2.rush", "audit.log"])
        await wire.send(subject, chance.choice(_PAYLOADS), _block(chance.choice(_BLOCKS)))
        key = chance.choice(["theme", "user.anna", "user.bob", "limit", "gone"])
        marker = chance.choice(_MARKERS) if number < COUNT - 30 else chance.choice(_MARKERS[:5])
        data = b"" if marker is not None and b"DEL" in marker else chance.choice(_PAYLOADS)
        await wire.send(f"$KV.cfg.{key}", data, _block(marker))
    for reply in await wire.replies():
        assert b'"error"' not in reply.data, reply
    await wire.close()
    async with connected(url) as nc:
        for sequence in (*range(FIRST_SEQ + 20, FIRST_SEQ + 28), FIRST_SEQ + 90, FIRST_SEQ + COUNT - 1):
            await call(nc, f"STREAM.MSG.DELETE.{ORDERS}", {"seq": sequence})
        deliveries = await nc.subscribe("deliveries")
        request = json.dumps({"batch": 60, "expires": 5_000_000_000}).encode()
        await nc.publish(f"$JS.API.CONSUMER.MSG.NEXT.{ORDERS}.reader", request, reply="deliveries")
        for number in range(60):
            message = await deliveries.next_msg(timeout=10)
            if number < 30 or number % 3 == 0:
                await nc.request(message.reply, b"+ACK", timeout=10)


def _block(fields: bytes | None) -> bytes | None:
    return None if fields is None else b"NATS/1.0\r\n" + fields + b"\r\n\r\n"


class Edit(NamedTuple):
    """One option in their words and in ours."""

    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    @classmethod
    def same(cls, *words: str) -> Edit:
        return cls(words, words)


def after(time_ns: int) -> Edit:
    moment = format_time(time_ns)
    return Edit(("--after", moment), ("--since", moment))


def before(time_ns: int) -> Edit:
    """Theirs leaves the moment itself out."""
    return Edit(("--before", format_time(time_ns)), ("--until", format_time(time_ns - 1)))


def first_seq(sequence: int) -> Edit:
    return Edit(("--first-seq", str(sequence)), ("--since", str(sequence)))


def last_seq(sequence: int) -> Edit:
    return Edit(("--last-seq", str(sequence)), ("--until", str(sequence)))


SUBJECTS = ("orders.>", "orders.*.1", "audit.log", "orders.us.*.rush", "$KV.*.user.*", "$KV.cfg.theme", "none", "*.*.*")
HEADERS = (
    *("X-Batch", "x-batch", "X-Batch:7", "X-Batch:7 ", "X-Batch:8", "X-Batch:", "X-Batch:7:8", "X-BATCH:9", "Other"),
    *("Msg-Id", "traïn", "Traïn:été", "k-sign", "K-SIGN:2", "KV-Operation", "KV-Operation:DEL", "none", "Empty:"),
)
EXPRESSIONS = (
    *("", "paid", "(?i)paid", "^two$", "(?m)^two$", "^one", "three$", ".", "^.$", "^.{4}$", "(?s)^.{13}$", "^a.b$"),
    *("[^a]", "�", r"\x{FFFD}b", "(?i)kelvin", "é", "caf.", r"caf\x{FFFD}$", "gr[ö]ße", "(?i)GRÖSSE", r"\pL{5}"),
    *(r"\bstatus\b", r"a\.b\*c\\d", r"\Qa.b*c\d\E", "(a+)+$", "(?U)a+!", r"\x00", "^\r\n$", r"\A\z", "[[:upper:]]{4}"),
    *(r'"id": (?P<n>1?7)\b', "^(?:one|cut)", "surrogate|binary", r"^\P{L}", r"\d+", "none at all"),
)

# A row for each flag of `nats backup edit --help` but those that are not filters, and --obfuscate.
FLAGS: dict[str, list[Edit]] = {
    "--subject": [Edit.same("--subject", one) for one in SUBJECTS],
    "--exclude-subject": [Edit.same("--exclude-subject", one) for one in SUBJECTS],
    "--header": [Edit.same("--header", one) for one in HEADERS],
    "--payload-match": [Edit.same("--payload-match", one) for one in EXPRESSIONS],
    "--last-per-subject": [Edit.same("--last-per-subject", str(one)) for one in (1, 2, 7, 1000)],
    "--kv-compact": [Edit.same("--kv-compact")],
    "--renumber": [Edit.same("--renumber")],
    "--first-seq": [first_seq(FIRST_SEQ + one) for one in (0, 1, 25, 100)],
    "--last-seq": [last_seq(FIRST_SEQ + one) for one in (0, 25, 100)],
}
REPEATED = ("--subject", "--exclude-subject", "--header", "--payload-match")
NOT_FILTERS = {"--dry-run", "--obfuscate", "--obfuscation-key", "--progress"}
NOT_OURS = {"--exclude-header", "--exclude-payload-match"}


def some_edits(chance: random.Random, stream: str, times: Sequence[int]) -> list[Edit]:
    """Random options for a stream whose messages have these times. Each end of a cut is given once."""
    found: list[Edit] = []
    for flag in REPEATED:
        if chance.random() < 0.3:
            found += chance.sample(FLAGS[flag], chance.choice([1, 1, 2, 3]))
    starts = [*FLAGS["--first-seq"], after(chance.choice(times) + chance.choice([-1, 0, 1]))]
    ends = [*FLAGS["--last-seq"], before(chance.choice(times) + chance.choice([0, 1]))]
    found += [chance.choice(edits) for edits in (starts, ends) if chance.random() < 0.2]
    newest = [*FLAGS["--last-per-subject"], *(FLAGS["--kv-compact"] * 4 if stream == BUCKET else [])]
    found += [chance.choice(newest)] if chance.random() < 0.4 else []
    found += FLAGS["--renumber"] if chance.random() < 0.3 else []
    return found or [chance.choice(newest)]


@dataclass(frozen=True, slots=True)
class Result:
    """What a folder of the nats CLI has: messages, the ends of the stream, and the states of its consumers."""

    messages: list[Message]
    first_seq: int
    last_seq: int
    consumers: dict[str, ConsumerState | None] = field(default_factory=dict)

    @property
    def ends(self) -> tuple[int, int]:
        return self.first_seq, self.last_seq


def read_folder(folder: Path) -> Result:
    repository = make_repository(MemoryStore())
    (stream,) = imported(take_in(folder, repository)).values()
    state = json.loads((folder / "backup.json").read_text())["state"]
    consumers = {consumer.name: consumer.state for consumer in stream.consumers}
    return Result(stored_messages(repository.store, stream), state["first_seq"], state["last_seq"], consumers)


def theirs(source: Path, target: Path, edits: Sequence[Edit]) -> Result:
    run_nats("backup", "edit", source, target, *(word for edit in edits for word in edit.theirs), "--no-progress")
    return read_folder(target)


def our_words(edits: Sequence[Edit]) -> list[str]:
    return [word for edit in edits for word in edit.ours] + ["--allow-nothing"]


def to_folder(repository: Path, target: Path) -> list[str | Path]:
    """Options of an export in the format that they write."""
    return ["-r", repository, "--format", "nats-cli", "--archive", "v2", "--output", target]


def ours(repository: Path, stream: str, target: Path, edits: Sequence[Edit]) -> Result:
    jsbackup("export", "latest", stream, *our_words(edits), *to_folder(repository, target)).ok()
    return read_folder(target)
