"""Look whether objects are stored, without reading them: that each exists, has its size, and was put as what it is.

The SHA-256 that was put with an object is compared where the store keeps one and `head` returns it (S3). An object that
was damaged later still has that SHA-256: only reading finds such damage. So what was found damaged before is read.

Objects of a folder are asked for one by one if that takes no more requests than listing the folder; else a listing of
the keys with their common prefix is read. So there are never many more requests than objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from jsbackup.errors import ObjectNotFound
from jsbackup.repository.background import in_order
from jsbackup.repository.checks.verify import (
    Level,
    ObjectFlaw,
    Problem,
    ProblemKind,
    check_manifest,
    check_object,
    flaw_of,
    problem_with,
)
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects
from jsbackup.repository.pages.segment_list import BrokenPage
from jsbackup.repository.refs import AnyRef, PageRef, SegmentRef
from jsbackup.stores.base import ObjectInfo, Store

__all__ = ["find_absent"]

_THREADS = 8  # for streams, and for the objects of each
_LISTED = 1000  # objects in a page of S3's listing


def find_absent(objects: Objects, manifest: Manifest, stored: Mapping[str, int]) -> Iterator[Problem]:
    """Yield what is wrong with a backup, as far as can be found without reading segments: it reads only pages, and
    what was found damaged before.

    `stored` is how many objects each stream has in its folder, at least.

    Raises:
        KeyUnavailable: a page is encrypted, and no key that opens it was given.
        StoreError: the store does not answer.
    """
    yield from check_manifest(manifest)
    objects.look_for_damage()
    looks = (partial(_look_at, objects, stream, stored[stream.name]) for stream in manifest.streams)
    for problems in in_order(looks, _THREADS):
        yield from problems


def _look_at(objects: Objects, stream: StreamBackup, stored: int) -> list[Problem]:
    refs: list[AnyRef] = []
    problems = []
    for part in stream.walk():
        if isinstance(part, BrokenPage):
            objects.note_damaged(part.page)
            problems.append(problem_with(stream.name, part.page, flaw_of(part.error)))
        elif not isinstance(part, PageRef):  # the walk reads pages
            refs.append(part)
    infos = _find(objects.store, refs, stored)
    for ref in refs:
        flaw = _flaw_in(ref, infos.get(ref.key))
        if flaw is None and objects.is_damaged(ref):
            flaw = check_object(objects, ref, Level.DATA if objects.sealing.reads else Level.OBJECTS)
        if flaw is not None:
            objects.note_damaged(ref)
            problems.append(problem_with(stream.name, ref, flaw))
    return problems


def _flaw_in(ref: AnyRef, info: ObjectInfo | None) -> ObjectFlaw | None:
    if info is None:
        return ObjectFlaw(ProblemKind.MISSING, f"object {ref.key} is missing")
    if info.size != ref.size:
        return ObjectFlaw(ProblemKind.DAMAGED, f"object {ref.key} should have {ref.size} bytes and has {info.size}")
    if info.sha256 not in ("", ref.sha256):
        return ObjectFlaw(ProblemKind.DAMAGED, f"object {ref.key} has changed since it was stored (SHA-256 differs)")
    return None


def _find(store: Store, refs: Sequence[AnyRef], stored: int) -> dict[str, ObjectInfo]:
    """Return those of the objects that exist, by key."""
    groups: dict[tuple[str, bool], list[str]] = {}
    # With other objects, a few segments of many have no common prefix but the folder.
    apart = 2 * len(refs) < stored
    for ref in refs:
        group = (ref.key.rpartition("/")[0], apart and isinstance(ref, SegmentRef))
        groups.setdefault(group, []).append(ref.key)
    return {info.key: info for keys in groups.values() for info in _infos(store, keys, stored)}


def _infos(store: Store, keys: Sequence[str], stored: int) -> Iterator[ObjectInfo]:
    if len(keys) <= 1 + stored // _LISTED:
        for info in in_order((partial(_head, store, key) for key in keys), min(_THREADS, len(keys))):
            if info is not None:
                yield info
        return
    wanted = frozenset(keys)
    for info in store.list(_common_prefix(min(keys), max(keys))):
        if info.key in wanted:
            yield info


def _common_prefix(one: str, other: str) -> str:
    length = next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
    return one[:length]


def _head(store: Store, key: str) -> ObjectInfo | None:
    try:
        return store.head(key)
    except ObjectNotFound:
        return None
