"""No secret that a user gives comes back: not in what is printed, whatever goes wrong, and not in the repository."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from jsbackup.cli.commands import backup
from jsbackup.cli.main import run
from jsbackup.repository.crypto import age
from tests.cli.notify.test_hooks import Switch, switch
from tests.cli.typed import Typed, in_shell, in_terminal
from tests.harness.api import call, connected, until_stored
from tests.harness.s3server import SECRET_KEY, S3Server
from tests.harness.servers import NEWEST, NatsServer

__all__ = ["switch"]  # the fixture

pytestmark = pytest.mark.nats

PLANTED = "hunter2-s3cr3t"
SEED = "SUAMLK2ZNL35WSMW37E7UD4VZ7ELPKW7DHC3BWBSD2GCZ7IUQQXZIORRBU"


@pytest.fixture(scope="module")
def server() -> Iterator[NatsServer]:
    users = f"users: [{{user: u, password: {PLANTED}}}]"
    with NatsServer(NEWEST, config=f"accounts {{ A {{ jetstream: enabled, {users} }} }}") as running:

        async def fill() -> None:
            async with connected(running.url.replace("://", f"://u:{PLANTED}@")) as nc:
                config = {"name": "S", "subjects": ["s"], "storage": "file", "retention": "limits", "num_replicas": 1}
                await call(nc, "STREAM.CREATE.S", config)
                await nc.publish("s", b"hello")
                await until_stored(nc, "s")

        asyncio.run(fill())
        yield running


def _clean(done: Typed, *places: Path) -> Typed:
    for secret in (PLANTED, SEED):
        assert secret not in done.out + done.err
        for place in places:
            for file in place.rglob("*"):
                assert secret not in file.name
                if file.is_file():
                    assert secret.encode() not in file.read_bytes()
    return done


WORKING = {
    "URL": (lambda url: ["-s", url.replace("://", f"://u:{PLANTED}@")], {}),
    "options": (lambda url: ["-s", url, "--user", "u", "--password", PLANTED], {}),
    "environment": (lambda url: ["-s", url], {"NATS_USER": "u", "NATS_PASSWORD": PLANTED}),
}


@pytest.mark.by_turns
@pytest.mark.parametrize("way", WORKING)
def test_logins_that_work_leave_no_trace(server: NatsServer, tmp_path: Path, way: str) -> None:
    make, extra = WORKING[way]
    login = [*make(server.url), "-r", str(tmp_path / "repo"), "-vv"]
    made = _clean(in_shell("backup", *login, **extra), tmp_path)
    assert made.code == 0 and "server: snapshot of S began" in made.err
    assert _clean(in_shell("backup", *login, "--json", **extra), tmp_path).code == 0
    assert _clean(in_terminal("backup", *login, **extra), tmp_path).code == 0
    restored = _clean(in_shell("restore", "latest", *login, "--if-exists", "replace", **extra), tmp_path)
    assert restored.code == 0
    for command in (["list"], ["show", "latest"], ["verify"]):
        for form in ([], ["--json"]):
            assert _clean(in_shell(*command, *form, "-vv", "-r", tmp_path / "repo")).code == 0


def test_a_context_with_a_password_leaves_no_trace(server: NatsServer, tmp_path: Path) -> None:
    context = tmp_path / "c.json"
    context.write_text(json.dumps({"url": server.url, "user": "u", "password": PLANTED}))
    repo = tmp_path / "repo"
    done = in_shell("backup", "--context", context, "-r", repo, "-vv", "--json")
    assert done.code == 0
    _clean(done, repo)


FAILING = {
    "wrong password in the URL": (20, "backup -r {repo} -s nats://u:{secret}x@{host}"),
    "wrong password in an option": (20, "backup -r {repo} -s {url} --user u --password {secret}x"),
    "wrong token": (20, "backup -r {repo} -s {url} --token {secret}"),
    "token in the URL": (20, "backup -r {repo} -s nats://{secret}@{host}"),
    "password for nobody": (2, "backup -r {repo} -s {url} --password {secret}"),
    "a port that is none": (2, "backup -r {repo} -s nats://u:{secret}@host:port"),
    "an unknown scheme": (2, "backup -r {repo} -s http://u:{secret}@host"),
    "a password with a slash": (2, "backup -r {repo} -s nats://u:{secret}/x@host"),
    "a password with an at": (20, "backup -r {repo} -s nats://u:{secret}@@{host}"),
    "a URL with a path": (2, "backup -r {repo} -s nats://u:{secret}@host/path"),
    "a host that is not known": (20, "backup -r {repo} -s nats://u:{secret}@nowhere.invalid --timeout 2s"),
    "a port where nothing answers": (20, "backup -r {repo} -s nats://u:{secret}@127.0.0.1:1"),
    "a URL in place of a stream": (2, "backup nats://u:{secret}@host -r {repo}"),
    "a URL in place of a backup": (2, "show nats://u:{secret}@host -r {repo}"),
    "a URL too many": (2, "list nats://u:{secret}@host -r {repo}"),
    "a URL in place of a command": (2, "nats://u:{secret}@host"),
    "a URL in place of a repository": (2, "list -r s3://u:{secret}@bucket"),
    "a URL of an unknown kind": (13, "list -r gs://u:{secret}@bucket"),
    "a server where none is used": (2, "list -r {repo} -s nats://u:{secret}@host"),
    "a seed in place of a file": (2, "backup -r {repo} -s {url} --nkey {seed}"),
    "a seed in place of credentials": (2, "backup -r {repo} -s {url} --creds {seed}"),
    "credentials in base64, broken": (2, "backup -r {repo} -s {url} --creds data:;base64,{secret}"),
    "a mistyped option": (2, "backup -r {repo} --pasword={secret}"),
    "two logins": (2, "backup -r {repo} --user u --password {secret} --nkey {seed}"),
    "the restore of nothing": (2, "restore nothing -r {repo} -s nats://u:{secret}@{host}"),
}


@pytest.fixture(scope="module")
def repo(server: NatsServer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("secrets") / "repo"
    assert in_shell("init", "-r", place).code == 0
    return place


@pytest.mark.parametrize("what", FAILING)
def test_failures_tell_no_secret(
    server: NatsServer, repo: Path, typed: Callable[..., Typed], what: str, tmp_path: Path
) -> None:
    code, line = FAILING[what]
    values = {"repo": repo, "url": server.url, "host": server.url.partition("://")[2], "secret": PLANTED, "seed": SEED}
    words = [word.format(**values) for word in line.split()]
    for more in (["-vv"], ["-vv", "--json"], ["-vv", "--log-format", "json"]):
        done = _clean(typed(*words, *more), repo)
        assert done.code == code, done


# --- planted everywhere at once ---


class Planted:
    """Secrets of all kinds that nobody would print by chance, and a search for them."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def new(self, what: str) -> str:
        self.texts[what] = f"planted-{secrets.token_hex(12)}"
        return self.texts[what]

    def search(self, where: str, content: str | bytes) -> None:
        data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
        for what, text in self.texts.items():
            assert text.encode() not in data, f"{what} in {where}"

    def search_files(self, folder: Path) -> None:
        files = [file for file in folder.rglob("*") if file.is_file()]
        assert files
        for file in files:
            self.search(f"the name of {file}", str(file))
            self.search(str(file), file.read_bytes())


@pytest.mark.s3
def test_secrets_of_a_profile_are_nowhere(
    server: NatsServer,
    s3_server: S3Server,
    switch: Switch,
    tmp_path: Path,
    typed: Callable[..., Typed],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted, kept, made = Planted(), tmp_path / "kept", tmp_path / "made"
    kept.mkdir()
    made.mkdir()
    passphrase, variable = planted.new("the passphrase"), planted.new("the password in a variable")
    planted.texts |= {"the password": PLANTED, "the key of S3": SECRET_KEY}
    (kept / "password").write_text(f"{PLANTED}\n")
    (kept / "passphrase").write_text(f"{passphrase}\n")
    identity = age.random_identity()
    assert identity.recipient is not None
    planted.texts["the identity"] = identity.text
    (kept / "identity").write_text(f"{identity.text}\n")
    (kept / "token").write_text(planted.new("a token that is wrong"))
    creds = f"-----BEGIN NATS USER JWT-----\n{planted.new('a JWT')}\n"
    (kept / "creds").write_text(creds + f"-----BEGIN USER NKEY SEED-----\n{SEED}\n")
    # What the command and its hook are called in a list of processes, and what the hook is told.
    (kept / "look").write_text(f"(cat /proc/$PPID/cmdline /proc/$$/cmdline; env | grep ^JSBACKUP_) >> {made}/titles\n")
    hook = planted.new("the ping URL")
    base = f"""
        [defaults]
        writer-key = "{kept}/writer.key"
        identity = "{kept}/identity"
        verbose = 2
        [defaults.list]
        passphrase-file = "{kept}/passphrase"
        [defaults.hooks]
        before = "sh {kept}/look"
        after = "sh -c 'echo $JSBACKUP_RESULT $JSBACKUP_ERROR'"
        on-failure = "sh -c 'exit 3'"
        ping-url = "{switch.url}/{hook}"
        [defaults.status]
        min-backups = 100
        metrics = "{made}/metrics.prom"
        html = "{made}/status.html"
        [profiles.file]
        server = "{server.url}"
        repo = "{made}/repo"
        user = "u"
        password-file = "{kept}/password"
        [profiles.command]
        server = "{server.url}"
        repo = "{made}/repo"
        user = "u"
        password-command = "cat {kept}/password"
        [profiles.inline]
        server = "{server.url.replace("://", f"://u:{PLANTED}@")}"
        repo = "s3://backups/{tmp_path.name}"
        s3-endpoint = "{s3_server.url}"
        log-format = "json"
        [profiles.variable]
        server = "{server.url}"
        repo = "{made}/repo"
        user = "${{PLANTED_USER}}"
        password = "${{PLANTED_PASSWORD}}"
        [profiles.token]
        server = "{server.url}"
        repo = "{made}/repo"
        token-file = "{kept}/token"
        [profiles.creds]
        server = "{server.url}"
        repo = "{made}/repo"
        creds = "{kept}/creds"
        [profiles.typo]
        pasword = "{PLANTED}"
        [profiles.typo.hooks]
        ping-url = "htp://h/{hook}"
        """
    config = tmp_path / "config.toml"
    config.write_text(base)
    extra = {
        "JSBACKUP_CONFIG": str(config),
        "PLANTED_USER": "u",
        "PLANTED_PASSWORD": variable,
        "AWS_ACCESS_KEY_ID": "test-access-key",
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
    }

    for name, value in extra.items():
        monkeypatch.setenv(name, value)

    def searched(*line: str | Path, by: Callable[..., Typed] = typed) -> Typed:
        done = by(*line)
        planted.search(" ".join(map(str, line)), done.out + done.err)
        assert SEED not in done.out + done.err
        return done

    new_keys = ["--encrypt-to", identity.recipient.label, "--writer-key", kept / "writer.key"]
    assert searched("init", "-r", made / "repo", *new_keys).code == 0
    planted.texts["the writer key"] = (kept / "writer.key").read_text().split()[-1]
    assert len(planted.texts["the writer key"]) > 30

    for profile, code in {"file": 0, "command": 0, "variable": 20, "token": 20, "creds": 2, "typo": 2}.items():
        for form in ([], ["--json"]):
            assert searched("backup", "--profile", profile, *form).code == code, profile
    in_process_of_its_own = in_shell("backup", "--profile", "file", cold=True, **extra)
    assert in_process_of_its_own.code == 0
    planted.search("a process of its own", in_process_of_its_own.out + in_process_of_its_own.err)
    several = [word for profile in ("file", "command", "typo", "token") for word in ("--profile", profile)]
    assert searched("backup", *several, "--json").code == 3
    assert searched("verify", "--profile", "file", "--level", "data").code == 0
    assert searched("status", "--profile", "file").code == 17
    assert searched("forget", "--profile", "file", "--keep-last", "2", "--prune").code == 0
    for line, code in {"list": 0, "show latest": 0, "restore latest": 16, "doctor": 0, "unlock": 0}.items():
        assert searched(*line.split(), "--profile", "file", "--json").code == code, line
    for form in ([], ["--json"]):
        assert searched("doctor", *form).code != 0
        assert searched("doctor", "--profile", "typo", *form).code == 2
    config.write_text(base.replace("writer-key", "# writer-key").replace("identity", "# identity"))
    assert searched("backup", "--profile", "inline").code == 0
    assert searched("restore", "latest", "--if-exists", "replace", "--profile", "inline").code == 0
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", variable)
    assert searched("list", "--profile", "inline").code == 21

    assert b"-m\0jsbackup\0backup\0--profile\0file" in (made / "titles").read_bytes()
    planted.search_files(made)
    assert {"titles", "metrics.prom", "status.html", "repo"} <= {path.name for path in made.iterdir()}
    assert f"/{hook}/start" in switch.asked and f"/{hook}/fail" in switch.asked


def test_a_crash_quotes_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def broken(**_: Any) -> int:
        raise LookupError(f"no key {PLANTED}")

    monkeypatch.delenv("JSBACKUP_TRACEBACK", raising=False)
    monkeypatch.setattr(backup.COMMANDS["backup"], "callback", broken)
    for form in ([], ["--json"], ["--log-format", "json"]):
        assert run(["backup", "-r", str(tmp_path), "--hook-on-failure", "true", *form]) == 1
        printed = capsys.readouterr()
        assert PLANTED not in printed.out + printed.err
        assert "internal error: LookupError in tests.cli.test_secrets, line " in printed.out + printed.err
