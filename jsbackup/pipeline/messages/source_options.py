"""The options of the data source `jsbackup`, and the backup that they mean.

    path                  where the repository is, as `load` has it: a folder, `s3://bucket/prefix`; also `repo`
    backup                an id, the start of one, or `latest` (the default)
    at                    in place of `backup`, not beside it: what `latest` was at this time, that is among the backups
                          that began at it or before. In RFC 3339, or a duration before now such as `24h`; a date or a
                          time without a zone is in UTC, wherever Spark runs
    origin                of which cluster or account, where the repository has backups of several
    stream                a name or a pattern such as `KV_*`; without it all streams
    streams               several: separated by commas, or as a JSON list
    columns               names of columns, separated by commas (`columns.py` has them); fewer are faster
    cores                 how many cores Spark has, if more than this machine: small backups are then split into more
                          partitions
    start                 of a streaming query: `earliest` (the default) begins with all stored messages, `latest` with
                          what is new
    maxMessagesPerTrigger, maxBytesPerTrigger        how much a micro-batch has at most
    failOnDataLoss        `false`: a streaming query goes on where backups were forgotten that it had not read
    s3-…, identity, identity-command, passphrase-file, passphrase-command, writer-key, …: as on the command line

Case does not matter, nor do `-` and `_`. Options may be visible to others, so none of them is a secret; executors read
the files and variables that they name.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from jsbackup.config import (
    Glob,
    environment,
    nearest,
    parse_bool,
    parse_duration,
    parse_size,
    parse_typed_time,
    s3_settings,
)
from jsbackup.errors import FormatError, JsBackupError, UsageError
from jsbackup.model import S3Settings
from jsbackup.pipeline.messages.columns import COLUMNS, check_columns
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.repository import layout
from jsbackup.repository.read.latest import Choice, Wanted
from jsbackup.repository.repository import Repository
from jsbackup.strict_json import read_json

__all__ = ["SourceOptions", "one_sentence", "options_of", "read_options"]

_KEYS = (
    "writer_key",
    "writer_key_command",
    "identity",
    "identity_command",
    "passphrase_file",
    "passphrase_command",
    "expect_signer",
)
_S3 = ("endpoint", "region", "profile", "path_style", "ca", "sse", "sse_kms_key", "storage_class")
_READING = ("path", "repo", "backup", "at", "origin", "stream", "streams", "columns")
_OWN = (*_READING, "cores", "start")
_STREAMING = ("maxMessagesPerTrigger", "maxBytesPerTrigger", "failOnDataLoss")

# As the table above writes them.
_NAMES = (*_OWN, *_STREAMING, *(name.replace("_", "-") for name in (*_KEYS, *(f"s3_{name}" for name in _S3))))
_TABLE = (
    "Spark passes no options to a table (CREATE TABLE … USING jsbackup). "
    "Write CREATE TEMPORARY VIEW … USING jsbackup OPTIONS (path '…')."
)
_MOST = (1 << 63) - 1


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """The options of a reader. `at_ns` is a Unix time, None for `latest` itself; limits are 0 if there are none.
    `of_queries` names those given that are for streaming queries only.
    """

    place: RepositoryRef
    backup: str = layout.LATEST
    at_ns: int | None = None
    origin: str = ""
    patterns: tuple[str, ...] = ()
    columns: tuple[str, ...] = COLUMNS
    cores: int = 0
    from_latest: bool = False
    most_messages: int = 0
    most_bytes: int = 0
    fail_on_loss: bool = True
    names_backup: bool = False
    of_queries: tuple[str, ...] = ()

    @property
    def origins(self) -> tuple[Glob, ...]:
        return (Glob(self.origin),) if self.origin else ()

    def choose(self, repository: Repository) -> Choice:
        """Return the backup that is meant.

        Raises:
            UsageError: there is none, or several sources are possible.
            FormatError, UnsupportedError, KeyUnavailable, IntegrityError, StoreError: as `Repository.choose`.
        """
        backup = self.backup if self.at_ns is None else layout.LATEST
        return repository.choose(backup, Wanted(origins=self.origins, until_ns=self.at_ns))


def read_options(options: Mapping[str, str]) -> SourceOptions:
    """Return what the options of a reader say. Raises UsageError for what is unknown, missing or wrong."""
    # What Spark adds for CREATE TABLE, the second with a LOCATION.
    if any(name.startswith("option.") or name.lower() == "owner" for name in options):
        raise UsageError("a backup cannot be a table of Spark", hint=_TABLE)
    given_options: dict[str, str] = {}
    for given, value in options.items():
        if given == "paths":
            raise UsageError("the data source jsbackup reads one repository", hint="Give load() one path.")
        given_options[_option_of(given)] = value
    keys = {name: given_options[option] for name in _KEYS if (option := name.replace("_", "-")) in given_options}
    at = given_options.get("at")
    if at is not None and "backup" in given_options:
        raise UsageError("the options 'backup' and 'at' exclude each other", hint="'at' chooses a backup by its time.")
    return SourceOptions(
        place=place_of(location := _location(given_options), _s3(location, given_options), keys),
        backup=given_options.get("backup", layout.LATEST),
        at_ns=None if at is None else _moment(at),
        origin=given_options.get("origin", ""),
        patterns=_patterns(given_options),
        columns=_columns(given_options.get("columns", "")),
        cores=_number("cores", given_options.get("cores", "0"), 999_999),
        from_latest=_start(given_options.get("start", "earliest")),
        most_messages=_limit(given_options, "maxMessagesPerTrigger"),
        most_bytes=_limit(given_options, "maxBytesPerTrigger"),
        fail_on_loss=_bool("failOnDataLoss", given_options.get("failOnDataLoss", "true")),
        names_backup=bool({"backup", "at"} & given_options.keys()),
        of_queries=tuple(name for name in ("start", *_STREAMING) if name in given_options),
    )


def options_of(place: RepositoryRef) -> dict[str, str]:
    """Return a place as options of the data source."""
    s3 = {f"s3-{name.replace('_', '-')}": getattr(place.s3, name) for name in _S3}
    keys = {name.replace("_", "-"): value for name, value in place.keys}
    return {"path": place.location, **keys, **{k: str(v) for k, v in s3.items() if v is not None}}


@contextmanager
def one_sentence() -> Iterator[None]:
    """Put the hint of an error behind its message: of an error in another process Spark shows the message only.
    Options of the command line that it names become those of the data source.
    """
    try:
        yield
    except JsBackupError as error:
        text = error.message if error.hint is None else f"{error.message.rstrip('.')}. {error.hint}"
        said = re.sub(r"--([a-z][a-z0-9-]+)(?: [A-Z]+)?", _as_option, text)
        if said == error.message:
            raise
        raise error.with_message(said) from None


def _as_option(match: re.Match[str]) -> str:
    return f"the option '{match[1]}'" if match[1] in _NAMES else match[0]


def _option_of(given: str) -> str:
    """Return the option that is meant: case does not matter, nor do `-` and `_`. Raises UsageError if there is none."""
    for name in _NAMES:
        if _bare(name) == _bare(given):
            return name
    raise UsageError(
        f"the data source jsbackup has no option {given[:80]!r}",
        hint=nearest(given, _NAMES) or f"Its options are {', '.join(_NAMES)}.",
    )


def _bare(name: str) -> str:
    return re.sub("[-_]", "", name).lower()


def _location(options: Mapping[str, str]) -> str:
    path, repo = (_without_hadoop(options.get(name, "")) for name in ("path", "repo"))
    if path and repo and path != repo:
        raise UsageError("the path and the option 'repo' name two repositories", hint="Give one of them.")
    if not (path or repo):
        raise UsageError("the data source jsbackup takes the path of a repository, as in load('/backups')", hint=_TABLE)
    return path or repo


def _without_hadoop(location: str) -> str:
    """Return a location in our form, where it is in that of Hadoop."""
    location = re.sub(r"^s3[an]://", "s3://", location)
    return re.sub(r"^file:/(?!/)", "/", location)


def _s3(location: str, texts: Mapping[str, str]) -> S3Settings:
    if not location.startswith("s3://"):
        return S3Settings()
    options = {f"s3_{name}": f"s3-{name.replace('_', '-')}" for name in _S3}
    given: dict[str, Any] = {name: texts[option] for name, option in options.items() if option in texts}
    if "s3_path_style" in given:
        given["s3_path_style"] = _bool("s3-path-style", given["s3_path_style"])
    return s3_settings(given, environment())


def _patterns(options: Mapping[str, str]) -> tuple[str, ...]:
    if "streams" not in options:
        if "stream" in options and not options["stream"].strip():
            raise UsageError("the option 'stream' is empty", hint="Leave it out to read all streams.")
        return (options["stream"],) if "stream" in options else ()
    if "stream" in options:
        raise UsageError("the options 'stream' and 'streams' exclude each other")
    text = options["streams"].strip()
    names: object
    if not text.startswith("["):
        names = [name.strip() for name in text.split(",") if name.strip()]
    else:
        try:
            names = read_json(text, "streams")
        except FormatError:
            names = None
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise UsageError("the option 'streams' is neither names separated by commas nor a JSON list of names")
    if not any(name.strip() for name in names):
        raise UsageError("the option 'streams' is empty", hint="Leave it out to read all streams.")
    return tuple(names)


def _columns(text: str) -> tuple[str, ...]:
    return check_columns([name.strip() for name in text.split(",")]) if text else COLUMNS


def _moment(text: str) -> int:
    """Return the Unix time that `at` means, in nanoseconds."""
    text = text.strip()
    try:
        if not re.match(r"\d{4}-", text, re.ASCII):
            seconds = parse_duration(text, "a time or a duration")
            return time.time_ns() - round(seconds) * 1_000_000_000
        whole = re.sub(r"^(\d{4}-\d\d-\d\d)$", r"\1T00:00", text.replace(" ", "T", 1))
        return parse_typed_time(whole if re.search(r"(?:[Zz]|[+-]\d\d:\d\d)$", whole) else f"{whole}Z")
    except UsageError as error:
        hint = "Give a time such as 2026-11-21T14:02:00Z, 2026-11-21 14:02 (UTC), or a duration before now such as 24h."
        raise UsageError(f"the option 'at' is not a time: {text[:80]!r}", hint=hint) from error


def _number(name: str, text: str, most: int) -> int:
    if not re.fullmatch("[0-9]{1,19}", text.strip()) or int(text) > most:
        raise UsageError(f"the option {name!r} is not a number from 0 to {most}: {text[:40]!r}")
    return int(text)


def _limit(options: Mapping[str, str], name: str) -> int:
    if name not in options:
        return 0
    if name == "maxBytesPerTrigger":
        try:
            limit = parse_size(options[name])
        except UsageError as error:
            raise UsageError(f"the option {name!r}: {error.message}", hint=error.hint) from error
    else:
        limit = _number(name, options[name], _MOST)
    if not limit:
        raise UsageError(f"the option {name!r} is 0")
    return limit


def _bool(name: str, text: str) -> bool:
    try:
        return parse_bool(text)
    except UsageError as error:
        raise UsageError(f"the option {name!r} is {error.message}", hint=error.hint) from error


def _start(text: str) -> bool:
    if text not in ("earliest", "latest"):
        raise UsageError(f"the option 'start' is neither earliest nor latest: {text[:40]!r}")
    return text == "latest"
