"""`view`: the messages that were stored, those that are asked for, harmless on a terminal."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from jsbackup.repository.crypto import age
from tests.cli.commands.look.conftest import Shelf
from tests.cli.test_json import CLOSED, check
from tests.cli.typed import Typed, in_terminal
from tests.harness.commands import command_line, environment
from tests.harness.damage import flip
from tests.harness.shelf import BINARY, EVIL

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


def _run(*words: str | Path) -> tuple[int, bytes, str]:
    done = subprocess.run(command_line(*words, "-q"), capture_output=True, timeout=60, env=environment())
    return done.returncode, done.stdout, done.stderr.decode()


def _lines(done: Typed) -> list[dict[str, Any]]:
    assert done.code == 0, done.err
    lines = [json.loads(line) for line in done.out.splitlines()]
    for line in lines:
        jsonschema.Draft202012Validator({**CLOSED, "$ref": "#/$defs/view"}).validate(line)
    return lines


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ([], lambda n: n != 7),
        (["--subject", "orders.eu.*"], lambda n: n <= 300 and n % 2 == 1 and n != 7),
        (["--subject", "orders.*.3", "--subject", "orders.us.>"], lambda n: n <= 300 and (n % 5 == 3 or n % 2 == 0)),
        (["--since", "10", "--until", "12"], lambda n: 10 <= n <= 12),
        (["--header", "nats-msg-id:order-33"], lambda n: n == 33),
        (["--header", "nats-msg-id:order-33", "--header", "Nats-Msg-Id:order-3"], lambda n: n in (3, 33)),
        (["--exclude-subject", "orders.eu.>", "--until", "9"], lambda n: n < 10 and n % 2 == 0),
        (["--payload-match", '": 2[0-3]}$', "--payload-match", "order.: 8}"], lambda n: n == 8 or 20 <= n <= 23),
        (["--payload-match", "[a-z]{99}", "--until", "300"], lambda n: False),
        (["--subject", "orders.eu.*", "--last-per-subject", "2"], lambda n: 281 <= n <= 299 and n % 2 == 1),
        (["--subject", "orders.eu.*", "--grep", "2", "--last-per-subject", "1", "--last", "1"], lambda n: n == 299),
        (["--grep", '"order": 29'], lambda n: n == 29 or 290 <= n <= 299),
        (["--grep", '"order": 29', "--last", "2", "--subject", "orders.eu.>"], lambda n: n in (297, 299)),
        (["--subject", "orders.none"], lambda n: False),
        (["--sequence", "33"], lambda n: n == 33),
    ],
)
def test_all_conditions_hold(shelf: Shelf, typed: Type, words: list[str], wanted: Callable[[int], bool]) -> None:
    lines = _lines(typed("view", "latest", "ORDERS", *words, "--json", "-r", shelf.repo))
    assert [line["sequence"] for line in lines] == [n for n in range(1, 304) if wanted(n)]


def test_messages_are_shown_harmless(shelf: Shelf, typed: Type) -> None:
    done = typed("view", "latest", "ORDERS", "--since", "299", "-r", shelf.repo)
    assert done.code == 0 and "\x1b" not in done.out and "\x9b" not in done.out and "\u202e" not in done.out
    assert "[300] Subject: orders.us.0 Received: 20" in done.out and "  Nats-Msg-Id: order-300\n" in done.out
    assert "\\x1b[31mred" in done.out and '\n{"order": 299}\n' in done.out
    assert "\x1b" not in typed("view", "latest", "ORDERS", "--json", "-r", shelf.repo).out
    drawn = in_terminal(
        "view", "latest", "ORDERS", "--since", "301", "-r", shelf.repo, out_too=True, PAGER="cat", LESS=""
    )
    assert drawn.code == 0 and "\x1b[31m" not in drawn.err and "[301] Subject:" in drawn.err


def test_bytes_are_exact(shelf: Shelf) -> None:
    where = ("-r", shelf.repo)
    raw = ("view", "latest", "ORDERS", "--raw", *where)
    assert _run(*raw, "--sequence", "302") == (0, BINARY, "")
    assert _run(*raw, "--sequence", "303") == (0, b"", "")
    assert _run(*raw, "--since", "302") == (0, BINARY + b"\n\n", "")
    assert _run("kv", "latest", "settings", "theme", *where) == (0, BINARY, "")


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["view", "latest", "ORDERS", "--sequence", "7"], 1, "it was deleted before the backup"),
        (["view", "latest", "ORDERS", "--sequence", "304"], 1, "it has 1 to 303"),
        (["view", "latest", "ORDERS", "--sequence", "0"], 2, "range"),
        (["view", "latest", "ORDERS", "--sequence", "1", "--last", "1"], 2, "--sequence names one message"),
        (["view", "latest", "ORDERS", "--sequence", "1", "--grep", "x"], 2, "--sequence names one message"),
        (["view", "latest", "ORDER"], 2, "ORDER"),
        (["view", "2020", "ORDERS"], 2, "no backup"),
        (["view", "latest", "ORDERS", "--subject", "a..b"], 2, "not a subject"),
        (["view", "latest", "ORDERS", "--header", ":x"], 2, "not a header"),
        (["view", "latest", "ORDERS", "--header", "a=x"], 2, "Write --header NAME or NAME:VALUE."),
        (["view", "latest", "ORDERS", "--payload-match", "a("], 2, "not a regular expression"),
        (["view", "latest", "ORDERS", "--kv-compact"], 2, "is not a key-value bucket"),
        (["view", "latest", "KV_settings", "--kv-compact", "--last-per-subject", "1"], 2, "exclude each other"),
        (["view", "latest", "ORDERS", "--raw", "--json"], 2, "contradict"),
        (["view", "latest", "ORDERS", "--since", "5", "--until", "4"], 2, "nothing lies between"),
    ],
)
def test_what_is_wrong_is_one_sentence(shelf: Shelf, typed: Type, words: list[str], *, code: int, text: str) -> None:
    done = typed(*words, "-r", shelf.repo)
    assert (done.code, text in done.err + done.out, "Traceback" in done.err) == (code, True, False), done


def test_a_closed_pipe_is_no_error_and_a_full_disk_is_one(shelf: Shelf) -> None:
    line = command_line("view", "latest", "ORDERS", "-q", "-r", shelf.repo, "--raw")
    shell = ["bash", "-c", 'set -o pipefail; "$@" | head -c 10', "bash"]
    done = subprocess.run([*shell, *line], capture_output=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr, len(done.stdout)) == (0, b"", 10)
    with Path("/dev/full").open("wb") as full:
        told = subprocess.run(line, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment())
    assert (told.returncode, told.stderr) == (1, "error: cannot write the output: no space left on device\n")
    closed = ["bash", "-c", '"$@" >&-', "bash"]
    done = subprocess.run([*closed, *line], capture_output=True, timeout=60, env=environment())
    assert (done.returncode, done.stderr) == (0, b"")


def test_keys_are_listed_and_shown(shelf: Shelf, typed: Type) -> None:
    def kv(*words: str) -> dict[str, Any]:
        return check("kv", typed("kv", *words, "--json", "-r", shelf.repo))

    assert [one["bucket"] for one in kv("latest")["buckets"]] == ["settings"]
    assert [one["key"] for one in kv("latest", "settings")["keys"]] == [EVIL, "theme"]
    assert [one["key"] for one in kv("latest", "settings", "--at", "3")["keys"]] == ["lang", "theme"]
    assert [one["key"] for one in kv("latest", "settings", "*", "--at", "1")["keys"]] == ["theme"]
    assert kv("latest", "settings", "theme", "--at", "1")["value"] == "dark"
    done = typed("kv", "latest", "settings", "-r", shelf.repo)
    assert done.code == 0 and "\\x1b[31mred" in done.out and "\x1b" not in done.out
    gone = typed("kv", "latest", "settings", "lang", "-r", shelf.repo)
    assert gone.code == 1 and "is a delete" in gone.err
    assert typed("kv", "latest", "settings", "none", "-r", shelf.repo).code == 1
    assert typed("kv", "latest", "--at", "3", "-r", shelf.repo).code == 2
    assert typed("kv", "-r", shelf.repo).code == 2


@pytest.mark.parametrize(
    "words",
    [
        "view latest ORDERS --sequence 1",
        "history ORDERS --grep x",
        "kv latest settings theme",
    ],
)
def test_damage_that_is_seen_is_recorded_if_the_repository_can_be_written(
    shelf: Shelf, typed: Type, tmp_path: Path, words: str
) -> None:
    second = tmp_path / "second"
    assert typed("copy", "--to-repo", second, "-r", shelf.repo).code == 0
    (segment,) = second.glob(f"segments/{'KV_settings' if 'kv' in words else 'ORDERS'}-*/*.parquet")
    segment.chmod(0o600)
    segment.write_bytes(flip(segment.read_bytes()))
    plain = ["forget", "--keep-last", "1", "--dry-run", "-r", second]
    assert typed(*plain).code == 0
    shown = typed(*words.split(), "-r", second)
    assert shown.code == 14 and '"order"' not in shown.out
    assert typed(*plain).code == 14
    records = list(second.glob("verified/*-damaged.json"))
    assert len(records) == 1
    assert typed(*words.split(), "-r", second).code == 14
    assert list(second.glob("verified/*-damaged.json")) == records


def _shown(typed: Type, *words: object) -> dict[str, Any]:
    document = check("show", typed("show", "latest", *words, "--json"))
    (stream,) = document["streams"]
    assert isinstance(stream, dict)
    return stream


def test_a_stream_is_shown_with_its_consumers(shelf: Shelf, typed: Type) -> None:
    stream = _shown(typed, "ORDERS", "-r", shelf.repo)
    (consumer,) = stream["consumers"]
    told = {name: consumer[name] for name in ("name", "delivered_seq", "ack_floor_seq", "pending", "fidelity")}
    assert told == {"name": "billing", "delivered_seq": 6, "ack_floor_seq": 2, "pending": 3, "fidelity": "exact"}
    assert consumer["config"]["durable_name"] == "billing" and "subjects" not in stream
    whole = check("show", typed("show", "latest", "-r", shelf.repo, "--json"))["streams"][2]
    assert stream == {**whole, "consumers": [consumer]}
    done = typed("show", "latest", "ORDERS", "-r", shelf.repo)
    assert re.search(r"^billing +ORDERS +2 +6 +3 +exact$", done.out, re.MULTILINE), done.out
    assert re.search(r'^subjects +\["orders\.>"\]$', done.out, re.MULTILINE), done.out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["ORDER"], "hint: Did you mean ORDERS?"),
        (["--subjects", "3"], "--subjects is of one stream"),
        (["ORDERS", "--subjects", "0"], "range"),
        (["ORDERS", "OTHER"], "unexpected extra argument (OTHER)"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(shelf: Shelf, typed: Type, words: list[str], *, text: str) -> None:
    done = typed("show", shelf.backup, *words, "-r", shelf.repo)
    assert (done.code, text in done.err) == (2, True), done


def test_an_encrypted_repository_needs_a_key_that_reads(shelf: Shelf, typed: Type, tmp_path: Path) -> None:
    me, vault = age.random_identity(), tmp_path / "vault"
    assert me.recipient is not None
    identity, writer = tmp_path / "identity", tmp_path / "writer.key"
    identity.write_text(f"{me.text}\n")
    assert typed("init", "-r", vault, "--encrypt-to", me.recipient.label, "--writer-key", writer).code == 0
    assert typed("copy", "--to-repo", vault, "--to-writer-key", writer, "-r", shelf.repo).code == 0
    value = typed("kv", "latest", "settings", "theme", "--at", "1", "-r", vault, "--identity", identity)
    assert (value.code, value.out) == (0, "dark")
    for words in (
        ("view", "latest", "ORDERS"),
        ("show", "latest", "ORDERS", "--subjects", "1"),
        ("kv", "latest", "settings", "theme"),
        ("kv", "latest", "settings"),
        ("object", "latest", "files", "empty"),
        ("history", "settings", "--key", "theme"),
        ("history", "files", "--object", "large"),
        ("history", "--grep", "x"),
        ("put-back", "latest", "settings", "--key", "theme", "-s", "nats://127.0.0.1:1"),
    ):
        done = typed(*words, "-r", vault, "--writer-key", writer)
        assert (done.code, done.out) == (12, ""), (words, done)
    # What the manifest says, it may read.
    for words in (("history", "ORDERS"), ("show", "latest", "ORDERS"), ("kv", "latest")):
        assert typed(*words, "-r", vault, "--writer-key", writer).code == 0, words
