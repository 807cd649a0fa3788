"""A consumer's state when messages of its stream are dropped.

Positions keep their meaning: "delivered up to here" and "all acknowledged up to here". They are cut at the stream's
last sequence, because a consumer ahead of its stream stops delivering; sequences dropped below it change nothing.
Pending and redelivered entries of dropped messages are removed; if nothing is pending any more, the ack floor becomes
the delivered position. Numbers of deliveries stay: they only ever rise.

The server's other requirements (`formats/archive/consumer_state.py`, `acceptable`) are met when the archive is written.
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
    """Return the sequences for which `clamp_state` needs to know whether they are kept."""
    return {*state.pending, *state.redelivered}


def surviving(batch: MessageBatch, sequences: set[int]) -> set[int]:
    """Return those of `sequences` that are in the batch."""
    wanted = pa.array([sequence for sequence in sequences if sequence < 1 << 63], pa.int64())
    column = batch.column(SEQUENCE)
    return set(column.filter(pc.is_in(column, value_set=wanted)).to_pylist())


def clamp_state(state: ConsumerState, last_seq: int, kept: Container[int]) -> ConsumerState:
    """Return the state if the stream ends with `last_seq` and, of `sequences_to_know`, has the messages `kept`."""
    delivered = SequencePair(state.delivered.consumer, min(state.delivered.stream, last_seq))
    floor = SequencePair(state.ack_floor.consumer, min(state.ack_floor.stream, last_seq))
    pending = {sequence: ack for sequence, ack in state.pending.items() if sequence <= last_seq and sequence in kept}
    if state.pending and not pending:
        floor = SequencePair(max(floor.consumer, delivered.consumer), max(floor.stream, delivered.stream))
    redelivered = {
        sequence: count for sequence, count in state.redelivered.items() if sequence <= last_seq and sequence in kept
    }
    return replace(state, delivered=delivered, ack_floor=floor, pending=pending, redelivered=redelivered)
