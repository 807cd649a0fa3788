"""`jsbackup browse` as a command: how it begins, and how it ends."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.stores.local import LocalStore
from tests.browse.client import Browsing
from tests.cli.typed import Typed
from tests.harness.backups import make_repository, store_backup
from tests.harness.servers import wait_until

Type = Callable[..., Typed]


@pytest.fixture
def repo(tmp_path: Path) -> Path:
    folder = tmp_path / "repo"
    store_backup(make_repository(LocalStore(folder)))
    return folder


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_cleanly(repo: Path, number: signal.Signals) -> None:
    with Browsing("-r", repo) as page:
        assert page.log_in().get("/").status == 200
        held = socket.create_connection(("127.0.0.1", page.port))  # a browser keeps connections open
        assert page.stop(number) == (0, "")
        held.close()


def test_it_ends_by_itself_and_says_where_it_was(repo: Path, typed: Type) -> None:
    done = typed("browse", "--for", "300ms", "-r", repo, "--json")
    assert done.code == 0 and done.document["url"].startswith("http://127.0.0.1:") and done.err == ""
    assert done.document["repository"] == str(repo)


def test_the_token_is_another_one_each_time(repo: Path, typed: Type) -> None:
    tokens = {typed("browse", "--for", "1ms", "-r", repo).out.split("token=")[1].split()[0] for _ in range(2)}
    assert len(tokens) == 2 and all(len(token) == 43 for token in tokens)


def test_what_cannot_be_is_one_sentence(repo: Path, typed: Type, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        done = typed("browse", "--port", port, "-r", repo)
        assert done.code == 2 and f"cannot listen on 127.0.0.1, port {port}: address already in use" in done.err
    for line, code, said in (
        (["--bind", "a" * 300, "-r", repo], 2, "--bind: not an address"),
        (["--for", "0", "-r", repo], 2, "--for 0"),
        (["--context", "nowhere", "-r", repo], 2, "there is no nats context"),
        (["-r", tmp_path / "none"], 10, "no repository"),
    ):
        done = typed("browse", *line)
        assert done.code == code and said in done.err and "Traceback" not in done.err, line


def test_a_browser_is_opened_with_a_token_for_once(repo: Path, tmp_path: Path) -> None:
    """Other users of the machine can see its command line."""
    opened, program = tmp_path / "opened", tmp_path / "browser"
    program.write_text(f'#!/bin/sh\necho "$1" > {opened}.new && mv {opened}.new {opened}\n')
    program.chmod(0o755)
    with Browsing("-r", repo, "--open", DISPLAY=":9", BROWSER=str(program)) as page:
        wait_until(opened.exists, "the browser")
        url = opened.read_text().strip()
        assert url.startswith(f"http://{page.address}/?token=") and page.token not in url
        path = url.removeprefix(f"http://{page.address}")
        first, second = page.ask("GET", path), page.ask("GET", path)
        assert (first.status, second.status) == (200, 403)
        page.cookie = first.headers["set-cookie"].partition(";")[0]
        assert page.get("/").status == 200
