"""`import` and `export` as a user types them: exit codes, JSON, sentences, and nothing half-made."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import pytest

from jsbackup.cli.commands import exchange
from jsbackup.cli.main import run
from jsbackup.model import Fidelity
from jsbackup.progress import NullProgress
from jsbackup.repository.manifest import BackupResult, ConsumerBackup, Manifest, Source
from jsbackup.stores.local import LocalStore
from tests.exchange.folders import V1, V2, stream_folder, tree
from tests.formats.archives import in_s2
from tests.harness.backups import CREATED, SECOND, make_repository, store_backup
from tests.harness.batches import some_messages
from tests.harness.commands import Ran
from tests.harness.commands import jsbackup as jsbackup_process

MESSAGES = some_messages(100, 50)


class Command(Protocol):
    """`jsbackup … --json` in this process, which saves the half second that a process of its own takes."""

    def __call__(self, *arguments: str | Path) -> Ran: ...


@pytest.fixture
def jsbackup(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.delenv("JSBACKUP_REPO", raising=False)
    monkeypatch.setenv("JSBACKUP_TRACEBACK", "1")

    def call(*arguments: str | Path) -> Ran:
        capsys.readouterr()
        code = run([*map(str, arguments), "--json"])
        printed = capsys.readouterr()
        return Ran(code, json.loads(printed.out) if printed.out else {}, printed.out, printed.err)

    return call


@pytest.fixture
def account(tmp_path: Path) -> Path:
    for name in ("A", "B"):
        stream_folder(tmp_path / "account" / name, MESSAGES, name=name)
    return tmp_path / "account"


@pytest.fixture
def repo(tmp_path: Path, account: Path, jsbackup: Command) -> Path:
    """A repository with both streams in its only backup."""
    jsbackup("import", account, "-r", tmp_path / "repo").ok()
    return tmp_path / "repo"


def error_of(ran: Ran) -> tuple[int, str]:
    assert ran.document["error"]["code"] == ran.code
    message = ran.document["error"]["message"]
    assert not message[0].isupper()
    assert not message.endswith(".")
    return ran.code, message


def test_an_import_prints_what_a_backup_prints(tmp_path: Path, account: Path, jsbackup: Command) -> None:
    ran = jsbackup("import", account, "-r", tmp_path / "repo", "--tag", "env=prod", "--tag", "a=b=c").ok()
    assert ran.document.keys() == {"backup", "result", "streams", "skipped", "notes"}
    assert (ran.document["result"], ran.document["skipped"]) == ("complete", [])
    first = ran.document["streams"][0]
    assert first | {"seconds": 0, "stored_bytes_added": 0} == {
        "name": "A",
        "messages": 100,
        "bytes": first["bytes"],
        "first_seq": MESSAGES[0].sequence,
        "last_seq": MESSAGES[-1].sequence,
        "stream_last_seq": MESSAGES[-1].sequence,
        "digest": first["digest"],
        "segments": 1,
        "segments_reused": 0,
        "stored_bytes_added": 0,
        "seconds": 0,
        "archive_format": "v1",
        "consumers": [
            {"name": "größe", "fidelity": "exact", "reason": ""},
            {"name": "pull", "fidelity": "exact", "reason": ""},
        ],
        "lost": None,
        "warnings": [],
        "facts": [],
        "read": None,
    }
    (listed,) = jsbackup("list", "-r", tmp_path / "repo").ok().document["backups"]
    assert (listed["backup"], listed["tags"]) == (ran.document["backup"], {"env": "prod", "a": "b=c"})
    assert jsbackup("verify", "-r", tmp_path / "repo", "--level", "data").ok().document["backups"][0]["ok"]
    shown = jsbackup_process("show", "latest", "-r", tmp_path / "repo").ok()
    assert shown.document["source"]["imported"]["from"] == "nats account backup"
    assert str(account) not in shown.out


def test_an_import_without_some_streams_is_incomplete(tmp_path: Path, account: Path, jsbackup: Command) -> None:
    (account / "B" / V1).write_bytes(b"")
    ran = jsbackup("import", account, "-r", tmp_path / "repo")
    assert (ran.code, ran.document["result"]) == (3, "partial")
    assert [stream["name"] for stream in ran.document["streams"]] == ["A"]
    assert [skipped["name"] for skipped in ran.document["skipped"]] == ["B"]
    assert ran.document["skipped"][0]["reason"].startswith(f"B/{V1}: ")


def test_an_account_of_which_nothing_can_be_taken_fails(tmp_path: Path, account: Path, jsbackup: Command) -> None:
    for name in "AB":
        (account / name / V1).write_bytes(b"")
    code, message = error_of(jsbackup("import", account, "-r", tmp_path / "repo"))
    assert (code, "all 2 streams failed, nothing was committed" in message) == (14, True)
    assert not (tmp_path / "repo").exists()


def test_each_reason_to_refuse_a_folder_has_its_exit_code(tmp_path: Path, jsbackup: Command) -> None:
    repo = tmp_path / "repo"
    good = stream_folder(tmp_path / "good", MESSAGES)
    whole = (good / V1).read_bytes()

    def refused(name: str) -> tuple[int, str]:
        return error_of(jsbackup("import", tmp_path / name, "-r", repo))

    (tmp_path / "foreign").mkdir()
    assert refused("foreign")[0] == 2
    assert refused("missing")[0] == 2
    (stream_folder(tmp_path / "both", MESSAGES) / V2).write_bytes(whole)
    assert refused("both") == (2, f"the folder holds both {V1} and {V2}")
    (stream_folder(tmp_path / "unknown", MESSAGES) / V1).write_bytes(in_s2(b"NATSARC9" + bytes(600)))
    code, message = refused("unknown")
    assert (code, message.startswith(f"{V1}: unknown archive format")) == (13, True)
    (stream_folder(tmp_path / "short", MESSAGES) / V1).write_bytes(whole[:-1])
    code, message = refused("short")
    assert (code, message.startswith(f"{V1}: ")) == (14, True)
    (stream_folder(tmp_path / "interrupted", MESSAGES) / "backup.json").write_bytes(b"")
    assert refused("interrupted") == (14, "backup.json is empty")
    if repo.exists():
        assert jsbackup("list", "-r", repo).ok().document["backups"] == []


def test_a_folder_that_is_refused_at_sight_makes_no_repository(tmp_path: Path, jsbackup: Command) -> None:
    (tmp_path / "foreign").mkdir()
    assert jsbackup("import", tmp_path / "foreign", "-r", tmp_path / "repo").code == 2
    assert not (tmp_path / "repo").exists()


def test_neither_command_takes_options_of_a_server(tmp_path: Path, account: Path, jsbackup: Command) -> None:
    assert error_of(jsbackup("import", account, "-r", tmp_path / "repo", "-s", "nats://localhost"))[0] == 2
    out = tmp_path / "out"
    code, _ = error_of(jsbackup("-s", "x", "export", "latest", "-r", out, "--format", "config", "--output", out))
    assert code == 2


# --- export ---


def test_an_export_of_all_streams_is_an_account(tmp_path: Path, repo: Path, jsbackup: Command) -> None:
    out = tmp_path / "out"
    document = jsbackup("export", "latest", "-r", repo, "--format", "nats-cli", "--output", out).ok().document
    files = tree(out)
    assert set(files) == {f"{name}/{file}" for name in "AB" for file in (V1, "backup.json")}
    assert (document["files"], document["rows"], document["bytes"]) == (4, 200, sum(map(len, files.values())))
    jsbackup("import", out, "-r", tmp_path / "again").ok()


@pytest.mark.parametrize(
    ("streams", "files"),
    [
        (["A"], {V1, "backup.json"}),
        (["A*"], {f"A/{V1}", "A/backup.json"}),
        (["A", "B"], {f"{name}/{file}" for name in "AB" for file in (V1, "backup.json")}),
        (["?"], {f"{name}/{file}" for name in "AB" for file in (V1, "backup.json")}),
    ],
)
def test_only_a_stream_that_is_named_gets_the_folder_for_itself(
    tmp_path: Path, repo: Path, streams: list[str], files: set[str], jsbackup: Command
) -> None:
    out = tmp_path / "out"
    jsbackup("export", "latest", *streams, "-r", repo, "--format", "nats-cli", "--output", out).ok()
    assert set(tree(out)) == files


def test_the_archive_format_can_be_chosen(tmp_path: Path, repo: Path, jsbackup: Command) -> None:
    out = tmp_path / "out"
    ran = jsbackup("export", "latest", "A", "-r", repo, "--format", "nats-cli", "--output", out, "--archive", "v2").ok()
    assert set(tree(out)) == {V2, "backup.json"}
    (stream,) = ran.document["streams"]
    assert (stream["name"], stream["messages"], stream["archive"]) == ("A", 100, "v2")
    assert stream["notes"]


def test_configs_go_round(tmp_path: Path, repo: Path, jsbackup: Command) -> None:
    first, again, other = tmp_path / "first", tmp_path / "again", tmp_path / "other"
    document = jsbackup("export", "latest", "-r", repo, "--format", "config", "--output", first).ok().document
    assert (document["files"], document["rows"]) == (6, 0)
    config = first / "streams" / "A.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_age": 7}))
    ran = jsbackup("import", first, "-r", other).ok()
    assert [stream["archive_format"] for stream in ran.document["streams"]] == ["config", "config"]
    jsbackup("export", "latest", "-r", other, "--format", "config", "--output", again).ok()
    assert json.loads((again / "streams" / "A.json").read_text())["max_age"] == 7
    jsbackup("import", again, "-r", other).ok()
    jsbackup("export", "latest", "-r", other, "--format", "config", "--output", tmp_path / "third").ok()
    assert tree(tmp_path / "third") == tree(again)
    code, message = error_of(
        jsbackup("export", "latest", "-r", other, "--format", "nats-cli", "--output", tmp_path / "none")
    )
    assert (code, "backed up without its messages" in message) == (13, True)
    assert not (tmp_path / "none").exists()


def test_each_reason_to_refuse_an_export_has_its_exit_code(tmp_path: Path, repo: Path, jsbackup: Command) -> None:
    def refused(*arguments: str | Path, backup: str = "latest", format: str = "nats-cli") -> tuple[int, str]:
        return error_of(jsbackup("export", backup, *arguments, "--format", format))

    out = tmp_path / "out"
    assert refused("-r", tmp_path / "nowhere", "--output", out)[0] == 10
    assert refused("-r", repo, "--output", out, backup="2020")[0] == 2
    assert refused("C", "-r", repo, "--output", out)[0] == 2
    assert refused("A", "C*", "-r", repo, "--output", out)[0] == 2
    assert refused("-r", repo, "--output", repo) == (2, f"{repo} is not empty")
    assert refused("-r", repo)[0] == 2
    assert refused("-r", repo, "--output", out, format="tar")[0] == 2
    assert refused("-r", repo, "--output", out, "--archive", "v1", format="config")[0] == 2
    assert refused("-r", repo, "--output", tmp_path / "a" / "b")[0] == 2
    assert not out.exists()
    segment = next(repo.rglob("*.parquet"))
    segment.chmod(0o600)
    segment.write_bytes(segment.read_bytes()[:-1])
    assert refused("-r", repo, "--output", out)[0] == 14
    assert not out.exists()


def test_people_are_told_what_was_written(tmp_path: Path, repo: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    arguments = ["export", "latest", "-r", str(repo), "--format", "nats-cli", "--output", str(out), "--archive", "v2"]
    assert run(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["STREAM", "MESSAGES", "WRITTEN", "AS"]
    assert lines[1].split() == ["A", "100", "v2"]
    assert lines[3] == "note: A, B: written as v2: for nats-server 2.15 and newer, and nats CLI 0.5 and newer"
    assert lines[-1].startswith(f"wrote {out}: 2 streams, 200 messages, 4 files, ")


def test_what_is_missing_makes_an_export_incomplete(tmp_path: Path, jsbackup: Command) -> None:
    repository = make_repository(LocalStore(tmp_path / "repo"))
    orders = store_backup(repository).streams[0]
    stateless = ConsumerBackup("new", {"name": "new", "deliver_policy": "new"}, None, Fidelity.CONFIG_ONLY)
    stream = replace(orders, consumers=(stateless,))
    repository.commit(Manifest(SECOND, CREATED, "tests", Source(), BackupResult.COMPLETE, (stream,)))
    arguments = ("-r", tmp_path / "repo", "--format", "nats-cli", "--archive", "v2", "--output", tmp_path / "out")
    ran = jsbackup("export", SECOND, *arguments)
    assert ran.code == 3
    assert ran.document["streams"][0]["notes"][0].startswith("consumer new is left out")
    assert set(tree(tmp_path / "out")) == {f"orders/{V2}", "orders/backup.json"}


# --- interruption ---


class Signalling(NullProgress):
    """Sends this process a signal in the middle of the work."""

    def __init__(self, number: signal.Signals) -> None:
        self.number = number

    def __enter__(self) -> Signalling:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def advance(self, name: str, byte_count: int, messages: int) -> None:
        os.kill(os.getpid(), self.number)


@pytest.fixture(params=[signal.SIGINT, signal.SIGTERM])
def signalled(request: pytest.FixtureRequest, repo: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The repository; from now on a signal comes while work goes on, and is received as in a process of its own."""
    monkeypatch.setattr(exchange, "make_progress", lambda verb, *, wanted: Signalling(request.param))
    before = [signal.signal(number, signal.default_int_handler) for number in (signal.SIGINT, signal.SIGTERM)]
    yield repo
    for number, handler in zip((signal.SIGINT, signal.SIGTERM), before, strict=True):
        signal.signal(number, handler)


def test_an_interrupted_export_leaves_nothing(
    tmp_path: Path, signalled: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    assert run(["export", "latest", "-r", str(signalled), "--format", "nats-cli", "--output", str(out)]) == 130
    assert not out.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert "interrupted" in capsys.readouterr().err


def test_an_interrupted_import_commits_nothing(signalled: Path, account: Path) -> None:
    assert run(["import", str(account), "-r", str(signalled)]) == 130
    assert len(jsbackup_process("list", "-r", signalled).ok().document["backups"]) == 1
    jsbackup_process("verify", "-r", signalled, "--level", "data").ok()


@pytest.mark.parametrize(
    ("kind", "names"),
    [
        ("nack", {"stream-a.yaml", "stream-b.yaml"}),
        ("terraform", {"provider.tf.json", "stream-A.tf.json", "stream-B.tf.json"}),
    ],
)
def test_declarations_go_out_and_come_back(
    tmp_path: Path, repo: Path, jsbackup: Command, kind: str, names: set[str]
) -> None:
    out = tmp_path / "out"
    ran = jsbackup("export", "latest", "-r", repo, "--format", kind, "--output", out)
    (note,) = {note for stream in ran.document["streams"] for note in stream["notes"]}
    assert (ran.code, note.partition(",")[0]) == (3, "consumer größe is left out: it is not durable")
    assert {path.name for path in out.iterdir()} == names
    assert {stream["messages"] for stream in ran.document["streams"]} == {0}
    back = jsbackup("import", out, "-r", tmp_path / "back").ok()
    assert [stream["name"] for stream in back.document["streams"]] == ["A", "B"]
    assert {stream["archive_format"] for stream in back.document["streams"]} == {"config"}
    assert [one["name"] for one in back.document["streams"][0]["consumers"]] == ["pull"]
    message = "--since is about messages, and --format {} has none"
    asked = jsbackup("export", "latest", "-r", repo, "--format", kind, "--output", tmp_path / "no", "--since", "1h")
    assert error_of(asked) == (2, message.format(kind))
    renamed = tmp_path / "renamed"
    jsbackup("export", "latest", "A", "-r", repo, "--format", kind, "--output", renamed, "--rename", "A=Z")
    assert [path.name for path in sorted(renamed.iterdir())][-1].lower().startswith("stream-z.")


def test_what_declarations_cannot_express_is_named_and_incomplete(
    tmp_path: Path, jsbackup: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    configs = tmp_path / "configs" / "streams"
    configs.mkdir(parents=True)
    for name in ("A", "B"):
        (configs / f"{name}.json").write_text(json.dumps({"name": name, "sealed": True, "allow_batched": True}))
    jsbackup("import", configs.parent, "-r", tmp_path / "repo").ok()
    for kind, note in (
        ("nack", "NACK has no place for allow_batched"),
        ("terraform", "Terraform has no place for sealed"),
    ):
        line = ["export", "latest", "-r", str(tmp_path / "repo"), "--format", kind, "--output", str(tmp_path / kind)]
        assert run(line) == 3
        assert f"note: A, B: {note}" in capsys.readouterr().out


def test_each_reason_to_refuse_declarations_is_a_sentence(tmp_path: Path, jsbackup: Command) -> None:
    head = "apiVersion: jetstream.nats.io/v1beta2\nkind: Stream\nmetadata: {name: a}\nspec: {name: A}\n"
    cases = {
        "other": ({"a.yaml": "apiVersion: v1\nkind: ConfigMap\n"}, "the files in {} declare no stream of JetStream"),
        "both": ({"a.yml": head, "a.tf.json": "{}"}, "{} has files of Terraform and of Kubernetes"),
        "hcl": (
            {"a.tf": 'resource "jetstream_stream" "A" {}', "b.tf.json": "{}"},
            "a.tf has resources of JetStream, and only *.tf.json are read",
        ),
        "none": ({"a.txt": "x"}, "{} holds no backup of the nats CLI and no config files"),
    }
    for name, (files, message) in cases.items():
        folder = tmp_path / name
        folder.mkdir()
        for file, content in files.items():
            (folder / file).write_text(content)
        ran = jsbackup("import", folder, "-r", tmp_path / "repo")
        assert error_of(ran) == (2, message.format(folder))
    assert not (tmp_path / "repo").exists()


def test_a_declaration_that_is_not_supported_makes_an_import_partial(tmp_path: Path, jsbackup: Command) -> None:
    head = "apiVersion: jetstream.nats.io/v1beta2\nkind: {}\nmetadata: {{name: {}}}\nspec: {}\n"
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.yml").write_text(
        head.format("Stream", "a", "{name: A}")
        + "---\n"
        + head.format("KeyValue", "m", "{bucket: m, mirror: {name: o}}")
    )
    (tmp_path / "in" / "provider.tf").write_text('provider "jetstream" {}')
    ran = jsbackup("import", tmp_path / "in", "-r", tmp_path / "repo")
    assert (ran.code, ran.document["result"]) == (3, "partial")
    assert [one["name"] for one in ran.document["skipped"]] == ["m"]
    shown = jsbackup("show", "latest", "-r", tmp_path / "repo").ok()
    assert shown.document["source"]["imported"] == {"from": "NACK files"}
