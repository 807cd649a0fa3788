"""`jsbackup diff`. Modules for backups and servers are imported when it is called: `--help` and completion load
this.
"""

from __future__ import annotations

import click
from click.shell_completion import CompletionItem

from jsbackup.cli.options.latest import LATEST, WantedBackup, choosing_options, make_finder, parse_choosing
from jsbackup.cli.options.leases import lock_timeout_option, reading
from jsbackup.cli.options.opening import connection_of, open_repository, run_async
from jsbackup.cli.output.diff_report import tell_diff
from jsbackup.cli.output.log import start_log
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import Shared
from jsbackup.cli.parsing.typed_amounts import WholeNumber
from jsbackup.config import parse_glob
from jsbackup.errors import UsageError

__all__ = ["COMMANDS"]

LIVE = "live"


def _complete_side(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    live = [CompletionItem(LIVE)] if LIVE.startswith(incomplete) else []
    return live + complete_backup(ctx, param, incomplete)


@click.command(cls=Command, needs_server=True, answers=True)
@click.argument("a", shell_complete=_complete_side)
@click.argument("b", shell_complete=_complete_side)
@click.argument("streams", nargs=-1, metavar="[STREAM_OR_GLOB]...", shell_complete=complete_stream)
@click.option(
    "--exclude", multiple=True, metavar="GLOB", shell_complete=complete_stream, help="Leave these streams out."
)
@click.option(
    "--messages",
    "named",
    type=WholeNumber(0),
    default=5,
    show_default=True,
    metavar="N",
    help="Show up to this many added, removed and changed messages of each stream.",
)
@choosing_options
@lock_timeout_option
def diff(
    shared: Shared,
    a: str,
    b: str,
    streams: tuple[str, ...],
    *,
    exclude: tuple[str, ...],
    named: int,
    origins: tuple[str, ...],
    tags: tuple[str, ...],
    lock_timeout: str,
) -> int:
    """Compare two backups, or a backup and the streams of a server: what was added, removed and changed from A to B.

    A and B are ids of backups, their starts, or `latest`. One of them may be `live`; then `latest` is the newest
    backup of the connected source, if there is one. Streams with equal digests are equal; of others, only the
    segments that differ are read. A live stream is read whole, up to its last message at that time.
    """
    from jsbackup.repository.read.compared_streams import ComparedStreams
    from jsbackup.repository.read.diff import DiffRun, Side, diff_backups

    start_log(shared)
    globs, excluded = tuple(map(parse_glob, streams)), tuple(map(parse_glob, exclude))
    if a == b == LIVE:
        raise UsageError("both sides are live", hint="Name a backup on one side.")
    if LIVE not in (a, b) and shared.server:
        raise UsageError("server options make no sense between two backups", hint="Leave them out, or name `live`.")
    choosing = parse_choosing(LATEST if LATEST in (a, b) else a, origins, tags)
    connection = connection_of(shared) if LIVE in (a, b) else None
    repository = open_repository(shared)
    with (
        reading(shared, repository, "diff", lock_timeout),
        make_progress("diff", wanted=shared.progress) as progress,
    ):
        source = None
        if connection is not None and LATEST in (a, b):
            from jsbackup.engine.link.source import read_source

            source = run_async(read_source(connection))
        finders = [
            make_finder(
                shared,
                repository,
                WantedBackup(text, choosing, globs, excluded, silent=True, all_needed=False),
            )
            for text in (a, b)
            if text != LIVE
        ]
        found = iter([finder(source) for finder in finders])
        sides = [None if text == LIVE else next(found) for text in (a, b)]
        manifests = [manifest for manifest in sides if manifest is not None]
        choice = ComparedStreams(globs, excluded, manifests)
        consumers = all(m.selection is None or m.selection.consumers for m in manifests)
        run = DiffRun(repository.objects, choice.choose, consumers, named, progress)
        if connection is None:
            old, new = manifests
            report = diff_backups(run, old, new)
        else:
            from jsbackup.engine.check.diff_live import diff_live

            side = Side.A if sides[0] is not None else Side.B
            report = run_async(diff_live(run, connection, manifests[0], side))
    names = [LIVE if manifest is None else manifest.id for manifest in sides]
    return tell_diff(shared.output, names, report, choice.skipped)


COMMANDS = {"diff": diff}
