"""Users of an account, made with its seed or that of a signing key: in memory, for minutes, with the least rights.

The JWT is as https://github.com/nats-io/jwt (v2) describes it: `base64url(header).base64url(claims).signature`, signed
with Ed25519 over the first two parts. A user of a scoped signing key has the rights of its role and must name none.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from jsbackup.config import Secret, UserJwt
from jsbackup.engine.accounts.least_rights import Permissions
from jsbackup.engine.link.nkey_pairs import new_user_seed, public_key, sign

__all__ = ["SigningKey", "lifetime_seconds", "mint_user"]

_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_NO_LIMIT = -1
# A quarter of an hour, and time to move the data at 1 MiB/s, but no more than a day.
_LEAST_SECONDS = 15 * 60
_MOST_SECONDS = 24 * 3600
_BYTES_PER_SECOND = 1 << 20


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The seed of an account, or of one of its signing keys; `scoped` if it issues users of a role. `path` is for
    messages.
    """

    path: str
    account: str
    seed: Secret
    scoped: bool = False


def lifetime_seconds(stored_bytes: int) -> int:
    """Return for how long a user is made that has so much to read or to write."""
    return min(_LEAST_SECONDS + stored_bytes // _BYTES_PER_SECOND, _MOST_SECONDS)


def mint_user(
    key: SigningKey,
    permissions: Permissions,
    *,
    name: str,
    now_seconds: int,
    for_seconds: int,
    random: Callable[[int], bytes],
) -> UserJwt:
    """Return a new user of the account, who may log in from now on for so many seconds."""
    seed = new_user_seed(random(32))
    issuer = public_key(key.seed)
    rights: dict[str, Any] = {
        "pub": {"allow": list(permissions.publish)},
        "sub": {"allow": list(permissions.subscribe)},
        "subs": _NO_LIMIT,
        "data": _NO_LIMIT,
        "payload": _NO_LIMIT,
    }
    claims: dict[str, Any] = {
        "jti": base64.b32encode(random(32)).rstrip(b"=").decode(),
        "iat": now_seconds,
        "exp": now_seconds + for_seconds,
        "iss": issuer,
        "name": name,
        "sub": public_key(seed),
        "nats": {
            **({"pub": {}, "sub": {}} if key.scoped else rights),
            **({} if issuer == key.account else {"issuer_account": key.account}),
            "type": "user",
            "version": 2,
        },
    }
    signed = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in (_HEADER, claims))
    return UserJwt(Secret(f"{signed}.{_encoded(sign(key.seed, signed.encode()))}"), seed)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
