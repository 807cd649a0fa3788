"""Two connections lead to the same JetStream if that is known, and not if anything known tells them apart."""

from __future__ import annotations

from dataclasses import replace

from jsbackup.planning.same_jetstream import JetStreamPlace

HERE = JetStreamPlace("SHOP", "$JS.API", "NA", "C1", None, frozenset({"10.0.0.1:4222"}))


def test_a_server_is_itself_in_each_account_alone() -> None:
    assert HERE.same(replace(HERE, addresses=frozenset({"127.0.0.1:4222"})))  # seen through another address
    assert not HERE.same(replace(HERE, account="STAGING"))
    assert not HERE.same(replace(HERE, api_prefix="$JS.leaf.API"))


def test_servers_of_one_cluster_are_one_jetstream_if_their_addresses_overlap() -> None:
    other = replace(HERE, server_id="NB", addresses=frozenset({"10.0.0.1:4222", "10.0.0.2:4222"}))
    assert HERE.same(other) and other.same(HERE)
    assert not HERE.same(replace(other, addresses=frozenset({"10.9.9.9:4222"})))
    assert HERE.same(replace(other, addresses=frozenset()))  # it reported none
    assert not HERE.same(replace(other, domain="edge"))
