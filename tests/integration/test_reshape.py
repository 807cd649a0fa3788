"""Streams restored or cloned otherwise: renamed, mapped, cut, filtered, masked as the rule says, message by message.

The rule is applied in plain Python to what the witness has read of the source; then it reads the target."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from nats.js.api import ConsumerConfig
from nats.js.errors import KeyNotFoundError

from jsbackup.cli.main import run
from jsbackup.repository.write.segment_writer import SegmentWriter
from jsbackup.times import format_time
from tests.harness.api import PATIENCE_SECONDS, call, connected
from tests.harness.oracle import ObservedMessage, ObservedStream, observe
from tests.harness.sending import send_as
from tests.harness.servers import ENDS, NEWEST, NatsServer

_DEFAULTS = SegmentWriter.__init__.__kwdefaults__ or {}

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]


@dataclass(frozen=True)
class Place:
    """A server with streams, which are backed up and as `streams` says."""

    server: NatsServer
    repository: Path
    streams: dict[str, ObservedStream]

    def jsbackup(self, capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, Any]]:
        """Runs the tool against the server; exit code and JSON."""
        capsys.readouterr()
        options = ["-s", self.server.url, "-r", str(self.repository), "--json", "--no-progress", "-q"]
        code = run([*arguments, *options])
        return code, json.loads(capsys.readouterr().out)

    def observed(self, name: str) -> ObservedStream:
        async def look() -> ObservedStream:
            async with connected(self.server.url) as nc:
                return (await observe(nc, [name]))[name]

        return asyncio.run(look())

    def delete(self, *names: str) -> None:
        async def delete() -> None:
            async with connected(self.server.url) as nc:
                for name in names:
                    await call(nc, f"STREAM.DELETE.{name}")

        asyncio.run(delete())


async def _fill(url: str, chance: random.Random) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        for name in ("A", "B"):
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
            for number in range(60):
                subject = f"{name.lower()}.{chance.choice('xyz')}.{chance.choice('123')}"
                data = json.dumps({"n": number, "who": f"u{number % 5}"}).encode()
                await js.publish(subject, data, headers={"X-User": "eve"} if chance.random() < 0.3 else None)
            for sequence in chance.sample(range(1, 61), 8):
                await call(nc, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        # Nothing is delivered again while tests use what is made here once.
        patient = ConsumerConfig(ack_wait=3600)
        one = await js.pull_subscribe("a.x.>", "reader", stream="A", config=patient)
        for message in (await one.fetch(8))[::2]:
            await message.ack_sync()
        bucket = await js.create_key_value(bucket="cfg", history=3)
        for number in range(9):
            await bucket.put(f"k{number % 4}", b"%d" % number)
        await bucket.delete("k3")
        objects = await js.create_object_store(bucket="files")
        await objects.put("one.bin", chance.randbytes(300_000))
        await objects.put("two.txt", b"two")


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], Place]]:
    made: dict[str, Place] = {}
    with ExitStack() as stack:

        def place(version: str) -> Place:
            if version not in made:
                server = stack.enter_context(NatsServer(version))
                asyncio.run(_fill(server.url, random.Random(version)))

                async def look() -> dict[str, ObservedStream]:
                    async with connected(server.url) as nc:
                        return await observe(nc)

                repository = tmp_path_factory.mktemp("repository")
                arguments = ["-s", server.url, "-r", str(repository), "-q", "--no-progress"]
                assert run(["backup", *arguments]) == 0
                made[version] = Place(server, repository, asyncio.run(look()))
            return made[version]

        yield place


# --- options, and their rule ---

Rows = list[ObservedMessage]


def _at(stream: ObservedStream, row: int) -> ObservedMessage:
    """The message of that row: deleted ones are none."""
    return stream.messages[row]


def _redacted(m: ObservedMessage) -> ObservedMessage:
    who = json.dumps(json.loads(m.data)["who"]).encode()
    block = m.header_block and m.header_block.replace(b"eve", b"***")
    return replace(m, data=m.data.replace(who, b'"***"'), header_block=block)


def _newest(rows: Rows, count: int) -> Rows:
    return [m for m in rows if m in [n for n in rows if n.subject == m.subject][-count:]]


@dataclass(frozen=True)
class Case:
    """Options, and the messages that they leave. `ends_at` is the row of the last sequence, if not the stream's."""

    options: Callable[[ObservedStream], list[str]]
    keeps: Callable[[ObservedStream, Rows], Rows]
    ends_at: int | None = None
    renumbered: bool = False

    def kept(self, before: ObservedStream) -> tuple[Rows, int]:
        rows = self.keeps(before, list(before.messages))
        if self.renumbered:
            return [replace(m, sequence=n) for n, m in enumerate(rows, start=1)], len(rows)
        return rows, before.state["last_seq"] if self.ends_at is None else _at(before, self.ends_at).sequence


CASES = {
    "all": Case(lambda _: [], lambda _, rows: rows),
    "between sequences, some subjects": Case(
        lambda s: ["--since", str(_at(s, 9).sequence), "--until", str(_at(s, 40).sequence), "--subject", "a.x.*"],
        lambda _, rows: [m for m in rows[9:41] if m.subject.startswith(b"a.x.")],
        ends_at=40,
    ),
    "between times, without some subjects": Case(
        lambda s: [
            *("--since", format_time(_at(s, 4).time_ns), "--until", format_time(_at(s, 30).time_ns)),
            *("--exclude-subject", "a.*.1"),
        ],
        lambda s, rows: [
            m for m in rows if _at(s, 4).time_ns <= m.time_ns <= _at(s, 30).time_ns and m.subject[-1:] != b"1"
        ],
        ends_at=30,
    ),
    "by content": Case(
        lambda _: ["--header", "x-user", "--payload-match", '"who": "u[123]"}$'],
        lambda _, rows: [m for m in rows if m.header_block and json.loads(m.data)["who"] in ("u1", "u2", "u3")],
    ),
    "the newest, numbered anew": Case(
        lambda _: ["--last-per-subject", "2", "--renumber"], lambda _, rows: _newest(rows, 2), renumbered=True
    ),
    "masked": Case(
        lambda _: ["--mask", "a.>:$.who=redact", "--mask", "a.>:header(x-user)=redact"],
        lambda _, rows: list(map(_redacted, rows)),
    ),
    "nothing": Case(lambda _: ["--subject", "a.none", "--allow-nothing"], lambda _, rows: []),
}


def _mapped(m: ObservedMessage) -> ObservedMessage:
    _, one, other = m.subject.split(b".")
    return replace(m, subject=b"new.%s.%s" % (other, one))


# --- the tests ---


@pytest.mark.parametrize("way", ["restore", "clone"])
@pytest.mark.parametrize(("version", "wire"), [(ENDS[0], "v1"), (NEWEST, "v1"), (NEWEST, "v2")])
def test_what_is_restored_is_what_the_rule_says(
    version: str,
    wire: str,
    way: str,
    places: Callable[[str], Place],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = places(version)
    send_as(monkeypatch, wire)
    before = place.streams["A"]
    changed = [
        "--rename",
        "A=NEW",
        "--map-subject",
        "a.*.*=>new.$2.$1",
        "--map-subject",
        "a.>=>rest.>",
        "--consumers",
        "none",
    ]
    for name, case in CASES.items():
        options = ["A", *case.options(before), *changed]
        command = ["restore", "latest"] if way == "restore" else ["clone", "--to-server", place.server.url]
        code, told = place.jsbackup(capsys, *command, *options)
        assert code == 0, f"{name}: {told}"
        rows, last_seq = case.kept(before)
        kept = list(map(_mapped, rows))
        (restored,) = told["streams"]
        assert (restored["as"], restored["verified"], restored["messages"]) == ("NEW", True, len(kept)), name
        after = place.observed("NEW")
        assert list(after.messages) == kept, name
        if not (way == "clone" and wire == "v2" and "times" in name):
            assert after.state["last_seq"] == last_seq, name  # an end in time comes too late for an archive v2
        place.delete("NEW")
        if way == "restore":
            code, told = place.jsbackup(capsys, "plan", "latest", *options)
            (action,) = told["actions"]
            ends = (kept[0].sequence, kept[-1].sequence) if kept else (0, 0)
            assert (code, action["messages"], action["counted"]) == (0, len(kept), True), name
            assert (action["first_seq"], action["last_seq"]) == ends, name


@pytest.mark.parametrize("more", [(), ("--map-subject", ">=>t.>")], ids=["renamed", "mapped"])
def test_buckets_keep_working_under_other_names(
    more: tuple[str, ...], places: Callable[[str], Place], capsys: pytest.CaptureFixture[str]
) -> None:
    """Also where all subjects are mapped: those of buckets change with their names only."""
    place = places(NEWEST)
    code, told = place.jsbackup(capsys, "restore", "latest", "KV_cfg", "OBJ_files", "--rename", "*=N-*", *more)
    assert code == 0, told
    assert {stream["as"] for stream in told["streams"]} == {"KV_N-cfg", "OBJ_N-files"}

    async def compare() -> None:
        async with connected(place.server.url) as nc:
            js = nc.jetstream()
            old, new = await js.key_value("cfg"), await js.key_value("N-cfg")
            for revision in range(4, 10):  # not by `history`, which may give up before the first entry comes
                before, after = [await bucket.get(f"k{(revision - 1) % 4}", revision) for bucket in (old, new)]
                assert (before.value, before.revision) == (after.value, after.revision)
            assert (await new.get("k1", revision=2)).value == b"1"
            with pytest.raises(KeyNotFoundError):
                await new.get("k3")
            assert await new.update("k0", b"again", last=9) == 11
            ours, theirs = await js.object_store("files"), await js.object_store("N-files")
            for name in ("one.bin", "two.txt"):
                assert (await ours.get(name)).data == (await theirs.get(name)).data
                assert (await theirs.get_info(name)).bucket == "N-files"
            await theirs.put("three.txt", b"three")

    asyncio.run(compare())
    place.delete("KV_N-cfg", "OBJ_N-files")


@pytest.mark.parametrize("version", ENDS)
def test_consumers_go_on_where_the_cut_stream_ends(
    version: str, places: Callable[[str], Place], capsys: pytest.CaptureFixture[str]
) -> None:
    place = places(version)
    before = place.streams["A"]
    reader = before.consumers["reader"]
    delivered = reader["delivered"]["stream_seq"]
    until = (delivered + reader["ack_floor"]["stream_seq"]) // 2
    options = ["--rename", "A=CUT", "--map-subject", "a.>=>cut.>", "--until", str(until)]
    code, planned = place.jsbackup(capsys, "plan", "latest", "A", *options)
    assert code == 0, planned
    (action,) = planned["actions"]
    later = next(message for message in before.messages if message.sequence > until)
    assert action["last_seq"] == max(m.sequence for m in before.messages if m.sequence <= until)
    assert action["counted"] and action["times_exact"]
    assert action["first_dropped"] == {"sequence": later.sequence, "time": format_time(later.time_ns)}
    assert f"from sequence {delivered} to {until}" in action["consumers"][0]["note"]
    code, told = place.jsbackup(capsys, "restore", "latest", "A", *options)
    assert code == 0, told
    after = place.observed("CUT").consumers["reader"]
    assert (after["config"]["filter_subject"], after["delivered"]["stream_seq"]) == ("cut.x.>", until)
    assert after["num_ack_pending"] <= reader["num_ack_pending"]

    async def read_on() -> None:
        async with connected(place.server.url) as nc:
            js = nc.jetstream()
            await js.publish("cut.x.new", b"new")
            subscription = await js.pull_subscribe_bind("reader", "CUT")
            (message,) = await subscription.fetch(1, timeout=PATIENCE_SECONDS)
            assert message.metadata.sequence.stream == until + 1

    asyncio.run(read_on())
    place.delete("CUT")


def test_hashes_are_those_of_the_key_whatever_way_it_is_given(
    places: Callable[[str], Place],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = places(NEWEST)
    key = tmp_path / "key"
    key.write_bytes(b"sixteen bytes of secret\n")
    monkeypatch.setenv("JSBACKUP_MASK_KEY", "sixteen bytes of secret")
    plan = str(tmp_path / "plan.json")
    options = ["--map-subject", "a.>=>h.>", "--mask", "a.>:$.who=hash"]
    assert place.jsbackup(capsys, "plan", "latest", "A", "--rename", "A=H", *options, "-o", plan)[0] == 0
    assert "sixteen" not in Path(plan).read_text()
    code, told = place.jsbackup(capsys, "restore", "--plan", plan)
    assert code == 0, told
    assert any(" values in the " in note for note in told["streams"][0]["notes"])
    monkeypatch.delenv("JSBACKUP_MASK_KEY")
    assert place.jsbackup(capsys, "restore", "--plan", plan)[0] == 2
    options = ["--map-subject", "a.>=>i.>", "--mask", "a.>:$.who=hash", "--mask-key-file", str(key)]
    code, told = place.jsbackup(capsys, "restore", "latest", "A", "--rename", "A=I", *options)
    assert code == 0, told
    assert told["streams"][0]["consumers"][0]["fidelity"] == "exact"
    one, other = ([m.data for m in place.observed(name).messages] for name in ("H", "I"))
    assert one == other
    assert all(b'"u' not in data for data in one)
    place.delete("H", "I")


def test_what_is_left_of_a_damaged_backup_is_reshaped_too(
    places: Callable[[str], Place], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place = places(NEWEST)
    before = place.streams["B"]
    arguments = ["-s", place.server.url, "-r", str(tmp_path), "-q", "--no-progress"]
    with pytest.MonkeyPatch.context() as small:
        small.setattr(SegmentWriter.__init__, "__kwdefaults__", {**_DEFAULTS, "segment_bytes": 500})
        assert run(["backup", "B", *arguments]) == 0
    mine = replace(place, repository=tmp_path)
    segments = sorted(tmp_path.rglob("*.parquet"))
    assert len(segments) > 4
    segments[-1].unlink()
    options = ["--rename", "B=LEFT", "--map-subject", "b.>=>left.>"]
    sequence = before.messages[len(before.messages) // 2].sequence
    # What is lost is not needed for that.
    code, told = mine.jsbackup(capsys, "restore", "latest", "B", *options, "--until", str(sequence))
    assert code == 0, told
    assert told["streams"][0]["messages"] == len([m for m in before.messages if m.sequence <= sequence])
    mine.delete("LEFT")
    segments[0].unlink()
    code, told = mine.jsbackup(capsys, "restore", "latest", "B", *options, "--until", str(sequence))
    assert code == 14, told
    code, told = mine.jsbackup(capsys, "restore", "latest", "B", *options, "--until", str(sequence), "--partial")
    assert code == 3, told
    (restored,) = told["streams"]
    lost = sum(one["messages"] for one in restored["lost"])
    assert lost > 0
    assert restored["messages"] == len([m for m in before.messages if m.sequence <= sequence]) - lost
    mine.delete("LEFT")
