"""Streams whose list of segments cannot be read whole, because a page is missing or damaged, and streams that a
damaged page lists. What works on several streams goes on without them, and names them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from jsbackup.errors import IntegrityError, StoreError, UnsupportedError
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.pages.segment_list import BrokenPage

__all__ = ["HOW_TO_LIST", "BrokenLists", "broken_lists", "refuse_broken", "refuse_unlisted", "refuse_unreadable"]

BrokenLists: TypeAlias = Mapping[str, IntegrityError | StoreError | UnsupportedError]

HOW_TO_LIST = "Restore it from another backup, or its list from a copy of the repository with 'jsbackup repair --from'."
_MOST_SEGMENTS = 10_000
_HINT = "See 'jsbackup verify' for all that is lost. 'jsbackup repair' restores pages from a copy of the repository."


def broken_lists(streams: Iterable[StreamBackup]) -> BrokenLists:
    """Return these streams by name, each with the error of its first such page. Reads all pages of `streams`.

    Raises KeyUnavailable.
    """
    found: dict[str, IntegrityError | StoreError | UnsupportedError] = {}
    for stream in streams:
        broken = next((part for part in stream.walk() if isinstance(part, BrokenPage)), None)
        if broken is not None:
            page, error = broken.page, broken.error
            found[stream.name] = error.with_message(
                f"stream {stream.name} cannot be read: the list of its segments for sequences {page.first_seq} to "
                f"{page.last_seq} is broken: {error.message}"
            ).with_hint(_HINT)
    return found


def refuse_broken(broken: BrokenLists, *, of: int) -> None:
    """Raise the error of the first of the streams if all are broken; `of` is how many there are."""
    if broken and len(broken) == of:
        raise next(iter(broken.values()))


def refuse_unreadable(streams: Sequence[StreamBackup]) -> None:
    """Raise the error of the first of the streams if the lists of all are broken. Long lists are not looked through:
    what reads them tells it, and perhaps reads only a part.
    """
    # Measured: 8 s of a processor for 300,000 segments.
    if sum(len(stream.segments) for stream in streams) <= _MOST_SEGMENTS:
        refuse_broken(broken_lists(streams), of=len(streams))


def refuse_unlisted(manifest: Manifest, pattern: str) -> None:
    """Raise IntegrityError if a stream that was not found may be one of those that cannot be listed."""
    if manifest.unlisted:
        lost = manifest.unlisted[0]
        raise IntegrityError(
            f"backup {manifest.id} may have {pattern} among those that cannot be listed, such as {lost.words}: "
            f"{lost.reason}",
            hint=HOW_TO_LIST,
        )
