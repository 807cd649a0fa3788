"""A file that says where the logins of accounts are (`--accounts`).

    creds = ["./creds", "op://nats/{account}/creds"]  # folders of .creds files, patterns, nsc
    signing-keys = "nsc"                              # seeds to make short-lived users with
    contexts = "{account}-backup"                     # of the nats CLI; only their logins count
    user = "backup"                                   # where there are credentials of several users
    user-lifetime = "1h"                              # of users made with signing keys

    [SHOP]                                            # one account, by its name or public key
    user = "backup"
    password = "env://SHOP_PASSWORD"

    ["*"]                                             # every other account
    user = "backup-{account}"
    password-file = "/etc/nats/{account}.password"

The keys of a table are the long names of options for logging in. `${NAME}` is a variable, as in profiles. In the table
`*`, `{account}` is the account's name.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from jsbackup.config.options import LOGIN_NAMES, ConnectionOptions, connection_options
from jsbackup.config.profiles import expand_variables
from jsbackup.config.secret_references import is_reference
from jsbackup.config.similar import nearest
from jsbackup.config.toml_file import read_toml
from jsbackup.config.values import parse_duration
from jsbackup.errors import UsageError

__all__ = ["ACCOUNT", "OTHERS", "AccountsFile", "read_accounts"]

OTHERS: Final = "*"
ACCOUNT: Final = "{account}"  # in a text: the name or the key of an account

_KEYS: Final = {name.replace("_", "-"): name for name in (*LOGIN_NAMES, "context", "tlscert", "tlskey", "tlsca")}
_SECRETS: Final = ("password", "token")


# Settings that may be one text or a list of them.
_LISTS: Final = ("creds", "signing-keys", "contexts")
_SETTINGS: Final = (*_LISTS, "user", "user-lifetime")
_HOW: Final = f"Write [ACCOUNT], and its login in the lines below; or, above all tables, {', '.join(_LISTS)}."
_MOST_SECONDS: Final = 7 * 86400


@dataclass(frozen=True, slots=True, repr=False)
class AccountsFile:
    """The texts of a file. `tables` are by account and option. `exposed`: it holds a secret, and others than its owner
    can read it.
    """

    path: Path
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    exposed: bool = False
    creds: tuple[str, ...] = ()
    signing_keys: tuple[str, ...] = ()
    contexts: tuple[str, ...] = ()
    user: str | None = None
    lifetime_seconds: int | None = None

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


def read_accounts(path: Path, environ: Mapping[str, str]) -> AccountsFile:
    """Read a file. Raises UsageError for anything in it that is not understood."""
    tables: dict[str, dict[str, str]] = {}
    settings: dict[str, tuple[str, ...]] = {}
    for name, value in read_toml(path, "file of accounts").items():
        if isinstance(value, dict):
            tables[name] = _texts(value, f"{path}: {name[:100]}")
            continue
        if name not in _SETTINGS:
            raise UsageError(f"{path}: unknown key {name[:100]!r}", hint=nearest(name, _SETTINGS) or _HOW)
        texts = value if name in _LISTS and isinstance(value, list) else [value]
        if not all(isinstance(text, str) and text for text in texts):
            raise UsageError(f"{path}: {name} is not a text")
        settings[name] = tuple(expand_variables(text, environ) for text in texts)
    if not (tables or settings.keys() & {*_LISTS}):
        raise UsageError(f"{path} names no login", hint=_HOW)
    for name in settings.get("contexts", ()):
        if ACCOUNT not in name:
            raise UsageError(
                f"{path}: {name}: one context cannot be that of every account",
                hint="Write {account} where the name of the account stands, such as '{account}-backup'.",
            )
    mode = path.stat().st_mode
    secret = any(
        name in _SECRETS and not is_reference(text) and "${" not in text
        for table in tables.values()
        for name, text in table.items()
    )
    return AccountsFile(
        path,
        tables,
        exposed=secret and bool(mode & (stat.S_IRGRP | stat.S_IROTH)),
        creds=settings.get("creds", ()),
        signing_keys=settings.get("signing-keys", ()),
        contexts=settings.get("contexts", ()),
        user=next(iter(settings.get("user", ())), None),
        lifetime_seconds=next((_seconds(path, text) for text in settings.get("user-lifetime", ())), None),
    )


def _seconds(path: Path, text: str) -> int:
    seconds = int(parse_duration(text))
    if not 60 <= seconds <= _MOST_SECONDS:
        raise UsageError(f"{path}: user-lifetime {text} is not between a minute and seven days")
    return seconds


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
