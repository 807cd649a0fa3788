"""Secrets: a type that does not print its value, files that hold one, and the checks of seeds and JWTs.

References to secrets are in `secret_references.py`. People paste seeds in place of file names, so messages never
contain one.
"""

from __future__ import annotations

import base64
import binascii
import hmac
import pwd
import re
from collections.abc import Mapping
from os import getuid
from pathlib import Path
from typing import Final, NoReturn, Self

from jsbackup.errors import UsageError

__all__ = [
    "Secret",
    "check_jwt",
    "check_seed",
    "expand_path",
    "expand_variables_of",
    "hide_logins",
    "hide_secrets",
    "home",
    "parse_account_seed",
    "parse_creds",
    "parse_seed",
    "read_binary_file",
    "read_file",
    "read_file_if_there",
    "shown",
]

# Credentials have some hundred bytes, certificate bundles some hundred KiB.
FILE_LIMIT_BYTES: Final = 4 << 20

_LOGIN = re.compile(r"://\S*@")
_VARIABLE = re.compile(r"\$(?:\{([^}]*)\}|(\w+))", re.ASCII)
_LOOKS_SECRET = re.compile(
    r"S[A-Z2-7]{50,}|eyJ[\w-]+\.|data:|AGE-SECRET-KEY-|jsbackup-writer-", re.ASCII | re.IGNORECASE
)
# Also within a path: of a name in the working directory, or in place of one the whole content of a file.
_PASTED = re.compile(
    r"(?<![A-Z0-9])(?:S[A-Z2-7]{50,}|AGE-SECRET-KEY-1[A-Z0-9]{20,}|jsbackup-writer-[0-9]+:)|-----BEGIN ",
    re.ASCII | re.IGNORECASE,
)
_SECRET_WORD = re.compile(rf"(?:{_LOOKS_SECRET.pattern})\S*", re.ASCII | re.IGNORECASE)
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_SEED = re.compile(r"SU[A-Z2-7]{56}", re.ASCII)
_ACCOUNT_SEED = re.compile(r"SA[A-Z2-7]{56}", re.ASCII)
_ANY_SEED = re.compile(r"S[A-Z2-7]{57}", re.ASCII)


def _seed_prefix(role: int) -> bytes:
    """Return the first 16 bits of a seed: 18 << 3 means seed, and the role (https://github.com/nats-io/nkeys,
    README).
    """
    return bytes([(18 << 3) | role >> 5, (role & 31) << 3])


_USER_SEED_PREFIX = _seed_prefix(20 << 3)
_ACCOUNT_SEED_PREFIX = _seed_prefix(0)


class Secret:
    """Holds a secret and never shows it: not by repr, str or format, not in a pickle. Only `reveal()` returns it."""

    __slots__ = ("_value",)
    _value: str

    def __init__(self, value: str) -> None:
        object.__setattr__(self, "_value", value)

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __format__(self, spec: str) -> str:
        return repr(self)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._value.encode(), other._value.encode())

    def __hash__(self) -> int:
        return hash((Secret, self._value))

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __setattr__(self, name: str, value: object) -> NoReturn:
        raise AttributeError("a secret does not change")

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a secret cannot be pickled")


def expand_variables_of(text: str, environ: Mapping[str, str], what: str = "file name") -> str:
    """Expand `$VAR` and `${VAR}`. Raises UsageError for a variable that is not set.

    The nats CLI replaces an unset variable by nothing, and so `$HOEM/x.creds` by `/x.creds`.
    """

    def value(match: re.Match[str]) -> str:
        name = match[1] if match[1] is not None else match[2]
        if name not in environ:
            raise UsageError(f"the {what} {shown(text)} names the variable {name}, which is not set")
        return environ[name]

    return _VARIABLE.sub(value, text)


def expand_path(text: str, environ: Mapping[str, str]) -> Path:
    """Expand `$VAR`, `${VAR}` and a leading `~`. Raises UsageError for a variable that is not set."""
    path = expand_variables_of(text, environ)
    if "\0" in path:
        raise UsageError("a file name with a zero byte in it")
    if path == "~" or path.startswith("~/"):
        return home(environ) / path[2:]
    return Path(path)


def home(environ: Mapping[str, str]) -> Path:
    """Return the user's home directory: `HOME`, or from the user database."""
    if environ.get("HOME"):
        return Path(environ["HOME"])
    try:
        return Path(pwd.getpwuid(getuid()).pw_dir)
    except KeyError as error:
        raise UsageError("the home directory is unknown", hint="Set HOME.") from error


def shown(text: str) -> str:
    """Return a file name for a message, or a phrase instead if it looks like a secret given by mistake."""
    if _LOOKS_SECRET.match(text.strip()) or _PASTED.search(text):
        return "(hidden: it looks like a secret, not like a file name)"
    return text


def hide_secrets(text: str) -> str:
    """Return `text` without what looks like a seed, a JWT or a key: for words of other programs."""
    return _SECRET_WORD.sub("…", text)


def hide_logins(text: str) -> str:
    """Return `text` without user, password or token in its URLs, which people paste into the wrong place."""
    return _LOGIN.sub("://…@", text)


def read_file(path: Path, what: str) -> str:
    """Read a small UTF-8 text file. Raises UsageError; `what` names its role, such as "credentials file"."""
    text = read_file_if_there(path, what)
    if text is None:
        raise _missing(path, what)
    return text


def read_file_if_there(path: Path, what: str) -> str | None:
    """As `read_file`, but return None for a file that does not exist."""
    content = _read(path, what)
    try:
        return None if content is None else content.decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} {shown(str(path))} is not a text file") from error


def read_binary_file(path: Path, what: str) -> bytes:
    """As `read_file`, but return any bytes."""
    content = _read(path, what)
    if content is None:
        raise _missing(path, what)
    return content


def _missing(path: Path, what: str) -> UsageError:
    hint = None if path.is_absolute() else "A name that does not begin with / is relative to the working directory."
    return UsageError(f"the {what} {shown(str(path))} does not exist", hint=hint)


def _read(path: Path, what: str) -> bytes | None:
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # not chained: the file name may be a secret given by mistake
        reason = error.strerror if isinstance(error, OSError) else "not a usable name"
        raise UsageError(f"cannot read the {what} {shown(str(path))}: {reason}") from None
    if len(content) > FILE_LIMIT_BYTES:
        raise UsageError(f"the {what} {shown(str(path))} is larger than {FILE_LIMIT_BYTES >> 20} MiB")
    return content


def parse_creds(text: str, what: str) -> tuple[Secret, Secret]:
    """Parse a credentials file (a user JWT and a seed between BEGIN and END lines) to JWT and seed. Raises
    UsageError.
    """
    jwt, seed = _block(text, "NATS USER JWT"), _block(text, "USER NKEY SEED")
    if jwt is None or seed is None:
        raise UsageError(
            f"the {what} does not hold a user JWT and a seed",
            hint="A credentials file, as nsc and the nats CLI write it, has a BEGIN line for each.",
        )
    return check_jwt(jwt, what), check_seed(seed, what)


def parse_seed(text: str, what: str) -> Secret:
    """Parse an nkey file: a user seed on a separate line, or between BEGIN and END lines. Raises UsageError."""
    if (seed := _block(text, "USER NKEY SEED")) is not None:
        return check_seed(seed, what)
    for line in text.split():
        if line.startswith("S"):
            return check_seed(line, what)
    raise UsageError(f"the {what} does not hold a seed", hint="The seed of a user starts with SU.")


def _block(text: str, label: str) -> str | None:
    """Return the first line that is not empty after the BEGIN line with the label."""
    lines = iter(text.splitlines())
    for line in lines:
        if f"BEGIN {label}-" in line:
            return next((content.strip() for content in lines if content.strip()), None)
    return None


def check_jwt(jwt: str, what: str) -> Secret:
    """Check the outer form of a JWT. Raises UsageError."""
    if not _JWT.fullmatch(jwt):
        raise UsageError(f"the {what} does not hold a JWT", hint="A JWT is three base64url texts with dots between.")
    return Secret(jwt)


def check_seed(seed: str, what: str) -> Secret:
    """Check form, role and CRC-16 of a user's seed. Raises UsageError."""
    if not _SEED.fullmatch(seed):
        raise UsageError(f"the {what} does not hold a user's seed", hint="It has 58 characters and starts with SU.")
    return _checked(seed, _USER_SEED_PREFIX, what)


def parse_account_seed(text: str, what: str) -> Secret | None:
    """Parse a file to the seed of an account, on a separate line; None if it has the seed of something else. Raises
    UsageError.
    """
    for word in text.split():
        if _ACCOUNT_SEED.fullmatch(word):
            return _checked(word, _ACCOUNT_SEED_PREFIX, what)
        if _ANY_SEED.fullmatch(word):
            return None
    raise UsageError(f"the {what} does not hold a seed", hint="The seed of an account starts with SA.")


def _checked(seed: str, prefix: bytes, what: str) -> Secret:
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    # 290 bits of text hold 288 of content: 2 of prefix, 32 of key, 2 of CRC-16/XMODEM, little endian.
    if raw[:2] != prefix or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise UsageError(f"the {what} holds a damaged seed")
    return Secret(seed)
