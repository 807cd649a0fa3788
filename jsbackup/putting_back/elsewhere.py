"""Values that the backup does not know any more, but another one: taken from there, or the command that does so."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.look.buckets.bucket import KeyValueBucket
from jsbackup.look.buckets.bucket_series import find_series
from jsbackup.names import is_subject
from jsbackup.putting_back.chosen import find_entry
from jsbackup.putting_back.model import PutBackOptions
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.shell import command_line

__all__ = ["Around", "find_around", "with_other_backup"]


@dataclass(frozen=True, slots=True)
class Around:
    """Another backup that has what was chosen, and the options that choose it there. `notes` are sentences about it."""

    manifest: Manifest
    options: PutBackOptions
    notes: tuple[str, ...]


def find_around(repository: Repository, manifest: Manifest, options: PutBackOptions) -> Around | None:
    """Return the one backup around the moment that has all of the chosen keys, as `kv get latest --at` finds them; None
    if there is none.

    Raises:
        JsBackupError: by these backups, a key had no value.
        IntegrityError, KeyUnavailable, StoreError: they cannot be read.
    """
    at = options.at
    if at is None or not options.keys:
        return None
    series = find_series(repository, KeyValueBucket(repository.objects, manifest, find_entry(manifest, options)), at)
    places: set[tuple[str, bool]] = set()
    notes = []
    for key in options.keys:
        if not is_subject(key):
            if not series.after.keys(at, key).certain:
                return None
            places.add((series.after.manifest.id, False))
            notes.append(f"keys {key} are taken from backup {series.after.manifest.id}")
            continue
        try:
            found = series.value(key)
        except IncompleteError:
            return None
        places.add((found.bucket.manifest.id, bool(found.witness)))
        proof = f"; as backup {found.witness} shows, it was not written until {at}" if found.witness else ""
        notes.append(f"revision {found.revision.revision} of {key} is in backup {found.bucket.manifest.id}{proof}")
    if len(places) != 1:
        return None
    [(backup, is_proved)] = places
    if is_proved:  # it is from before the moment: what it has last is the value
        options = replace(options, at=None)
    return Around(repository.manifest(backup, in_part=True), options, tuple(notes))


def with_other_backup(
    problem: IncompleteError, repository: Repository, manifest: Manifest, options: PutBackOptions
) -> IncompleteError:
    """Return the error that the backup cannot say what a key was, with the command for the backup that can, if there is
    one. Raises the errors of `matching`.
    """
    at = options.at
    if at is None:
        return problem
    bucket = KeyValueBucket(repository.objects, manifest, find_entry(manifest, options))
    for key in filter(is_subject, options.keys):
        try:
            bucket.value(key, at)
        except IncompleteError:
            break
        except JsBackupError:
            continue
    else:
        return problem
    try:
        found = find_series(repository, bucket, at).value(key)
    except IncompleteError as error:
        return problem.with_hint(error.hint) if error.hint else problem
    except JsBackupError as error:
        return problem.with_hint(f"By other backups, {error.message}.") if error.exit_code == 1 else problem
    revision = found.revision.revision
    to = [] if options.to is None else [("--to", options.to)]
    backup, chosen = found.bucket.manifest.id, [("--key", key), ("--at", str(revision)), *to]
    return problem.with_hint(
        f"Backup {backup} has it: {command_line('put-back', backup, options.stream, options=chosen)}"
    )
