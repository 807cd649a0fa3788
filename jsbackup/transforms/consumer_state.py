"""A consumer's state when messages of its stream fall out.

Positions stay what they mean: "delivered up to here" and "all acknowledged up to here". They are cut at the stream's
last sequence, because a consumer ahead of its stream stops delivering; sequences that fell out below need nothing. What
awaits its acknowledgement, or was redelivered, is forgotten where the message is gone; if nothing awaits any more, all
that was delivered is done with, and the ack floor says so. Numbers of deliveries stay: they only ever rise.

What a server further insists on (`formats/archive/consumer_state.py`, `acceptable`) is seen to where the archive is
written.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

import pyarrow as pa

from jsbackup import compute as pc
from jsbackup.model import ConsumerState, SequencePair
from jsbackup.transforms.batches import SEQUENCE, MessageBatch

__all__ = ["clamp_state", "sequences_to_know", "surviving"]


def sequences_to_know(state: ConsumerState) -> set[int]:
    """The sequences of which `clamp_state` has to know whether they are kept."""
    return {*state.pending, *state.redelivered}


def surviving(batch: MessageBatch, sequences: set[int]) -> set[int]:
    """Those of these sequences that the batch has."""
    wanted = pa.array([sequence for sequence in sequences if sequence < 1 << 63], pa.int64())
    column = batch.column(SEQUENCE)
    return set(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())


def clamp_state(state: ConsumerState, last_seq: int, kept: Container[int]) -> ConsumerState:
    """The state when the stream ends with `last_seq` and, of `sequences_to_know`, has the messages `kept`."""
    delivered = SequencePair(state.delivered.consumer, min(state.delivered.stream, last_seq))
    floor = SequencePair(state.ack_floor.consumer, min(state.ack_floor.stream, last_seq))
    pending = {sequence: ack for sequence, ack in state.pending.items() if sequence <= last_seq and sequence in kept}
    if state.pending and not pending:
        floor = SequencePair(max(floor.consumer, delivered.consumer), max(floor.stream, delivered.stream))
    redelivered = {
        sequence: count for sequence, count in state.redelivered.items() if sequence <= last_seq and sequence in kept
    }
    return replace(state, delivered=delivered, ack_floor=floor, pending=pending, redelivered=redelivered)
