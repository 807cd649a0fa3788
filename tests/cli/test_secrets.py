"""No secret that a user gives comes back: not in what is printed, whatever goes wrong, and not in the repository."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.typed import Typed, in_shell, in_terminal
from tests.harness.api import call, connected
from tests.harness.servers import NEWEST, NatsServer

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
                await nc.flush()

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
    "a port where nobody listens": (20, "backup -r {repo} -s nats://u:{secret}@127.0.0.1:1"),
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
