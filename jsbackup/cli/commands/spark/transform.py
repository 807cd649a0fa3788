"""`jsbackup transform` and `jsbackup compact`: make a new backup from another one, in the same repository.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.options.jobs import job_runner
from jsbackup.cli.options.latest import WantedBackup, choosing_options, find_backup, origin_option, parse_choosing
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
from jsbackup.cli.output.grouped import Said, broken_json, tell_broken, tell_each
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.output import Output, format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.exit_codes import combined, damage
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.pipeline.jobs.transform import Transformed
    from jsbackup.repository.manifest import Manifest
    from jsbackup.repository.read.broken_lists import BrokenLists

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


@click.command(cls=Command)
@click.argument("backup", shell_complete=complete_backup)
@choosing_options
@click.option(
    "--recompress",
    is_flag=True,
    help="Also encode the other segments again, with the compression of this repository (see 'jsbackup help scale').",
)
@on_spark_if_asked
@lock_timeout_option
def compact(
    shared: Shared,
    backup: str,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    *,
    recompress: bool,
    where: Where | None,
    lock_timeout: str,
) -> int:
    """Make a copy of BACKUP (an id, its start, or `latest`) with fewer segments, so that you can forget the old one.

    Runs of short segments are joined. Content, time and tags stay the same, and the new backup comes right after the
    old one. If there is nothing to gain, nothing is made.
    """
    start_log(shared)
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.jobs.joining import compact_backup, gain_of
    from jsbackup.pipeline.session.repository_ref import check_readable
    from jsbackup.repository.checks.document_checks import tend_readers
    from jsbackup.repository.read.broken_lists import broken_lists, refuse_broken

    choosing = parse_choosing(backup, origins, tags)
    place = place_given(shared)
    repository = place.open()
    repository.documents.ensure_writable()
    with (
        writing(shared, repository, "compact", lock_timeout) as lease,
        make_progress("compact", wanted=shared.progress) as progress,
    ):
        manifest = find_backup(shared, repository, WantedBackup(backup, choosing, silent=shared.output.as_json))
        check_readable(repository)
        broken = broken_lists(manifest.streams)
        refuse_broken(broken, of=len(manifest.streams))
        whole = [stream for stream in manifest.streams if stream.name not in broken]
        gain = gain_of(whole, repository.objects.segment_bytes)
        made = None
        if gain.after < gain.before or recompress:
            with job_runner(where, place, repository) as runner:
                run = JobRun(runner, place, repository, lease, progress)
                made = compact_backup(run, manifest, gain, unread=broken.keys(), recompress=recompress)
    lost = tend_readers(repository)
    _tell_compacted(shared, manifest, made, broken=broken, lost=lost)
    return damage(lost) or combined([0, *(error.exit_code for error in broken.values())])


# --- what they print ---


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


def _tell_compacted(
    shared: Shared,
    manifest: Manifest,
    made: Manifest | None,
    *,
    broken: BrokenLists,
    lost: Sequence[str],
) -> None:
    output = shared.output
    after = made or manifest
    rows = [
        (old.name, len(old.segments), len(new.segments))
        for old, new in zip(manifest.streams, after.streams, strict=True)
    ]
    total, left = sum(before for _, before, _ in rows), sum(now for _, _, now in rows)
    had = _stored_bytes(manifest, broken)
    has = had if made is None else _stored_bytes(made, broken)
    document: JsonObject = {
        "backup": None if made is None else made.id,
        "made_of": manifest.id,
        "segments_before": total,
        "segments": left,
        "stored_bytes_before": had,
        "stored_bytes": has,
        "streams": [{"name": name, "segments_before": before, "segments": now} for name, before, now in rows],
        "failed": broken_json(broken),
        "notes": list(lost),
    }

    def text() -> None:
        tell_broken(output, broken)
        _tell_lost(output, lost)
        if made is None:
            whole = sum(len(old.segments) for old in manifest.streams if old.name not in broken)
            of = f"the other streams of {manifest.id}" if broken else manifest.id
            count = format_count(whole, "segment")
            output.line(f"nothing to gain: none of the {count} of {of} would change, and no backup was made")
            return
        table = [(name, str(before), str(now)) for name, before, now in rows if before != now]
        output.table(["STREAM", ">SEGMENTS BEFORE", ">SEGMENTS"], table)
        output.line(
            f"made backup {made.id} from {manifest.id}: {format_count(total, 'segment')} before, {format_count(left)} "
            f"now; {format_bytes(had)} before, {format_bytes(has)} now"
        )
        output.line(f"'jsbackup forget {manifest.id} --prune' removes the old one")

    output.result(document, text)


def _stored_bytes(manifest: Manifest, broken: BrokenLists) -> int:
    """Return the bytes of all segments, as they are stored."""
    from jsbackup.repository.pages.segment_list import size_of

    return sum(size_of(one.segments) for one in manifest.streams if one.name not in broken)


def _tell_lost(output: Output, lost: Sequence[str]) -> None:
    """Print the sentences about key files of readers that are missing or damaged."""
    for sentence in lost:
        output.line(State("warning"), f": {sentence}")


COMMANDS = {"transform": transform, "compact": compact}
