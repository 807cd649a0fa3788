"""Obfuscated copies on real servers: nothing clear is left, what clients use still works, and both tools agree."""

from __future__ import annotations

import asyncio
import base64
import json
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from nats.js.api import ConsumerConfig

from jsbackup.cli.main import run
from jsbackup.formats.s2 import S2Decoder
from jsbackup.planning.obfuscation_file import read_key_file
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.repository.repository import Repository
from jsbackup.stores.local import LocalStore
from jsbackup.transforms.obfuscate.names import ObfuscatedNames
from tests.harness.api import Refused, call, connected, history_of, keys_of
from tests.harness.natscli import jsm_validate, run_nats
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.trials.accounts import ask, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(400)]

# Every word that names something. Nothing of it may be found in a copy.
CLEAR = [
    "ORDERS_X",
    "orderings",
    "customers",
    "westeros",
    "SECRETPAY",
    "header-secret",
    "SHIPPER",
    "why-it-exists",
    "team-blue",
    "settings-bucket",
    "keyname",
    "artifacts-bucket",
    "report final.pdf",
    "AGGREGATE_X",
    "tallied",
    "TALLY_X",
]
CONTENT = b"SECRETPAY in a file " * 20_000
STREAMS = ["ORDERS_X", "AGGREGATE_X", "KV_settings-bucket", "OBJ_artifacts-bucket", "TALLY_X"]


async def _fill(url: str, *, counts: bool = True) -> None:
    async with connected(url) as nc:
        js = nc.jetstream()
        config = {
            "name": "ORDERS_X",
            "subjects": ["orderings.>"],
            "description": "why-it-exists",
            "metadata": {"owner": "team-blue"},
            "republish": {"src": "orderings.customers.>", "dest": "tallied.again.>"},
        }
        await call(nc, "STREAM.CREATE.ORDERS_X", config)
        for number in range(30):
            headers = {"X-Who": "header-secret", "Nats-Msg-Id": f"header-secret-{number}"}
            data = b"" if number == 3 else b"SECRETPAY %d" % number
            await js.publish(f"orderings.customers.westeros{number % 3}", data, headers=headers)
        await call(nc, "STREAM.MSG.DELETE.ORDERS_X", {"seq": 5})
        waiting = ConsumerConfig(
            ack_wait=3600, filter_subject="orderings.customers.westeros1", description="why-it-exists"
        )
        one = await js.pull_subscribe("orderings.customers.westeros1", "SHIPPER", stream="ORDERS_X", config=waiting)
        for message in (await one.fetch(4))[:2]:
            await message.ack_sync()
        aggregate = {
            "name": "AGGREGATE_X",
            "sources": [
                {
                    "name": "ORDERS_X",
                    "subject_transforms": [{"src": "orderings.customers.*", "dest": "tallied.{{wildcard(1)}}"}],
                }
            ],
        }
        await call(nc, "STREAM.CREATE.AGGREGATE_X", aggregate)
        bucket = await js.create_key_value(bucket="settings-bucket", history=3)
        for number in range(9):
            await bucket.put(f"keyname{number % 4}.deep", b"SECRETPAY%d" % number)
        await bucket.delete("keyname3.deep")
        files = await js.create_object_store(bucket="artifacts-bucket")
        await files.put("report final.pdf", CONTENT)
        counter = {"name": "TALLY_X", "subjects": ["tally.>"], "allow_msg_counter": True, "allow_direct": True}
        if counts:
            await call(nc, "STREAM.CREATE.TALLY_X", counter)
        for number in range(6 if counts else 0):
            await js.publish(f"tally.westeros{number % 2}", b"", headers={"Nats-Incr": "+5"})
        while (await call(nc, "STREAM.INFO.AGGREGATE_X"))["state"]["messages"] < 29:
            await asyncio.sleep(0.05)


@pytest.fixture(scope="module")
def source() -> Iterator[NatsServer]:
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        yield server


@pytest.fixture(scope="module")
def repository(source: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("repository")
    with pytest.MonkeyPatch.context() as small:
        # What waits for an acknowledgement is an object of its own in the repository, which is found by the clear name.
        small.setattr("jsbackup.repository.write.stream_objects.INLINE_ENTRIES", 1)
        assert run(["backup", "-s", source.url, "-r", str(made), "-q", "--no-progress"]) == 0
    assert list(made.rglob("pending-*.parquet"))
    return made


Type = Callable[[str], tuple[int, str, str]]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    """`typed("list -r …")`: exit code, stdout, stderr."""
    type_it = typing(capsys, monkeypatch)

    def line(text: str) -> tuple[int, str, str]:
        done = type_it(*text.split())
        return done.code, done.out, done.err

    return line


def _at(url: str, stream: str, sequence: int) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = ask(url, f"STREAM.MSG.GET.{stream}", {"seq": sequence})["message"]
    except Refused:
        return None
    return found


def _everything(url: str) -> str:
    """All that a server tells of its streams: names, configurations, consumers, messages."""
    told = []
    for name in ask(url, "STREAM.NAMES")["streams"]:
        info = ask(url, f"STREAM.INFO.{name}")
        told.append(json.dumps([info["config"], ask(url, f"CONSUMER.LIST.{name}")]))
        for sequence in range(1, info["state"]["last_seq"] + 1):
            message = _at(url, name, sequence)
            if message is not None:
                parts = [base64.b64decode(message.get(field, "")).decode() for field in ("hdrs", "data")]
                told += [message["subject"], *parts]
                told += [
                    base64.urlsafe_b64decode(t + "==").decode("latin-1") for t in message["subject"].split(".")[3:4]
                ]
    return "\n".join(told)


def _assert_nothing_clear(text: str) -> None:
    found = [word for word in CLEAR if word.lower() in text.lower()]
    assert found == []


async def _use(url: str, names: ObfuscatedNames, *, counts: bool = True) -> None:
    """Uses what is there as clients do."""
    async with connected(url) as nc:
        js = nc.jetstream()
        bucket = await js.key_value(names.token("settings-bucket"))
        key = f"{names.token('keyname0')}.{names.token('deep')}"
        assert await keys_of(bucket) == sorted(f"{names.token(f'keyname{n}')}.{names.token('deep')}" for n in range(3))
        entry = await bucket.get(key)
        assert (entry.value, entry.revision) == (b"0" * len(b"SECRETPAY8"), 9)
        assert [one.revision for one in await history_of(bucket, key)] == [1, 5, 9]
        await bucket.put(key, b"new")
        assert (await bucket.get(key)).value == b"new"
        files = await js.object_store(names.token("artifacts-bucket"))
        name = names.token("report final.pdf")
        assert [one.name for one in await files.list()] == [name]
        assert (await files.get(name)).data == b"0" * len(CONTENT)  # the client checks the digest
        await files.put("another", b"another")
        if counts:
            await js.publish(names.subject("tally.westeros0"), b"", headers={"Nats-Incr": "+5"})
            last = {"last_by_subj": names.subject("tally.westeros0")}
            counted = (await call(nc, f"STREAM.MSG.GET.{names.stream('TALLY_X')}", last))["message"]
            assert json.loads(base64.b64decode(counted["data"])) == {"val": "20"}
        stream, consumer = names.stream("ORDERS_X"), names.token("SHIPPER")
        info = await call(nc, f"CONSUMER.INFO.{stream}.{consumer}")
        assert info["config"]["filter_subject"] == names.subject("orderings.customers.westeros1")
        assert (info["ack_floor"]["consumer_seq"], info["num_ack_pending"], info["num_pending"]) == (2, 2, 5)
        # The aggregate goes on where it was, and nothing twice.
        await js.publish(names.subject("orderings.customers.westeros0"), b"live")
        aggregate = names.stream("AGGREGATE_X")
        while (await call(nc, f"STREAM.INFO.{aggregate}"))["state"]["messages"] < 30:
            await asyncio.sleep(0.05)
        got = await call(nc, f"STREAM.MSG.GET.{aggregate}", {"seq": 30})
        assert got["message"]["subject"] == names.subject("tallied.westeros0")


def _same_size_and_time(source: str, target: str, names: ObfuscatedNames) -> None:
    for name in STREAMS:
        for sequence in range(1, ask(source, f"STREAM.INFO.{name}")["state"]["last_seq"] + 1):
            before = _at(source, name, sequence)
            after = _at(target, names.stream(name), sequence)
            assert (before is None) == (after is None)
            if before is not None:
                assert before["time"] == after["time"]
                if not before["subject"].startswith("$O.artifacts-bucket.M"):
                    assert len(before.get("data", "")) == len(after.get("data", ""))


def test_a_restore_and_a_changed_copy_hide_all_names_stay_usable_and_agree(
    typed: Type, repository: Path, source: NatsServer, tmp_path: Path
) -> None:
    key, other = tmp_path / "one.keys.json", tmp_path / "anonymous"
    asked = f"-r {repository} --obfuscate --obfuscation-key {key} --json"
    with NatsServer(NEWEST) as one, NatsServer(NEWEST) as two:
        code, plan, _ = typed(f"plan latest -s {two.url} {asked}")
        assert code == 0 and not key.exists() and "obfuscated, except" in plan
        code, out, err = typed(f"copy latest --to-repo {other} {asked}")
        assert code == 0 and stat.S_IMODE(key.stat().st_mode) == 0o600, out + err
        made = json.loads(out)["backup"]
        files = list(other.rglob("*"))
        _assert_nothing_clear("\n".join(map(str, files)))
        _assert_nothing_clear("\n".join(path.read_bytes().decode("latin-1") for path in files if path.is_file()))
        _assert_nothing_clear(encode_manifest(Repository.open(LocalStore(other)).manifest(made)).decode())
        names = read_key_file(key)
        assert typed(f"restore {made} -s {one.url} -r {other}")[0] == 0
        code, out, err = typed(f"restore latest -s {two.url} {asked}")
        assert code == 0, out + err
        _same_size_and_time(source.url, two.url, names)
        for name in set(STREAMS) - {"AGGREGATE_X"}:  # whose marks have the time of creation of its origin, or not
            assert _messages(one.url, names.stream(name)) == _messages(two.url, names.stream(name)) != []
        for url in (one.url, two.url):
            _assert_nothing_clear(_everything(url))
            asyncio.run(_use(url, names))


def _messages(url: str, stream: str) -> list[Any]:
    last = ask(url, f"STREAM.INFO.{stream}")["state"]["last_seq"]
    found = [_at(url, stream, sequence) for sequence in range(1, last + 1)]
    return [None if one is None else {**one, "time": None} for one in found]


def test_a_clone_is_obfuscated(typed: Type, source: NatsServer, tmp_path: Path) -> None:
    key = tmp_path / "clone.keys.json"
    with NatsServer(NEWEST) as target:
        cloning = f"clone * -s {source.url} --to-server {target.url} --obfuscate --obfuscation-key {key} --json"
        code, out, err = typed(cloning)
        assert code == 0, out + err
        _assert_nothing_clear(_everything(target.url))
        asyncio.run(_use(target.url, read_key_file(key)))


def test_the_oldest_servers_take_obfuscated_copies(typed: Type, tmp_path: Path) -> None:
    key, stored = tmp_path / "k.keys.json", tmp_path / "repository"
    with NatsServer(ENDS[0]) as source, NatsServer(ENDS[0]) as target:
        asyncio.run(_fill(source.url, counts=False))
        assert typed(f"backup -s {source.url} -r {stored} -q --no-progress")[0] == 0
        code, out, err = typed(f"restore latest -s {target.url} -r {stored} --obfuscate --obfuscation-key {key} --json")
        assert code == 0, out + err
        _assert_nothing_clear(_everything(target.url))
        asyncio.run(_use(target.url, read_key_file(key), counts=False))


def test_what_cannot_be_hidden_is_refused(typed: Type, tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        ask(server.url, "STREAM.CREATE.$MQTT_msgs", {"name": "$MQTT_msgs", "subjects": ["$MQTT.msgs.>"]})
        stored, key = tmp_path / "repository", tmp_path / "k.keys.json"
        assert typed(f"backup -s {server.url} -r {stored} -q --no-progress")[0] == 0
        asked = f"-s {server.url} -r {stored} --obfuscate --obfuscation-key {key}"
        code, out, _ = typed(f"plan latest {asked} --json")
        assert code == 15 and [one["rule"] for one in json.loads(out)["refusals"]] == ["obfuscate-mqtt"]
        code, _, err = typed(f"restore latest {asked}")
        assert code == 15 and not key.exists(), err
        for more, why in (("-o plan.json", "a saved plan"), ("--all-accounts", "--all-accounts")):
            code, _, err = typed(f"plan latest {asked} {more}")
            assert (code, why in err) == (2, True), err


@pytest.mark.parametrize("kind", ["parquet", "config"])
def test_tables_and_configurations_are_obfuscated(typed: Type, repository: Path, tmp_path: Path, kind: str) -> None:
    asked = f"export latest -r {repository} --format {kind} --obfuscate"
    code, out, err = typed(f"{asked} --output {tmp_path / 'out'} --json")
    assert code == 0, out + err
    files = [path for path in (tmp_path / "out").rglob("*") if path.is_file()]
    _assert_nothing_clear("\n".join(map(str, files)))
    for path in files:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
            _assert_nothing_clear(f"{table.schema} {table.schema.metadata} {table.to_pylist()}")
        else:
            _assert_nothing_clear(path.read_text())
    names = read_key_file(tmp_path / "out.keys.json")
    assert names.stream("ORDERS_X") in {path.parent.name for path in files} | {path.stem for path in files}
    assert "SHIPPER" in names.hashes
    if kind != "config":
        assert {"westeros1", "header-secret-7"} <= names.hashes.keys()
    code, _, err = typed(f"{asked} --output {tmp_path / 'out'}")
    assert code == 2 and "exists already" in err


@pytest.mark.natscli
def test_both_tools_make_the_same_copy_of_one_key(
    typed: Type, repository: Path, source: NatsServer, tmp_path: Path
) -> None:
    stream = "ORDERS_X"
    clear, theirs, ours, again = (tmp_path / name for name in ("clear", "theirs", "ours", "again"))
    run_nats("backup", "stream", stream, clear, "--no-progress", url=source.url)
    run_nats("backup", "edit", clear, theirs, "--obfuscate", "--no-progress")
    key = tmp_path / "theirs.keys.json"
    names = read_key_file(key)
    hashed = names.stream(stream)
    # Their key file is used by us, and gets what they have not met; so is ours by them.
    exporting = f"export latest {stream} -r {repository} --format nats-cli --archive v2 --output {ours} --obfuscate"
    code, out, err = typed(f"{exporting} --obfuscation-key {key}")
    assert code == 0, out + err
    assert names.hashes.items() <= read_key_file(key).hashes.items()
    assert run_nats("backup", "lookup", key, hashed).split() == [stream]
    run_nats("backup", "edit", clear, again, "--obfuscate", "--obfuscation-key", key, "--no-progress")
    assert read_key_file(tmp_path / "again.keys.json").hashes == read_key_file(key).hashes
    found = jsm_validate([theirs, ours, again])
    assert [one["error"] for one in found.values()] == ["", "", ""]
    decoder = S2Decoder()
    archive = b"".join(decoder.feed((ours / "stream.arc.s2").read_bytes()))
    _assert_nothing_clear(archive.decode("latin-1") + (ours / "backup.json").read_text())
    with NatsServer(NEWEST) as one, NatsServer(NEWEST) as two:
        run_nats("backup", "restore", "stream", theirs, "--no-progress", url=one.url)
        run_nats("backup", "restore", "stream", ours, "--no-progress", url=two.url)
        assert _messages(one.url, hashed) == _messages(two.url, hashed) != []
        configs = [ask(url, f"STREAM.INFO.{hashed}")["config"] for url in (one.url, two.url)]
        assert {**configs[0], "metadata": None} == {**configs[1], "metadata": None}
        consumers = [ask(url, f"CONSUMER.LIST.{hashed}")["consumers"] for url in (one.url, two.url)]
        for field in ("name", "config", "num_ack_pending"):
            assert [one[field] for one in consumers[0]] == [one[field] for one in consumers[1]]


def test_the_key_file_is_never_in_the_repository_nor_another_file(
    typed: Type, repository: Path, tmp_path: Path
) -> None:
    asked = f"copy latest -r {repository} --to-repo {tmp_path / 'copy'} --obfuscate"
    other = tmp_path / "notes.txt"
    other.write_text("notes")
    for more, code, why in (
        ("", 2, "--obfuscation-key FILE"),
        (f"--obfuscation-key {repository / 'x.keys.json'}", 2, "in the repository"),
        (f"--obfuscation-key {other}", 14, "notes.txt"),
        (f"--obfuscation-key {tmp_path / 'k'} --spark spark://there:7077", 2, "stays on this one"),
    ):
        got, _, err = typed(f"{asked} {more}")
        assert (got, why in err) == (code, True), err
    assert other.read_text() == "notes"
    assert not (repository / "x.keys.json").exists() and not (tmp_path / "k").exists()
