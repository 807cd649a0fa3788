"""Whether two connections lead to the same JetStream: the same account of the same servers. Pure."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["JetStreamPlace"]


@dataclass(frozen=True, slots=True)
class JetStreamPlace:
    """What a server reports about itself and the user. `account` is None if the user may not request it."""

    account: str | None
    api_prefix: str
    server_id: str | None
    cluster: str | None
    domain: str | None
    addresses: frozenset[str]

    def same(self, other: JetStreamPlace) -> bool:
        """Return whether they are the same, as far as known.

        A server has a unique id. Servers of a cluster share its name, but another cluster may have the same name; so if
        both report the addresses of their servers, these have to overlap.
        """
        if (self.account, self.api_prefix) != (other.account, other.api_prefix):
            return False
        if self.server_id == other.server_id:
            return True
        if self.cluster is None or (self.cluster, self.domain) != (other.cluster, other.domain):
            return False
        return not (self.addresses and other.addresses) or bool(self.addresses & other.addresses)
