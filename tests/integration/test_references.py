"""References to secrets lead to a server: with the real nsc, and a stand-in for op, which no test can have."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.harness.commands import command_line, environment, jsbackup
from tests.harness.nsc import Nsc, nsc_program
from tests.harness.servers import NEWEST, NatsServer

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Place:
    nsc: Nsc
    server: NatsServer
    creds: Path
    environ: dict[str, str]

    def context(self, **fields: str) -> str:
        """The name of a context of the nats CLI."""
        folder = Path(self.environ["XDG_CONFIG_HOME"]) / "nats" / "context"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "shop.json").write_text(json.dumps(fields))
        return "shop"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    folder = tmp_path_factory.mktemp("references")
    nsc = Nsc(folder / "nsc")
    nsc.add_account("My Shöp")
    creds = nsc.add_user("My Shöp", "admin")
    tools = folder / "bin"
    tools.mkdir()
    (tools / "nsc").symlink_to(nsc_program())
    (tools / "op").write_text(f'#!/bin/sh\nexec cat "{folder}/vault/$(basename "$2")"\n')
    (tools / "op").chmod(0o755)
    vault = folder / "vault"
    vault.mkdir()
    (vault / "creds").write_text(creds.read_text())
    environ = {**nsc.environment, "PATH": f"{tools}:/usr/bin:/bin", "VAULT": "prod"}
    with NatsServer(NEWEST, config=nsc.memory_resolver()) as server:
        nsc.run("edit", "operator", "--service-url", server.url)
        yield Place(nsc, server, creds, environ)


def test_contexts_lead_to_the_server(place: Place, tmp_path: Path) -> None:
    url = place.server.url
    contexts = [
        {"url": url, "creds": str(place.creds)},
        {"url": url, "creds": f"file://{place.creds}"},
        {"url": url, "creds": "nsc://OP/My Shöp/admin"},
        {"url": url, "creds": "NSC://OP/My Shöp/admin"},
        {"url": url, "creds": "op://$VAULT/item/creds"},
        {"url": url, "creds": "env://SHOP_CREDS"},
        {"nsc": "nsc://OP/My Shöp/admin"},
        {"nsc": "OP/My Shöp/admin"},
    ]
    environ = {**place.environ, "SHOP_CREDS": place.creds.read_text()}
    for number, fields in enumerate(contexts):
        context = place.context(**fields)
        repository = tmp_path / str(number)
        done = jsbackup("backup", "--context", context, "-r", repository, "--allow-nothing", **environ)
        assert done.code == 0, (fields, done.out, done.err)
        [one] = jsbackup("list", "-r", repository).ok().document["backups"]
        assert one["source"]["account"] == place.nsc.key_of("My Shöp"), fields
        assert one["source"]["account_name"] == "My Shöp", fields


def test_nothing_of_a_secret_is_shown_or_logged(place: Place, tmp_path: Path) -> None:
    """At the most talkative level, for a login that works and for one that does not."""
    lines = place.creds.read_text().splitlines()
    jwt, seed = lines[1], next(line for line in lines if line.startswith("SU"))
    bad = tmp_path / "bad"
    bad.write_text(place.creds.read_text().replace(jwt, jwt[:-4] + "AAAA"))
    place.context(url=place.server.url, creds="nsc://OP/My Shöp/admin")
    for options in (["--context", "shop"], ["--creds", "op://v/i/creds"], ["--creds", f"file://{bad}"]):
        line = command_line(
            "backup", "-s", place.server.url, *options, "-r", tmp_path / "repo", "-vv", "--allow-nothing"
        )
        done = subprocess.run(line, capture_output=True, text=True, env=environment(**place.environ))
        assert done.returncode == (20 if str(bad) in options[1] else 0), done.stderr
        for secret in (seed, jwt, jwt.split(".")[1], jwt.split(".")[2]):
            assert secret not in done.stdout + done.stderr
    stored = b"".join(path.read_bytes() for path in (tmp_path / "repo").rglob("*") if path.is_file())
    assert seed.encode() not in stored and jwt.encode() not in stored
