"""Compaction (`joining.py`) for programs that have a session of Spark."""

from __future__ import annotations

from pyspark.sql import SparkSession

from jsbackup.pipeline.jobs.job_run import JobRun
from jsbackup.pipeline.jobs.joining import compact_backup, gain_of
from jsbackup.pipeline.session.lease import held_lease
from jsbackup.pipeline.session.repository_ref import RepositoryRef, find_readable
from jsbackup.pipeline.session.session import attach
from jsbackup.pipeline.tasks.tasks import OnSpark
from jsbackup.progress import Progress
from jsbackup.repository.manifest import Manifest

__all__ = ["compact"]


def compact(
    session: SparkSession,
    place: RepositoryRef,
    backup: str,
    *,
    recompress: bool = False,
    progress: Progress | None = None,
) -> Manifest | None:
    """Compact a backup (an id, the start of one, or `latest`); return None if there is nothing to join, and nothing to
    `recompress`.

    Raises the same errors as `find_backup` and `compact_backup`.
    """
    attach(session)
    repository = place.open()
    repository.documents.ensure_writable()
    with held_lease(repository, "compact") as lease:
        manifest = find_readable(repository, backup)
        gain = gain_of(manifest.streams, repository.objects.segment_bytes)
        if gain.after == gain.before and not recompress:
            return None
        return compact_backup(
            JobRun(OnSpark(session), place, repository, lease, progress), manifest, gain, recompress=recompress
        )
