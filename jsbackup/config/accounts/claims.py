"""What JWTs of users and accounts say about themselves. Nothing is proved here: the server checks signatures."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jsbackup.errors import FormatError
from jsbackup.strict_json import read_object

__all__ = ["AccountClaims", "UserClaims", "account_claims", "is_account_key", "user_claims"]

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
    found = _claims(jwt)
    more = _object(found.get("nats"))
    if _text(more.get("type") or found.get("type")) != "user":
        return None
    account = _text(more.get("issuer_account") or found.get("iss"))
    expires = found.get("exp")
    if not is_account_key(account):
        return None
    return UserClaims(
        account=account,
        user=_text(found.get("sub")),
        name=_text(found.get("name")),
        expires=expires if isinstance(expires, int) and expires > 0 else None,
    )


def account_claims(jwt: str) -> AccountClaims | None:
    """Return what an account's JWT says; None if it is none."""
    found = _claims(jwt)
    more = _object(found.get("nats"))
    account = _text(found.get("sub"))
    if _text(more.get("type") or found.get("type")) != "account" or not is_account_key(account):
        return None
    keys = more.get("signing_keys")
    listed = keys if isinstance(keys, list) else []
    scoped = [_text(one.get("key")) for one in listed if isinstance(one, dict)]
    return AccountClaims(
        account=account,
        name=_text(found.get("name")),
        signing_keys=tuple(one for one in listed if isinstance(one, str) and is_account_key(one)),
        scoped_keys=tuple(one for one in scoped if is_account_key(one)),
    )


def _claims(jwt: str) -> Mapping[str, Any]:
    """Return the claims of a JWT; an empty mapping if it has none."""
    parts = jwt.strip().split(".")
    if len(parts) != 3:
        return {}
    try:
        raw = base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4))
        return read_object(raw, "JWT")
    except (FormatError, ValueError):
        return {}


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
