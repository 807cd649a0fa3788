"""References to secrets, as contexts of the nats CLI have them (jsm.go 0.5.1, `natscontext`).

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
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from jsbackup.config.programs import looked_up
from jsbackup.config.secrets import Secret, expand_path, expand_variables_of, read_file
from jsbackup.errors import UsageError
from jsbackup.strict_json import read_object

__all__ = ["is_reference", "needs_program", "nsc_profile", "resolve_reference", "resolve_secret"]

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
    found = _by_scheme(scheme, rest, what, environ)
    return read_file(expand_path(reference, environ), what) if found is None else found


def resolve_secret(reference: str, what: str, environ: Mapping[str, str]) -> Secret:
    """Return a referenced password, token, JWT or seed; without a scheme it is the secret itself. Raises UsageError."""
    found = _by_scheme(*_split(reference), what, environ)
    return Secret(reference if found is None else found.rstrip("\r\n"))


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
                state = "is empty" if rest in environ else "is not set"
                raise UsageError(f"the {what} names the environment variable {rest!r}, which {state}")
            return environ[rest]
        case "data":
            return _inline(rest, what)
        case "op":
            return _text(looked_up(["op", "read", f"op://{rest}"], f"op://{rest}", what, environ), what)
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


def _text(printed: bytes, what: str) -> str:
    try:
        return printed.decode()
    except UnicodeDecodeError:  # not chained: it contains the bytes
        raise UsageError(f"what was looked up for the {what} is not text") from None


def _inline(rest: str, what: str) -> str:
    header, comma, payload = rest.partition(",")
    if not comma or "base64" not in (part.strip() for part in header.split(";")):
        raise UsageError(f"the {what} is a data: reference without ;base64", hint="Write it as data:;base64,TEXT.")
    try:
        return base64.b64decode(re.sub(r"[\r\n]", "", payload), validate=True).decode()
    except ValueError:  # not chained: a UnicodeDecodeError contains the bytes
        raise UsageError(f"the {what} is a data: reference that does not hold base64 text") from None
