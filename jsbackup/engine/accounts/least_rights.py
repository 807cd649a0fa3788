"""The permissions that a user needs for a backup or a restore (`jsbackup/manual/permissions.md`), and no others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

__all__ = ["LoginPurpose", "Permissions", "least_rights"]

_READ = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>",
    # Streams in memory, buckets in use, and what mirrors and sources copy.
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.DELETE.*.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.FC.>",
    # Before 2.12, to find out which account it is.
    "$SYS.REQ.USER.INFO",
)
_WRITE = (
    "$JS.API.STREAM.RESTORE.*",
    "$JS.SNAPSHOT.RESTORE.*.*",
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.UPDATE.*",
    "$JS.API.STREAM.DELETE.*",
)
_API = "$JS.API."


class LoginPurpose(StrEnum):
    BACKUP = "backup"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that a user may publish and subscribe to."""

    publish: Sequence[str]
    subscribe: Sequence[str]


def least_rights(purpose: LoginPurpose, api_prefix: str, inbox_prefix: str) -> Permissions:
    """Return the permissions for a JetStream API, such as `$JS.API` or `$JS.leaf.API`, and replies below an inbox."""
    subjects = _READ if purpose is LoginPurpose.BACKUP else (*_READ, *_WRITE)
    allowed = [f"{api_prefix}.{one[len(_API) :]}" if one.startswith(_API) else one for one in subjects]
    return Permissions(allowed, [f"{inbox_prefix}.>"])
