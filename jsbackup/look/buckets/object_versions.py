"""The versions of a file of an object store over all backups: when it came, was replaced, was deleted, and went."""

from __future__ import annotations

from jsbackup.errors import FormatError
from jsbackup.look.all_backups import FoundMessage
from jsbackup.look.buckets.object_bucket import ObjectEntry, read_description
from jsbackup.look.message import LookedUp

__all__ = ["DESCRIPTION_BYTES", "version_of"]

# More than any client writes as a description.
DESCRIPTION_BYTES = 256 << 10


def version_of(found: FoundMessage) -> ObjectEntry | None:
    """Return what a description says that was searched for with `DESCRIPTION_BYTES`; None if it cannot be read."""
    try:
        return read_description(LookedUp(found.sequence, found.timestamp_ns, found.subject, found.headers, found.start))
    except FormatError:
        return None
