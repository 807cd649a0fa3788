"""The descriptor in its store: reading it, putting it into an empty location."""

from __future__ import annotations

from contextlib import suppress

from jsbackup.errors import FormatError, ObjectExists, ObjectNotFound, RepositoryNotFound, UsageError
from jsbackup.repository import layout
from jsbackup.repository.descriptor import Descriptor, decode_descriptor, encode_descriptor
from jsbackup.repository.location import no_repository, nothing_at
from jsbackup.stores.base import Store, enclosing_of

__all__ = ["fetch_descriptor", "put_descriptor", "read_descriptor", "refuse_inside", "refuse_occupied"]

_MAX_DESCRIPTOR_BYTES = 1 << 20


def read_descriptor(store: Store) -> Descriptor:
    """Return the descriptor. Raises as `Repository.open`."""
    data = fetch_descriptor(store)
    try:
        return decode_descriptor(data)
    except FormatError as error:
        hint = f"Restore {layout.DESCRIPTOR} from a copy of this repository; the backups themselves may be intact."
        raise error.with_hint(hint) from error


def put_descriptor(store: Store, descriptor: Descriptor) -> None:
    """Store the descriptor of a new repository. Raises UsageError if there is one by now."""
    try:
        store.put(layout.DESCRIPTOR, encode_descriptor(descriptor))
    except ObjectExists:  # someone else was faster
        raise _exists(store) from None


def fetch_descriptor(store: Store) -> bytes:
    """Return the descriptor as it is stored. Raises RepositoryNotFound, IntegrityError and StoreError."""
    with suppress(ObjectNotFound):
        return store.get_range(layout.DESCRIPTOR, 0, _MAX_DESCRIPTOR_BYTES)
    error = no_repository(store) or nothing_at(store)
    # The descriptor is stored before any backup: objects that were seen may belong to a new repository.
    try:
        return store.get_range(layout.DESCRIPTOR, 0, _MAX_DESCRIPTOR_BYTES)
    except ObjectNotFound:
        raise error from None


def refuse_occupied(store: Store) -> None:
    """Raise UsageError if there is a repository, or something else, or if the location is inside of a repository."""
    if _has_descriptor(store):
        raise _exists(store)
    refuse_inside(store)
    found = no_repository(store)
    if found is None:
        return
    if _has_descriptor(store):  # it was made just now
        raise _exists(store)
    if isinstance(found, RepositoryNotFound):
        raise UsageError(f"{store.location} is not empty, and is not a repository", hint="Choose an empty location.")
    raise found


def refuse_inside(store: Store) -> None:
    """Raise UsageError if the location is inside of another repository, which would hold objects that it lacks."""
    if (other := enclosing_of(store, layout.DESCRIPTOR)) is not None:
        raise UsageError(
            f"{store.location} is inside of the repository {other}",
            hint="Choose an empty location outside of it. That repository itself is named without its subfolders.",
        )


def _has_descriptor(store: Store) -> bool:
    try:
        store.head(layout.DESCRIPTOR)
    except ObjectNotFound:
        return False
    return True


def _exists(store: Store) -> UsageError:
    return UsageError(f"there is a repository at {store.location} already")
