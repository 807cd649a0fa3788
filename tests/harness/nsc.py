"""Operators and their accounts, made by the real `nsc`, which scripts/nsc builds into .cache/nsc.

Nothing here imports jsbackup: keys and names of accounts are read out of the JWTs that nsc wrote.
"""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

from tests.harness.servers import REPOSITORY, missing

CACHE = REPOSITORY / ".cache" / "nsc"
TOOL = Path(__file__).parent / "nsc_tool" / "go.mod"

_RUN_SECONDS = 120
_STORED = ("--js-mem-storage", "-1", "--js-disk-storage", "-1", "--js-streams", "-1", "--js-consumer", "-1")


@cache
def nsc_program() -> str:
    """The path of the pinned nsc; where it is not built the test is skipped (failed under CI)."""
    pinned = re.search(r"github.com/nats-io/nsc/v2 v(\S+)$", TOOL.read_text(), re.MULTILINE)
    assert pinned is not None
    program = CACHE / "nsc"
    found = (
        subprocess.run([program, "--version"], capture_output=True, text=True).stdout if program.exists() else "none"
    )
    if found.split()[-1:] != [pinned[1]]:
        missing(f"nsc {pinned[1]} is not in .cache/nsc ({found.strip()}): run scripts/nsc")
    return str(program)


class Nsc:
    """The home of one nsc user, with an operator, its system account `SYS` and others."""

    def __init__(self, home: Path, operator: str = "OP") -> None:
        self.home = home
        self.operator = operator
        home.mkdir(parents=True, exist_ok=True)
        self.run("add", "operator", "--generate-signing-key", "--sys", "--name", operator)

    @property
    def environment(self) -> dict[str, str]:
        """What nsc reads of the environment: its files are below `home`."""
        return {"HOME": str(self.home), "XDG_CONFIG_HOME": f"{self.home}/config", "XDG_DATA_HOME": f"{self.home}/data"}

    @property
    def _data(self) -> Path:
        return self.home / "data" / "nats" / "nsc"

    @property
    def creds_folder(self) -> Path:
        """Where nsc keeps credentials files: `ACCOUNT/USER.creds`."""
        return self._data / "keys" / "creds" / self.operator

    @property
    def keys_folder(self) -> Path:
        """Where nsc keeps seeds of accounts, identity and signing keys alike."""
        return self._data / "keys" / "keys" / "A"

    def run(self, *arguments: str) -> str:
        """Runs nsc and returns what it prints. RuntimeError with that if it fails."""
        path = f"{CACHE}:{os.environ.get('PATH', os.defpath)}"
        done = subprocess.run(
            [nsc_program(), *arguments],
            capture_output=True,
            text=True,
            timeout=_RUN_SECONDS,
            env={**self.environment, "PATH": path},
        )
        if done.returncode != 0:
            raise RuntimeError(f"nsc {' '.join(arguments)}: {done.stdout}{done.stderr}")
        return done.stdout

    def add_account(self, name: str, *, jetstream: bool = True) -> str:
        """Makes an account; returns its public key."""
        self.run("add", "account", "--name", name)
        if jetstream:
            self.run("edit", "account", "--name", name, *_STORED)
        return self.key_of(name)

    def add_user(self, account: str, name: str = "app", *more: str) -> Path:
        """Makes a user with all rights, or with those that `more` leaves; returns its credentials file."""
        self.run("add", "user", "--account", account, "--name", name, *more)
        return self.creds_folder / account / f"{name}.creds"

    def add_signing_key(self, account: str, *more: str) -> str:
        """Makes a signing key of the account; returns its public key. With `--role NAME` in `more` it is a scoped
        one."""
        before = set(self.keys_folder.rglob("*.nk"))
        kind = ("signing-key", "--account") if more else ("account", "--name")
        self.run("edit", *kind, account, "--sk", "generate", *more)
        (made,) = set(self.keys_folder.rglob("*.nk")) - before
        return made.stem

    def claims(self, account: str) -> dict[str, Any]:
        """What the account's JWT says."""
        body = self.jwt(account).split(".")[1]
        found: dict[str, Any] = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))
        return found

    def jwt(self, account: str) -> str:
        return (self._data / "stores" / self.operator / "accounts" / account / f"{account}.jwt").read_text()

    def key_of(self, account: str) -> str:
        return str(self.claims(account)["sub"])

    def accounts(self) -> dict[str, str]:
        """The public keys of all accounts, by name."""
        folder = self._data / "stores" / self.operator / "accounts"
        return {path.name: self.key_of(path.name) for path in folder.iterdir()}

    def full_resolver(self, folder: Path) -> str:
        """The configuration of a server that keeps accounts in `folder`: they are pushed to it."""
        printed = self.run("generate", "config", "--nats-resolver")
        return printed.replace("dir: './jwt'", f"dir: {json.dumps(str(folder))}")

    def memory_resolver(self) -> str:
        """The configuration of a server with all accounts that there are now."""
        return self.run("generate", "config", "--mem-resolver")

    def push(self, url: str) -> None:
        """Sends all accounts to the servers."""
        self.run("push", "--all", "--account-jwt-server-url", url)
