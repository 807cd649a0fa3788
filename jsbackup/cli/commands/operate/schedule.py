"""`jsbackup schedule`: the commands of a profile as files for cron, systemd or Kubernetes.

A plan says what runs when: the jobs of a profile, the files and variables that they need. It is the same for every
format, and put into a template (`templates/`). The results contain no secrets, only references to them.

Minutes and days follow from the profile's name, so that a hundred hosts with a hundred profiles do not use one store at
the full hour, and the same files are printed every time.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from jsbackup.cli.output.new_file import check_new_file, write_new_file
from jsbackup.cli.output.result import PlainText, Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, CommandContext, Shared
from jsbackup.config import parse_duration, read_config
from jsbackup.errors import UsageError
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.profiles.profiles import Profile, Setting

__all__ = ["COMMANDS", "JOBS", "Job", "Plan", "schedule_files", "times_of", "toml_text"]

JOBS: Final = ("backup", "forget", "verify", "status", "drill")
FORMATS = ("cron", "systemd", "kubernetes")
# Minutes that divide an hour, and hours that divide a day.
INTERVALS = ("5m", "10m", "15m", "20m", "30m", "1h", "2h", "3h", "4h", "6h", "8h", "12h", "1d")


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
    type=click.Choice(INTERVALS),
    metavar="INTERVAL",
    help=f"How often backup and status run: {', '.join(INTERVALS)}.",
)
@click.option(
    "--at",
    type=click.DateTime(["%H:%M"]),
    metavar="HH:MM",
    help="When a daily backup begins; forget and verify follow one and two hours later (default: a minute "
    "after 02:00 that follows from the profile's name).",
)
@click.option("--without", multiple=True, type=click.Choice(JOBS), metavar="JOB", help=f"Leave out: {', '.join(JOBS)}.")
@click.option("--image", default="", metavar="IMAGE", help="The container image, for Kubernetes.")
@click.option(
    "--run-as",
    default="",
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
    at: datetime | None,
    without: tuple[str, ...],
    image: str,
    run_as: str,
) -> Result:
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
    if (image and kind != "kubernetes") or (run_as and kind != "systemd"):
        raise UsageError(f"--image is for kubernetes, and --run-as for systemd, not {kind}", hint="Leave it out.")
    if kind == "kubernetes" and not image:
        raise UsageError("there is no image for Kubernetes to run", hint="Name the one you have built with --image.")
    _check_lines([image, run_as])
    if shared.config is None:
        raise UsageError("a schedule is for a profile, and none was named", hint="Name it with --profile.")
    ctx = click.get_current_context()
    assert isinstance(ctx, CommandContext) and isinstance(ctx.command, Command)
    profile = ctx.command.read_profile(ctx, read_config(shared.config), shared.profile, every_command=True)
    if profile.problems:
        raise profile.problems[0]
    plan, notes = _plan(profile, every, at, without)
    config, withheld = _without_secrets(profile)
    files = schedule_files(kind, plan, user=run_as, image=image, config=config, withheld=withheld)
    if output is not None:
        _write(output, files, force=force)
    document: JsonObject = {
        "format": kind,
        "profile": profile.name,
        "jobs": [{"job": job.name, "schedule": job.when.cron, "arguments": list(job.arguments)} for job in plan.jobs],
        "files": [{"name": name, "content": content} for name, content in files.items()],
        "written_to": None if output is None else str(output),
        "notes": notes,
    }
    for note in notes:
        shared.output.note(note)
    if output is not None:
        return Result(document, [f"wrote {output / name}" for name in files])
    texts = [f"# ---- {name}\n{content}\n" if len(files) > 1 else content for name, content in files.items()]
    return Result(document, map(PlainText, texts))


def _write(folder: Path, files: Mapping[str, str], *, force: bool) -> None:
    """Write all files, or none if one exists."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UsageError(
            f"cannot make the folder {folder}: {reason}", hint="Name another one with --output."
        ) from error
    for name in files:
        check_new_file(folder / name, replace=force)
    for name, content in files.items():
        write_new_file(folder / name, content.encode(), replace=force)


# --- what runs when ---


@dataclass(frozen=True, slots=True)
class When:
    """Minutes of hours of days: `hours` None means every hour, `day` None every day, else that day of each month."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...] | None = None
    day: int | None = None

    @property
    def cron(self) -> str:
        """Return the five fields for cron and Kubernetes."""
        hours = "*" if self.hours is None else ",".join(map(str, self.hours))
        return f"{','.join(map(str, self.minutes))} {hours} {self.day or '*'} * *"


_DAY_MINUTES: Final = 24 * 60


def times_of(profile: str, every: str, at: datetime | None) -> tuple[Mapping[str, When], int]:
    """Return when each of JOBS runs, and the minutes between backups, which are those of INTERVALS."""
    seed = int.from_bytes(hashlib.sha256(profile.encode()).digest()[:8], "big")
    between = int(parse_duration(every)) // 60
    start = 2 * 60 + seed % 60 if at is None else at.hour * 60 + at.minute

    def daily(after: int, day: int | None = None) -> When:
        hour, minute = divmod((start + after) % _DAY_MINUTES, 60)
        return When((minute,), (hour,), day)

    return {
        "backup": _every(between, start),
        "forget": daily(60),
        "verify": daily(120),
        "status": _every(between, start + (between // 2 if between < _DAY_MINUTES else 30)),
        "drill": daily(180, day=seed // 60 % 28 + 1),  # a day that every month has
    }, between


def _every(between: int, start: int) -> When:
    if between < 60:
        return When(tuple(range(start % between, 60, between)))
    hours = None if between == 60 else tuple(range(start // 60 % (between // 60), 24, between // 60))
    return When((start % 60,), hours)


@dataclass(frozen=True, slots=True)
class Job:
    """One command. `arguments` are added to the profile's; `credentials` are files with secrets or certificates, by
    the name of their option; `folders` must be writable, including `repo`, which is None in S3.
    """

    name: str
    arguments: tuple[str, ...]
    when: When
    credentials: tuple[tuple[str, str], ...] = ()
    repo: Path | None = None
    outputs: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys([*([self.repo] if self.repo else []), *self.outputs]))


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a profile in the file `config`. `program` are the words that start jsbackup.

    `variables` are the environment variables that the profile names. Construction raises UsageError for a text that
    could end a line in a file of any format, or join it with the next one.
    """

    profile: str
    config: Path
    program: tuple[str, ...]
    jobs: tuple[Job, ...]
    variables: tuple[str, ...]
    every_minutes: int

    def __post_init__(self) -> None:
        _check_lines([self.profile, self.config, *self.program, *self.variables])
        for job in self.jobs:
            _check_lines([*job.arguments, *job.folders, *(path for _, path in job.credentials)])


def _check_lines(texts: Iterable[object]) -> None:
    for text in map(str, texts):
        if not text.isprintable() or text.endswith(("\\", " ")):
            raise UsageError(
                f"no file of a schedule may hold {text[:100]!r}",
                hint="Line feeds, control characters, invisible ones and a backslash at the end are refused.",
            )


# --- of a profile ---

_SECRETS_FOLDER: Final = "/etc/jsbackup/secrets"  # in a pod
# A login in a URL, in any option.
_LOGIN = re.compile(r"://[^/\s]*@")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\benv://([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_REFERENCE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)

# Shared options that name a file to read: parameter name -> option without dashes.
_FILE_OPTIONS: Final[Mapping[str, str]] = {
    str(option.name): option.opts[0].removeprefix("--")
    for option in (*SERVER_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS)
    if option.metavar == "FILE"
}
_READERS: Final = frozenset({"identity", "identity_command", "passphrase_file", "passphrase_command"})


def _plan(profile: Profile, every: str, at: datetime | None, without: Sequence[str]) -> tuple[Plan, list[str]]:
    """Return the plan, and notes for the user. Raises UsageError."""
    times, between = times_of(profile.name, every, at)
    root = click.get_current_context().find_root()
    assert isinstance(root.command, click.Group)
    notes: list[str] = []
    jobs: list[Job] = []
    for name in JOBS:
        command, values = root.command.get_command(root, name), profile.values(name)
        if name in without or command is None:
            continue
        if name == "forget" and not any(key.startswith("keep_") and value for key, value in values.items()):
            notes.append("the profile keeps all backups: write what to keep into its table forget, such as keep-daily")
            continue
        if name == "drill" and values.keys() & {"writer_key", "writer_key_command"} and not values.keys() & _READERS:
            notes.append("drill is left out: with a writer key and no identity, the profile cannot read messages")
            continue
        taken = {str(parameter.name) for parameter in command.params}
        jobs.append(_job(name, {key: value for key, value in values.items() if key in taken}, times[name], between))
    if any("--no-init" in job.arguments for job in jobs):
        notes.append(
            "the scheduled backup creates no repository (--no-init): create it once, with 'jsbackup init' or a first "
            "backup"
        )
    if not jobs:
        raise UsageError("nothing is left to run", hint="Leave out fewer jobs.")
    matches = [match for setting in profile.settings for text in _texts(setting) for match in _VARIABLE.finditer(text)]
    variables = tuple(sorted({match[1] or match[2] for match in matches}))
    return Plan(profile.name, profile.path.absolute(), _program(), tuple(jobs), variables, between), notes


def _job(name: str, values: Mapping[str, Any], when: When, between: int) -> Job:
    defaults = {
        "backup": () if "no_init" in values else ("--no-init",),  # an unmounted disk must not get a new repository
        "forget": () if values.get("prune") else ("--prune",),
        "verify": () if values.keys() & {"sample", "max_bytes"} else ("--sample", "4"),
        "status": () if "max_age" in values else ("--max-age", f"{3 * between}m"),
    }
    files = {option: str(values.get(key) or "").removeprefix("file://") for key, option in _FILE_OPTIONS.items()}
    credentials = tuple(
        (option, str(_absolute(path, option)))
        for option, path in files.items()
        if path and not _REFERENCE.match(path)  # other kinds of references are not files
    )
    if values.get("accounts"):
        _absolute(values["accounts"], "accounts")
    outputs = tuple(_absolute(values[key], key).parent for key in ("metrics", "page") if values.get(key))
    return Job(name, (name, *defaults.get(name, ())), when, credentials, _folder(values), outputs)


def _folder(values: Mapping[str, Any]) -> Path | None:
    """Return the folder of the repository, None in S3. Raises UsageError if there is none, or its location is not
    absolute.
    """
    repo = values.get("repo")
    if not repo:
        raise UsageError("the profile names no repository", hint="Write repo = … into it.")
    if re.match(r"s3://", repo, re.IGNORECASE):
        return None
    return _absolute(re.sub(r"^file://(localhost)?(?=/)", "", repo), "repo")


def _absolute(path: str | Path, key: str) -> Path:
    if not Path(path).is_absolute():
        raise UsageError(
            f"{key} of the profile does not begin with /: {path}",
            hint="Scheduled commands run in another folder: write all of the path.",
        )
    return Path(path)


def _texts(setting: Setting) -> list[str]:
    written = setting.written if isinstance(setting.written, list) else [setting.written]
    return [text for text in written if isinstance(text, str)]


def _program() -> tuple[str, ...]:
    """Return the words that start this program from any folder."""
    if Path(sys.argv[0]).name == "jsbackup" and (path := shutil.which(sys.argv[0])):
        return (str(Path(path).absolute()),)
    return (sys.executable, "-m", "jsbackup")


def _without_secrets(profile: Profile) -> tuple[str, tuple[str, ...]]:
    """Return the profile as TOML, with variables instead of secrets and paths in the container; and those variables."""
    own = {(setting.table, setting.key) for setting in profile.settings if not setting.of_defaults}
    top = f"profiles.{_toml(profile.name)}"
    tables: dict[str, dict[str, Any]] = {top: {}}
    withheld: list[str] = []
    for setting in profile.settings:
        if setting.of_defaults and (setting.table, setting.key) in own:
            continue
        base = "defaults" if setting.of_defaults else top
        value, texts = setting.written, _texts(setting)
        if setting.is_secret or any(_LOGIN.search(text) and "${" not in text for text in texts):
            variable = f"SECRET_{re.sub(r'[^A-Z0-9]', '_', setting.path.upper())}"
            withheld.append(variable)
            value = f"${{{variable}}}"
        elif setting.name in _FILE_OPTIONS and not _REFERENCE.match(texts[0].removeprefix("file://")):
            value = f"{_SECRETS_FOLDER}/{setting.key}"
        tables.setdefault(f"{base}.{setting.table}" if setting.table else base, {})[setting.key] = value
    return toml_text(tables), tuple(withheld)


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Encode tables of texts, numbers, booleans and lists of texts as TOML."""
    return "\n".join(
        line
        for name, table in tables.items()
        for line in (f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()), "")
    )


def _toml(value: Any) -> str:
    # JSON's texts are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# --- the files ---

# A CronJob's name has at most 52 characters, including `jsbackup-` and `-backup`.
_MAX_NAME: Final = 36
_HOMES: Final = ("/home", "/root", "/run/user")


def schedule_files(
    kind: str, plan: Plan, *, user: str = "", image: str = "", config: str = "", withheld: Sequence[str] = ()
) -> dict[str, str]:
    """Return the texts of the files for `cron`, `systemd` or `kubernetes`, by name.

    `user` runs services of systemd; by default `jsbackup` if folders are written, else a dynamic user. `config` is the
    profile as TOML without secrets for Kubernetes, `withheld` the variables that replace some.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    from jsbackup.formats.yaml_text import to_yaml, yaml_scalar

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
        "end_of_line": lambda path: str(path).replace("%", "%%"),  # where quotes are literal
        "yaml": lambda value: yaml_scalar(str(value)),
        "yaml_map": to_yaml,
    }
    base = f"jsbackup-{plan.profile}"
    if kind == "systemd":
        files = {}
        for job in plan.jobs:
            paths = (*job.folders, Path(plan.program[0]))
            in_home = any(path.is_relative_to(folder) for path in paths for folder in _HOMES)
            for unit in ("service", "timer"):
                template = templates.get_template(f"{unit}.j2")
                files[f"{base}-{job.name}.{unit}"] = template.render(plan=plan, job=job, user=user, in_home=in_home)
        return files
    content = templates.get_template(f"{kind}.j2").render(
        plan=plan,
        name=_object_name(plan.profile),
        image=image,
        config=config,
        withheld=tuple(withheld),
        secrets_folder=_SECRETS_FOLDER,
    )
    return {f"{base}.{'cron' if kind == 'cron' else 'yaml'}": content}


def _escaped(word: str) -> str:
    """Escape a word of a command: variables are expanded there, so `$` is doubled."""
    return _quoted(word.replace("$", "$$"))


def _quoted(word: str | Path) -> str:
    """Quote a word of a unit file: `%` is special there, and quotes keep spaces."""
    text = str(word).replace("%", "%%")
    if not text or any(letter in " \t\"'\\;" for letter in text):
        text = '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
    return text


def _object_name(profile: str) -> str:
    """Return the profile's name for an object of Kubernetes: lower case, digits and hyphens (RFC 1123), and a hash if
    that changes it.
    """
    plain = re.sub(r"[^a-z0-9-]", "-", profile.lower()).strip("-")
    if plain != profile or len(plain) > _MAX_NAME:
        plain = f"{plain[: _MAX_NAME - 7]}-{hashlib.sha256(profile.encode()).hexdigest()[:6]}"
    return f"jsbackup-{plain}"


COMMANDS = {"schedule": schedule}
