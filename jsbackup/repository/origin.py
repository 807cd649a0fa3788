"""Where a backup comes from, as far as it can be told: what keeps the accounts that share a repository apart.

    cluster      the name of the cluster, or of a single server; "" for a server that nobody has named
    account      as the server says it: a name, or in operator mode the account's public key
    domain       the JetStream domain
    api_prefix   of a JetStream API that another account exports: behind each prefix there is another JetStream
    login        eight hex digits of a hash of who logged in, only where the account cannot be learnt (servers before
                 2.12, a user who may not ask): two users may be of two accounts, so they are taken for two

Two origins are the same if all of these are. The name that an operator gave an account is for people: it may change.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Protocol

from jsbackup.config import Glob

__all__ = ["Origin", "named_cluster", "origin_of"]

# A server that nobody has named calls itself by its id, another one each time it starts.
_SERVER_ID = re.compile(r"N[A-Z2-7]{55}")
_PUBLIC_KEY = re.compile(r"[A-Z][A-Z2-7]{55}")
_UNNAMED = "unnamed"


class _Described(Protocol):
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
    """Empty where it is not known."""

    cluster: str
    account: str
    domain: str
    api_prefix: str = ""
    login: str = ""
    account_name: str = field(default="", compare=False)

    def __str__(self) -> str:
        """As `--origin` takes it: no other origin matches all of it."""
        return self._joined(self.account or (f"login-{self.login}" if self.login else ""))

    @property
    def short(self) -> str:
        """For tables: an account that is a public key by its name, or by the start of the key."""
        if not _PUBLIC_KEY.fullmatch(self.account):
            return str(self)
        return self._joined(self.account_name or f"{self.account[:8]}…")

    def _joined(self, account: str) -> str:
        return "/".join(filter(None, (self.domain, self.cluster or _UNNAMED, account, self.api_prefix)))

    @property
    def parts(self) -> tuple[tuple[str, str], ...]:
        """What it is made of, and what that is called."""
        return (
            ("cluster", self.cluster),
            ("account", self.account),
            ("domain", self.domain),
            ("API prefix", self.api_prefix),
            ("login", self.login),
        )

    @property
    def words(self) -> str:
        """`cluster C1, account SHOP`."""
        named = {"account": f" ({self.account_name})"} if self.account_name else {}
        told = (f"{what} {name}{named.get(what, '')}" for what, name in self.parts if name)
        return ", ".join(told) or "a server without a name"

    def matches(self, glob: Glob) -> bool:
        """Whether `--origin` means it: a cluster, an account, a domain, or all of them as `str` has it."""
        names = (self.cluster, self.account, self.account_name, self.domain, self.api_prefix, str(self), self.short)
        return any(glob.matches(name) for name in names if name)


def origin_of(described: _Described) -> Origin:
    """The origin of a backup, or of a connection."""
    return Origin(
        cluster=named_cluster(described.cluster),
        account=described.account,
        domain=described.domain or "",
        api_prefix=described.api_prefix or "",
        login=described.login or "",
        account_name=described.account_name or "",
    )


def named_cluster(cluster: str) -> str:
    """The name of a cluster or server; empty for one that nobody has named."""
    return "" if _SERVER_ID.fullmatch(cluster) else cluster
