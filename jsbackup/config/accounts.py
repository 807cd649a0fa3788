"""Logins of accounts: the file that says where they are (`--accounts`), credentials and seeds in
folders, what JWTs say.

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

Files in folders are found by what they hold, never by their names: a credentials file is for the account that its JWT
names. Nothing is proved here: the server checks signatures.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar

from jsbackup.config.connection import (
    LOGIN_NAMES,
    Connection,
    ConnectionOptions,
    Login,
    UserJwt,
    connection_options,
    layered_connection,
)
from jsbackup.config.profiles import expand_variables, read_toml, readable_by_others
from jsbackup.config.secrets import (
    Secret,
    expand_path,
    home,
    is_reference,
    parse_account_seed,
    parse_creds,
    read_file,
    shown,
)
from jsbackup.config.values import nearest, parse_duration
from jsbackup.errors import FormatError, UsageError
from jsbackup.strict_json import read_object

__all__ = [
    "ACCOUNT",
    "OTHERS",
    "AccountClaims",
    "AccountSeed",
    "AccountsFile",
    "CredsFile",
    "UserClaims",
    "account_claims",
    "find_creds",
    "find_seeds",
    "is_account_key",
    "nsc_folder",
    "place",
    "read_accounts",
    "read_creds",
    "user_claims",
    "with_login",
    "with_options",
]


T = TypeVar("T")

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
    lifetime = next((int(parse_duration(text)) for text in settings.get("user-lifetime", ())), None)
    if lifetime is not None and not 60 <= lifetime <= _MOST_SECONDS:
        raise UsageError(f"{path}: user-lifetime {settings['user-lifetime'][0]} is not between a minute and seven days")
    secret = any(
        name in _SECRETS and not is_reference(text) and "${" not in text
        for table in tables.values()
        for name, text in table.items()
    )
    return AccountsFile(
        path,
        tables,
        exposed=secret and readable_by_others(path),
        creds=settings.get("creds", ()),
        signing_keys=settings.get("signing-keys", ()),
        contexts=settings.get("contexts", ()),
        user=next(iter(settings.get("user", ())), None),
        lifetime_seconds=lifetime,
    )


def _texts(table: Mapping[str, object], where: str) -> dict[str, str]:
    texts = {}
    for key, value in table.items():
        if key not in _KEYS:
            hint = nearest(key, sorted(_KEYS)) or f"There are {', '.join(sorted(_KEYS))}."
            raise UsageError(f"{where}: unknown key {key[:100]!r}", hint=hint)
        if not isinstance(value, str) or not value:
            raise UsageError(f"{where}: {key} is not a text")
        texts[_KEYS[key]] = value
    return texts


_ACCOUNT_KEY = re.compile(r"A[A-Z2-7]{55}", re.ASCII)
# Header of a public key: the role in the first byte (https://github.com/nats-io/nkeys, README), then 32 bytes, CRC-16.
_ACCOUNT_PREFIX = 0


@dataclass(frozen=True, slots=True)
class UserClaims:
    """`account` and `user` are public keys, `expires` is Unix time in seconds, None for never."""

    account: str
    user: str
    name: str
    expires: int | None = None


@dataclass(frozen=True, slots=True)
class AccountClaims:
    """`signing_keys` may issue users as the account itself may; `scoped_keys` issue them with the rights of a role."""

    account: str
    name: str
    signing_keys: tuple[str, ...] = ()
    scoped_keys: tuple[str, ...] = ()


def is_account_key(text: str) -> bool:
    """Return whether a text is the public key of an account, by its form and its checksum."""
    if not _ACCOUNT_KEY.fullmatch(text):
        return False
    raw = base64.b32decode(text)
    return raw[0] == _ACCOUNT_PREFIX and binascii.crc_hqx(raw[:-2], 0) == int.from_bytes(raw[-2:], "little")


def user_claims(jwt: str) -> UserClaims | None:
    """Return what a user's JWT says; None if it is none, or names no account."""
    claims, nats = _claims(jwt, "user")
    account, expires = _text(nats.get("issuer_account") or claims.get("iss")), claims.get("exp")
    if not is_account_key(account):
        return None
    return UserClaims(
        account=account,
        user=_text(claims.get("sub")),
        name=_text(claims.get("name")),
        expires=expires if isinstance(expires, int) and expires > 0 else None,
    )


def account_claims(jwt: str) -> AccountClaims | None:
    """Return what an account's JWT says; None if it is none."""
    claims, nats = _claims(jwt, "account")
    account, keys = _text(claims.get("sub")), nats.get("signing_keys")
    if not is_account_key(account):
        return None
    listed = keys if isinstance(keys, list) else []
    scoped = [_text(key.get("key")) for key in listed if isinstance(key, dict)]
    return AccountClaims(
        account=account,
        name=_text(claims.get("name")),
        signing_keys=tuple(key for key in listed if isinstance(key, str) and is_account_key(key)),
        scoped_keys=tuple(filter(is_account_key, scoped)),
    )


def _claims(jwt: str, kind: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return the claims of a JWT of a `user` or an `account`, and those of NATS; empty mappings if it is none."""
    try:
        _, payload, _ = jwt.strip().split(".")
        claims = read_object(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)), "JWT")
    except (FormatError, ValueError):
        return {}, {}
    nats = claims["nats"] if isinstance(claims.get("nats"), dict) else {}
    return (claims, nats) if (nats.get("type") or claims.get("type")) == kind else ({}, {})


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


_CREDS: Final = ".creds"
_SEEDS: Final = (".nk", ".seed")
_NSC_URL: Final = "nsc://"


@dataclass(frozen=True, slots=True)
class CredsFile:
    """A user to log in as. `path` is for messages."""

    path: str
    login: UserJwt
    claims: UserClaims


@dataclass(frozen=True, slots=True)
class AccountSeed:
    """The seed of an account: its own, or that of a signing key, which only the account's JWT says."""

    path: str
    seed: Secret


def place(text: str, keep: str, option: str, environ: Mapping[str, str]) -> Path:
    """Return the folder or file that an option names: a path, `nsc`, or `nsc://OPERATOR`. `keep` is as in `nsc_folder`.

    Raises UsageError if there is nothing.
    """
    if text.lower() == "nsc" or text.lower().startswith(_NSC_URL):
        operator = text[len(_NSC_URL) :].strip("/")
        if "/" in operator or operator in (".", ".."):
            raise UsageError(
                f"{option} {shown(text)}: not the name of an operator", hint="Write nsc, or nsc://OPERATOR."
            )
        path = nsc_folder(keep, environ) / (operator if keep == "creds" else "")
    else:
        path = expand_path(text, environ)
    if not os.path.exists(path):  # noqa: PTH110 - Path.exists() raises for a name that is too long
        braces = " In a pattern, write {account} for the account." if "{" in text else ""
        raise UsageError(f"{option}: there is no {shown(str(path))}", hint=f"Name a folder or a file.{braces}")
    return path


def nsc_folder(keep: str, environ: Mapping[str, str]) -> Path:
    """Return where nsc keeps credentials files (`creds`) or seeds of accounts (`keys`), whether it exists or not.

    nsc's rules: NKEYS_PATH, else `nats/nsc/keys` below XDG_DATA_HOME or ~/.local/share, else the old ~/.nkeys.
    """
    if environ.get("NKEYS_PATH"):
        keys = expand_path(environ["NKEYS_PATH"], environ)
    else:
        data = environ.get("XDG_DATA_HOME")
        keys = (Path(data) if data else home(environ) / ".local" / "share") / "nats" / "nsc" / "keys"
        old = home(environ) / ".nkeys"
        keys = old if not keys.exists() and old.exists() else keys
    return keys / "creds" if keep == "creds" else keys / "keys" / "A"


def find_creds(where: Path) -> tuple[list[CredsFile], list[str]]:
    """Return the users of a credentials file, or of all below a folder; and sentences about files that are none.

    Raises UsageError if the folder cannot be read, or has none.
    """
    return _read_all(
        where,
        (_CREDS,),
        lambda path: read_creds(read_file(path, "credentials file"), str(path)),
        UsageError(f"there is no {_CREDS} file below {where}", hint="nsc and the nats CLI write such files."),
    )


def _read_all(
    where: Path, endings: tuple[str, ...], read: Callable[[Path], T | None], none: UsageError
) -> tuple[list[T], list[str]]:
    """Return what is read from a file, or from all files below a folder, and the errors in the latter. Raises `none`
    without either.
    """
    read_files, problems = list[T](), []

    def fail(error: OSError) -> None:
        raise UsageError(f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}") from error

    walked = (Path(folder, name) for folder, _, names in os.walk(where, onerror=fail) for name in names)
    for path in [where] if where.is_file() else sorted(path for path in walked if path.name.endswith(endings)):
        try:
            read_files += filter(None, [read(path)])
        except UsageError as error:
            if path == where:
                raise
            problems.append(error.message)
    if not read_files and not problems:
        raise none
    return read_files, problems


def read_creds(text: str, path: str) -> CredsFile:
    """Return the user of a credentials file's text. Raises UsageError."""
    jwt, seed = parse_creds(text, f"credentials file {shown(path)}")
    claims = user_claims(jwt.reveal())
    if claims is None:
        raise UsageError(f"the credentials file {shown(path)} has a JWT that is not of a user of an account")
    return CredsFile(path, UserJwt(jwt, seed), claims)


def find_seeds(where: Path) -> tuple[list[AccountSeed], list[str]]:
    """Return the account's seed in a file, or all below a folder; and sentences about files that have none. Seeds of
    users and operators are passed over. Raises UsageError if the folder cannot be read, or has none.
    """

    def read(path: Path) -> AccountSeed | None:
        seed = parse_account_seed(read_file(path, "file"), f"file {path}")
        return None if seed is None else AccountSeed(str(path), seed)

    return _read_all(
        where,
        _SEEDS,
        read,
        UsageError(
            f"there is no account's seed in or below {where}",
            hint=f"Such a seed starts with SA, and its file ends in {' or '.join(_SEEDS)}.",
        ),
    )


def with_login(base: Connection, login: Login | None) -> Connection:
    """Return the connection with another login; those in its URLs are gone."""
    servers = tuple(replace(server, login=None, token=None) for server in base.servers)
    return replace(base, servers=servers, login=login, token=None, context=None)


def with_options(base: Connection, options: ConnectionOptions, environ: Mapping[str, str]) -> Connection:
    """Return the connection with the login of options, or of the context that they name. The servers stay those of
    `base`; of TLS, files that the options name count. Raises UsageError.
    """
    made = layered_connection(options, ConnectionOptions(), options.context or None, environ)
    login, token = made.login, made.token
    if login is None and token is None:  # in the URL
        login, token = made.servers[0].login, made.servers[0].token
    tls = replace(
        base.tls,
        required=base.tls.required or made.tls.required,
        first=base.tls.first or made.tls.first,
        ca=made.tls.ca or base.tls.ca,
        cert=made.tls.cert or base.tls.cert,
        key=made.tls.key or base.tls.key,
    )
    if login is None and token is None and made.tls.cert is None:
        raise UsageError(f"the nats context {options.context!r} has no login" if options.context else "it has no login")
    return replace(with_login(base, login), token=token, tls=tls, context=options.context or None)
