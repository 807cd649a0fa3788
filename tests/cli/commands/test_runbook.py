"""A runbook as a file: what each key means, what is refused by its name, and what a file by anybody can do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.cli.commands import restore
from jsbackup.cli.commands.runbook import KEYS, RunbookEntry, read_runbook
from jsbackup.cli.output.output import Output
from jsbackup.cli.parsing.command import CHOOSING_OPTIONS
from jsbackup.cli.parsing.context import KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, Shared
from jsbackup.config import Secret
from jsbackup.config.connection import UserPassword
from jsbackup.config.profiles import MAX_FILE_BYTES, MAX_LINE_BYTES
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.planning.model import Consumers, IfExists
from jsbackup.transforms.filters.newest import NewestRule
from tests.cli.typed import Typed

Read = Callable[..., list[RunbookEntry]]

HEAD = '[[restore]]\nbackup = "latest"\n'


def _shared(**server: str) -> Shared:
    return Shared("REPO", 0, False, "text", Output(), server=server)


@pytest.fixture
def read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Read:
    """`read(text, server=…)`: the restores of a runbook beside these server options of the command line."""
    for name in ("NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_CREDS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")

    def read_it(text: str | bytes, **server: str) -> list[RunbookEntry]:
        file = tmp_path / "book.toml"
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_runbook(file, _shared(**server))

    return read_it


def _refused(read: Read, text: str | bytes, **server: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        read(text, **server)
    assert caught.value.exit_code == 2
    return caught.value


def test_every_option_of_a_plan_is_a_key() -> None:
    """But what is about the run as a whole: where the plan is saved, all accounts, leases, the key of masks."""
    shared = [*CHOOSING_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS]
    known = KEYS
    whole = {"output", "runbook", "mask-key-file"}
    own = [*restore.COMMANDS["plan"].own_params, *shared]  # type: ignore[attr-defined]
    options = {name.removeprefix("--") for one in own for name in one.opts if name.startswith("--")}
    whole |= {name for name in options if "account" in name}
    assert options - whole <= known.keys()
    assert not whole & known.keys()
    assert {"backup", "streams", "repo"} <= known.keys()


def test_a_restore_says_what_it_would_say_on_the_command_line(read: Read) -> None:
    (entry,) = read(
        """
[[restore]]
backup = "2026"
repo = "OTHER"
streams = ["ORDERS", "-DASH*"]
exclude = ["KV_*"]
if-exists = "replace"
replicas = 3
set = ["max_age=null", "ORD*:storage=memory"]
consumers = "none"
rename = ["ORDERS=OLD"]
map-subject = ["a.*=>b.$1"]
until = "2026-11-20T14:02:00Z"
since = "5"
subject = ["a.>"]
exclude-subject = ["a.b"]
header = ["A", "B:c"]
payload-match = ["e"]
last-per-subject = 2
renumber = true
mask = ["a.>:$.user=redact"]
unmaskable = "drop"
s3-path-style = true
expect-signer = "--repo"
"""
    )
    options = entry.options
    assert (entry.number, entry.backup, entry.shared.repo) == (1, "2026", "OTHER")
    assert [glob.pattern for glob in options.streams] == ["ORDERS", "-DASH*"]
    assert [glob.pattern for glob in options.exclude] == ["KV_*"]
    assert (options.if_exists, options.consumers) == (IfExists.REPLACE, Consumers.NONE)
    assert (options.replicas, dict(options.fields)) == (3, {"max_age": None, "ORD*:storage": "memory"})
    assert dict(options.renames.names) == {"ORDERS": "OLD"}
    reshape = options.reshape
    assert reshape.cut and reshape.maps and reshape.masks
    assert reshape.filters.words == [
        "--subject a.>",
        "--exclude-subject a.b",
        "--header A",
        "--header B:c",
        "--payload-match e",
    ]
    assert (reshape.newest, reshape.renumber) == (NewestRule(2), True)
    assert (entry.shared.s3, entry.shared.keys) == ({"s3_path_style": True}, {"expect_signer": "--repo"})


def test_what_a_time_was_taken_for_is_said(read: Read, capsys: pytest.CaptureFixture[str]) -> None:
    read('[[restore]]\nbackup = "latest"\nrepo = "./repo"\nserver = "nats://a:1"\nuntil = "2026-11-20 07:09"\n')
    assert "restore 1: --until 2026-11-20 07:09 is 2026-11-20T07:09:00" in capsys.readouterr().err


def test_what_a_restore_leaves_open_is_as_on_the_command_line(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSBACKUP_REPO", "ENVIRONMENT")  # which `shared` has already, where nothing else was given
    monkeypatch.setenv("SECRET", "s3cret")
    first, second, third = read(
        HEAD
        + HEAD
        + 'user = "bank"\npassword = "env://SECRET"\ns3-virtual-style = false\n'
        + HEAD
        + "s3-virtual-style = true\ntlsfirst = false\n",
        server="nats://h:1",
        user="shop",
        password="p",
    )
    assert [one.number for one in (first, second, third)] == [1, 2, 3]
    assert first.shared.repo == "REPO" and first.connection.url == second.connection.url == "nats://h:1"
    assert first.connection.login == third.connection.login == UserPassword("shop", Secret("p"))
    assert second.connection.login == UserPassword("bank", Secret("s3cret"))
    assert (second.shared.s3, third.shared.s3) == ({"s3_path_style": True}, {"s3_path_style": False})
    assert not first.options.streams and first.options.if_exists is IfExists.FAIL


def test_who_names_a_server_takes_no_login_of_another(read: Read, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NATS_USER", "environment")
    monkeypatch.setenv("NATS_PASSWORD", "p")
    monkeypatch.setenv("NATS_URL", "nats://environment:1")
    (entry,) = read(HEAD + 'server = "nats://h:2"', server="nats://h:1", user="shop", password="p", timeout="9s")
    connection = entry.connection
    assert (connection.url, connection.login, connection.token) == ("nats://h:2", None, None)
    assert connection.timeout_seconds == 9
    refused = _refused(read, HEAD + 'context = "nosuch"', server="nats://h:1")
    assert "nosuch" in refused.message
    refused = _refused(read, HEAD + 'user = "bank"\npassword = "env://NATS_PASSWORD"', server="nats://shop:p@h:1")
    assert refused.message == "restore 1: --server contains a login, but this restore logs in differently"


@pytest.mark.parametrize(
    ("text", "told", "hint"),
    [
        ("if_exists = 'fail'", "it has the unknown key 'if_exists'", "Did you mean if-exists?"),
        ("json = true", "it has the unknown key 'json'", None),
        ("rename = 'A=B'", "rename has to be a list of texts", None),
        ("until = 1", "until has to be a text", None),
        ("replicas = true", "replicas has to be a number", None),
        ("replicas = 9", "invalid value for '--replicas': 9 is not in the range 1 to 5", None),
        ("tlsfirst = 'yes'", "tlsfirst has to be true or false", None),
        ("streams = ['']", "streams is empty", None),
        ('repo = "a\\u0000b"', "repo holds a NUL character", None),
        ("set = ['x=1']", "no field 'x'", None),
        ("backup.x = 1", "not TOML", None),
        ("identity-command = 'cat key'", "identity-command runs a program", "Give it on the command line."),
    ],
)
def test_what_is_wrong_is_told_by_its_name(read: Read, text: str, told: str, hint: str | None) -> None:
    refused = _refused(read, HEAD + HEAD + text)
    assert told in refused.message
    assert refused.message.startswith("restore 2: ") or "not TOML" in told
    assert hint is None or refused.hint == hint


@pytest.mark.parametrize(
    "text",
    [
        "user = 'u'\npassword = 'hunter2'",
        "server = 'nats://u:hunter2@h'",
        "creds = 'data:;base64,hunter2'",
        "password = hunter2",
        "hunter2",
    ],
)
def test_a_secret_is_refused_and_not_repeated(read: Read, text: str) -> None:
    refused = _refused(read, HEAD + text)
    if "=" in text and "hunter2'" in text and "[" not in text:
        assert "holds a secret, which a runbook may not" in refused.message
    assert "hunter2" not in f"{refused.message} {refused.hint}"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "has no list of restores"),
        ("restore = []", "has no list of restores"),
        ("restore = 1", "has no list of restores"),
        ("restore = [1]", "has no list of restores"),
        ("[restore]\nbackup = 'latest'", "has no list of restores"),
        ("[[restores]]\nbackup = 'latest'", "has the unknown key 'restores'"),
        ("[[restore]]", "restore 1: it names no backup"),
        ("x = " + "[" * 3000, "nested too deeply"),
        (HEAD + "replicas = 0x" + "f" * 4000, "replicas has to be a number"),
        ("# " + "x" * MAX_LINE_BYTES, "larger than a runbook may be"),
        ("#\n" * (MAX_FILE_BYTES // 2 + 1), "larger than a runbook may be"),
        (b"\xff\xfe", "not TOML"),
    ],
)
def test_a_hostile_file_is_a_mistake_of_usage(read: Read, text: str | bytes, told: str) -> None:
    assert told in _refused(read, text).message


def test_a_damaged_file_is_read_or_refused(read: Read) -> None:
    """Cut at every length, and each byte exchanged: an error of ours, or restores."""
    whole = b'[[restore]]\nbackup = "latest"\nreplicas = 3\nrename = ["A=B"]\nserver = "h"\n'
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 0x04]) + whole[at + 1 :]):
            try:
                assert all(isinstance(entry, RunbookEntry) for entry in read(damaged))
            except JsBackupError as error:
                assert error.exit_code == 2, (damaged, error.message)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    for path in (tmp_path / "none", tmp_path, Path("a\0b")):
        with pytest.raises(UsageError, match="cannot read the runbook"):
            read_runbook(path, _shared())


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("restore latest --runbook FILE", "BACKUP makes no sense with --runbook, which says it already"),
        ("restore --runbook FILE --if-exists skip", "--if-exists makes no sense with --runbook"),
        ("restore --runbook FILE --plan FILE", "--plan makes no sense with --runbook"),
        ("restore --runbook FILE", "cannot read the runbook"),
    ],
)
def test_nothing_that_a_runbook_says_may_stand_beside_it(
    typed: Callable[..., Typed], tmp_path: Path, line: str, told: str
) -> None:
    words = [str(tmp_path / "none.toml") if word == "FILE" else word for word in line.split()]
    refused = typed(*words, "-r", tmp_path, "-s", "nats://127.0.0.1:1", "--json")
    assert refused.code == 2
    assert told in refused.document["error"]["message"]
