"""A file with a login for each account, for servers whose accounts are in their configuration.

    [SHOP]
    user = "backup"
    password = "env://SHOP_PASSWORD"

    [PAY]
    context = "pay"                                   # of the nats CLI; only its login counts

    ["*"]                                             # for every other account
    user = "backup-{account}"
    password-file = "/etc/nats/{account}.password"

A table is named after an account or its public key. Its keys are the long names of options for logging in. `${NAME}` is
a variable, as in profiles. In the table `*`, `{account}` is the account's name.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jsbackup.config.options import LOGIN_NAMES, ConnectionOptions, connection_options
from jsbackup.config.profiles import expand_variables
from jsbackup.config.secret_references import is_reference
from jsbackup.config.similar import nearest
from jsbackup.config.toml_file import read_toml
from jsbackup.errors import UsageError

__all__ = ["ACCOUNT", "OTHERS", "LoginsFile", "read_logins"]

OTHERS: Final = "*"
ACCOUNT: Final = "{account}"  # in a text: the name or the key of an account

_KEYS: Final = {name.replace("_", "-"): name for name in (*LOGIN_NAMES, "context", "tlscert", "tlskey", "tlsca")}
_SECRETS: Final = ("password", "token")


@dataclass(frozen=True, slots=True, repr=False)
class LoginsFile:
    """The texts of a file, by account and option. `exposed`: it holds a secret, and others than its owner can read
    it.
    """

    path: Path
    tables: Mapping[str, Mapping[str, str]]
    exposed: bool

    def options(self, table: str, account: str, environ: Mapping[str, str]) -> ConnectionOptions:
        """Return the options of a table; `account` stands in the place of `{account}`. Runs commands that print
        secrets. Raises UsageError.
        """
        try:
            texts = {name: expand_variables(text, environ) for name, text in self.tables[table].items()}
            if table == OTHERS:
                texts = {name: text.replace(ACCOUNT, account) for name, text in texts.items()}
            return connection_options(texts)
        except UsageError as error:
            raise error.with_message(f"{self.path}: {table}: {error.message}") from error.__cause__


def read_logins(path: Path) -> LoginsFile:
    """Read a file. Raises UsageError for anything in it that is not understood."""
    found = read_toml(path, "file of logins")
    tables: dict[str, dict[str, str]] = {}
    for account, table in found.items():
        if not isinstance(table, dict):
            raise UsageError(
                f"{path}: {account[:100]!r} is no table", hint="Write [ACCOUNT], and its login in the lines below."
            )
        tables[account] = _texts(table, f"{path}: {account[:100]}")
    if not tables:
        raise UsageError(f"{path} has no login", hint="Write [ACCOUNT], and its login in the lines below.")
    mode = path.stat().st_mode
    secret = any(
        name in _SECRETS and not is_reference(text) and "${" not in text
        for table in tables.values()
        for name, text in table.items()
    )
    return LoginsFile(path, tables, secret and bool(mode & (stat.S_IRGRP | stat.S_IROTH)))


def _texts(table: Mapping[str, object], where: str) -> dict[str, str]:
    texts = {}
    for key, value in table.items():
        if key not in _KEYS:
            hint = nearest(key, sorted(_KEYS)) or f"There are {', '.join(sorted(_KEYS))}."
            raise UsageError(f"{where}: unknown key {key[:100]!r}", hint=hint)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {key} is not a text")
        texts[_KEYS[key]] = value
    if not texts:
        raise UsageError(f"{where}: there is no login in it")
    return texts
