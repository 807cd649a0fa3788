"""`jsbackup schedule`: the commands of a profile as files for cron, systemd or Kubernetes.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click

from jsbackup.cli.output.new_file import check_new_file, write_new_file
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import CommandContext, Shared
from jsbackup.config import read_config
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile
    from jsbackup.cli.schedules.files import ScheduleFile
    from jsbackup.cli.schedules.planning import Plan

__all__ = ["COMMANDS"]

# As `schedules/planning.py` has them.
JOB_NAMES = ("backup", "forget", "verify", "status", "drill")
FORMATS = ("cron", "systemd", "kubernetes")

_IMAGE = re.compile(r"[a-z0-9][A-Za-z0-9._/:@-]{0,255}", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_-]{0,30}", re.ASCII)


@click.command(cls=Command)
@click.option("--format", "kind", type=click.Choice(FORMATS), required=True, help="What will run the jobs.")
@click.option(
    "--output", type=click.Path(path_type=Path), metavar="DIR", help="Write the files there, instead of printing them."
)
@click.option("--force", is_flag=True, help="Replace files that are there.")
@click.option(
    "--every",
    default="1h",
    show_default=True,
    metavar="DURATION",
    help="How often backup and status run: 5m, 10m, 15m, 30m, 1h, 2h, 3h, 4h, 6h, 8h, 12h, 1d …",
)
@click.option(
    "--at",
    metavar="HH:MM",
    help="When a daily backup begins; forget and verify follow one and two hours later (default: a minute "
    "after 02:00 that follows from the profile's name).",
)
@click.option(
    "--without", multiple=True, type=click.Choice(JOB_NAMES), metavar="JOB", help=f"Leave out: {', '.join(JOB_NAMES)}."
)
@click.option("--image", metavar="IMAGE", help="The container image, for Kubernetes.")
@click.option(
    "--run-as",
    metavar="USER",
    help="systemd: the user who owns a repository in a folder and runs the jobs (default: jsbackup; for S3 a "
    "temporary user).",
)
def schedule(
    shared: Shared,
    kind: str,
    output: Path | None,
    force: bool,
    *,
    every: str,
    at: str | None,
    without: tuple[str, ...],
    image: str | None,
    run_as: str | None,
) -> None:
    """Print files that run the profile of --profile: backup and status regularly, forget --prune and verify every
    day, drill every month. Nothing is installed.

    cron: lines for a crontab. systemd: a service and a timer for each job. kubernetes: a ConfigMap and a CronJob for
    each job. Jobs have the least rights that they need. The files contain no secrets, only the files and variables
    that the profile names; secrets in the profile itself are left out and named. A run that overlaps with the
    previous one does nothing.

    Defaults where the profile says nothing: backup creates no repository (--no-init), because a disk may not be
    mounted; status wants a backup no older than three intervals; verify reads 4 % a day. forget is left out if the
    profile has no keep- option for it. Times are local, in Kubernetes UTC.
    """
    from jsbackup.cli.schedules.planning import note_missing_in_pod, plan_schedule

    profile = _profile(shared)
    given = {"kubernetes": ("--run-as", run_as), "systemd": ("--image", image)}.get(kind)
    for option, value in [given] if given else [("--image", image), ("--run-as", run_as)]:
        if value is not None:
            raise UsageError(f"{option} makes no sense for {kind}", hint="Leave it out.")
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    plan, notes = plan_schedule(profile, partial(root.command.get_command, root), every, at, without=without)
    if kind == "kubernetes":
        notes += note_missing_in_pod(profile, plan)
    files = _files(kind, plan, profile, image, run_as=run_as)
    if output is not None:
        _write(output, files, force=force)
    document: JsonObject = {
        "format": kind,
        "profile": profile.name,
        "jobs": [{"job": job.name, "schedule": job.when.cron, "arguments": list(job.arguments)} for job in plan.jobs],
        "files": [{"name": file.name, "content": file.content} for file in files],
        "written_to": None if output is None else str(output),
        "notes": notes,
    }
    for note in notes:
        shared.output.note(note)

    def text() -> None:
        for number, file in enumerate(files):
            if output is not None:
                shared.output.line(f"wrote {output / file.name}")
            else:
                head = f"# ---- {file.name}\n" if len(files) > 1 else ""
                shared.output.verbatim(("\n" if number else "") + head + file.content)

    shared.output.result(document, text)


def _profile(shared: Shared) -> Profile:
    """Return the whole named profile. Raises UsageError for the first error in it."""
    if shared.config is None:
        raise UsageError("a schedule is for a profile, and none was named", hint="Name it with --profile.")
    ctx = click.get_current_context()
    assert isinstance(ctx, CommandContext) and isinstance(ctx.command, Command)
    profile = ctx.command.read_profile(ctx, read_config(shared.config), shared.profile, every_command=True)
    if profile.problems:
        raise profile.problems[0]
    return profile


def _files(kind: str, plan: Plan, profile: Profile, image: str | None, *, run_as: str | None) -> list[ScheduleFile]:
    from jsbackup.cli.schedules.files import schedule_files
    from jsbackup.cli.schedules.planning import without_secrets

    if run_as is not None and not _USER.fullmatch(run_as):
        raise UsageError(f"no user can be named {run_as!r}")
    if kind != "kubernetes":
        return schedule_files(kind, plan, user=run_as)
    if image is None:
        raise UsageError("there is no image for Kubernetes to run", hint="Name the one you have built with --image.")
    if not _IMAGE.fullmatch(image):
        raise UsageError(f"not the name of an image: {image!r}")
    config, withheld = without_secrets(profile)
    return schedule_files(kind, plan, image=image, config=config, withheld=tuple(withheld))


def _write(folder: Path, files: Sequence[ScheduleFile], *, force: bool) -> None:
    """Write all files, or none if one exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot make the folder {folder}: {reason}", hint="Name another one with --output."
        ) from error
    for file in files:
        check_new_file(folder / file.name, replace=force)
    for file in files:
        write_new_file(folder / file.name, file.content.encode(), replace=force)


COMMANDS = {"schedule": schedule}
