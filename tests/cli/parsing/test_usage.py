"""Wrong command lines: exit code 2, one sentence and a hint, in the form that was asked for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from pathlib import Path

import click
import pytest

from jsbackup import errors
from jsbackup.cli.commands import check
from jsbackup.cli.main import COMMANDS, GROUPS, cli
from jsbackup.cli.options import restore_options
from jsbackup.cli.options.opening import SPARK_OPTIONS
from jsbackup.cli.parsing.command import CHOOSING_OPTIONS, Command
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS
from jsbackup.errors import UsageError
from jsbackup.exit_codes import EXIT_CODES
from jsbackup.planning.model import Consumers, IfExists
from jsbackup.repository.checks.verify import Level
from jsbackup.stores.local import LocalStore
from tests.cli.typed import Typed
from tests.harness.backups import make_repository, store_backup

Type = Callable[..., Typed]

# design of the exit codes: they never change meaning, so this table is not computed from anything
CODES = {
    "JsBackupError": 1,
    "ExecutorsLost": 1,
    "UsageError": 2,
    "IncompleteError": 3,
    "RepositoryNotFound": 10,
    "RepositoryLocked": 11,
    "KeyUnavailable": 12,
    "UnsupportedError": 13,
    "UnknownArchiveFormat": 13,
    "IntegrityError": 14,
    "FormatError": 14,
    "DigestMismatch": 14,
    "PlanRefused": 15,
    "TargetConflict": 16,
    "PolicyBreach": 17,
    "NatsError": 20,
    "NatsNoResponders": 20,
    "NatsTimeout": 20,
    "NoFolder": 21,
    "NothingChosen": 2,
    "NoLeader": 20,
    "NatsPermissionDenied": 20,
    "ApiError": 20,
    "TransferError": 20,
    "SnapshotBusy": 20,
    "StoreError": 21,
    "ObjectNotFound": 21,
    "ObjectExists": 21,
    "ObjectLocked": 21,
    "Interrupted": 130,
}


# command line -> what the sentence says, what the hint says
WRONG = {
    "": ("no command given", "See 'jsbackup --help'. In an emergency: 'jsbackup list', then 'jsbackup plan latest'"),
    "-r somewhere": ("no command given", "See 'jsbackup --help'."),
    "bakcup": ("no such command 'bakcup'", "Did you mean backup?"),
    "frobnicate": ("no such command 'frobnicate'", "See 'jsbackup --help'."),
    "verfy latest": ("no such command 'verfy'", "Did you mean verify?"),
    "--jsn list": ("no such option --jsn", "Did you mean --json"),
    "backup --tga x=y": ("no such option --tga", "Did you mean --tag"),
    "forget --dryrun": ("no such option --dryrun", "Did you mean --dry-run?"),
    "forget --prun": ("no such option --prun", "Did you mean --prune"),
    "backup --frobnicate": ("no such option --frobnicate", "See 'jsbackup backup --help'."),
    "backup --server": ("option '--server' requires an argument", "See 'jsbackup backup --help'."),
    "list --json=x": ("option '--json' does not take a value", "See 'jsbackup list --help'."),
    "restore": ("missing argument '[BACKUP]'", "See 'jsbackup restore --help'."),
    "export latest -r x --output d": (
        "missing option '--format'. Choose from: nats-cli, config, nack, terraform, parquet, jsonl, d",
        "See 'jsbackup export --help'.",
    ),
    "export latest -r x --output d --format orc": ("'orc' is not one of", "See 'jsbackup export --help'."),
    "export latest -r x --output d --format config --spark local": ("options of Spark", "Leave them out."),
    "stats a -r x --spark local --spark-conf memory=1g": ("not a setting of Spark: 'memory'", "spark.driver.memory=8g"),
    "query latest -r x": ("missing argument SQL", "See 'jsbackup query --help'."),
    "query latest select": ("no repository given", "Name it with --repo or JSBACKUP_REPO."),
    "list extra -r x": ("got unexpected extra argument (extra)", "See 'jsbackup list --help'."),
    "list --last 0 -r x": (
        "'--last': 0 is not in the range 1 or more",
        "See 'jsbackup list --help'.",
    ),
    "verify --sample 101 -r x": (
        "'--sample': 101.0 is not in the range above 0, up to 100",
        "See 'jsbackup verify",
    ),
    "list": ("no repository given", "Name it with --repo or JSBACKUP_REPO."),
    "verify --level deep -r x": ("'deep' is not one of", "See 'jsbackup verify --help'."),
    "--log-format xml list": ("'xml' is not one of 'text', 'json'", "See 'jsbackup --help'."),
    "backup --jobs 0": ("invalid value for '--jobs': 0 is not in the range 1 to 64", "See 'jsbackup backup --help'."),
    "backup --jobs many": (
        "'--jobs': 'many' is not a valid whole number",
        "See 'jsbackup backup --help'.",
    ),
    "backup --tag novalue -r x": ("not a tag: 'novalue'", "KEY=VALUE"),
    "backup orders.new -r x": ("no stream can be named 'orders.new'", "not by subject"),
    "backup --timeout 5 -r x": ("--timeout: not a duration: '5'", "500ms, 90s"),
    "restore latest --replicas 9 -r x": (
        "'--replicas': 9 is not in the range 1 to 5",
        "See 'jsbackup restore --help'.",
    ),
    "backup --user a --creds b -r x": ("--user and --creds are different ways to log in", "Give one of them."),
    "backup --js-domain d --js-api-prefix p -r x": ("exclude each other", "Give one of them."),
    "backup --password p -r x": ("there is a password but no user", ""),
    "backup --creds /nonexistent/file -r x": ("/nonexistent/file does not exist", ""),
    "backup --context nope -r x": ("there is no nats context 'nope'", ""),
    "backup -s http://host -r x": ("another scheme, no host", "nats://host:4222"),
    "list --server nats://h -r x": ("no such option --server", "See 'jsbackup list --help'."),
    "list -s nats://h -r x": ("no such option -s", "See 'jsbackup list --help'."),
    "--creds f verify -r x": ("--creds makes no sense for 'verify', which talks to no server", "Leave it out."),
    "--tlsfirst init -r x": ("--tlsfirst makes no sense for 'init', which talks to no server", "Leave it out."),
    "--js-domain d list -r x": ("--js-domain makes no sense for 'list'", "Leave it out."),
}


@pytest.mark.parametrize("line", WRONG)
def test_a_wrong_command_line_is_explained_on_stderr(typed: Type, line: str) -> None:
    message, hint = WRONG[line]
    done = typed(*line.split())
    assert (done.code, done.out) == (2, "")
    said, *advice = done.err.splitlines()
    assert said.startswith("error: ") and message in said
    assert not said.endswith(".") and not said[7].isupper()
    assert len(advice) <= 1 and all(one.startswith("hint: ") and one.endswith((".", "?")) for one in advice)
    assert hint in "".join(advice)


@pytest.mark.parametrize("line", WRONG)
def test_with_json_the_error_is_one_object_on_stdout(typed: Type, line: str) -> None:
    message, hint = WRONG[line]
    done = typed("--json", *line.split())
    assert (done.code, done.err) == (2, "")
    assert list(done.document) == ["error"]
    error = done.document["error"]
    assert list(error) == ["code", "message", "hint"]
    assert error["code"] == 2 and message in error["message"] and hint in (error["hint"] or "")


@pytest.mark.parametrize("line", WRONG)
def test_with_json_log_lines_the_error_is_one_of_them(typed: Type, line: str) -> None:
    done = typed("--log-format", "json", *line.split()) if "--log-format" not in line else typed(*line.split())
    assert (done.code, done.out) == (2, "")
    if "xml" not in line:
        (entry,) = done.log
        assert (entry["level"], entry["code"]) == ("error", 2) and WRONG[line][0] in entry["message"]


def test_what_follows_two_dashes_is_no_option(typed: Type) -> None:
    done = typed("list", "--", "--json")
    assert done.code == 2 and done.out == "" and "unexpected extra argument (--json)" in done.err


def test_every_class_of_error_owns_its_exit_code() -> None:
    classes = {n: c for n, c in inspect.getmembers(errors, inspect.isclass) if issubclass(c, errors.JsBackupError)}
    assert {name: kind.exit_code for name, kind in classes.items()} == CODES
    assert set(errors.__all__) == set(CODES)
    assert set(CODES.values()) | {0} == set(EXIT_CODES)


def test_help_lists_commands_and_exit_codes(typed: Type) -> None:
    done = typed("--help")
    assert (done.code, done.err) == (0, "")
    lines = [line.split(None, 1) for line in done.out.splitlines() if line.strip()]
    for code, text in EXIT_CODES.items():
        assert f"{code} {text}" in " ".join(done.out.split())
    for name in COMMANDS:
        assert name in [first for first, *_ in lines]


def _command(line: str) -> click.Command:
    command: click.Command = cli
    for word in line.split():
        assert isinstance(command, click.Group)
        found = command.get_command(click.Context(command), word)
        assert found is not None
        command = found
    return command


def _lines() -> Iterator[str]:
    """Every command, as one types it: `list`, `key add` …"""
    for name in COMMANDS:
        command = _command(name)
        yield from [f"{name} {inner}" for inner in command.commands] if isinstance(command, click.Group) else [name]


def _options(line: str) -> list[click.Parameter]:
    command = _command(line)
    assert isinstance(command, Command)
    shared = [*GLOBAL_OPTIONS, *S3_OPTIONS, *KEY_OPTIONS]
    grouped = [*(CHOOSING_OPTIONS if command.chooses else []), *(SPARK_OPTIONS if command.on_spark else [])]
    return [*command.own_params, *grouped, *shared, *(SERVER_OPTIONS if command.needs_server else [])]


@pytest.mark.parametrize("line", list(_lines()))
def test_help_of_a_command_lists_its_options(typed: Type, line: str) -> None:
    done = typed(*line.split(), "--help-all")
    assert done.code == 0
    words = set(done.out.replace(",", " ").split())
    for param in _options(line):
        if isinstance(param, click.Option):
            assert set(param.opts) <= words
            assert param.help
    assert "--help" in words
    listed = done.out[done.out.index("\nOptions:") : done.out.index("\nExit codes:")].splitlines()
    assert all(line.lstrip().startswith("-") for line in listed if line.startswith("  ") and line[2] != " ")


@pytest.mark.parametrize("line", list(_lines()))
def test_help_has_examples_and_own_options_first_and_names_the_way_to_the_others(typed: Type, line: str) -> None:
    done = typed(*line.split(), "--help")
    assert done.out.index("\nExamples:") < done.out.index("\nOptions:") < done.out.index("\nExit codes:")
    assert f"'jsbackup {line} --help-all'" in " ".join(done.out.split())
    words = set(done.out[done.out.index("\nOptions:") :].replace(",", " ").split())
    command = _command(line)
    assert isinstance(command, Command)
    for param in command.own_params:
        if isinstance(param, click.Option) and not param.hidden and not param.opts[0].startswith("--to-"):
            assert set(param.opts) <= words
    assert not {"--s3-endpoint", "--tlscert", "--writer-key", "--log-format", "--spark-conf"} & words


def test_every_command_stands_under_one_heading(typed: Type) -> None:
    assert sum(map(len, GROUPS.values())) == len(COMMANDS)
    done = typed("--help")
    headings = [line.rstrip(":") for line in done.out.splitlines() if line.endswith(":")]
    assert headings == ["In an emergency", *GROUPS, "Options", "Exit codes"]
    assert "--s3-endpoint" not in done.out and "--s3-endpoint" in typed("--help-all").out


SUGGESTED = {
    "forgt": "Did you mean forget?",
    "resore": "Did you mean restore?",
    "frogs": "See 'jsbackup --help'.",
    "objects": "Did you mean object?",
    "restor": "Did you mean restore?",
    "lits": "Did you mean list?",
    "stauts": "Did you mean stats or status?",
    "key ad": "Did you mean add?",
    "key delete": "See 'jsbackup key --help'.",
    "restore latest --if-exist replace": "Did you mean --if-exists?",
    "forget --keep-dialy 3": "Did you mean --keep-daily?",
}


@pytest.mark.parametrize("line", SUGGESTED)
def test_only_what_may_be_meant_is_suggested(typed: Type, line: str) -> None:
    done = typed(*line.split())
    hint = done.err.splitlines()[-1].removeprefix("hint: ")
    assert done.code == 2 and hint.startswith(SUGGESTED[line])


def test_ranges_are_described_in_words(typed: Type) -> None:
    text = " ".join(typed("restore", "--help").out.split())
    assert "--jobs N Streams at the same time. [default: 4; 1 to 64]" in text
    assert "--replicas N Number of replicas at the target. [1 to 5]" in text
    assert "x<=" not in "".join(typed(*line.split(), "--help").out for line in _lines())


def test_a_stream_in_place_of_a_backup_is_told(typed: Type, tmp_path: Path) -> None:
    store_backup(make_repository(LocalStore(tmp_path / "repo")))
    done = typed("show", "ORDERS", "-r", tmp_path / "repo")
    assert (done.code, "A backup is named before streams" in done.err) == (2, True)


def test_an_option_without_its_value_names_the_help_of_its_command(typed: Type) -> None:
    done = typed("restore", "latest", "--origin")
    assert (
        done.code == 2
        and "option '--origin' requires an argument" in done.err
        and "'jsbackup restore --help'" in done.err
    )


@pytest.mark.parametrize("line", [*COMMANDS, *_lines()])
def test_help_fits_a_terminal_of_eighty_columns(typed: Type, line: str) -> None:
    assert max(map(len, typed(*line.split(), "-h").out.splitlines())) <= 80


def test_choices_are_those_of_the_engine() -> None:
    assert list(check.LEVELS) == [str(level) for level in Level]
    assert list(restore_options.IF_EXISTS) == [str(choice) for choice in IfExists]
    assert list(restore_options.CONSUMERS) == ["all", "config", "none"] and set(restore_options.CONSUMERS) == set(
        map(str, Consumers)
    )


def test_every_duration_and_size_is_named_where_it_is_none() -> None:
    """Whichever command has it, and whether it stands before or after the command."""
    seen = set()
    for words, command in _commands():
        for option in command.params:
            if option.metavar in ("DURATION", "SIZE", "BYTES", "DURATION|TIME"):
                needed = [value for param in command.params if param.required for value in _some(param)]
                with pytest.raises(UsageError, match=f"^{option.opts[0]}: not a (duration|size): 'soon'$"):
                    cli.main([*words, option.opts[0], "soon", *needed], standalone_mode=False)
                seen.add(option.opts[0])
    assert {"--segment-size", "--timeout", "--grace", "--lock-until", "--hook-timeout"} <= seen


def _some(param: click.Parameter) -> list[str]:
    value = str(param.type.choices[0]) if isinstance(param.type, click.Choice) else "x"
    return [value] if isinstance(param, click.Argument) else [param.opts[0], value]


def _commands() -> Iterator[tuple[list[str], click.Command]]:
    groups: list[tuple[list[str], click.Group]] = [([], cli)]
    for words, group in groups:
        yield words, group
        context = click.Context(group)
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            if isinstance(command, click.Group):
                groups.append(([*words, name], command))
            else:
                yield [*words, name], command
