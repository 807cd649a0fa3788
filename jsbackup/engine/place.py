"""Whether two connections lead to the same JetStream: the same account of the same servers."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.engine.jetstream import JetStream

__all__ = ["Place", "place_of"]


@dataclass(frozen=True, slots=True)
class Place:
    """What a server tells of itself and of the user. `account` is None where the user may not learn it."""

    account: str | None
    api_prefix: str
    server_id: str | None
    cluster: str | None
    domain: str | None
    addresses: frozenset[str]

    def same(self, other: Place) -> bool:
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


async def place_of(js: JetStream) -> Place:
    """The place behind a connection. Raises NatsError."""
    told = js.link.server_info
    addresses = told.get("connect_urls")
    return Place(
        account=await js.link.account(),
        api_prefix=js.prefix.text,
        server_id=told.get("server_id"),
        cluster=js.link.cluster_name,
        domain=js.link.domain,
        addresses=frozenset(map(str, addresses) if isinstance(addresses, list) else ()),
    )
