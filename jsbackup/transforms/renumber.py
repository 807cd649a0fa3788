"""`--renumber`: the messages that are kept get the sequences 1, 2, 3 and so on.

What speaks of a stream by its sequences follows, as far as it is part of the stream:

- positions of consumers (`renumbered_state`): "delivered up to here" and "acknowledged up to here" mean the same
  messages as before, and so do pending and redelivered ones; and where one begins (`opt_start_seq`);
- the configuration has no `first_seq` any more: by that a server would begin above 1.

Headers stay. Some describe the past in old sequences (`Nats-Expected-Last-Sequence`, `Nats-Last-Sequence`), and no
server reads these again. `Nats-Stream-Source` has sequences of another stream.

`RisingSequences` of the kept messages is the way between both: `rank` is from old to new, `at` from new to old.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from jsbackup import compute as pc
from jsbackup.model import ConsumerState, JsonObject, SequencePair
from jsbackup.transforms.batches import SEQUENCE, MessageBatch, with_column
from jsbackup.transforms.filters.rising import RisingSequences

__all__ = [
    "KnownRanks",
    "NewNumbers",
    "following",
    "numbered",
    "ranks_to_know",
    "renumbered_consumer",
    "renumbered_state",
    "without_first_seq",
]


class NewNumbers(Protocol):
    """The kept messages of a stream, by old sequences: `RisingSequences` are, and what is known of them."""

    def rank(self, sequence: int, /) -> int:
        """Return how many there are up to this sequence, itself included."""


@dataclass(frozen=True, slots=True)
class KnownRanks:
    """Some `ranks`: those of `ranks_to_know` from the first kept message on. There are `total` messages, up to
    `last`.
    """

    ranks: Mapping[int, int]
    last: int
    total: int

    def rank(self, sequence: int, /) -> int:
        return self.total if sequence >= self.last else self.ranks.get(sequence, 0)


def ranks_to_know(state: ConsumerState | None, config: JsonObject) -> set[int]:
    """Return the sequences whose ranks `renumbered_state` and `renumbered_consumer` need, for a consumer."""
    sequences = {_start_of(config) - 1} if _start_of(config) else set()
    if state is not None:
        sequences |= {state.delivered.stream, state.ack_floor.stream, *state.pending, *state.redelivered}
    return sequences


def _start_of(config: JsonObject) -> int:
    start = config.get("opt_start_seq")
    return start if isinstance(start, int) and not isinstance(start, bool) and start > 0 else 0


def numbered(batch: MessageBatch, before: RisingSequences) -> MessageBatch:
    """Return the batch with the next sequences after those of `before`, to which its old ones are added."""
    first = len(before) + 1
    before.add(batch.column(SEQUENCE))
    return with_column(batch, SEQUENCE, pc.int64_array(range(first, first + batch.num_rows)))


def following(batch: MessageBatch, before: int) -> MessageBatch:
    """Return a numbered batch as one that follows on so many other messages."""
    return with_column(batch, SEQUENCE, pc.add(batch.column(SEQUENCE), before)) if before else batch


def renumbered_state(state: ConsumerState, kept: NewNumbers) -> ConsumerState:
    """Return the state in new sequences; what it waits for must be among the kept messages."""

    def follow(pair: SequencePair) -> SequencePair:
        return SequencePair(pair.consumer, kept.rank(pair.stream))

    return replace(
        state,
        delivered=follow(state.delivered),
        ack_floor=follow(state.ack_floor),
        pending={kept.rank(sequence): ack for sequence, ack in state.pending.items()},
        redelivered={kept.rank(sequence): count for sequence, count in state.redelivered.items()},
    )


def renumbered_consumer(config: JsonObject, kept: NewNumbers) -> JsonObject:
    """Return a consumer's configuration that begins with the same message."""
    start = _start_of(config)
    return {**config, "opt_start_seq": kept.rank(start - 1) + 1} if start else config


def without_first_seq(config: JsonObject) -> JsonObject:
    """Return a stream's configuration without the sequence that it begins with."""
    return {key: value for key, value in config.items() if key != "first_seq"}
