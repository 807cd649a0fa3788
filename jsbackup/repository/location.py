"""A location without a descriptor: empty, something else, a repository that lost it, or the folder above repositories.

It may be any folder or bucket, so that only a part of it is looked at (`glance_of`), and what cannot be read there is
passed over.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from jsbackup.errors import IntegrityError, NoFolder, RepositoryNotFound
from jsbackup.repository import layout
from jsbackup.stores.base import Store, glance_of

__all__ = ["holds_anything", "in_a_folder", "is_vacant", "no_repository"]

# What an interrupted `init` leaves.
_TRACES = {layout.ObjectKind.PROBE, layout.ObjectKind.IDENTITY, layout.ObjectKind.WRITER}

# How many repositories are named.
_NAMED = 5


@contextmanager
def in_a_folder() -> Iterator[None]:
    """Where something else is in the place of its folder, there is no repository to read: RepositoryNotFound."""
    try:
        yield
    except NoFolder as error:
        raise RepositoryNotFound(f"no repository at {error.location}: {error.reason}", hint=error.hint) from None


def holds_anything(store: Store) -> bool:
    """Whether something is there, or may be. Raises StoreError if the location cannot be read."""
    seen = glance_of(store)
    return bool(seen.keys) or not seen.complete


def is_vacant(store: Store) -> bool:
    """Whether nothing is there but what the probe of a store leaves, which somebody may be making at this moment."""
    seen = glance_of(store)
    return seen.complete and all(layout.kind_of(key) is layout.ObjectKind.PROBE for key in seen.keys)


def no_repository(store: Store) -> RepositoryNotFound | IntegrityError | None:
    """What is wrong with a location that has no descriptor; None if it is empty, but for what an interrupted `init`
    left. Raises StoreError if it cannot be read."""
    kinds = {
        layout.kind_of(key) for prefix in (layout.BACKUPS, layout.SEGMENTS) for key in glance_of(store, prefix).keys
    }
    if kinds & {layout.ObjectKind.MANIFEST, layout.ObjectKind.SEGMENT}:
        return IntegrityError(
            f"the repository at {store.location} has lost its descriptor {layout.DESCRIPTOR}",
            hint="Restore the file from a copy; the backups themselves may be intact.",
        )
    seen = glance_of(store)
    if below := [
        key.removesuffix("/" + layout.DESCRIPTOR) for key in seen.keys if key.endswith("/" + layout.DESCRIPTOR)
    ]:
        named = ", ".join(f"{store.location.rstrip('/')}/{folder}" for folder in below[:_NAMED])
        more = f" and {len(below) - _NAMED} more" if len(below) > _NAMED else ""
        return RepositoryNotFound(
            f"no repository at {store.location}; there are repositories below: {named}{more}",
            hint="Name one of them with --repo.",
        )
    if not seen.complete or {layout.kind_of(key) for key in seen.keys} - _TRACES:
        return RepositoryNotFound(
            f"no repository at {store.location}, which holds something else", hint="Check the location."
        )
    return None
