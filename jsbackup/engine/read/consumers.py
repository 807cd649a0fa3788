"""What is known about each consumer of a stream, from its snapshot and the API, and how exact that is.

Snapshots silently omit consumers: v1 those in memory and, in a cluster, those on other nodes; a clustered v2 snapshot
resets consumers with unacknowledged messages to their ack floor. The API lists every consumer and its positions, but
not which messages are pending. So both are read, and the better state of each consumer is kept, with its fidelity.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from jsbackup.engine.read.consume import is_reader
from jsbackup.model import ArchivedConsumer, ConsumerState, Fidelity, SequencePair
from jsbackup.protocol.info import ConsumerInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import ConsumerBackup
from jsbackup.server_state import clamp_state

__all__ = ["KnownConsumer", "as_backed_up", "merge_consumers"]


@dataclass(frozen=True, slots=True)
class KnownConsumer:
    """A consumer with the best known state; `reason` says what it lacks ("" if nothing).

    `above_floor` is as in `ConsumerBackup`.
    """

    consumer: ArchivedConsumer
    fidelity: Fidelity
    reason: str = ""
    above_floor: int | None = None


def as_backed_up(known: KnownConsumer) -> ConsumerBackup:
    """Return it for a manifest."""
    consumer = known.consumer
    return ConsumerBackup(
        consumer.name,
        consumer.config,
        consumer.created,
        known.fidelity,
        consumer.state,
        known.reason,
        above_floor=known.above_floor,
    )


def merge_consumers(
    archived: Iterable[ArchivedConsumer], inventory: Listing[ConsumerInfo], last_seq: int
) -> list[KnownConsumer]:
    """Return all consumers of a stream ordered by name: those of the archive, completed from the inventory.

    Consumers left behind by a killed run of ours are omitted.
    """
    archived = [consumer for consumer in archived if not is_reader(consumer.config)]
    silent = {*inventory.missing, *inventory.offline}
    answered = {name: info for name, info in inventory.entries.items() if name not in silent}
    known = {c.name: _from_archive(c, answered.get(c.name), last_seq) for c in archived}
    for name, info in inventory.entries.items():
        if name not in known and not is_reader(info.config):
            known[name] = _from_config(info) if name in silent else _from_inventory(info, last_seq)
    return [known[name] for name in sorted(known)]


def _from_archive(consumer: ArchivedConsumer, info: ConsumerInfo | None, last_seq: int) -> KnownConsumer:
    if consumer.state is None:
        if info is not None:
            return _from_inventory(info, last_seq)
        return KnownConsumer(consumer, Fidelity.CONFIG_ONLY, "the archive has no state for it")
    state = clamp_state(_with_start(consumer.state, info), last_seq)
    created = consumer.created or (info.created if info else None)
    consumer = replace(consumer, state=state, created=created)
    if (
        info is not None
        and info.cluster is not None
        and info.cluster.name
        and info.num_ack_pending > 0
        and not state.pending
        and state.delivered == state.ack_floor
        and info.delivered.consumer > state.delivered.consumer
    ):
        return KnownConsumer(
            consumer,
            Fidelity.FLOOR,
            "the cluster's snapshot rolled it back to its ack floor",
            _above(info.delivered, state.ack_floor),
        )
    return KnownConsumer(consumer, Fidelity.EXACT)


def _with_start(state: ConsumerState, info: ConsumerInfo | None) -> ConsumerState:
    """Move a consumer that has delivered nothing since the snapshot to its real start.

    Servers before 2.11 store where a consumer starts (`deliver_policy` last, new, …) only with its first delivery.
    """
    if info is None or info.delivered.consumer != state.delivered.consumer or state.pending or info.num_ack_pending:
        return state
    if info.delivered.stream <= state.delivered.stream:
        return state
    floor = info.ack_floor if info.ack_floor.stream > state.ack_floor.stream else state.ack_floor
    return replace(state, delivered=info.delivered, ack_floor=floor)


def _from_inventory(info: ConsumerInfo, last_seq: int) -> KnownConsumer:
    """Return a consumer that only the API knows. Without unacknowledged messages its two positions are its
    whole state.
    """
    exact = info.num_ack_pending == 0 and info.num_redelivered == 0
    delivered = info.delivered if exact else info.ack_floor
    state = clamp_state(ConsumerState(delivered=delivered, ack_floor=info.ack_floor), last_seq)
    consumer = ArchivedConsumer(name=info.name, config=stored_config(info.config), state=state, created=info.created)
    if exact:
        return KnownConsumer(consumer, Fidelity.EXACT)
    return KnownConsumer(
        consumer,
        Fidelity.FLOOR,
        "the API does not report what was acknowledged above its ack floor",
        _above(info.delivered, info.ack_floor),
    )


def _above(delivered: SequencePair, floor: SequencePair) -> int:
    """Return the number of deliveries above the floor: each message there was delivered at least once."""
    return max(0, min(delivered.consumer - floor.consumer, delivered.stream - floor.stream))


def _from_config(info: ConsumerInfo) -> KnownConsumer:
    """Return a consumer that is listed, but whose servers did not answer: its positions in the list are not real."""
    consumer = ArchivedConsumer(name=info.name, config=stored_config(info.config), state=None, created=info.created)
    return KnownConsumer(consumer, Fidelity.CONFIG_ONLY, "its server did not answer; it starts from its beginning")
