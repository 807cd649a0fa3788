"""`jsbackup transform`: make a new backup from another one, in the same repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.options.jobs import job_runner
from jsbackup.cli.options.latest import WantedBackup, find_backup, origin_option, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, writing
from jsbackup.cli.options.reshaping import (
    mask_key_names,
    refuse_obfuscation,
    reshaping_options,
    transform_options,
)
from jsbackup.cli.options.spark import Where, on_spark_if_asked, place_given
from jsbackup.cli.options.tag_options import tagged_as
from jsbackup.cli.options.tagging import parse_tags
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.jobs.transform import Transformed

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@reshaping_options
@click.option(
    "--consumers",
    type=click.Choice(["all", "none"]),
    default="all",
    show_default=True,
    help="all: keep consumers, with state as far as their messages are kept; none: leave consumers out.",
)
@tagged_as("Tag the new backup.")
@origin_option
@mask_key_names
@on_spark_if_asked
@lock_timeout_option
def transform(
    shared: Shared,
    backup: str,
    streams: tuple[str, ...],
    typed: Mapping[str, Any],
    *,
    consumers: str,
    tags: tuple[str, ...],
    origins: tuple[str, ...],
    mask_key: tuple[tuple[str, str], ...],
    where: Where | None,
    lock_timeout: str,
) -> int:
    """Make a new, changed backup from BACKUP (an id, its start, or `latest`): of all its streams, or those that you
    name.

    The options are those of 'jsbackup restore'. To restore the new backup is the same as to restore the old one with
    these options. Name the new backup by its id: `latest` is never a transformed one.
    """
    start_log(shared)
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.jobs.transform import plan_transform, transform_backup
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.pipeline.tasks.reshape_task import MaskKey

    options = transform_options(typed, streams, consumers)
    key, chosen_tags, choosing = MaskKey(mask_key), parse_tags(tags), parse_choosing(backup, origins, ())
    options.reshape.masks.check_secret(key.secret())
    if where is not None and where.is_elsewhere:
        refuse_obfuscation(options.reshape, "Spark on other machines: its secret stays on this one")
    from jsbackup.planning.typed_options import keeping_obfuscated
    from jsbackup.repository.checks.document_checks import tend_readers

    place = place_given(shared)
    repository = place.open()
    repository.documents.ensure_writable()
    with (
        writing(shared, repository, "transform", lock_timeout) as lease,
        keeping_obfuscated(typed["obfuscation_key"], options.reshape),
        make_progress("transform", wanted=shared.progress) as progress,
    ):
        wanted = WantedBackup(backup, choosing, options.streams, silent=shared.output.as_json)
        manifest = find_backup(shared, repository, wanted)
        check_readable(repository)
        plan = plan_transform(manifest, options)
        before = manifest.source.extra.get("transformed")
        if isinstance(before, dict):
            shared.output.note(f"{manifest.id} was itself made from {before.get('backup')}, by 'jsbackup transform'")
        with job_runner(where, place, repository) as runner:
            run = JobRun(runner, place, repository, lease, progress)
            made = transform_backup(run, plan, mask_key=key, tags=chosen_tags)
    lost = tend_readers(repository)
    _tell_transformed(shared, manifest.id, made, lost=lost)
    return damage(lost)


# --- what it prints ---


def _tell_transformed(shared: Shared, source: str, made: Transformed, *, lost: Sequence[str]) -> None:
    output, manifest = shared.output, made.manifest
    rows = list(zip(made.old_names, made.had, manifest.streams, made.notes, strict=True))
    document: JsonObject = {
        "backup": manifest.id,
        "made_of": source,
        "result": manifest.result,
        "streams": [
            {
                "name": old,
                "as": stream.name,
                "messages_before": had,
                "messages": stream.captured.messages,
                "bytes": stream.captured.bytes,
                "first_seq": stream.captured.first_seq,
                "last_seq": stream.captured.last_seq,
                "digest": stream.digest.hex,
                "segments": len(stream.segments),
                "notes": list(notes),
            }
            for old, had, stream, notes in rows
        ],
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in manifest.skipped],
        "notes": list(lost),
    }

    def text() -> None:
        output.table(
            ["STREAM", "OF", ">MESSAGES BEFORE", ">MESSAGES", ">BYTES", ">SEGMENTS"],
            [
                (
                    stream.name,
                    old,
                    format_count(had),
                    format_count(stream.captured.messages),
                    format_bytes(stream.captured.bytes),
                    str(len(stream.segments)),
                )
                for old, had, stream, _ in rows
            ],
        )
        tell_each(output, (Said("note", stream.name, note) for _, _, stream, notes in rows for note in notes))
        tell_each(output, (Said("skipped", skipped.name, skipped.reason) for skipped in manifest.skipped))
        _tell_lost(output, lost)
        output.line(f"made backup {manifest.id} from {source}")

    output.result(document, text)


def _tell_lost(output: Output, lost: Sequence[str]) -> None:
    """Print the sentences about key files of readers that are missing or damaged."""
    for sentence in lost:
        output.line(State("warning"), f": {sentence}")


COMMANDS = {"transform": transform}
