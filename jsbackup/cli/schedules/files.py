"""The files of a schedule: a plan (`planning.py`) put into a template for cron, systemd or Kubernetes (`templates/`).

Nothing here reads or writes the user's files, and the results contain no secrets, only references to them.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from jsbackup.cli.schedules.planning import SECRETS_FOLDER, Job, Plan
from jsbackup.errors import UsageError
from jsbackup.formats.yaml_text import to_yaml, yaml_scalar

__all__ = ["ScheduleFile", "schedule_files"]

# A CronJob's name has at most 52 characters, including `jsbackup-` and `-backup`.
_MAX_NAME: Final = 36
_HOMES: Final = ("/home", "/root", "/run/user")


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    name: str
    content: str


def schedule_files(
    kind: str, plan: Plan, *, user: str | None = None, image: str = "", config: str = "", withheld: tuple[str, ...] = ()
) -> list[ScheduleFile]:
    """Return the files for `cron`, `systemd` or `kubernetes`.

    `user` runs services of systemd; by default `jsbackup` if folders are written, else a dynamic user. `config` is the
    profile as TOML without secrets for Kubernetes, `withheld` the variables that replace some.

    Raises UsageError for a path that cannot be written into a unit.
    """
    templates = Environment(
        loader=FileSystemLoader(Path(__file__).with_name("templates")),
        autoescape=False,  # no file is HTML; each text is quoted as its place needs it
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    templates.filters |= {
        "shell": shlex.join,
        "word": _escaped,
        "quoted": _quoted,
        "end_of_line": _end_of_line,
        "yaml": lambda value: yaml_scalar(str(value)),
        "yaml_map": to_yaml,
    }
    base = f"jsbackup-{plan.profile}"
    if kind == "systemd":
        return [
            ScheduleFile(
                f"{base}-{job.name}.{unit}",
                templates.get_template(f"{unit}.j2").render(plan=plan, job=job, user=user, in_home=_in_home(plan, job)),
            )
            for job in plan.jobs
            for unit in ("service", "timer")
        ]
    content = templates.get_template(f"{kind}.j2").render(
        plan=plan,
        name=_object_name(plan.profile),
        image=image,
        config=config,
        withheld=withheld,
        secrets_folder=SECRETS_FOLDER,
    )
    return [ScheduleFile(f"{base}.{'cron' if kind == 'cron' else 'yaml'}", content)]


def _in_home(plan: Plan, job: Job) -> bool:
    """Return whether a service needs the home directories that it would not see otherwise."""
    paths = (*job.folders, Path(plan.program[0]))
    return any(path.is_relative_to(folder) for path in paths for folder in _HOMES)


def _escaped(word: str) -> str:
    """Escape a word of a command: variables are expanded there, so `$` is doubled."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str | Path) -> str:
    """Quote a word of a unit file: `%` is special there, and quotes keep spaces."""
    text = str(word).replace("%", "%%")
    if not text or any(letter in " \t\"'\\;" for letter in text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _end_of_line(path: str | Path) -> str:
    """Return the rest of a line, in which quotes are literal. Raises UsageError for an end that would not be read."""
    text = str(path)
    if text.endswith(("\\", " ")):
        raise UsageError(f"no unit can name the file {text!r}", hint="Give it a name that ends with another character.")
    return text.replace("%", "%%")


def _object_name(profile: str) -> str:
    """Return the profile's name for an object of Kubernetes: lower case, digits and hyphens (RFC 1123), and a hash if
    that changes it.
    """
    plain = re.sub(r"[^a-z0-9-]", "-", profile.lower()).strip("-")
    if plain != profile or len(plain) > _MAX_NAME:
        plain = f"{plain[: _MAX_NAME - 7]}-{hashlib.sha256(profile.encode()).hexdigest()[:6]}"
    return f"jsbackup-{plain}"
