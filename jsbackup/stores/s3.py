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

Upload bytes to a bucket, with one PUT or in parts. Only what is being sent is copied.

Every request carries the SHA-256 of its bytes, which the store checks before it stores them; every object has the
SHA-256 of all its bytes in its metadata, for readers.

Versions of objects, and locks on them.

In a versioned bucket a delete removes every version, so that room is freed. Of a locked object it removes nothing: a
delete marker would hide it, and a lock should prevent that.
"""

from __future__ import annotations

import base64
import datetime as dt
import email.utils
import hashlib
import math
import os
import re
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, suppress
from typing import Any

from jsbackup.errors import ObjectExists, ObjectLocked, ObjectNotFound, StoreError, UnsupportedError
from jsbackup.model import S3Settings
from jsbackup.stores.base import (
    Data,
    LockMode,
    ObjectInfo,
    Store,
    StoreProbe,
    check_key,
    check_prefix,
    check_range,
    is_key,
)
from jsbackup.stores.s3_client import CANNOT, DENIED, Refusal, denied, make_client, s3_errors

__all__ = ["SINGLE_BYTES", "S3Store", "check_object_lock", "delete_versions", "is_versioned", "lock_until"]

_EXISTS = frozenset({"PreconditionFailed", "412"})


class Bucket:
    """A bucket. `folder` is the prefix followed by `/`, or empty. The client is made at the first use."""

    def __init__(self, name: str, folder: str, settings: S3Settings) -> None:
        self.name = name
        self.folder = folder
        self.settings = settings
        self._lock = threading.Lock()
        self._client: Any = None
        self._reached = False
        self._condition: Mapping[str, str] = {"IfNoneMatch": "*"}

    @property
    def location(self) -> str:
        return f"s3://{self.name}/{self.folder}".rstrip("/")

    @property
    def client(self) -> Any:
        with self._lock:
            if self._client is None:
                self._client = make_client(self.settings)
                self._client.meta.events.register("response-received.s3", self._note_answer)
            return self._client

    def _note_answer(self, response_dict: object = None, **_others: object) -> None:
        self._reached = self._reached or response_dict is not None

    def target(self, key: str) -> dict[str, Any]:
        """Return the parameters that name an object."""
        return {"Bucket": self.name, "Key": self.folder + key}

    def explained(self, doing: str, asked: frozenset[str] = frozenset()) -> AbstractContextManager[None]:
        """Return the context manager for every use of the client: see `s3_client.explained`."""
        return s3_errors(doing, self.settings.endpoint, asked=asked, reached=self._reached)

    def create_only(self, key: str, doing: str, send: Callable[[Mapping[str, str]], object]) -> None:
        """Call `send` with the condition that there is no such object; without it if the store does not support it.

        Raises:
            ObjectExists: the condition does not hold.
        """
        condition = self._condition
        try:
            with self.explained(doing, _EXISTS | (CANNOT if condition else frozenset())):
                send(condition)
        except Refusal as refusal:
            if refusal.code in _EXISTS:
                raise ObjectExists(key) from None
            self._condition = {}
            with self.explained(doing):
                send({})


# The code for a bucket without object lock depends on the store.
_NO_LOCK = frozenset({"ObjectLockConfigurationNotFoundError", "InvalidRequest"}) | CANNOT
_NO_RETENTION = frozenset({"NoSuchObjectLockConfiguration"})


def is_versioned(bucket: Bucket, doing: str) -> bool:
    """Return whether objects have versions, or once had; False if asking is not allowed."""
    try:
        with bucket.explained(doing, CANNOT | DENIED):
            answer = bucket.client.get_bucket_versioning(Bucket=bucket.name)
    except Refusal:
        return False
    return answer.get("Status") in ("Enabled", "Suspended")


def delete_versions(bucket: Bucket, key: str, doing: str) -> None:
    """Remove all versions of an object.

    Raises:
        ObjectLocked: a version is locked; the object stays visible.
    """
    markers, versions = _versions(bucket, key, doing)
    for version in versions:
        try:
            with bucket.explained(doing, DENIED):
                bucket.client.delete_object(**bucket.target(key), VersionId=version)
        except Refusal as refusal:
            if _retention(bucket, key, version, doing) is None:
                raise denied(doing) from refusal
            _delete(bucket, key, markers, doing)
            raise ObjectLocked(key) from None
    _delete(bucket, key, markers, doing)


def _delete(bucket: Bucket, key: str, markers: list[str], doing: str) -> None:
    for marker in markers:
        with bucket.explained(doing):
            bucket.client.delete_object(**bucket.target(key), VersionId=marker)


def _versions(bucket: Bucket, key: str, doing: str) -> tuple[list[str], list[str]]:
    """Return the ids of an object's delete markers and versions, newest first."""
    full = bucket.folder + key
    markers: list[str] = []
    versions: list[str] = []
    position: dict[str, str] = {}
    while True:
        with bucket.explained(doing):
            page = bucket.client.list_object_versions(Bucket=bucket.name, Prefix=full, **position)
            markers += [
                str(version["VersionId"]) for version in page.get("DeleteMarkers", ()) if version["Key"] == full
            ]
            versions += [str(version["VersionId"]) for version in page.get("Versions", ()) if version["Key"] == full]
            following = {
                name: str(page[f"Next{name}"]) for name in ("KeyMarker", "VersionIdMarker") if page.get(f"Next{name}")
            }
        # Longer keys with this start come after it and are not wanted.
        if not page.get("IsTruncated") or following.get("KeyMarker") != full or following == position:
            return markers, versions
        position = following


def check_object_lock(bucket: Bucket) -> None:
    """Raise `UnsupportedError` if objects of the bucket cannot be locked."""
    doing = f"cannot lock objects in {bucket.location}"
    try:
        with bucket.explained(doing, _NO_LOCK):
            answer = bucket.client.get_object_lock_configuration(Bucket=bucket.name)
            if answer["ObjectLockConfiguration"]["ObjectLockEnabled"] == "Enabled":
                return
    except Refusal:
        pass
    raise _no_lock(doing)


def lock_until(bucket: Bucket, key: str, until_seconds: float, mode: LockMode) -> None:
    """Lock an object, or extend its lock, as `Store.lock_until` says."""
    doing = f"cannot lock {key} in {bucket.location}"
    # Stores have whole seconds.
    until = dt.datetime.fromtimestamp(math.ceil(until_seconds), dt.UTC)
    present = _retention(bucket, key, None, doing)
    if present is not None:
        present_mode, present_until = present
        if LockMode.COMPLIANCE in (present_mode, mode):
            mode = LockMode.COMPLIANCE
        until = max(until, present_until)
        if (mode, until) == present:
            return
    try:
        with bucket.explained(doing, _ABSENT | _NO_LOCK):
            retention = {"Mode": mode.upper(), "RetainUntilDate": until}
            bucket.client.put_object_retention(**bucket.target(key), Retention=retention)
    except Refusal as refusal:
        raise ObjectNotFound(key) if refusal.code in _ABSENT else _no_lock(doing) from None


def _retention(bucket: Bucket, key: str, version: str | None, doing: str) -> tuple[LockMode, dt.datetime] | None:
    """Return mode and end of an object's lock; None if it has none. `version` None is the newest."""
    which = {} if version is None else {"VersionId": version}
    try:
        with bucket.explained(doing, _NO_RETENTION | _NO_LOCK | _ABSENT):
            retention = bucket.client.get_object_retention(**bucket.target(key), **which)["Retention"]
            return LockMode(str(retention["Mode"]).lower()), retention["RetainUntilDate"]
    except Refusal as refusal:
        if refusal.code in _ABSENT:
            raise ObjectNotFound(key) from None
        return None


def _no_lock(doing: str) -> UnsupportedError:
    return UnsupportedError(
        f"{doing}: the bucket has no object lock",
        hint="Object lock is chosen when a bucket is made: take another bucket, or do without.",
    )


SHA256_FIELD = "jsbackup-sha256"  # in hex

# One PUT up to here: that is most segments, with one request instead of six. Larger objects are sent in parts, a few at
# a time, so that the speed of one connection is not the limit. Against SeaweedFS on loopback the size makes no
# difference within the noise, as its CPU is the limit (64 MiB, MB/s: one PUT 68 to 138; parts of 8, 16, 32 MiB, one to
# four at a time: 92 to 122, 78 to 96, 77 to 107). 16 MiB keep the requests few: 18 for the largest possible object.
SINGLE_BYTES = 64 << 20
PART_BYTES = 16 << 20
_PARALLEL_PARTS = 4

# Before a body that is a file object botocore waits for the store's consent ("100-continue"): a round trip, which
# avoids sending a large body in vain, and is wasted for a small one.
_CONSENT_BYTES = 1 << 20


class _Body:
    """Bytes that botocore can read repeatedly, without copying all of them."""

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._position = 0

    def __len__(self) -> int:
        return len(self._view)

    def read(self, size: int | None = -1) -> bytes:
        end = len(self._view) if size is None or size < 0 else self._position + size
        piece = self._view[self._position : end].tobytes()
        self._position += len(piece)
        return piece

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        start = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: len(self._view)}[whence]
        self._position = max(0, start + offset)
        return self._position


def _body(view: memoryview) -> bytes | _Body:
    return _Body(view) if len(view) > _CONSENT_BYTES else view.tobytes()


def _base64(digest: bytes) -> str:
    return base64.b64encode(digest).decode()


def _how(settings: S3Settings) -> dict[str, str]:
    """Return the parameters that say how an object is to be stored."""
    given = {
        "ServerSideEncryption": settings.sse,
        "SSEKMSKeyId": settings.sse_kms_key,
        "StorageClass": settings.storage_class,
    }
    return {name: value for name, value in given.items() if value is not None}


def put_new(bucket: Bucket, key: str, view: memoryview, doing: str) -> None:
    """Store an object under a new key. Raises `ObjectExists` if it exists."""
    if len(view) <= SINGLE_BYTES:
        put_whole(bucket, key, view, doing)
    else:
        _put_parts(bucket, key, view, doing)


def put_whole(bucket: Bucket, key: str, view: memoryview, doing: str) -> None:
    """Store an object under a new key in one request. Raises `ObjectExists` if it exists."""
    digest = hashlib.sha256(view)

    def send(condition: Mapping[str, str]) -> None:
        bucket.client.put_object(
            **bucket.target(key),
            **condition,
            **_how(bucket.settings),
            Metadata={SHA256_FIELD: digest.hexdigest()},
            Body=_body(view),
            ContentLength=len(view),
            ChecksumSHA256=_base64(digest.digest()),
        )

    bucket.create_only(key, doing, send)


def _put_parts(bucket: Bucket, key: str, view: memoryview, doing: str) -> None:
    target = bucket.target(key)
    with bucket.explained(doing):
        upload = bucket.client.create_multipart_upload(
            **target,
            **_how(bucket.settings),
            Metadata={SHA256_FIELD: hashlib.sha256(view).hexdigest()},
            ChecksumAlgorithm="SHA256",
        )
        target["UploadId"] = upload["UploadId"]

    def put_part(number: int) -> dict[str, Any]:
        part = view[(number - 1) * PART_BYTES : number * PART_BYTES]
        sha256 = _base64(hashlib.sha256(part).digest())
        with bucket.explained(doing):
            answer = bucket.client.upload_part(
                **target, PartNumber=number, Body=_body(part), ContentLength=len(part), ChecksumSHA256=sha256
            )
            return {"PartNumber": number, "ETag": answer["ETag"], "ChecksumSHA256": sha256}

    try:
        with ThreadPoolExecutor(_PARALLEL_PARTS) as pool:
            parts = {"Parts": list(pool.map(put_part, range(1, -(-len(view) // PART_BYTES) + 1)))}
        complete = bucket.client.complete_multipart_upload
        bucket.create_only(key, doing, lambda condition: complete(**target, **condition, MultipartUpload=parts))
    except BaseException:
        # Uploaded parts take room until the upload is aborted.
        with suppress(StoreError), bucket.explained(doing):
            bucket.client.abort_multipart_upload(**target)
        raise


_CONTENT_RANGE = re.compile(r"bytes ([0-9]{1,19})-([0-9]{1,19})/([0-9]{1,19})")

_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
_PAST_END = frozenset({"InvalidRange", "416"})
_HEAD_ABSENT = frozenset({"404"})
_HEAD_REFUSED = frozenset({"301", "400", "401", "403"})


class S3Store(Store):
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
        head = self._head(check_key(key), f"cannot look at {key} in {self.location}")
        if head is None:
            raise ObjectNotFound(key)
        return head

    def list(self, prefix: str = "") -> Iterator[ObjectInfo]:
        check_prefix(prefix)
        return _in_key_order(self._objects(prefix), prefix, self.location)

    def delete(self, key: str) -> None:
        target = self._bucket.target(check_key(key))
        doing = f"cannot delete {key} in {self.location}"
        if self._versioned is None:
            self._versioned = is_versioned(self._bucket, doing)
        if not self._versioned:
            with self._bucket.explained(doing):
                answer = self._bucket.client.delete_object(**target)
            # It is versioned after all, if asking was not allowed.
            self._versioned = bool(answer.get("DeleteMarker"))
        if self._versioned:
            delete_versions(self._bucket, key, doing)

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
                objects = [
                    (str(entry["Key"]), int(entry["Size"]), entry["LastModified"].timestamp())
                    for entry in page.get("Contents", ())
                ]
            self._is_there = True
            for full, size, modified in objects:
                key = full.removeprefix(bucket.folder)
                if full.startswith(bucket.folder + prefix) and is_key(key):
                    yield ObjectInfo(key, size, modified)
            following = {"ContinuationToken": page.get("NextContinuationToken")}
            if not page.get("IsTruncated"):
                return
            if following in (position, {"ContinuationToken": None}):
                raise StoreError(f"{doing}: the store reports more entries but does not return them")
            position = following

    # --- what not all stores can do ---

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
            versioned=is_versioned(self._bucket, doing),
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
        check_object_lock(self._bucket)

    def lock_until(self, key: str, until_seconds: float, mode: LockMode) -> None:
        lock_until(self._bucket, check_key(key), until_seconds, mode)

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


def _in_key_order(objects: Iterable[ObjectInfo], prefix: str, location: str) -> Iterator[ObjectInfo]:
    """Sort a listing by whole keys that may be in order of folders."""
    held: list[ObjectInfo] = []
    shortest = last = ""
    for info in objects:
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
