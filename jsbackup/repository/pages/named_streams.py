"""The streams of some names in a long list of streams that is in the order of names: only their pages are read.

A stream that copies from others is read with them, because it depends on them how it is restored.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import pairwise

from jsbackup.model import JsonObject
from jsbackup.repository.manifest import StreamBackup
from jsbackup.repository.refs import StreamPageRef

__all__ = ["is_sorted", "read_named"]


def is_sorted(streams: Sequence[StreamBackup]) -> bool:
    return all(one.name < other.name for one, other in pairwise(streams))


def read_named(
    pages: Sequence[StreamPageRef],
    names: Collection[str],
    read: Callable[[Sequence[StreamPageRef]], Iterable[StreamBackup]],
) -> tuple[Sequence[StreamBackup], tuple[StreamPageRef, ...]]:
    """Return the streams of the pages that can have these names, or those of their origins; and the other pages.

    The streams are in the order of names if those of each page are. `read` returns the streams of some pages; its
    errors are raised.
    """
    firsts = [page.first for page in pages]
    found: dict[str, StreamBackup] = {}
    seen: set[int] = set()
    wanted, due = set(names), set(names)
    while due:
        # A name is in the last page that does not begin after it.
        new = {at for at in (bisect_right(firsts, name) - 1 for name in due) if at >= 0} - seen
        seen |= new
        listed = list(read([pages[at] for at in sorted(new)])) if new else []
        if not is_sorted(listed):
            return listed, tuple(page for at, page in enumerate(pages) if at not in seen)
        found.update((stream.name, stream) for stream in listed)
        origins = {origin for name in due if name in found for origin in _origins_of(found[name].config)}
        due = origins - wanted
        wanted |= due
    streams = [found[name] for name in sorted(found)]
    return streams, tuple(page for at, page in enumerate(pages) if at not in seen)


def _origins_of(config: JsonObject) -> Iterator[str]:
    """Yield the names of the streams that one with this configuration copies from. Some may be of another account."""
    sources = config.get("sources")
    for one in (config.get("mirror"), *(sources if isinstance(sources, list) else ())):
        if isinstance(one, dict) and isinstance(name := one.get("name"), str):
            yield name
