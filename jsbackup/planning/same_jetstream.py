"""Whether two connections lead to the same JetStream: the same account of the same servers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JetStreamPlace"]


@dataclass(frozen=True, slots=True)
class JetStreamPlace:
    """What a server tells of itself and of the user. `account` is None where the user may not learn it."""

    account: str | None
    api_prefix: str
    server_id: str | None
    cluster: str | None
    domain: str | None
    addresses: frozenset[str]

    def same(self, other: JetStreamPlace) -> bool:
        """As far as can be told.

        One server has one id. Servers of a cluster have a name in common, which another cluster may have too; so where
        both tell the addresses of their servers, these have to overlap.
        """
        if (self.account, self.api_prefix) != (other.account, other.api_prefix):
            return False
        if self.server_id == other.server_id:
            return True
        if self.cluster is None or (self.cluster, self.domain) != (other.cluster, other.domain):
            return False
        return not (self.addresses and other.addresses) or bool(self.addresses & other.addresses)
