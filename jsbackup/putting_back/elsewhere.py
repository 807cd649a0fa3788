"""The command that puts a value back which the named backup does not know any more, but another one."""

from __future__ import annotations

from jsbackup.errors import IncompleteError, JsBackupError
from jsbackup.look.buckets.bucket import KeyValueBucket
from jsbackup.look.buckets.bucket_series import find_series
from jsbackup.names import is_subject
from jsbackup.putting_back.chosen import find_entry
from jsbackup.putting_back.model import PutBackOptions
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.repository import Repository
from jsbackup.shell import command_line

__all__ = ["with_other_backup"]


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
