"""A location without a descriptor: empty, something else, a repository that lost it, or the folder above repositories.

It may be any folder or bucket, so only a part of it is listed (`glance_of`), and anything unreadable is skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path

from jsbackup.config import similar
from jsbackup.errors import IntegrityError, NoFolder, RepositoryNotFound
from jsbackup.readable import in_short
from jsbackup.repository import layout
from jsbackup.stores.base import Store, glance_of

__all__ = ["holds_anything", "in_a_folder", "is_vacant", "no_repository", "nothing_at"]

# Left by an interrupted `init`.
_TRACES = {
    layout.ObjectKind.PROBE,
    layout.ObjectKind.IDENTITY,
    layout.ObjectKind.READER,
    layout.ObjectKind.REMOVED_READER,
    layout.ObjectKind.WRITER,
}

# How many names beside a location are compared with it.
_MOST_BESIDE = 1000

# How many repositories are listed.
_NAMED = 5


@contextmanager
def in_a_folder() -> Iterator[None]:
    """Raise RepositoryNotFound if something else is in the place of the repository's folder."""
    try:
        yield
    except NoFolder as error:
        raise RepositoryNotFound(f"no repository at {error.location}: {error.reason}", hint=error.hint) from None


def holds_anything(store: Store) -> bool:
    """Return whether the location holds anything, or may. Raises StoreError if it cannot be read."""
    seen = glance_of(store)
    return bool(seen.keys) or not seen.complete


def is_vacant(store: Store) -> bool:
    """Return whether it is empty, except for probes: someone may be making a repository at this moment."""
    seen = glance_of(store)
    return seen.complete and all(layout.kind_of(key) is layout.ObjectKind.PROBE for key in seen.keys)


def no_repository(store: Store) -> RepositoryNotFound | IntegrityError | None:
    """Return what is wrong with a location without a descriptor.

    None if it is empty, apart from leftovers of an interrupted `init`. Raises StoreError if it cannot be read.
    """
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
        named = in_short([f"{store.location.rstrip('/')}/{folder}" for folder in below], most=_NAMED)
        return RepositoryNotFound(
            f"no repository at {store.location}; there are repositories below: {named}",
            hint="Name one of them with --repo.",
        )
    if not seen.complete or {layout.kind_of(key) for key in seen.keys} - _TRACES:
        return RepositoryNotFound(
            f"no repository at {store.location}, which holds other files", hint="Check the location."
        )
    return None


def nothing_at(store: Store) -> RepositoryNotFound:
    """Return the error for an empty location. A repository beside it with a similar name is suggested."""
    beside = _similar_beside(Path(store.location)) if store.location.startswith("/") else None
    hint = f"Did you mean {beside}?" if beside else "Check the location. 'jsbackup init' makes a repository there."
    return RepositoryNotFound(f"no repository at {store.location}", hint=hint)


def _similar_beside(folder: Path) -> Path | None:
    try:
        names = [one.name for one in islice(folder.parent.iterdir(), _MOST_BESIDE)]
        found = [folder.parent / name for name in similar(folder.name, names)]
        return next((one for one in found if (one / layout.DESCRIPTOR).is_file()), None)
    except OSError:
        return None
