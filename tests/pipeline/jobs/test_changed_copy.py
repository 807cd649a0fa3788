"""Changed copies: what is made of a backup is what a restore makes of it, or nothing is made."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from jsbackup.cli.main import run
from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.repository.checks.verify import Level, verify_backup
from jsbackup.repository.crypto import age
from jsbackup.repository.read.segments import read_stream
from jsbackup.repository.write.stream_objects import load_consumer, read_opaque
from jsbackup.times import format_time
from tests.cli.test_json import check
from tests.cli.typed import Typed, in_shell
from tests.harness.api import call, connected
from tests.harness.batches import Message, messages_of, some_messages
from tests.harness.oracle import ObservedStream, compare, observe
from tests.harness.s3server import BUCKET, REGION, S3Server
from tests.harness.servers import NEWEST, NatsServer, wait_until
from tests.pipeline.places import Kept, keep

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Type = Callable[..., Typed]

KEY = "sixteen bytes of secret"


# ------------------------------------------------------------------------------------------------------- real servers


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        for name in ("A", "B"):
            await call(nc, f"STREAM.CREATE.{name}", {"name": name, "subjects": [f"{name.lower()}.>"]})
            for number in range(60):
                data = json.dumps({"n": number, "who": f"u{number % 5}"}).encode()
                headers = {"X-User": "eve"} if number % 4 == 0 else None
                await js.publish(f"{name.lower()}.{'xyz'[number % 3]}.{number % 7}", data, headers=headers)
            for sequence in (3, 17, 18, 40, 60):
                await call(nc, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})
        reader = await js.pull_subscribe("a.x.>", "reader", stream="A")
        for message in (await reader.fetch(12))[::2]:
            await message.ack_sync()
        await call(nc, "STREAM.CREATE.M", {"name": "M", "mirror": {"name": "B"}})
        bucket = await js.create_key_value(bucket="cfg", history=3)
        for number in range(9):
            await bucket.put(f"k{number % 4}", b"%d" % number)
        await bucket.delete("k3")
        objects = await js.create_object_store(bucket="files")
        await objects.put("one.bin", os.urandom(200_000))


def _seen(url: str) -> dict[str, ObservedStream]:
    async def look() -> dict[str, ObservedStream]:
        async with connected(url) as nc:
            return await observe(nc)

    return asyncio.run(look())


@dataclass(frozen=True)
class Servers:
    """One with streams, and two to restore into, which are emptied each time."""

    source: NatsServer
    targets: tuple[NatsServer, NatsServer]

    def restored(self, number: int, *arguments: str) -> dict[str, ObservedStream]:
        url = self.targets[number].url

        async def empty() -> None:
            async with connected(url) as nc:
                for name in [info.config.name for info in await nc.jetstream().streams_info()]:
                    await call(nc, f"STREAM.DELETE.{name}")

        asyncio.run(empty())
        assert run(["restore", *arguments, "-s", url, "-q", "--no-progress"]) == 0
        return _seen(url)


@pytest.fixture(scope="module")
def servers() -> Iterator[Servers]:
    with ExitStack() as stack:
        source, one, other = (stack.enter_context(NatsServer(NEWEST)) for _ in range(3))
        asyncio.run(_fill(source.url))
        wait_until(lambda: len(_seen(source.url)["M"].messages) == 55, "the mirror to have all messages")
        yield Servers(source, (one, other))


@dataclass(frozen=True)
class Way:
    """A kind of repository, a copy into another one or itself, and options for some streams."""

    repository: str
    to: str
    streams: tuple[str, ...]
    options: tuple[str, ...]
    until: bool = False
    more: Mapping[str, str] = field(default_factory=dict)


WAYS = [
    Way(
        "plain",
        "other",
        (),
        ("--rename", "*=N-*", "--mask", "a.>:$.who=hash", "--mask", "b.>:header(X-User)=redact"),
    ),
    Way(
        "encrypted",
        "other",
        ("A", "KV_*"),
        ("--map-subject=a.>=>new.>", "--subject=a.x.>", "--subject=$KV.cfg.*", "--rename=A=Z", "--allow-nothing"),
        until=True,
    ),
    Way("s3", "itself", ("B", "M"), ("--rename", "B=C", "--since", "5", "--until", "41")),
]


@pytest.mark.by_turns
@pytest.mark.nats
@pytest.mark.s3
@pytest.mark.parametrize("way", WAYS, ids=[way.repository for way in WAYS])
def test_a_changed_copy_restores_as_the_original_does_with_the_same_options(
    servers: Servers,
    typed: Type,
    s3_server: S3Server,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    way: Way,
) -> None:
    key = tmp_path / "key"
    key.write_text(KEY)
    repo, staging = str(tmp_path / "repo"), str(tmp_path / "staging")
    line, reading, there, to = ["-r", repo], ["-r", repo], ["-r", staging], ["--to-repo", staging]
    if way.repository == "s3":
        for name, value in s3_server.credentials().items():
            monkeypatch.setenv(name, value)
        s3 = ["--s3-endpoint", s3_server.url, "--s3-region", REGION]
        there = reading = line = ["-r", f"s3://{BUCKET}/changed", *s3]
        to = [word.replace("--", "--to-") for word in ("--repo", *line[1:])]
    if way.repository == "encrypted":
        line, reading = _encrypted(tmp_path, "repo")
        writing, there = _encrypted(tmp_path, "staging")
        to = ["--to-repo", staging, "--to-writer-key", writing[3]]
    original = check("backup", typed("backup", "-s", servers.source.url, *line, "--tag", "a=b", "--json"))["backup"]
    options = list(way.options)
    if way.until:
        options += ["--until", format_time(_seen(servers.source.url)["A"].messages[33].time_ns)]
    if any("=hash" in word for word in options):
        options += ["--mask-key-file", str(key)]

    before = _files(tmp_path / "repo")
    chosen = [f"--stream={name}" for name in way.streams]
    told = check("copy", typed("copy", original[:20], *chosen, *options, *reading, *to, "--json"))
    assert _files(tmp_path / "repo") == before
    assert (told["made_of"], told["result"]) == (original, "complete")
    assert told["backup"] > original or way.to == "other"  # of the same second
    plain = servers.restored(0, original, *way.streams, *options, *reading)
    assert compare(plain, servers.restored(1, told["backup"], *there)) == []
    assert {one["as"]: one["messages"] for one in told["streams"]} == {n: len(s.messages) for n, s in plain.items()}

    shown = check("show", typed("show", told["backup"], *there, "--json"))
    assert (shown["tags"], shown["source"]["transformed"]["backup"]) == ({"a": "b"}, original)
    assert typed("verify", "--level", "data", *there).code == 0
    if way.to == "other":
        return
    # A bucket of the same name on another server is not taken for this one.
    elsewhere = [*to[:2], "--to-s3-endpoint", "http://127.0.0.1:9"]
    assert typed("copy", original, *options, *reading, *elsewhere).code == 21
    # The next backup is of what the server has, and of nothing else.
    assert check("show", typed("show", "latest", *reading, "--json"))["backup"] == original
    again = check("backup", typed("backup", "-s", servers.source.url, *line, "--json"))
    first = check("show", typed("show", original, *reading, "--json"))
    assert {s["name"]: s["digest"] for s in again["streams"]} == {s["name"]: s["digest"] for s in first["streams"]}


def _encrypted(folder: Path, name: str) -> tuple[list[str], list[str]]:
    """Make a repository of that name, with keys of its own; the options for writing, and for reading."""
    reader = age.random_identity()
    assert reader.recipient is not None and reader.text is not None
    identity, repo = folder / f"{name}.identity", ["-r", str(folder / name)]
    identity.write_text(reader.text)
    writing = [*repo, "--writer-key", str(folder / f"{name}.key")]
    assert run(["init", *writing, "--encrypt-to", reader.recipient.label, "-q"]) == 0
    reading = ["--identity", str(identity)]
    return [*writing, *reading], [*repo, *reading]


def _files(folder: Path) -> dict[Path, tuple[int, int]]:
    """All files below it, each with its size and the time of its last change."""
    found = {path: path.stat() for path in folder.rglob("*") if path.is_file()}
    return {path: (stat.st_size, stat.st_mtime_ns) for path, stat in found.items()}


# -------------------------------------------------------------------------------------------------- given messages


def _messages(kept: Kept | RepositoryRef, backup: str, stream: str) -> list[Message]:
    """Those of a stream, which are proved."""
    repository = (kept.place if isinstance(kept, Kept) else kept).open()
    manifest = repository.manifest(backup)
    assert list(verify_backup(repository.objects, manifest, Level.DATA)) == []
    (found,) = [one for one in manifest.streams if one.name == stream]
    return messages_of(read_stream(repository.objects, found))


def _as_text(message: Message) -> Message:
    """As segments have it where all subjects are UTF-8."""
    return message._replace(subject=message.subject if isinstance(message.subject, str) else message.subject.decode())


@pytest.mark.by_turns
def test_a_bucket_is_compacted(typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("jsbackup.pipeline.tasks.packing._LEAST_BYTES", 1)
    gone = b"NATS/1.0\r\nKV-Operation: DEL\r\n\r\n"
    messages = [
        m._replace(subject=f"$KV.b.k{m.sequence % 7}", headers=gone if m.sequence % 3 == 0 else None)
        for m in some_messages(100, 300)
    ]
    kept = keep(tmp_path / "r", {"KV_b": messages})
    line = [*kept.line, "--to-repo", kept.place.location, "--json"]
    done = check("copy", typed("copy", "latest", "--kv-compact", "--renumber", *line))
    newest = {m.subject: m for m in messages}
    expected = [m for m in messages if newest[m.subject] is m and m.headers is None]
    assert 0 < len(expected) < 7
    assert _messages(kept, done["backup"], "KV_b") == [
        _as_text(m)._replace(sequence=number) for number, m in enumerate(expected, start=1)
    ]
    assert any("these are the revisions of its keys" in note for note in done["streams"][0]["notes"])


_A_TO_M = [bytes([letter]) for letter in range(ord("a"), ord("n"))]


def _everything(place: RepositoryRef) -> dict[str, int]:
    return {info.key: info.size for info in place.store().list() if not info.key.startswith("locks/")}


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
@pytest.mark.parametrize("newest", [0, 3])
def test_the_newest_messages_of_each_subject_are_kept_whatever_range_they_are_in(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, encrypted: bool, newest: int
) -> None:
    monkeypatch.setattr("jsbackup.pipeline.tasks.packing._LEAST_BYTES", 1)
    subjects = [f"k.{number * number % 97}" for number in range(400)]
    streams = {
        "KV": [m._replace(subject=s) for m, s in zip(some_messages(400, 30), subjects, strict=True)],
        "ODD": [m._replace(subject=b"\xff" if m.sequence % 2 else b"k.x") for m in some_messages(40, 300, seed=2)],
        "NONE": [],
    }
    kept = keep(tmp_path / "r", streams, encrypted=encrypted)
    line = [*kept.line, *(["--writer-key", str(kept.writer_key)] if kept.writer_key else [])]
    options = ["--last-per-subject", "3", "--renumber"] if newest else ["--last-per-subject", "1"]
    options += ["--subject", "k.>", "--since", "9", "--payload-match", r"^(?:[^a-m]|\z)", "--allow-nothing"]
    backup = check("copy", typed("copy", "latest", *options, *line, "--to-repo", kept.place.location, "--json"))[
        "backup"
    ]
    for name, messages in streams.items():
        among = [m for m in messages if m.sequence >= 9 and m.subject != b"\xff" and m.data[:1] not in _A_TO_M]
        last = {m.subject: [n for n in among if n.subject == m.subject][-(newest or 1) :] for m in among}
        expected = [_as_text(m) for m in among if m in last[m.subject]]
        if newest:
            expected = [m._replace(sequence=number) for number, m in enumerate(expected, start=1)]
        assert _messages(kept, backup, name) == expected
    assert len(_messages(kept, backup, "KV")) < 60 * (newest or 1)


@pytest.mark.by_turns
def test_a_copy_whose_workers_are_killed_each_time_fails(tmp_path: Path) -> None:
    """The command for the key ends the worker that asks for it. What is lost once is done again: `test_cluster.py`."""
    kept = keep(tmp_path / "r", {"A": [m._replace(data=b'{"a":1}') for m in some_messages(50, 0)]})
    before, target = _everything(kept.place), place_of(str(tmp_path / "to"), S3Settings(), {})
    script = tmp_path / "key.sh"
    script.write_text(
        f"grep -q pyspark.daemon /proc/$PPID/cmdline || {{ echo {KEY}; exit; }}\n"
        f"echo killed >> {tmp_path}/killed\n"
        "kill -9 $PPID\n"
    )
    line = ["copy", kept.manifest.id, "--mask", "orders.>:$.a=hash", *kept.line, "--spark", "local[2]"]
    failed = in_shell(*line, "--to-repo", target.location, JSBACKUP_MASK_KEY_COMMAND=f"sh {script}")
    assert (failed.code, "the copy failed" in failed.err) == (1, True), failed.err
    assert len((tmp_path / "killed").read_text().splitlines()) == 4
    assert target.open().backups() == []
    assert _everything(kept.place) == before


def test_a_copy_that_is_killed_leaves_no_backup_and_the_next_one_uses_what_it_stored(
    typed: Type, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = b'{"a":1,"b":"%s"}' % (b"x" * 1_000_000)
    streams = {"A": [m._replace(data=data) for m in some_messages(64, 0)]}
    kept = keep(tmp_path / "r", streams, segment_bytes=4 << 20)  # so that there are some tasks
    before, target = _everything(kept.place), tmp_path / "to"
    script = tmp_path / "key.sh"
    script.write_text(f"[ -e {target}/jsbackup.json ] && [ ! -e {tmp_path}/calm ] && kill -9 $PPID\necho {KEY}\n")
    monkeypatch.setenv("JSBACKUP_MASK_KEY_COMMAND", f"sh {script}")
    line = ["copy", kept.manifest.id, "--mask", ">:$.a=hash", *kept.line, "--to-repo", target]
    assert in_shell(*line, JSBACKUP_MASK_KEY_COMMAND=f"sh {script}").code == -signal.SIGKILL
    assert typed("list", "-r", target, "--json").document["backups"] == []
    stored = set(target.rglob("*.parquet"))
    assert stored and _everything(kept.place) == before
    (tmp_path / "calm").touch()
    assert check("copy", typed(*line, "--json"))["streams"][0]["messages"] == 64
    assert typed("verify", "-r", target, "--level", "data").code == 0
    assert stored <= set(target.rglob("*.parquet"))
    assert _everything(kept.place) == before


def test_what_is_wrong_is_said_in_a_sentence_and_nothing_is_written(
    typed: Type, tmp_path: Path, spark: SparkSession
) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(50, 100), "OBJ_b": some_messages(5, 10)}, opaque=True)
    before, target = _everything(kept.place), tmp_path / "to"
    to, a, key = ["copy", "--to-repo", target], ["--stream", "A"], tmp_path / "key"
    key.write_text(KEY)
    copy = [*to, "latest"]
    for words, code, said in (
        ([*to, "2099", "--rename", "A=B"], 2, "no backup starts with '2099'"),
        ([*copy, "--stream", "NONE", "--rename", "A=B"], 2, "has no stream NONE"),
        ([*copy, kept.manifest.id, "--rename", "A=B"], 2, "is of exactly one backup"),
        ([*to, "--rename", "A=B"], 2, "is of exactly one backup"),
        ([*copy, "--unmaskable", "drop"], 2, "nothing to change"),
        ([*copy, "--mask-key-file", key], 2, "nothing to change"),
        ([*copy, "--spark", "local"], 2, "nothing to change"),
        ([*copy, "--obfuscation-key", "k"], 2, "makes sense with --obfuscate only"),
        ([*copy, *a, "--rename", "X=B"], 2, "X is not among the streams"),
        ([*copy, *a, "--mask", "orders.>=redact"], 2, "--mask: not understood"),
        ([*copy, *a, "--mask", "orders.>:$.a=hash"], 2, "16 bytes or more"),
        ([*copy, *a, "--mask", "orders.>:$.a=redact"], 15, "cannot be masked"),
        ([*copy, *a, "--until", "2100-01-01T00:00:00Z"], 15, "may be missing"),
        ([*copy, *a, "--subject", "nobody.>"], 15, "none of the 50 messages would be left"),
        ([*copy, "--rename", "*=N*"], 15, "VERBATIM: is stored undecoded"),
        ([*copy, "--stream", "OBJ_b", "--last-per-subject", "1"], 15, "is an object bucket"),
    ):
        done = typed(*words, *kept.line)
        assert (done.code, said in done.err, done.out) == (code, True, ""), (words, done)
        assert next(one for one in done.err.splitlines() if not one.startswith("latest is ")).startswith("error: ")
        assert not target.exists(), words
    assert _everything(kept.place) == before


@pytest.mark.by_turns
@pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "encrypted"])
def test_streams_that_stay_as_they_are_are_in_the_other_repository_too(
    typed: Type, tmp_path: Path, encrypted: bool
) -> None:
    """Their messages, raw snapshots, and large pending sets."""
    streams = {"A": some_messages(300, 100), "B": some_messages(60, 10, seed=2), "NONE": []}
    kept = keep(tmp_path / "r", streams, encrypted=encrypted, opaque=not encrypted)
    before, target = _everything(kept.place), tmp_path / "to"
    line = ["copy", "latest", "--rename", "A=Z", *kept.line, "--to-repo", target, "--json"]
    if encrypted:
        assert typed(*line).code == 12  # what is made would be a replica, which is signed
        assert not target.exists()
        assert typed(*line, "--decrypt", "--no-init").code == 10
        line.append("--decrypt")
    told = check("copy", typed(*line))
    place = place_of(str(target), S3Settings(), {})
    assert place.open().descriptor.recipient is None
    for name in streams:
        assert _messages(place, told["backup"], {"A": "Z"}.get(name, name)) == streams[name]
    made = {one.name: one for one in place.open().manifest(told["backup"]).streams}
    for old in kept.manifest.streams:
        new = made[{"A": "Z"}.get(old.name, old.name)]
        both = (kept.place.open().objects, old), (place.open().objects, new)
        pending, raw = (
            [[load_consumer(objects, consumer) for consumer in stream.consumers] for objects, stream in both],
            [b"".join(read_opaque(objects, stream.opaque)) for objects, stream in both],
        )
        assert (pending[0], raw[0], old.digest) == (pending[1], raw[1], new.digest)
        assert (new.incarnation == old.incarnation) == (old.name != "A")
    assert typed("verify", "-r", target, "--level", "data").code == 0
    assert _everything(kept.place) == before


@pytest.mark.parametrize("spark", [(), ("--spark", "local[2]")], ids=["here", "on Spark"])
def test_a_replica_is_made_for_a_changed_copy(typed: Type, tmp_path: Path, spark: tuple[str, ...]) -> None:
    """It has the keys of the first repository, whose writer key signs and whose identity reads."""
    kept = keep(tmp_path / "r", {"A": [m._replace(data=b'{"a":1}') for m in some_messages(50, 0)]}, encrypted=True)
    before, target = _everything(kept.place), tmp_path / "to"
    line = ["copy", "latest", "--mask", ">:$.a=redact", *kept.line, "--writer-key", kept.writer_key, "--json"]
    told = check("copy", typed(*line, "--to-repo", target, *spark))
    place = place_of(str(target), S3Settings(), dict(kept.place.keys))
    assert place.open().descriptor.authority == kept.repository.descriptor.authority
    assert {m.data for m in _messages(place, told["backup"], "A")} == {b'{"a":"***"}'}
    assert _everything(kept.place) == before


@pytest.mark.parametrize("spark", [(), ("--spark", "local[2]")], ids=["here", "on Spark"])
def test_keys_of_the_other_repository_are_those_that_its_variables_name(tmp_path: Path, spark: tuple[str, ...]) -> None:
    """A writer key is all that it takes: what is stored there cannot be read with it."""
    kept = keep(tmp_path / "r", {"A": [m._replace(data=b'{"a":1}') for m in some_messages(50, 0)]}, encrypted=True)
    before = _everything(kept.place)
    writing, reading = _encrypted(tmp_path, "staging")
    line = ["copy", "latest", "--mask", ">:$.a=redact", "-r", kept.place.location, "--to-repo", writing[1], "--json"]
    keys = {"JSBACKUP_IDENTITY_FILE": dict(kept.place.keys)["identity"]}
    assert in_shell(*line, *spark, **keys).code == 12
    keys["JSBACKUP_TO_WRITER_KEY_FILE"] = writing[3]
    told = check("copy", in_shell(*line, *spark, **keys))
    place = place_of(reading[1], S3Settings(), {"identity": reading[3]})
    assert {m.data for m in _messages(place, told["backup"], "A")} == {b'{"a":"***"}'}
    assert _everything(kept.place) == before


def test_a_mask_that_masks_nothing_ends_in_no_backup(typed: Type, tmp_path: Path) -> None:
    """Nor does a filter that keeps nothing of a stream that has messages, unless that is meant."""
    user = [m._replace(data=b'{"email":"a"}') for m in some_messages(20, 0)]
    kept = keep(tmp_path / "r", {"A": user, "B": user})
    target = place_of(str(tmp_path / "to"), S3Settings(), {})
    line = ("copy", kept.manifest.id, "--to-repo", target.location, *kept.line)
    for words, said in (
        (["--mask", "orders.>:$.mail=redact"], "masks nothing in the 20 messages that it applies to"),
        (["--subject", "nobody.>"], "none of the 40 messages would be left"),
    ):
        done = typed(*line, *words)
        assert (done.code, said in done.err) == (15, True), done
    assert target.open().backups() == []
    meant = typed(*line, "--mask", "orders.>:$.mail=redact", "--allow-nothing", "--json")
    assert meant.code == 0 and "masks nothing in the" in meant.out, meant
    empty = typed(*line, "--stream", "A", "--subject", "nobody.>", "--allow-nothing", "--json")
    assert empty.code == 0 and empty.document["streams"][0]["messages"] == 0, empty


def test_a_damaged_segment_ends_in_no_backup(typed: Type, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(200, 100)})
    key = kept.manifest.streams[0].segments[2].key
    path = Path(kept.place.location) / key
    path.chmod(0o600)
    path.write_bytes(path.read_bytes()[::-1])
    target = tmp_path / "to"
    done = typed("copy", "latest", "--rename", "A=B", "--to-repo", target, *kept.line)
    assert (done.code, key in done.err) == (14, True), done
    assert kept.repository.backups() == [kept.manifest.id]
    assert not target.exists()


def test_both_keys_are_needed(typed: Type, tmp_path: Path) -> None:
    kept = keep(tmp_path / "r", {"A": some_messages(30, 100)}, encrypted=True)
    line = [*kept.line, "--writer-key", str(kept.writer_key)]
    for given in (line[:2], kept.line, [*line[:2], *line[4:]]):
        assert typed("copy", "latest", "--rename", "A=B", "--to-repo", line[1], *given).code == 12
    assert typed("copy", "latest", "--rename", "A=B", "--to-repo", line[1], *line).code == 0
