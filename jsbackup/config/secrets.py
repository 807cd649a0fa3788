"""Secrets: a type that does not print its value, files that hold one, checks of seeds and JWTs, references, and the
programs that print one. People paste seeds in place of file names, so messages never contain one.

References are as contexts of the nats CLI have them (jsm.go 0.5.1, `natscontext`):

    PATH, file://PATH       the file; `~` and `$VAR` expand
    env://NAME              the variable, which must have a value
    data:;base64,TEXT       the content itself
    op://VAULT/ITEM/FIELD   what `op read` prints (the CLI of 1Password)
    nsc://OPERATOR/ACCOUNT/USER    the credentials file that `nsc generate profile` names

A password, a token, a JWT or a seed without a scheme is the secret itself; credentials and nkeys without one are a
file. In references to credentials and nkeys `$VAR` expands whatever the scheme is. Line ends after a password, a token,
a JWT or a seed are dropped.

Two cases differ, where the CLI would do what nobody wants: it replaces a variable that is not set by nothing, and it
takes a reference with a space or another character that no URL may have (`op://My Vault/…`) for the secret itself, or
for a file name.

Programs are run without a shell. Those that the user writes (`--password-command`) are split as by a shell, and may ask
questions on the terminal. Those that look up a reference (`op`, `nsc`) are found on the PATH, get no input, and are
stopped if they take too long. Nothing that a program prints on stdout is in a message.
"""

from __future__ import annotations

import base64
import binascii
import os
import pwd
import re
import shlex
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from os import getuid
from pathlib import Path
from typing import Final, NoReturn

from jsbackup.errors import UsageError
from jsbackup.strict_json import read_object

__all__ = [
    "Secret",
    "check_jwt",
    "check_seed",
    "expand_path",
    "expand_variables_of",
    "hide_logins",
    "home",
    "is_reference",
    "known_scheme",
    "looked_up",
    "needs_program",
    "nsc_profile",
    "output_of",
    "parse_account_seed",
    "parse_creds",
    "parse_seed",
    "read_binary_file",
    "read_file",
    "resolve_reference",
    "resolve_secret",
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
_JWT = re.compile(r"[\w-]+\.[\w-]+\.[\w-]+", re.ASCII)
_SEED = re.compile(r"S[A-Z2-7]{57}", re.ASCII)


# The first 16 bits of a seed: 18 << 3 means seed, then the role (https://github.com/nats-io/nkeys, README).
_SEED_PREFIXES = {"SU": bytes([18 << 3 | 20 >> 2, 0]), "SA": bytes([18 << 3, 0])}


@dataclass(frozen=True, slots=True, repr=False)
class Secret:
    """Holds a secret and never shows it: not by repr, str or format, not in a pickle. Only `reveal()` returns it."""

    _value: str

    def reveal(self) -> str:
        return self._value

    def __repr__(self) -> str:
        return "Secret(…)"

    def __format__(self, spec: str) -> str:
        return repr(self)

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


def hide_logins(text: str) -> str:
    """Return `text` without user, password or token in its URLs, which people paste into the wrong place."""
    return _LOGIN.sub("://…@", text)


def read_file(path: Path, what: str, default: str | None = None) -> str:
    """Read a small UTF-8 text file. Raises UsageError; `what` names its role, such as "credentials file". A file that
    does not exist has the text `default`, if there is one.
    """
    try:
        return read_binary_file(path, what, None if default is None else default.encode()).decode()
    except UnicodeDecodeError as error:
        raise UsageError(f"the {what} {shown(str(path))} is not a text file") from error


def read_binary_file(path: Path, what: str, default: bytes | None = None) -> bytes:
    """As `read_file`, but return any bytes."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_LIMIT_BYTES + 1)
    except FileNotFoundError:
        if default is not None:
            return default
        hint = None if path.is_absolute() else "A name that does not begin with / is relative to the working directory."
        raise UsageError(f"the {what} {shown(str(path))} does not exist", hint=hint) from None
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
    seed = _block(text, "USER NKEY SEED") or next((word for word in text.split() if word.startswith("S")), None)
    if seed is None:
        raise UsageError(f"the {what} does not hold a seed", hint="The seed of a user starts with SU.")
    return check_seed(seed, what)


def _block(text: str, label: str) -> str | None:
    """Return the first line that is not empty after the BEGIN line with the label."""
    match = re.search(rf"BEGIN {label}-.*\n\s*(\S.*)", text)
    return match and match[1].strip()


def check_jwt(jwt: str, what: str) -> Secret:
    """Check the outer form of a JWT. Raises UsageError."""
    if not _JWT.fullmatch(jwt):
        raise UsageError(f"the {what} does not hold a JWT", hint="A JWT is three base64url texts with dots between.")
    return Secret(jwt)


def check_seed(seed: str, what: str) -> Secret:
    """Check form, role and CRC-16 of a user's seed. Raises UsageError."""
    if not _SEED.fullmatch(seed) or not seed.startswith("SU"):
        raise UsageError(f"the {what} does not hold a user's seed", hint="It has 58 characters and starts with SU.")
    return _checked(seed, what)


def parse_account_seed(text: str, what: str) -> Secret | None:
    """Parse a file to the seed of an account, on a separate line; None if it has the seed of something else. Raises
    UsageError.
    """
    for word in text.split():
        if _SEED.fullmatch(word):
            return _checked(word, what) if word.startswith("SA") else None
    raise UsageError(f"the {what} does not hold a seed", hint="The seed of an account starts with SA.")


def _checked(seed: str, what: str) -> Secret:
    raw = base64.b32decode(seed + "=" * (-len(seed) % 8))
    # 290 bits of text hold 288 of content: 2 of prefix, 32 of key, 2 of CRC-16/XMODEM, little endian.
    if raw[:2] != _SEED_PREFIXES[seed[:2]] or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(raw[-2:], "little"):
        raise UsageError(f"the {what} holds a damaged seed")
    return Secret(seed)


# Time to unlock a vault by a fingerprint or on a phone.
_LOOKUP_SECONDS: Final = 60.0
_PROGRAMS: Final = {"op": "the command line tool of 1Password", "nsc": "the tool that manages NATS accounts"}


def output_of(command: str, what: str) -> bytes:
    """Return the output. Raises UsageError, which contains neither the command nor its output."""
    import subprocess  # few start a program: all others would wait for this

    try:
        words = shlex.split(command)
        with subprocess.Popen(words, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            output = process.stdout.read(FILE_LIMIT_BYTES + 1)
            if len(output) > FILE_LIMIT_BYTES:
                process.kill()
    except (OSError, ValueError, IndexError) as error:  # not chained: the command may contain the secret
        reason = error.strerror if isinstance(error, OSError) else "it is not a command"
        raise UsageError(f"the command for the {what} cannot be run: {reason}") from None
    return _checked_output(output, process.returncode, f"the command for the {what}")


def _checked_output(output: bytes, code: int, command: str, hint: str | None = None) -> bytes:
    if len(output) > FILE_LIMIT_BYTES:
        raise UsageError(f"{command} prints more than {FILE_LIMIT_BYTES >> 20} MiB")
    if code:
        raise UsageError(f"{command} failed with exit code {code}", hint=hint)
    if not output.strip():
        raise UsageError(f"{command} prints nothing")
    return output


def looked_up(
    words: Sequence[str],
    reference: str,
    what: str,
    environ: Mapping[str, str],
    *,
    limit_seconds: float = _LOOKUP_SECONDS,
) -> bytes:
    """Return what the program `words[0]` prints for a reference. `environ` is its environment, with the PATH.

    Raises UsageError: the program is not there, fails, takes too long, or prints nothing.
    """
    import shutil
    import subprocess

    name = words[0]
    program = shutil.which(name, path=environ.get("PATH", os.defpath))
    if program is None:
        raise UsageError(
            f"the {what} is an {name}:// reference, and the program {name} ({_PROGRAMS[name]}) is not on the PATH",
            hint=f"Install {name}, or give a file, or put the secret into a variable and write env://NAME.",
        )
    command = " ".join(words[:-1])
    try:
        process = subprocess.Popen(
            [program, *words[1:]],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=dict(environ),
            start_new_session=True,  # so that all that it starts can be stopped
        )
    except (OSError, ValueError) as error:
        reason = (error.strerror or str(error)).lower() if isinstance(error, OSError) else "it has a zero byte"
        raise UsageError(f"'{command}' for the {what} cannot be run: {reason}") from error
    with process:
        try:
            output, _ = process.communicate(timeout=limit_seconds)
        except subprocess.TimeoutExpired:
            raise UsageError(
                f"'{command}' for the {what} did not end within {limit_seconds:g} s, and was stopped",
                hint=f"It may wait to be unlocked: run '{command} {reference}' by hand once.",
            ) from None
        finally:
            if process.returncode is None:  # also what it has started, which may hold the pipes open
                with suppress(OSError):
                    os.killpg(process.pid, signal.SIGKILL)
    return _checked_output(
        output,
        process.returncode,
        f"the {what} {reference} cannot be looked up: '{command}'",
        f"Run '{command} {reference}' by hand to see why.",
    )


_SCHEME = re.compile(r"(?:([A-Za-z][A-Za-z0-9+.-]+)://|(data):)", re.ASCII | re.IGNORECASE)
_BY_PROGRAM: Final = ("op", "nsc")
_NAMING: Final = ("file", "env", *_BY_PROGRAM)


def is_reference(text: str) -> bool:
    """Return whether the text says where a secret is, without holding it."""
    return _split(text)[0] in _NAMING


def needs_program(text: str) -> str | None:
    """Return the scheme of a reference that starts a program, else None."""
    scheme = _split(text)[0]
    return scheme if scheme in _BY_PROGRAM else None


def resolve_reference(reference: str, what: str, environ: Mapping[str, str]) -> str:
    """Return the content of a referenced file (`creds`, `nkey`); without a scheme it is a file name. Raises
    UsageError.
    """
    scheme, rest = _split(reference)
    if scheme in ("env", *_BY_PROGRAM):
        rest = expand_variables_of(rest, environ, f"{scheme}:// reference")
    secret = _by_scheme(scheme, rest, what, environ)
    return read_file(expand_path(reference, environ), what) if secret is None else secret


def resolve_secret(reference: str, what: str, environ: Mapping[str, str]) -> Secret:
    """Return a referenced password, token, JWT or seed; without a scheme it is the secret itself. Raises UsageError."""
    secret = _by_scheme(*_split(reference), what, environ)
    return Secret(reference if secret is None else secret.rstrip("\r\n"))


def nsc_profile(path: str, what: str, environ: Mapping[str, str]) -> tuple[str, str]:
    """Ask nsc about `OPERATOR/ACCOUNT/USER`; return the path of the user's credentials file, and the operator's
    service URLs as a comma list. Each is "" if nsc does not say. Raises UsageError.
    """
    printed = looked_up(["nsc", "generate", "profile", f"nsc://{path}"], f"nsc://{path}", what, environ)
    document = read_object(printed, f"profile that nsc prints for the {what}", kind=UsageError)
    operator = document.get("operator")
    services = operator.get("service") if isinstance(operator, dict) else None
    creds = document.get("user_creds")
    return (
        creds if isinstance(creds, str) else "",
        ",".join(map(str, services)) if isinstance(services, list) else "",
    )


def known_scheme(text: str) -> str:
    """Return the scheme of a reference to a secret, in lower case, "" for none: then the text may be the secret."""
    scheme = _split(text)[0]
    return scheme if scheme in (*_NAMING, "data") else ""


def _split(reference: str) -> tuple[str, str]:
    """Return scheme, in lower case, and the rest; the scheme is "" if there is none."""
    match = _SCHEME.match(reference)
    if match is None:
        return "", reference
    return (match[1] or match[2]).lower(), reference[match.end() :]


def _by_scheme(scheme: str, rest: str, what: str, environ: Mapping[str, str]) -> str | None:
    match scheme:
        case "file":
            return read_file(expand_path(rest, environ), _file_of(what))
        case "env":
            if not environ.get(rest):
                raise UsageError(f"the {what} names the environment variable {rest!r}, which is not set, or empty")
            return environ[rest]
        case "data":
            return _inline(rest, what)
        case "op":
            try:
                return looked_up(["op", "read", f"op://{rest}"], f"op://{rest}", what, environ).decode()
            except UnicodeDecodeError:  # not chained: it contains the bytes
                raise UsageError(f"what was looked up for the {what} is not text") from None
        case "nsc":
            creds, _ = nsc_profile(rest, what, environ)
            if not creds:
                raise UsageError(
                    f"nsc names no credentials file for nsc://{rest}", hint="Write it as nsc://OPERATOR/ACCOUNT/USER."
                )
            return read_file(Path(creds), _file_of(what))
        case _:
            return None


def _file_of(what: str) -> str:
    return what if what.endswith(" file") else f"{what} file"


def _inline(rest: str, what: str) -> str:
    header, _, payload = rest.partition(",")
    if "base64" in (part.strip() for part in header.split(";")):
        with suppress(ValueError):  # not chained: a UnicodeDecodeError contains the bytes
            return base64.b64decode(re.sub(r"[\r\n]", "", payload), validate=True).decode()
    raise UsageError(f"the {what} is a data: reference without base64 text", hint="Write it as data:;base64,TEXT.")
