"""Objects in a bucket of an S3 store, or below a prefix in it.

**Create-only.** Each put sends `If-None-Match: *`, with a PUT or with the end of a multipart upload. A HEAD before that
    avoids sending existing objects, and is the only protection if a store ignores the condition (`probe` reports that).
    As our keys are hashes of their content or random, that is enough: simultaneous puts under one key have the same
    bytes.

**Checksums.** The store checks what is sent; a whole object that is read is checked against the SHA-256 in its
    metadata. Different bytes are read again: if the second answer is the same, it is what is stored, and the caller,
    who knows what to expect, decides; otherwise the bytes were damaged in transit, a temporary error. ETags are not
    used: their meaning depends on the store, the encryption and the upload.

**Absence** is only believed if the bucket is known to exist: HEAD has no error code, so a 404 may mean either.

**Listings** come sorted by key from Amazon, and folder by folder from others (SeaweedFS), where `b/c` comes before
    `b-c`. Only names of which one is the start of the other can be out of order that way; they are held back until they
    are complete.
"""

from __future__ import annotations

import datetime as dt
import email.utils
import hashlib
import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from typing import Any

from jsbackup.errors import ObjectExists, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.model import S3Settings
from jsbackup.stores import s3_versions
from jsbackup.stores.base import (
    Data,
    LockMode,
    ObjectInfo,
    StoreProbe,
    check_key,
    check_prefix,
    check_range,
    is_key,
)
from jsbackup.stores.s3_bucket import Bucket
from jsbackup.stores.s3_client import Refusal, denied
from jsbackup.stores.s3_upload import SHA256_FIELD, put_new, put_whole

__all__ = ["S3Store"]

_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")

_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
_PAST_END = frozenset({"InvalidRange", "416"})
_HEAD_ABSENT = frozenset({"404"})
_HEAD_REFUSED = frozenset({"301", "400", "401", "403"})


class S3Store:
    """Objects below `prefix` (no `/` at its ends; empty for the whole bucket). Connects at the first use."""

    def __init__(self, bucket: str, prefix: str = "", settings: S3Settings | None = None) -> None:
        self._bucket = Bucket(bucket, f"{prefix}/" if prefix else "", settings or S3Settings())
        self._is_there = False
        self._versioned: bool | None = None

    @property
    def location(self) -> str:
        return self._bucket.location

    def put(self, key: str, data: Data) -> None:
        check_key(key)
        view = memoryview(data).cast("B")
        doing = f"cannot store {key} in {self.location}"
        if self._head(key, doing) is not None:
            raise ObjectExists(key)
        put_new(self._bucket, key, view, doing)

    def get(self, key: str) -> bytes:
        return self._read_checked(check_key(key), {}, 0, None)

    def get_range(self, key: str, offset: int, length: int) -> bytes:
        check_range(check_key(key), offset, length)
        return self._read_checked(key, {"Range": f"bytes={offset}-{offset + length - 1}"}, offset, length)

    def head(self, key: str) -> ObjectInfo:
        found = self._head(check_key(key), f"cannot look at {key} in {self.location}")
        if found is None:
            raise ObjectNotFound(key)
        return found

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return _in_key_order(self._objects(prefix), prefix, self.location)

    def delete(self, key: str) -> None:
        target = self._bucket.target(check_key(key))
        doing = f"cannot delete {key} in {self.location}"
        if self._versioned is None:
            self._versioned = s3_versions.is_versioned(self._bucket, doing)
        if not self._versioned:
            with self._bucket.explained(doing):
                answer = self._bucket.client.delete_object(**target)
            # It is versioned after all, if asking was not allowed.
            self._versioned = bool(answer.get("DeleteMarker"))
        if self._versioned:
            s3_versions.delete_versions(self._bucket, key, doing)

    def is_temporary(self, error: StoreError) -> bool:
        return error.temporary

    def enclosing(self, key: str) -> str | None:
        """Return the nearest location above; one whose object may not be looked at is taken for none that has it."""
        bucket = self._bucket
        *above, _ = bucket.folder.rstrip("/").split("/")
        for levels in range(len(above), -1, -1) if bucket.folder else ():
            outer = Bucket(bucket.name, "".join(f"{part}/" for part in above[:levels]), bucket.settings)
            # HEAD has no error code: 404 may also be that of the bucket, which the next request says better.
            with (
                suppress(Refusal),
                bucket.explained(f"cannot look at {key} in {outer.location}", _HEAD_ABSENT | _HEAD_REFUSED),
            ):
                bucket.client.head_object(**outer.target(key))
                return outer.location
        return None

    # --- reading ---

    def _head(self, key: str, doing: str) -> ObjectInfo | None:
        bucket = self._bucket
        try:
            with bucket.explained(doing, _HEAD_ABSENT | _HEAD_REFUSED):
                answer = bucket.client.head_object(**bucket.target(key))
                sha256 = answer.get("Metadata", {}).get(SHA256_FIELD, "")
                return ObjectInfo(key, int(answer["ContentLength"]), answer["LastModified"].timestamp(), sha256)
        except Refusal as refusal:
            if refusal.code in _HEAD_REFUSED or not self._is_there:
                # A request whose answer has a body, which says what is wrong.
                with bucket.explained(doing):
                    bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.folder + key, MaxKeys=1)
                self._is_there = True
            if refusal.code in _HEAD_REFUSED:
                raise denied(doing) from refusal
        return None

    def _read_checked(self, key: str, ranged: dict[str, str], offset: int, length: int | None) -> bytes:
        data, right = self._read(key, ranged, offset, length)
        if not right:
            again, right = self._read(key, ranged, offset, length)
            if not right and again != data:
                raise StoreError(
                    f"cannot read {key} in {self.location}: its bytes were damaged in transit", temporary=True
                )
            return again
        return data

    def _read(self, key: str, ranged: dict[str, str], offset: int, length: int | None) -> tuple[bytes, bool]:
        """Return the bytes, and whether they are correct, as far as known."""
        bucket = self._bucket
        doing = f"cannot read {key} in {self.location}"
        try:
            with bucket.explained(doing, _ABSENT | _PAST_END):
                answer = bucket.client.get_object(**bucket.target(key), **ranged)
                size, body = int(answer["ContentLength"]), answer["Body"]
        except Refusal as refusal:
            if refusal.code in _PAST_END:
                return b"", True
            raise ObjectNotFound(key) from None
        whole = _is_whole(answer.get("ContentRange"), offset, length, size)
        if whole is None:
            body.close()
            raise UnsupportedError(f"{doing}: the store returned another range than requested")
        with bucket.explained(doing):
            data: bytes = body.read()
        if len(data) != size:
            raise StoreError(f"{doing}: the answer ends too early", temporary=True)
        stored = answer.get("Metadata", {}).get(SHA256_FIELD)
        return data, not whole or stored is None or hashlib.sha256(data).hexdigest() == stored

    def _objects(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield the objects below `prefix` in the store's order. Keys that cannot be ours are skipped."""
        bucket = self._bucket
        doing = f"cannot list {self.location}"
        position: dict[str, str] = {}
        while True:
            with bucket.explained(doing):
                page = bucket.client.list_objects_v2(Bucket=bucket.name, Prefix=bucket.folder + prefix, **position)
                found = [
                    (str(entry["Key"]), int(entry["Size"]), entry["LastModified"].timestamp())
                    for entry in page.get("Contents", ())
                ]
            self._is_there = True
            for full, size, modified in found:
                key = full.removeprefix(bucket.folder)
                if full.startswith(bucket.folder + prefix) and is_key(key):
                    yield ObjectInfo(key, size, modified)
            following = {"ContinuationToken": page.get("NextContinuationToken")}
            if not page.get("IsTruncated"):
                return
            if following in (position, {"ContinuationToken": None}):
                raise StoreError(f"{doing}: the store reports more entries but does not return them")
            position = following

    # --- abilities of some stores: ProbedStore, ObjectLock, StaleUploads ---

    def probe(self, key: str, data: Data) -> StoreProbe:
        doing = f"cannot probe {self.location}"
        try:
            self.check_object_lock()
            lockable = True
        except UnsupportedError:
            lockable = False
        return StoreProbe(
            conditional_writes=self._refuses_to_replace(key, memoryview(data).cast("B"), doing),
            checksums=self._refuses_damage(f"{key}-damaged", doing),
            object_lock=lockable,
            versioned=s3_versions.is_versioned(self._bucket, doing),
        )

    def _refuses_to_replace(self, key: str, view: memoryview, doing: str) -> bool:
        try:
            put_whole(self._bucket, key, view, doing)  # the same bytes: a replaced object is unchanged
        except ObjectExists:
            return True
        return False

    def _refuses_damage(self, key: str, doing: str) -> bool:
        no_sum_of_it = "A" * 43 + "="
        target: dict[str, Any] = self._bucket.target(key)
        try:
            with self._bucket.explained(doing, _DAMAGED):
                self._bucket.client.put_object(**target, Body=b"data", ChecksumSHA256=no_sum_of_it)
        except Refusal:
            return True
        self.delete(key)
        return False

    def check_object_lock(self) -> None:
        s3_versions.check_object_lock(self._bucket)

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        s3_versions.lock_until(self._bucket, check_key(key), until_seconds, mode)

    def abort_stale_uploads(self, older_than_seconds: float) -> int:
        bucket = self._bucket
        doing = f"cannot abort unfinished uploads in {self.location}"
        stale: list[dict[str, str]] = []
        position: dict[str, str] = {}
        while True:
            with bucket.explained(doing):
                page = bucket.client.list_multipart_uploads(Bucket=bucket.name, Prefix=bucket.folder, **position)
                now = email.utils.parsedate_to_datetime(page["ResponseMetadata"]["HTTPHeaders"]["date"])
                before = now - dt.timedelta(seconds=older_than_seconds)
                stale += [
                    {"Bucket": bucket.name, "Key": upload["Key"], "UploadId": upload["UploadId"]}
                    for upload in page.get("Uploads", ())
                    if upload["Initiated"] <= before and self._is_ours(upload["Key"])
                ]
                following = {
                    name: page[f"Next{name}"] for name in ("KeyMarker", "UploadIdMarker") if page.get(f"Next{name}")
                }
            if not page.get("IsTruncated") or not following or following == position:
                break
            position = following
        for upload in stale:
            with bucket.explained(doing):
                bucket.client.abort_multipart_upload(**upload)
        return len(stale)

    def _is_ours(self, full: str) -> bool:
        return full.startswith(self._bucket.folder) and is_key(full.removeprefix(self._bucket.folder))


_DAMAGED = frozenset({"BadDigest", "InvalidDigest", "XAmzContentChecksumMismatch", "InvalidRequest", "BadRequest"})


def _is_whole(content_range: str | None, offset: int, length: int | None, size: int) -> bool | None:
    """Return whether an answer of `size` bytes is the whole object; None if it is not the requested range."""
    if content_range is None:
        return True if length is None or (offset == 0 and size <= length) else None
    match = _CONTENT_RANGE.fullmatch(content_range)
    if match is None or length is None:
        return None
    first, last, total = map(int, match.groups())
    if first != offset or last != min(offset + length, total) - 1 or size != last - first + 1:
        return None
    return size == total


def _in_key_order(found: Iterable[ObjectInfo], prefix: str, location: str) -> Iterator[ObjectInfo]:
    """Sort a listing by whole keys that may be in order of folders."""
    held: list[ObjectInfo] = []
    shortest = last = ""
    for info in found:
        name = info.key[len(prefix) :].partition("/")[0]
        if held and not (name == shortest or (name.startswith(shortest) and name[len(shortest)] < "/")):
            yield from _sorted(held, last, location)
            last, held = held[-1].key, []
        if not held:
            shortest = name
        held.append(info)
    yield from _sorted(held, last, location)


def _sorted(held: list[ObjectInfo], last: str, location: str) -> list[ObjectInfo]:
    held.sort(key=lambda info: info.key)
    if held and held[0].key <= last:
        raise StoreError(f"cannot list {location}: the store lists objects in no order that we know")
    return held
