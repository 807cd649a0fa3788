"""Earlier backups of streams: what the next one can build on."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from jsbackup.errors import IntegrityError, KeyUnavailable, UnsupportedError, UsageError
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.repository.repository import Repository

__all__ = ["previous_streams"]

_log = logging.getLogger(__name__)

# Manifests that are read, newest first: several accounts, or jobs with some of the streams each, may take turns.
_LOOK_BACK = 16


def previous_streams(repository: Repository, incarnations: Mapping[str, str]) -> dict[str, StreamBackup]:
    """The newest backup with messages, by name, of each stream that has one; `incarnations` by name.

    A manifest that cannot be read is passed over: it is not needed, and `verify` tells of it.
    """
    found: dict[str, StreamBackup] = {}
    for backup in reversed(repository.backups()[-_LOOK_BACK:]):
        if len(found) == len(incarnations):
            break
        try:
            manifest = repository.manifest(backup)
        except (IntegrityError, KeyUnavailable, UnsupportedError, UsageError) as error:
            _log.warning("backup %s cannot be built on: %s", backup, error.message)
            continue
        for stream in manifest.streams:
            wanted = incarnations.get(stream.name) == stream.incarnation
            if wanted and stream.archive_format not in (ArchiveFormat.CONFIG, ArchiveFormat.OPAQUE):
                found.setdefault(stream.name, stream)
    return found
