"""What other backups have of a key or file that the named one does not have, or cannot tell.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.cli.parsing.context import Shared
from jsbackup.errors import JsBackupError
from jsbackup.shell import command_line
from jsbackup.times import format_time

if TYPE_CHECKING:
    from jsbackup.look.buckets.bucket import KeyList, KeyRevision, KeyValueBucket
    from jsbackup.look.buckets.object_bucket import ObjectBucket
    from jsbackup.repository.repository import Repository
    from jsbackup.transforms.cut import Edge

__all__ = ["ask_latest", "keys_at", "value_at", "with_last_file", "with_last_value"]


def value_at(
    shared: Shared, repository: Repository, bucket: KeyValueBucket, key: str, *, at: Edge
) -> tuple[KeyValueBucket, KeyRevision]:
    """Return a key's value at a moment by the backups around it, and the bucket that has it. Say which backups they
    are. Raises as `BucketSeries.value`.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    found = find_series(repository, bucket, at).value(key)
    proof = f"; as backup {found.witness} shows, it was not written until {at}" if found.witness else ""
    shared.output.note(f"note: revision {found.revision.revision} is in backup {found.bucket.manifest.id}{proof}")
    return found.bucket, found.revision


def keys_at(
    shared: Shared, repository: Repository, bucket: KeyValueBucket, pattern: str, *, at: Edge
) -> tuple[KeyList, list[str]]:
    """Return the keys at a moment by the backups around it, and the ids of these; say them too. Raises as
    `BucketSeries.keys`.
    """
    from jsbackup.look.buckets.bucket_series import find_series

    found = find_series(repository, bucket, at).keys(pattern)
    shared.output.note(f"note: as known from {' and '.join(f'backup {one}' for one in found.backups)}")
    return found.keys, list(found.backups)


def ask_latest(bucket: KeyValueBucket, key: str, at: Edge) -> str:
    """Return the hint for when the backup cannot say what a key was."""
    from jsbackup.look.moment import option_text

    command = command_line("kv get", "latest", bucket.name, key, options=[("--at", option_text(at))])
    return f"Other backups may have it: {command} asks those around this moment."


def with_last_value(problem: JsBackupError, repository: Repository, bucket: KeyValueBucket, key: str) -> JsBackupError:
    """Return the error that a key has no value, with the command for the backup that last had one, if there is one and
    nothing else was hinted at.
    """
    from jsbackup.look.buckets.bucket import elsewhere_hint, key_subjects
    from jsbackup.look.last_seen import last_seen
    from jsbackup.look.message_filter import MessageFilter
    from jsbackup.transforms.filters.key_marker import KeyOperation, operation_of

    if problem.exit_code != 1 or problem.hint != elsewhere_hint(bucket, key):
        return problem
    found = last_seen(
        repository,
        bucket.manifest,
        bucket.stream.name,
        wanted=MessageFilter(subjects=key_subjects(bucket.stream, key)),
        counts=lambda one: operation_of(one.headers) is KeyOperation.PUT,
    )
    if found is None:
        return problem
    backup, revision = found.backups[-1], found.sequence
    command = command_line("kv get", backup, bucket.name, key, options=[("--at", str(revision))])
    return problem.with_hint(f"The last value is that of {format_time(found.timestamp_ns)}: {command}")


def with_last_file(problem: JsBackupError, repository: Repository, store: ObjectBucket, name: str) -> JsBackupError:
    """Return the error that there is no such file, with the command for the backup that last had it, if one does."""
    from jsbackup.look.buckets.object_bucket import description_subjects
    from jsbackup.look.buckets.object_versions import DESCRIPTION_BYTES, version_of
    from jsbackup.look.last_seen import last_seen
    from jsbackup.look.message_filter import MessageFilter

    if problem.exit_code != 1:
        return problem
    found = last_seen(
        repository,
        store.manifest,
        store.stream.name,
        wanted=MessageFilter(subjects=description_subjects(store.stream, name)),
        counts=lambda one: (entry := version_of(one)) is not None and not entry.deleted,
        start_bytes=DESCRIPTION_BYTES,
    )
    if found is None:
        return problem
    command = command_line("object get", found.backups[-1], store.name, name, options=[("-o", "FILE")])
    return problem.with_hint(f"The last one is that of {format_time(found.timestamp_ns)}: {command}")
