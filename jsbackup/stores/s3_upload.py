"""Upload bytes to a bucket, with one PUT or in parts. Only what is being sent is copied.

Every request carries the SHA-256 of its bytes, which the store checks before it stores them; every object has the
SHA-256 of all its bytes in its metadata, for readers.
"""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

from jsbackup.errors import StoreError
from jsbackup.model import S3Settings
from jsbackup.stores.s3_bucket import Bucket

__all__ = ["PART_BYTES", "SHA256_FIELD", "SINGLE_BYTES", "put_new", "put_whole"]

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
