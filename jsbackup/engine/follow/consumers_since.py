"""The consumers of a followed stream, about which the API reports less than a snapshot."""

from __future__ import annotations

from collections.abc import Iterable

from jsbackup.engine.read.consumers import as_backed_up, merge_consumers
from jsbackup.protocol.info import ConsumerInfo, StreamInfo, stored_config
from jsbackup.protocol.paging import Listing
from jsbackup.repository.manifest import ConsumerBackup

__all__ = ["consumers_since"]


def consumers_since(
    last: Iterable[ConsumerBackup], inventory: Listing[ConsumerInfo], info: StreamInfo
) -> tuple[ConsumerBackup, ...]:
    """Return the consumers as the API reports them, or from the last backup if that is more exact and nothing has
    changed.
    """
    if not (inventory.entries or inventory.missing or inventory.offline):
        return ()
    before = {consumer.name: consumer for consumer in last}
    now = [as_backed_up(item) for item in merge_consumers((), inventory, info.state.last_seq)]
    return tuple(
        before[one.name] if _is_still(before.get(one.name), inventory.entries[one.name]) else one for one in now
    )


def _is_still(before: ConsumerBackup | None, now: ConsumerInfo) -> bool:
    """Whether the consumer is unchanged since a snapshot reported exactly what it has pending."""
    if before is None or before.state is None or before.pending or not before.state.pending:
        return False
    state = before.state
    return (before.config, before.created, state.delivered, state.ack_floor, len(state.pending)) == (
        stored_config(now.config),
        now.created,
        now.delivered,
        now.ack_floor,
        now.num_ack_pending,
    ) and len(state.redelivered) == now.num_redelivered
