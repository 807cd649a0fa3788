"""Compare two configurations, and the consumers of a stream at two times.

Fields with an empty value (null, false, zero, empty text or list, the zero time) count as absent, because server
releases differ in which of them they write. Metadata under `_nats.`, which servers write themselves, is ignored.
Objects within a configuration are compared field by field, one level deep (`metadata.owner`).

Consumer states are compared as far as both are known: completely if both are exact, else by the ack floor.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from jsbackup.model import ConsumerState, Fidelity, JsonObject
from jsbackup.repository.manifest import ConsumerBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.read.message_diff import Change
from jsbackup.repository.write.pending_acks import load_consumer
from jsbackup.times import ZERO_TIME

__all__ = ["ConsumerChange", "FieldChange", "diff_configs", "diff_consumers"]

_SERVER_METADATA = "_nats."


@dataclass(frozen=True, slots=True)
class FieldChange:
    """A field, with its value in A and in B; None if it is absent."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class ConsumerChange:
    """A consumer that only one side has, or whose configuration or state differs."""

    name: str
    change: Change
    config: tuple[FieldChange, ...] = ()
    state: tuple[FieldChange, ...] = ()


def diff_configs(a: JsonObject, b: JsonObject) -> tuple[FieldChange, ...]:
    """Return the fields of two configurations that differ, by name."""
    return tuple(_fields(_flat(a), _flat(b)))


def diff_consumers(
    objects: Objects, a: Sequence[ConsumerBackup], b: Sequence[ConsumerBackup]
) -> tuple[ConsumerChange, ...]:
    """Return the consumers that differ, by name. Large pending sets are only read if they differ.

    Raises:
        IntegrityError: a pending set is missing or damaged.
        KeyUnavailable: it is encrypted, and no key that opens it was given.
        StoreError: it cannot be read.
    """
    old, new = {c.name: c for c in a}, {c.name: c for c in b}
    changes = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            changes.append(ConsumerChange(name, Change.REMOVED))
        elif name not in old:
            changes.append(ConsumerChange(name, Change.ADDED))
        else:
            # Both have this name, which not every release writes into the configuration.
            config = diff_configs(old[name].config | {"name": name}, new[name].config | {"name": name})
            state = tuple(_diff_states(objects, old[name], new[name]))
            if config or state:
                changes.append(ConsumerChange(name, Change.CHANGED, config, state))
    return tuple(changes)


def _flat(config: JsonObject) -> JsonObject:
    flat: JsonObject = {}
    for key, value in config.items():
        if key == "metadata" and isinstance(value, dict):
            flat.update({f"{key}.{name}": one for name, one in value.items() if not name.startswith(_SERVER_METADATA)})
        elif isinstance(value, dict) and value:
            flat.update({f"{key}.{inner}": one for inner, one in value.items()})
        else:
            flat[key] = value
    return flat


def _fields(a: JsonObject, b: JsonObject) -> Iterator[FieldChange]:
    for key in sorted(a.keys() | b.keys()):
        old, new = _plain(a.get(key)), _plain(b.get(key))
        if not (_says_nothing(old) and _says_nothing(new)) and (
            old != new or isinstance(old, bool) != isinstance(new, bool)
        ):
            yield FieldChange(key, old, new)


def _says_nothing(value: object) -> bool:
    # An empty object can be a setting with all its defaults.
    return (not value and not isinstance(value, dict)) or value == ZERO_TIME


def _plain(value: object) -> object:
    """Return a value without its empty fields."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items() if not _says_nothing(one)}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return value


def _diff_states(objects: Objects, a: ConsumerBackup, b: ConsumerBackup) -> Iterator[FieldChange]:
    if a.state is None or b.state is None:
        return
    exact = a.fidelity is b.fidelity is Fidelity.EXACT
    yield from _numbers(_positions(a.state, exact=exact), _positions(b.state, exact=exact))
    same_object = a.pending is not None and b.pending is not None and a.pending.key == b.pending.key
    if not exact or same_object:
        return
    old, new = load_consumer(objects, a).state, load_consumer(objects, b).state
    assert old is not None
    assert new is not None
    yield from _sets("pending", old.pending.keys(), new.pending.keys())
    yield from _sets("redelivered", old.redelivered.keys(), new.redelivered.keys())


def _positions(state: ConsumerState, *, exact: bool) -> dict[str, int]:
    positions = {"ack_floor.consumer_seq": state.ack_floor.consumer, "ack_floor.stream_seq": state.ack_floor.stream}
    if exact:
        positions["delivered.consumer_seq"] = state.delivered.consumer
        positions["delivered.stream_seq"] = state.delivered.stream
    return positions


def _numbers(a: dict[str, int], b: dict[str, int]) -> Iterator[FieldChange]:
    for field, old in a.items():
        if old != b[field]:
            yield FieldChange(field, old, b[field])


def _sets(field: str, a: Collection[int], b: Collection[int]) -> Iterator[FieldChange]:
    """Compare sets of sequences by their sizes, or, if these are equal, by the first sequence that only one side
    has.
    """
    if len(a) != len(b):
        yield FieldChange(field, len(a), len(b))
    elif only := set(a) - set(b):
        yield FieldChange(f"{field}.first_seq", min(only), min(set(b) - set(a)))
