"""Streams restored or cloned otherwise: renamed, mapped, cut, filtered, masked as the rule says, message by message.

The rule is applied in plain Python to what the witness has read of the source; then it reads the target. Options are
drawn at random, by a seed that the name of the test tells.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
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
from tests.harness.servers import ENDS, EXPLORE, NEWEST, NatsServer

ROUNDS = 100 if EXPLORE else 10

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


# -------------------------------------------------------------------------------------------- options, and their rule

Rows = tuple[ObservedMessage, ...]


@dataclass
class Wish:
    """Options, and what they do to messages."""

    options: list[str] = field(default_factory=list)
    keeps: list[Callable[[ObservedMessage], bool]] = field(default_factory=list)
    last_seq: Callable[[ObservedStream, Rows], int] = lambda before, _within: before.state["last_seq"]
    newest: int = 0  # of each subject
    renumber: bool = False
    in_time: bool = False  # it ends at a time
    change: list[Callable[[ObservedMessage], ObservedMessage]] = field(default_factory=list)

    def apply(self, before: ObservedStream) -> tuple[list[ObservedMessage], int]:
        cuts, filters = [k for k in self.keeps if k.__name__ == "cut"], [k for k in self.keeps if k.__name__ != "cut"]
        within = tuple(m for m in before.messages if all(k(m) for k in cuts))
        kept = [m for m in within if all(k(m) for k in filters)]
        if self.newest:
            of_subject = {m.subject: [n for n in kept if n.subject == m.subject][-self.newest :] for m in kept}
            kept = [m for m in kept if m in of_subject[m.subject]]
        for change in self.change:
            kept = [change(m) for m in kept]
        if self.renumber:
            return [replace(m, sequence=n) for n, m in enumerate(kept, start=1)], len(kept)
        return kept, self.last_seq(before, within)


def _until(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    edge = chance.choice(before.messages)
    if chance.random() < 0.5:
        sequence = chance.randint(1, before.state["last_seq"])
        wish.options += ["--until", str(sequence)]

        def cut(m: ObservedMessage) -> bool:
            return m.sequence <= sequence

        wish.last_seq = lambda _before, _within: sequence
    else:
        wish.options += ["--until", format_time(edge.time_ns)]
        wish.in_time = True

        def cut(m: ObservedMessage) -> bool:
            return m.time_ns <= edge.time_ns

        def last_seq(whole: ObservedStream, within: Rows) -> int:
            if whole.messages[-1].time_ns <= edge.time_ns:
                return int(whole.state["last_seq"])
            return within[-1].sequence if within else 0

        wish.last_seq = last_seq
    wish.keeps.append(cut)


def _since(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    edge = before.messages[chance.randrange(len(before.messages) // 2)]
    by_time = chance.random() < 0.5

    def cut(m: ObservedMessage) -> bool:
        return m.time_ns >= edge.time_ns if by_time else m.sequence >= edge.sequence

    wish.options += ["--since", format_time(edge.time_ns) if by_time else str(edge.sequence)]
    wish.keeps.append(cut)


def _subject(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    tokens = chance.sample("xyz", chance.randint(1, 2))
    top = before.name.lower()
    for token in tokens:
        wish.options += ["--subject", f"{top}.{token}.*"]
    wish.keeps.append(lambda m: m.subject.decode().split(".")[1] in tokens)


def _without_subject(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    token = chance.choice("123")
    wish.options += ["--exclude-subject", f"{before.name.lower()}.*.{token}"]
    wish.keeps.append(lambda m: m.subject.decode().split(".")[2] != token)


def _header(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    wish.options += ["--header", chance.choice(["x-user", "X-User:eve"])]
    wish.keeps.append(lambda m: b"X-User" in (m.header_block or b""))


def _payload(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    digits = chance.sample("01234", chance.randint(1, 3))
    wish.options += ["--payload-match", f'"who": "u[{"".join(digits)}]"}}$']
    wish.keeps.append(lambda m: json.loads(m.data)["who"][1] in digits)


def _newest(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    wish.newest = chance.choice([1, 2, 5])
    wish.options += ["--last-per-subject", str(wish.newest)]


def _renumber(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    wish.renumber = True
    wish.options += ["--renumber"]


def _mask(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    top = before.name.lower()
    if chance.random() < 0.5:
        wish.options += ["--mask", f"{top}.*.1:$.who=redact"]

        def masked(m: ObservedMessage) -> ObservedMessage:
            if not m.subject.endswith(b".1"):
                return m
            who = json.dumps(json.loads(m.data)["who"]).encode()
            return replace(m, data=m.data.replace(who, b'"***"'))
    else:
        wish.options += ["--mask", f"{top}.>:header(x-user)=redact"]

        def masked(m: ObservedMessage) -> ObservedMessage:
            block = m.header_block
            return m if block is None else replace(m, header_block=block.replace(b"eve", b"***"))

    wish.change.append(masked)


def _map(wish: Wish, before: ObservedStream, chance: random.Random) -> None:
    # Always: else its subjects were in the way of the stream that is there.
    top = before.name.lower()
    dest, form = chance.choice([("new.$2.$1", "new.{1}.{0}"), ("new.{{wildcard(1)}}.$2", "new.{0}.{1}")])
    wish.options += ["--map-subject", f"{top}.*.*=>{dest}", "--map-subject", f"{top}.>=>rest.>"]

    def mapped(m: ObservedMessage) -> ObservedMessage:
        return replace(m, subject=form.format(*m.subject.decode().split(".")[1:]).encode())

    wish.change.append(mapped)


# ---------------------------------------------------------------------------------------------------------- the tests


@pytest.mark.parametrize("version", ENDS)
def test_what_is_restored_is_what_the_rule_says(
    version: str,
    places: Callable[[str], Place],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = places(version)
    for round_ in range(ROUNDS):
        chance = random.Random(f"{version} {round_}")
        before = place.streams[chance.choice("AB")]
        wish = Wish()
        for draw in (_until, _since, _subject, _mask):
            if chance.random() < 0.5:
                draw(wish, before, chance)
        for draw in (_without_subject, _header, _payload, _newest, _renumber):
            if chance.random() < 0.3:
                draw(wish, before, chance)
        _map(wish, before, chance)
        wire = chance.choice(["v1", "v2"] if version == NEWEST else ["v1"])
        send_as(monkeypatch, wire)
        options = [*wish.options, "--allow-nothing", "--rename", f"{before.name}=NEW", "--consumers", "none"]
        way = chance.choice([["restore", "latest"], ["clone", "--to-server", place.server.url]])
        code, told = place.jsbackup(capsys, *way, before.name, *options)
        what = f"round {round_}: {way[0]} {options}: {told}"
        if code == 2:
            assert "nothing lies between them" in told["error"]["message"], what
            continue
        assert code == 0, what
        kept, last_seq = wish.apply(before)
        if way[0] == "clone" and wire == "v2" and kept and wish.in_time:
            last_seq = kept[-1].sequence  # the end of a cut in time comes too late for an archive v2
        (restored,) = told["streams"]
        assert (restored["as"], restored["verified"], restored["messages"]) == ("NEW", True, len(kept)), what
        after = place.observed("NEW")
        assert list(after.messages) == kept, what
        assert after.state["last_seq"] == last_seq, what
        assert not kept or after.state["first_seq"] == kept[0].sequence, what
        place.delete("NEW")
        if way[0] == "restore":
            code, told = place.jsbackup(capsys, "plan", "latest", before.name, *options)
            (action,) = told["actions"]
            ends = (kept[0].sequence, kept[-1].sequence) if kept else (0, 0)
            assert (code, action["messages"], action["counted"]) == (0, len(kept), True), what
            assert (action["first_seq"], action["last_seq"]) == ends, what


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
