"""Credentials files of users and seeds of accounts in folders, and where nsc has its folders.

Files are found by what they hold, never by their names: a credentials file is for the account that its JWT names.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jsbackup.config.accounts.claims import UserClaims, user_claims
from jsbackup.config.connection import UserJwt
from jsbackup.config.secrets import Secret, expand_path, home, parse_account_seed, parse_creds, read_file, shown
from jsbackup.errors import UsageError

__all__ = ["AccountSeed", "CredsFile", "find_creds", "find_seeds", "nsc_folder", "place", "read_creds"]

_CREDS: Final = ".creds"
_SEEDS: Final = (".nk", ".seed")
_MOST_FILES: Final = 20_000
_NSC: Final = "nsc"
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
    lowered = text.lower()
    if lowered == _NSC or lowered.startswith(_NSC_URL):
        operator = text[len(_NSC_URL) :].strip("/")
        if "/" in operator or operator in (".", ".."):
            raise UsageError(
                f"{option} {shown(text)}: not the name of an operator", hint="Write nsc, or nsc://OPERATOR."
            )
        path = nsc_folder(keep, environ)
        found = path / operator if keep == "creds" and operator else path
        if not found.is_dir():
            raise UsageError(
                f"{option} {shown(text)}: nsc has no folder {found}",
                hint="It is below NKEYS_PATH, XDG_DATA_HOME or ~/.local/share, as 'nsc env' says.",
            )
        return found
    path = expand_path(text, environ)
    if not path.exists():
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
    paths = [where] if where.is_file() else _files(where, (_CREDS,))
    found, problems = [], []
    for path in paths:
        try:
            found.append(read_creds(read_file(path, "credentials file"), str(path)))
        except UsageError as error:
            if path == where:
                raise
            problems.append(error.message)
    if not found and not problems:
        raise UsageError(f"there is no {_CREDS} file below {where}", hint="nsc and the nats CLI write such files.")
    return found, problems


def read_creds(text: str, path: str) -> CredsFile:
    """Return the user of a credentials file's text. Raises UsageError."""
    jwt, seed = parse_creds(text, f"credentials file {shown(path)}")
    claims = user_claims(jwt.reveal())
    if claims is None:
        raise UsageError(f"the credentials file {shown(path)} has a JWT that is not of a user of an account")
    return CredsFile(path, UserJwt(jwt, seed), claims)


def find_seeds(where: Path) -> tuple[list[AccountSeed], list[str]]:
    """Return the account's seed in a file, or all below a folder; and sentences about files that have none. Seeds of
    users and operators are passed over. Raises as `find_creds`.
    """
    paths = [where] if where.is_file() else _files(where, _SEEDS)
    found, problems = [], []
    for path in paths:
        what = f"file {path}"
        try:
            seed = parse_account_seed(read_file(path, "file"), what)
        except UsageError as error:
            if path == where:
                raise
            problems.append(error.message)
            continue
        if seed is not None:
            found.append(AccountSeed(str(path), seed))
        elif path == where:
            raise UsageError(f"the {what} does not hold an account's seed", hint="It starts with SA.")
    if not found and not problems:
        raise UsageError(
            f"there is no account's seed below {where}", hint=f"Seeds are in files that end in {' or '.join(_SEEDS)}."
        )
    return found, problems


def _files(folder: Path, endings: tuple[str, ...]) -> list[Path]:
    """Return the files below a folder, by name. Raises UsageError."""
    return sorted(_walked(folder, endings))


def _walked(folder: Path, endings: tuple[str, ...]) -> Iterator[Path]:
    def fail(error: OSError) -> None:
        raise UsageError(f"cannot read {error.filename}: {(error.strerror or str(error)).lower()}") from error

    count = 0
    for parent, _, names in os.walk(folder, onerror=fail):
        for name in names:
            if name.endswith(endings):
                count += 1
                if count > _MOST_FILES:
                    raise UsageError(f"there are more than {_MOST_FILES:,} files below {folder}")
                yield Path(parent, name)
