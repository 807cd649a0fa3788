"""Limits of accounts, held against a plan: also tiers, which only an operator's JWT gives."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from jsbackup.model import StreamState
from jsbackup.planning.model import IfExists, RestoreOptions, Target
from jsbackup.planning.plan import plan_restore
from jsbackup.planning.rules import Rule
from jsbackup.protocol.info import AccountInfo, AccountLimits, StreamInfo, Tier
from jsbackup.repository.manifest import BackupResult, Manifest, Source, StreamBackup
from tests.planning.test_plan import NEW, NOW, stream

FREE = AccountLimits(-1, -1, -1, -1, -1, -1, -1, False)


def tier(storage: int = 0, reserved: int = 0, streams: int = 0, **limits: Any) -> Tier:
    whole = {field: getattr(FREE, field) for field in AccountLimits.__slots__}  # type: ignore[attr-defined]
    return Tier(0, storage, 0, reserved, streams, 0, AccountLimits(**{**whole, **limits}))


def held(name: str, size: int, **config: Any) -> StreamInfo:
    state = StreamState(messages=1, bytes=size, first_seq=1, last_seq=1)
    config = {"name": name, "subjects": [f"{name}.>"], **config}
    return StreamInfo(name, config, NOW, 0, state, None, None, 0, None, None, (), 0)


def refused(account: AccountInfo, *streams: StreamBackup, there: tuple[StreamInfo, ...] = ()) -> list[tuple[str, str]]:
    """Streams and rules."""
    manifest = Manifest("20261121T014500Z-000001", NOW, "t", Source("2.15.1"), BackupResult.COMPLETE, streams)
    target = Target(NEW, True, {info.name: info for info in there}, account=account)
    made = plan_restore(manifest, target, RestoreOptions(if_exists=IfExists.REPLACE))
    return [(found.stream, found.rule) for found in made.refusals]


def account(usage: Tier, **tiers: Tier) -> AccountInfo:
    return AccountInfo(usage, tiers, None, 3)


def test_a_tier_stands_for_each_number_of_replicas() -> None:
    tiers = account(tier(), R1=tier(streams=2, max_streams=2), R3=tier(streams=0, max_streams=1))
    assert refused(tiers, stream("THREE", num_replicas=3)) == []
    assert refused(tiers, stream("ONE")) == [("ONE", Rule.MAX_STREAMS)]
    assert refused(tiers, stream("FIVE", num_replicas=5)) == [("FIVE", Rule.NO_TIER)]


@pytest.mark.parametrize(("limit", "code"), [(300, []), (299, [("S", Rule.MAX_STORAGE)])])
def test_storage_counts_all_replicas_and_a_tier_allows_it_for_each(limit: int, code: list[tuple[str, str]]) -> None:
    state = StreamState(messages=3, bytes=100, first_seq=1, last_seq=3)
    made = replace(stream("S", num_replicas=3), state=state)
    assert refused(account(tier(max_storage=limit)), made) == code
    assert refused(account(tier(), R3=tier(max_storage=100)), made) == []
    assert refused(account(tier(), R3=tier(max_storage=99)), made) == [("S", Rule.MAX_STORAGE)]


@pytest.mark.parametrize(("limit", "found"), [(300, []), (299, [("S", Rule.RESERVED_STORAGE)])])
def test_reserved_bytes_count_for_each_replica(limit: int, found: list[tuple[str, str]]) -> None:
    reserving = stream("S", num_replicas=3, max_bytes=100, messages=0)
    assert refused(account(tier(max_storage=limit)), replace(reserving, state=StreamState())) == found


def test_what_is_replaced_makes_room_but_only_once_the_copy_is_proved() -> None:
    reserving = stream("S", max_bytes=1000)
    old = held("S", 0, max_bytes=1000)
    full = account(tier(reserved=1000, streams=1, max_storage=1999, max_streams=1))
    # Its copy stands beside it for a while.
    assert refused(full, reserving, there=(old,)) == [("S", Rule.MAX_STREAMS), ("S", Rule.RESERVED_STORAGE)]
    room = account(tier(reserved=1000, streams=1, max_storage=2000, max_streams=2))
    assert refused(room, reserving, there=(old,)) == []
