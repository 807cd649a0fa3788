"""What a schedule runs, and when: the jobs of a profile, the files and variables that they need, and the parts of the
profile that are not secret. The same for every format.

Minutes and days follow from the profile's name, so that a hundred hosts with a hundred profiles do not use one store at
the full hour, and the same files are printed every time.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click

from jsbackup.cli.options.shared import KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS
from jsbackup.cli.profiles.profiles import HOOKS, Profile, Setting
from jsbackup.config import parse_duration
from jsbackup.errors import UsageError

__all__ = [
    "JOBS",
    "SECRETS_FOLDER",
    "Credential",
    "Job",
    "Plan",
    "When",
    "note_missing_in_pod",
    "plan_schedule",
    "times_of",
    "toml_text",
    "without_secrets",
]

SECRETS_FOLDER: Final = "/etc/jsbackup/secrets"  # in a pod
JOBS: Final = ("backup", "forget", "verify", "status", "drill")

_DAY_MINUTES: Final = 24 * 60
_TIME = re.compile(r"([01]?\d|2[0-3]):([0-5]\d)", re.ASCII)
# Exists in every month.
_DAYS: Final = 28
_FORGET_AFTER, _VERIFY_AFTER, _DRILL_AFTER = 60, 120, 180


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

    @property
    def calendar(self) -> str:
        """Return the time for systemd."""
        hours = "*" if self.hours is None else ",".join(f"{hour:02}" for hour in self.hours)
        day = "*" if self.day is None else f"{self.day:02}"
        return f"*-*-{day} {hours}:{','.join(f'{minute:02}' for minute in self.minutes)}:00"


@dataclass(frozen=True, slots=True)
class Credential:
    """A file with a secret or a certificate, and its option (`--creds`)."""

    option: str
    path: str

    @property
    def name(self) -> str:
        return self.option.removeprefix("--")


@dataclass(frozen=True, slots=True)
class Job:
    """One command. `arguments` are added to the profile's; `folders` must be writable, including `repo`."""

    name: str
    arguments: tuple[str, ...]
    when: When
    credentials: tuple[Credential, ...] = ()
    repo: Path | None = None
    outputs: tuple[Path, ...] = ()

    @property
    def folders(self) -> tuple[Path, ...]:
        return tuple(dict.fromkeys([*([self.repo] if self.repo else []), *self.outputs]))


@dataclass(frozen=True, slots=True)
class Plan:
    """All jobs of a profile in the file `config`. `program` are the words that start jsbackup.

    `variables` are the environment variables that the profile names. Construction raises UsageError for a text that
    could end a line in a file of any format.
    """

    profile: str
    config: Path
    program: tuple[str, ...]
    jobs: tuple[Job, ...]
    variables: tuple[str, ...]
    every_minutes: int

    def __post_init__(self) -> None:
        for what, text in self._texts():
            if not all(map(_is_of_a_line, text)):
                raise UsageError(
                    f"{what} has a character that no file of a schedule may hold: {text[:100]!r}",
                    hint="Line feeds, control characters and invisible ones are refused.",
                )

    def _texts(self) -> Iterator[tuple[str, str]]:
        """Yield all untrusted texts, with descriptions."""
        yield "the name of the profile", self.profile
        yield "the path of the config file", str(self.config)
        yield from (("the path of this program", word) for word in self.program)
        yield from (("the name of a variable", name) for name in self.variables)
        for job in self.jobs:
            yield from (("an option", word) for word in job.arguments)
            yield from ((f"{credential.name} of the profile", credential.path) for credential in job.credentials)
            yield from (("repo of the profile", str(folder)) for folder in job.folders[:1] if folder == job.repo)
            yield from (("a path of the profile", str(folder)) for folder in job.folders)

    @property
    def in_s3(self) -> bool:
        return any(job.repo is None for job in self.jobs)

    @property
    def in_folder(self) -> bool:
        return any(job.repo is not None for job in self.jobs)


def _is_of_a_line(letter: str) -> bool:
    """Return whether it cannot end a line or be dropped: YAML also ends lines at U+0085 and U+2028."""
    return letter.isprintable() or unicodedata.category(letter) == "Zs"


def times_of(profile: str, every: str, at: str | None) -> tuple[Mapping[str, When], int]:
    """Return when each of JOBS runs, and the minutes between backups. Raises UsageError."""
    seed = int.from_bytes(hashlib.sha256(profile.encode()).digest()[:8], "big")
    between = _minutes_between(every)
    start = 2 * 60 + seed % 60 if at is None else _minute_of_day(at)

    def daily(after: int, day: int | None = None) -> When:
        hour, minute = divmod((start + after) % _DAY_MINUTES, 60)
        return When((minute,), (hour,), day)

    backup = _every(between, start)
    return {
        "backup": backup,
        "forget": daily(_FORGET_AFTER),
        "verify": daily(_VERIFY_AFTER),
        "status": _every(between, start + between // 2 if between < _DAY_MINUTES else start + _FORGET_AFTER // 2),
        "drill": daily(_DRILL_AFTER, seed // 60 % _DAYS + 1),
    }, between


def _every(between: int, start: int) -> When:
    if between < 60:
        return When(tuple(range(start % between, 60, between)))
    hours = None if between == 60 else tuple(range(start // 60 % (between // 60), 24, between // 60))
    return When((start % 60,), hours)


def _minutes_between(every: str) -> int:
    seconds = parse_duration(every)
    minutes = int(seconds // 60)
    fits = seconds == minutes * 60 and minutes > 0
    whole = fits and (60 % minutes == 0 if minutes < 60 else minutes % 60 == 0 and _DAY_MINUTES % minutes == 0)
    if not whole:
        raise UsageError(
            f"backups cannot be made every {every}",
            hint="Choose minutes that divide an hour (5m, 10m, 15m, 30m) or hours that divide a day (1h, 6h, 1d).",
        )
    return minutes


def _minute_of_day(at: str) -> int:
    match = _TIME.fullmatch(at)
    if match is None:
        raise UsageError(f"not a time of day: {at!r}", hint="Write hours and minutes, such as 02:30.")
    return int(match[1]) * 60 + int(match[2])


# --- of a profile ---

# A login in a URL, in any option.
_LOGIN = re.compile(r"://[^/\s]*@")
_VARIABLE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\benv://([A-Za-z_][A-Za-z0-9_]*)", re.ASCII)
_REFERENCE: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:", re.ASCII)

# Shared options that name a file to read.
_FILE_OPTIONS: Final[Mapping[str, str]] = {
    str(option.name): option.opts[0]
    for option in (*SERVER_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS)
    if option.metavar == "FILE"
}
_READERS: Final = frozenset({"identity", "identity_command", "passphrase_file", "passphrase_command"})

_OF_HOME: Final = {
    "context": ("a context of the nats CLI is looked for", "name its parts"),
    "s3_profile": (
        "the profile of the AWS configuration (s3-profile) is looked for",
        "name s3-region, and give AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY in the environment",
    ),
}

FindCommand = Callable[[str], click.Command | None]


def plan_schedule(
    profile: Profile, find: FindCommand, every: str, at: str | None, *, without: Sequence[str]
) -> tuple[Plan, list[str]]:
    """Return the plan, and notes for the user. `find` returns a command by its name. Raises UsageError."""
    times, between = times_of(profile.name, every, at)
    notes: list[str] = []
    jobs: list[Job] = []
    for name in JOBS:
        command = find(name)
        values = profile.values(name)
        if name in without or command is None:
            continue
        if name == "forget" and not any(key.startswith("keep_") and value for key, value in values.items()):
            notes.append("the profile keeps all backups: write what to keep into its table forget, such as keep-daily")
            continue
        if name == "drill" and values.keys() & {"writer_key", "writer_key_command"} and not values.keys() & _READERS:
            notes.append("drill is left out: with a writer key and no identity, the profile cannot read messages")
            continue
        taken = {str(parameter.name) for parameter in command.params}
        jobs.append(_job(name, {key: value for key, value in values.items() if key in taken}, times, between))
    if any("--no-init" in job.arguments for job in jobs):
        notes.append(
            "the scheduled backup creates no repository (--no-init): create it once, with 'jsbackup init' or a first "
            "backup"
        )
    if profile.values("backup").get("all_accounts"):
        _absolute(profile.values("backup").get("accounts") or "", "accounts")
        notes.append(
            "the file of --accounts, and those that it names, are not lent to the job: let the user who runs it read "
            "them, and nobody else (in Kubernetes, mount them from a secret)"
        )
    if not jobs:
        raise UsageError("nothing is left to run", hint="Leave out fewer jobs.")
    for name, (words, instead) in _OF_HOME.items():
        if any(name in profile.values(job.name) for job in jobs):
            notes.append(f"{words} in the home directory of the user who runs this: {instead} instead")
    written = [text for setting in profile.settings for text in _texts(setting)]
    found = {name for text in written for match in _VARIABLE.finditer(text) for name in match.groups() if name}
    plan = Plan(profile.name, profile.path.absolute(), _program(), tuple(jobs), tuple(sorted(found)), between)
    return plan, notes


def note_missing_in_pod(profile: Profile, plan: Plan) -> list[str]:
    """Return a note if settings of the jobs name files or programs of this machine that no secret brings to the pod."""
    tables = {"", HOOKS, *(job.name for job in plan.jobs)}
    brought = {*_FILE_OPTIONS, "metrics", "page"}
    names = [
        setting.path
        for setting in profile.settings
        if setting.table in tables
        and setting.name not in brought
        and getattr(setting.parameter, "metavar", None) in ("FILE", "FOLDER", "COMMAND")
        and not any(_REFERENCE.match(text) for text in _texts(setting))
    ]
    if not names:
        return []
    return [f"the image must have the files and programs of this machine that the profile names: {', '.join(names)}"]


def _job(name: str, values: Mapping[str, Any], times: Mapping[str, When], between: int) -> Job:
    arguments = [name]
    if name == "backup" and "no_init" not in values:  # an unmounted disk must not get a new repository
        arguments.append("--no-init")
    if name == "forget" and not values.get("prune"):
        arguments.append("--prune")
    if name == "verify" and not values.keys() & {"sample", "max_bytes"}:
        arguments += ["--sample", "4"]
    if name == "status" and "max_age" not in values:
        arguments += ["--max-age", f"{3 * between}m"]
    outputs = tuple(_absolute(values[key], key).parent for key in ("metrics", "page") if values.get(key))
    return Job(name, tuple(arguments), times[name], _credentials(values), _folder(values), outputs)


def _credentials(values: Mapping[str, Any]) -> tuple[Credential, ...]:
    """Return files with secrets and certificates in the profile; other kinds of references are not files."""
    paths = {option: str(values.get(name) or "").removeprefix("file://") for name, option in _FILE_OPTIONS.items()}
    return tuple(
        Credential(option, str(_absolute(path, option.removeprefix("--"))))
        for option, path in paths.items()
        if path and not _REFERENCE.match(path)
    )


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
    found = Path(path)
    if not found.is_absolute():
        raise UsageError(
            f"{key} of the profile does not begin with /: {path}",
            hint="Scheduled commands run in another folder: write all of the path.",
        )
    return found


def _texts(setting: Setting) -> list[str]:
    written = setting.written if isinstance(setting.written, list) else [setting.written]
    return [text for text in written if isinstance(text, str)]


def _program() -> tuple[str, ...]:
    """Return the words that start this program from any folder."""
    if Path(sys.argv[0]).name == "jsbackup" and (found := shutil.which(sys.argv[0])):
        return (str(Path(found).absolute()),)
    return (sys.executable, "-m", "jsbackup")


def without_secrets(profile: Profile) -> tuple[str, list[str]]:
    """Return the profile as TOML, with variables instead of secrets and paths in the container; and those variables."""
    own = {(setting.table, setting.key) for setting in profile.settings if not setting.of_defaults}
    top = f"profiles.{_quoted(profile.name)}"
    tables: dict[str, dict[str, Any]] = {}
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
            value = f"{SECRETS_FOLDER}/{setting.key}"
        tables.setdefault(f"{base}.{setting.table}" if setting.table else base, {})[setting.key] = value
    tables.setdefault(top, {})
    return toml_text(tables), withheld


def _quoted(name: str) -> str:
    return f'"{name}"' if "." in name else name


def toml_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Encode tables of texts, numbers, booleans and lists of texts as TOML."""
    lines: list[str] = []
    for name, table in tables.items():
        lines += [f"[{name}]", *(f"{key} = {_toml(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def _toml(value: Any) -> str:
    # JSON's texts are TOML's, but for DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
