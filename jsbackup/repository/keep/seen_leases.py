"""Leases as others see them: what a listing shows, what they say about their holders, and how they are removed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass

from jsbackup.errors import FormatError, ObjectNotFound, StoreError
from jsbackup.repository import layout
from jsbackup.repository.document import decode_document
from jsbackup.repository.keep.holder_process import HolderProcess, holder_of
from jsbackup.repository.layout import LeaseKey
from jsbackup.stores.base import ObjectInfo, Store, late_seconds_of

__all__ = [
    "AbandonedLeases",
    "LeaseText",
    "SeenLease",
    "delete_all",
    "leases_among",
    "list_leases",
    "read_lease",
    "remove_lease",
    "store_now",
]

_MAX_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class LeaseText:
    """What a lease says about its holder."""

    purpose: str
    tool: str
    host: str
    created: str
    process: HolderProcess | None = None

    def __str__(self) -> str:
        return f"{self.purpose} (since {self.created}, {self.tool} on {self.host})"


@dataclass(frozen=True, slots=True)
class SeenLease:
    """A lease as a listing shows it: its newest generation, put at `modified_seconds`, and the keys of all
    generations.
    """

    key: LeaseKey
    modified_seconds: float
    keys: tuple[str, ...]

    @property
    def expires_seconds(self) -> float:
        return self.modified_seconds + self.key.duration_seconds

    def is_live(self, now_seconds: float) -> bool:
        return now_seconds - self.modified_seconds <= self.key.duration_seconds


def list_leases(store: Store) -> list[SeenLease]:
    """List all leases, live and expired ones. Foreign objects among them are skipped."""
    return leases_among(store.list(layout.LOCKS))


def read_lease(store: Store, seen: SeenLease) -> LeaseText:
    """Return what a lease says about its holder.

    Raises:
        ObjectNotFound: it was removed.
        FormatError: it is damaged.
    """
    key = seen.keys[-1]
    fields = decode_document(store.get_range(key, 0, _MAX_BYTES), f"lease {key}")
    if (fields.text("id"), fields.number("generation")) != (seen.key.id, seen.key.generation):
        raise FormatError(f"lease {key} is not the one that its key names")
    return LeaseText(
        fields.text("purpose"),
        fields.text("tool"),
        fields.text("host"),
        fields.text("created"),
        holder_of(fields.get("process")),
    )


def remove_lease(store: Store, seen: SeenLease) -> None:
    """Remove the lease of another process. If it is live, its holder notices when it renews it, and stops."""
    delete_all(store, [info.key for info in store.list(layout.lease_prefix(seen.key.id))])


def store_now(store: Store, random: Callable[[int], bytes]) -> float:
    """Return the store's time without a lease: that of an object, which is removed again."""
    key = layout.probe_key(random(8).hex())
    store.put(key, b"")
    try:
        return store.head(key).modified_seconds
    finally:
        with suppress(StoreError):
            store.delete(key)


def leases_among(infos: Iterable[ObjectInfo]) -> list[SeenLease]:
    """Return leases, each with the keys of all its generations; `infos` are in order."""
    found: dict[str, SeenLease] = {}
    for info in infos:
        key = layout.parse_lease_key(info.key)
        if key is not None:
            before = found[key.id].keys if key.id in found else ()
            found[key.id] = SeenLease(key, info.modified_seconds, (*before, info.key))
    return list(found.values())


def delete_all(store: Store, keys: Iterable[str]) -> None:
    for key in sorted(keys):
        store.delete(key)


class AbandonedLeases:
    """Recognizes the leases of processes that are gone, and removes them. Of one `acquire`."""

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float],
        is_gone: Callable[[HolderProcess], bool],
        removed: Callable[[str], None],
    ) -> None:
        self._store = store
        self._clock = clock
        self._is_gone = is_gone
        self._removed = removed
        self._seen_at: dict[str, float] = {}

    def without(self, leases: list[SeenLease]) -> list[SeenLease]:
        """Return the leases that have to be waited for. Raises StoreError."""
        return [seen for seen in leases if not self._is_passed_over(seen)]

    def _is_passed_over(self, seen: SeenLease) -> bool:
        try:
            text = read_lease(self._store, seen)
        except (FormatError, ObjectNotFound):  # damaged, or renewed or released at this moment
            return False
        if text.process is None or not self._is_gone(text.process):
            return False
        now = self._clock()
        if now - self._seen_at.setdefault(seen.key.id, now) < late_seconds_of(self._store):
            return False
        # It counts no more, even if we may not delete it.
        with suppress(StoreError):
            remove_lease(self._store, seen)
            self._removed(f"removed the lease {seen.key.id} of {text}: its process {text.process.pid} is gone")
        return True
