"""Receipts: what a run has stored before its manifest exists, so that a rerun stores only the rest.

Without them, a rerun after a crash makes the same segments again and finds them by their names. That does not work for
encrypted objects: the backup host cannot read them, and age never makes the same bytes twice, so nothing proves that an
existing object is the right one (`segment_writer.py`). A receipt says what was stored, and is signed where manifests
are. It also saves encoding and compressing.

    receipts/<lease>-<generation>.json
        {"format": 1, "required_features": [], "tool", "created", "lists": [of each stream, as in a manifest]}

A run has one receipt, under the id of its lease. It grows by being replaced: the next generation is put, then the one
before is deleted. It is deleted when a manifest names its segments. After a run that was stopped, the next runs of the
same streams use its segments like those of the last backup: if the object exists with its size, and the messages have
its digest. So a lost or outdated receipt only costs storing again; an unreadable one is skipped. (A forged one can do
harm if nothing is signed; but then segments can be replaced as well.) Receipts do not protect objects from `prune`
(leases do).
"""

from __future__ import annotations

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from jsbackup.errors import FormatError, JsBackupError, ObjectNotFound
from jsbackup.model import JsonObject
from jsbackup.repository import layout
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents, decode_document, encode_document
from jsbackup.repository.layout import ReceiptKey
from jsbackup.repository.manifest import SegmentRef, StreamBackup
from jsbackup.repository.objects import folder_of
from jsbackup.repository.pages.segment_pages import list_from_json, list_to_json
from jsbackup.stores.base import ObjectInfo
from jsbackup.times import parse_time

__all__ = ["Receipts"]

_log = logging.getLogger(__name__)

_FORMAT_VERSION = 1

# A receipt is due after this many raw bytes, and after this fraction of the listed bytes: this limits what a crash
# costs. That is 10 receipts for 20 segments, and 120 for the 16,000 of a terabyte, which have 60 MB in all, the last
# one 7 MB. A run that stores less, as most do, puts none.
_EVERY_BYTES = 128 << 20
_EVERY_PART = 16

# Runs that were stopped one after another, and jobs with other streams; older receipts are left to `prune`.
_MOST_READ = 16
# The newest receipt may be damaged.
_GENERATIONS = 2


@dataclass(frozen=True, slots=True)
class _Receipt:
    """The receipt of a run: the keys of all generations, and its segments by folder."""

    keys: tuple[str, ...]
    created_ns: int
    segments: Mapping[str, Sequence[SegmentRef]]


class Receipts:
    """The receipt of a run, and those of earlier ones. May be used from several threads.

    `run` is the id of its lease, `created` RFC 3339, `tool` name and version.
    """

    def __init__(self, documents: Documents, run: str, created: str, tool: str) -> None:
        self._documents = documents
        self._run = run
        self._created = created
        self._tool = tool
        self._earlier: list[_Receipt] = []
        self._lock = threading.Lock()
        self._noted: dict[str, list[SegmentRef]] = {}
        self._listed_bytes = self._unlisted_bytes = 0
        self._generation = 0
        self._keys: list[str] = []  # those of this run that may exist
        self._taken_over: list[str] = []

    def read_earlier(self) -> None:
        """Read the receipts of runs that did not finish. One listing, and one request for each."""
        try:
            self._earlier = list(self._read_all())
        except JsBackupError as error:
            _log.warning("receipts cannot be looked up: %s", error.message)

    def _read_all(self) -> Iterable[_Receipt]:
        runs: dict[str, list[tuple[ReceiptKey, ObjectInfo]]] = {}
        for info in self._documents.list(layout.RECEIPTS):
            key = layout.parse_receipt_key(info.key)
            if key is not None:
                runs.setdefault(key.run, []).append((key, info))
                if key.run == self._run:
                    self._generation = key.generation
        newest = sorted(runs.values(), key=lambda run: run[-1][1].modified_seconds, reverse=True)
        for run in newest[:_MOST_READ]:
            receipt = self._read([info.key for _, info in run])
            if receipt is not None:
                yield receipt

    def _read(self, keys: Sequence[str]) -> _Receipt | None:
        """Return the newest generation that can be read; None if there is none."""
        for key in list(reversed(keys))[:_GENERATIONS]:
            try:
                created_ns, segments = _decode(self._documents.get(key, MAX_DOCUMENT_BYTES), key)
            except ObjectNotFound:  # that run continues, or has just committed
                continue
            except JsBackupError as error:
                _log.warning("ignored: %s", error.naming(key))
                continue
            _log.info("%s: %d segments of a run that did not finish", key, sum(map(len, segments.values())))
            return _Receipt(tuple(keys), created_ns, segments)
        return None

    def candidates(self, folder: str, previous: StreamBackup | None) -> list[Sequence[SegmentRef]]:
        """Return lists of segments of a stream that may be stored, newest first: of this run, of earlier ones, of its
        last backup.
        """
        segments = [
            (receipt.created_ns, receipt.segments[folder]) for receipt in self._earlier if folder in receipt.segments
        ]
        if previous is not None:
            segments.append((parse_time(previous.captured.begun, f"stream {previous.name}"), previous.segments))
        segments.sort(key=lambda receipt: receipt[0], reverse=True)
        with self._lock:
            noted = tuple(self._noted.get(folder, ()))
        return [refs for refs in (noted, *(refs for _, refs in segments)) if refs]

    def note(self, ref: SegmentRef) -> None:
        """Note that a segment is in the store. Puts a receipt when one is due; a failed put is not an error."""
        with self._lock:
            refs = self._noted.setdefault(folder_of(ref), [])
            start = bisect_left(refs, ref.first_seq, key=lambda segment: segment.last_seq)
            stop = bisect_right(refs, ref.last_seq, key=lambda segment: segment.first_seq)
            refs[start:stop] = [ref]  # replaces those of an earlier attempt
            self._unlisted_bytes += ref.bytes
            if self._unlisted_bytes >= max(_EVERY_BYTES, self._listed_bytes // _EVERY_PART):
                self._listed_bytes += self._unlisted_bytes
                self._unlisted_bytes = 0
                self._put()

    def _put(self) -> None:
        self._generation += 1
        key = layout.receipt_key(ReceiptKey(self._run, self._generation))
        lists = [list_to_json(refs) for refs in self._noted.values()]
        try:
            data = _encode(lists, self._created, self._tool, key)
            if len(data) > MAX_DOCUMENT_BYTES:  # nothing would read it; the one before stays
                raise FormatError(f"{key} would have {len(data)} bytes, more than {MAX_DOCUMENT_BYTES}")
            self._keys.append(key)  # first: the put may be done although it fails
            self._documents.put(key, data)
            while len(self._keys) > 1:
                self._documents.delete(self._keys[0])
                del self._keys[0]
        except JsBackupError as error:
            _log.warning("what is stored so far would be stored again after a crash: %s", error.message)

    @property
    def keys(self) -> tuple[str, ...]:
        """The receipts that this run has put, and not deleted."""
        with self._lock:
            return tuple(self._keys)

    def take_over(self, keys: Iterable[str]) -> None:
        """Add receipts of processes that did a part of this run; its manifest will name their segments."""
        self._taken_over += keys

    def settle(self, folders: Collection[str]) -> None:
        """Delete the receipts that only list streams in `folders`, which a manifest names now."""
        spent = list(self._keys) if self._noted.keys() <= set(folders) else []
        spent += self._taken_over
        spent += [key for receipt in self._earlier if receipt.segments.keys() <= set(folders) for key in receipt.keys]
        try:
            for key in spent:
                self._documents.delete(key)
        except JsBackupError as error:
            _log.info("receipts are left behind: %s", error.message)


def _encode(lists: list[JsonObject], created: str, tool: str, key: str) -> bytes:
    document: JsonObject = {
        "format": _FORMAT_VERSION,
        "required_features": [],
        "tool": tool,
        "created": created,
        "lists": lists,
    }
    return encode_document(document, key)


def _decode(data: bytes, key: str) -> tuple[int, dict[str, list[SegmentRef]]]:
    """Return when the run began, in Unix time, and its segments by folder.

    Raises:
        FormatError: damaged, or hostile.
        UnsupportedError: it has a later format.
    """
    fields = decode_document(data, key)
    fields.version(_FORMAT_VERSION, frozenset())
    lists = dict(map(list_from_json, fields.each("lists")))
    segments = {folder: [part for part in parts if isinstance(part, SegmentRef)] for folder, parts in lists.items()}
    return fields.time_ns("created"), segments
