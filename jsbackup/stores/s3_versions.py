"""Versions of objects, and locks on them.

In a versioned bucket a delete removes every version, so that room is freed. Of a locked object it removes nothing: a
delete marker would hide it, and a lock should prevent that.
"""

from __future__ import annotations

import datetime as dt
import math

from jsbackup.errors import ObjectLocked, ObjectNotFound, UnsupportedError
from jsbackup.stores.base import LockMode
from jsbackup.stores.s3_bucket import Bucket
from jsbackup.stores.s3_client import CANNOT, DENIED, Refusal, denied

__all__ = ["check_object_lock", "delete_versions", "is_versioned", "lock_until"]

_ABSENT = frozenset({"NoSuchKey", "NoSuchVersion"})
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
            markers += [str(found["VersionId"]) for found in page.get("DeleteMarkers", ()) if found["Key"] == full]
            versions += [str(found["VersionId"]) for found in page.get("Versions", ()) if found["Key"] == full]
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
    """Lock an object, or extend its lock, as in `base.ObjectLock`."""
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
