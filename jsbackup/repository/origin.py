"""Where a backup comes from, as far as it is known. This distinguishes the accounts that share a repository.

    cluster      the name of the cluster, or of a single server; "" for a server without a name
    account      as the server says it: a name, or in operator mode the account's public key
    domain       the JetStream domain
    api_prefix   of a JetStream API that another account exports: behind each prefix there is another JetStream
    login        eight hex digits of a hash of the login, only if the account is not known (servers before 2.12, a
                 user without the permission to ask): two users count as two accounts

Two origins are the same if all of these are. The name that an operator gave an account does not count: it may change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from jsbackup.config import Glob

__all__ = ["Origin", "OriginFields", "named_cluster", "origin_of"]

# An unnamed server uses its id as the name, a new one each time it starts.
_SERVER_ID = re.compile(r"N[A-Z2-7]{55}")
_PUBLIC_KEY = re.compile(r"[A-Z][A-Z2-7]{55}")
_UNNAMED = "unnamed"


class OriginFields(Protocol):
    """A `Source`, or a `BackupSummary`."""

    @property
    def cluster(self) -> str: ...
    @property
    def account(self) -> str: ...
    @property
    def domain(self) -> str | None: ...
    @property
    def account_name(self) -> str | None: ...
    @property
    def api_prefix(self) -> str | None: ...
    @property
    def login(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class Origin:
    """An origin. Fields are empty if they are not known."""

    cluster: str
    account: str
    domain: str
    api_prefix: str = ""
    login: str = ""
    account_name: str = field(default="", compare=False)

    def __str__(self) -> str:
        """Return the text that `--origin` takes. No other origin matches all of it."""
        return self._joined(self.account or (f"login-{self.login}" if self.login else ""))

    @property
    def short(self) -> str:
        """Short form for tables: an account that is a public key is shown by its name and the start of the key, which
        tells it from others of that name.
        """
        if not _PUBLIC_KEY.fullmatch(self.account):
            return str(self)
        key = f"{self.account[:8]}…"
        return self._joined(f"{self.account_name} ({key})" if self.account_name else key)

    def _joined(self, account: str) -> str:
        return "/".join(filter(None, (self.domain, self.cluster or _UNNAMED, account, self.api_prefix)))

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """The fields, each with its label."""
        return (
            ("cluster", self.cluster),
            ("account", self.account),
            ("domain", self.domain),
            ("API prefix", self.api_prefix),
            ("login", self.login),
        )

    @property
    def words(self) -> str:
        """The origin in words: `cluster C1, account SHOP`."""
        named = {"account": f" ({self.account_name})"} if self.account_name else {}
        known = (f"{what} {name}{named.get(what, '')}" for what, name in self.parts if name)
        return ", ".join(known) or "a server without a name"

    def matches(self, glob: Glob) -> bool:
        """Return whether an `--origin` pattern matches: the cluster, account or domain, or all of them as in `str`."""
        named = self._joined(self.account_name) if self.account_name else ""
        names = (self.cluster, self.account, self.account_name, self.domain, self.api_prefix, str(self), named)
        return any(glob.matches(name) for name in names if name)


def origin_of(described: OriginFields) -> Origin:
    """Return the origin of a backup, or of a connection."""
    return Origin(
        cluster=named_cluster(described.cluster),
        account=described.account,
        domain=described.domain or "",
        api_prefix=described.api_prefix or "",
        login=described.login or "",
        account_name=described.account_name or "",
    )


def named_cluster(cluster: str) -> str:
    """Return the name of a cluster or server; empty if it is unnamed."""
    return "" if _SERVER_ID.fullmatch(cluster) else cluster
