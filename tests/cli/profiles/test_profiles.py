"""Profiles: every option of every command, what wins over what, and everything wrong told by file, profile and key."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from jsbackup.cli.commands import backup, repo
from jsbackup.cli.main import COMMANDS, cli, run
from jsbackup.cli.notify.hooks import HOOK_OPTIONS
from jsbackup.cli.options.opening import connection_of, connection_reference_of
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import GIVEN, KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, CommandContext, Shared, over
from jsbackup.cli.profiles.profiles import option_keys
from jsbackup.config.connection import ConnectionOptions, UserPassword
from jsbackup.errors import UsageError
from tests.cli.test_json import check
from tests.cli.typed import Typed

Type = Callable[..., Typed]
Told = tuple[Shared, dict[str, Any]]

NOT_IN_PROFILES = {"config", "profile"}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """`config(text)`: that is the file of profiles now, and nothing of the developer's shell counts."""
    for name in ("JSBACKUP_REPO", "JSBACKUP_PROFILE", "NATS_URL", "NATS_CONTEXT", "NATS_USER", "NATS_PASSWORD"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    path = tmp_path / "config.toml"
    monkeypatch.setenv("JSBACKUP_CONFIG", str(path))

    def write(text: str) -> Path:
        path.touch(0o600)
        path.write_text(text)
        return path

    return write


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Told]:
    """What `backup` would be told by a command line: the shared options, and its own."""
    seen: list[Told] = []

    def callback(shared: Shared, **own: Any) -> None:
        seen.append((shared, own))

    monkeypatch.setattr(backup.COMMANDS["backup"], "callback", callback)
    monkeypatch.setattr(repo.COMMANDS["list"], "callback", callback)

    def tell(*words: str) -> Told:
        assert run(list(words)) == 0
        return seen.pop()

    return tell


def _wrong(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    capsys.readouterr()
    assert run(list(words)) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    return printed.err


# --- every option of every command ---


def _all_commands() -> Iterator[tuple[str, Command]]:
    root = click.Context(cli)
    for name in COMMANDS:
        found = cli.get_command(root, name)
        inner = found.commands.items() if isinstance(found, click.Group) else [("", found)]
        for word, command in inner:
            assert isinstance(command, Command)
            yield (f"{name}.{word}" if word else name), command


_OF_KIND = {
    "DURATION": "3s",
    "BYTES": "1MiB",
    "SIZE": "1MiB",
    "DURATION|TIME": "3d",
    "TIME_OR_SEQ": "24h",
    "K=V": "k=v",
    "K[=V]": "k",
}


def _sample(key: str, parameter: click.Parameter) -> Any:
    if isinstance(parameter, click.Option) and parameter.is_flag:
        return True
    kind = parameter.type
    if isinstance(kind, click.Choice):
        value: Any = kind.choices[0]
    elif isinstance(kind, click.Path):
        value = "."
    elif isinstance(kind, click.types.IntParamType | click.types.FloatParamType):
        return 2
    else:
        value = _OF_KIND.get(parameter.metavar or "", "some-value")
        if parameter.name == "ping_url":
            value = "https://h/p"
    return [value] if parameter.multiple or parameter.nargs == -1 else value


@pytest.mark.parametrize(("table", "command"), list(_all_commands()), ids=[name for name, _ in _all_commands()])
def test_every_option_and_argument_of_a_command_can_be_set(
    table: str, command: Command, config: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = {key: one for key, one in option_keys(command.params).items() if one.name not in NOT_IN_PROFILES}
    keys.pop("s3-virtual-style", None)  # the opposite of another one
    keys.pop("to-s3-virtual-style", None)
    keys.pop("at", None)  # not a text any more
    values = {key: _sample(key, parameter) for key, parameter in keys.items()}
    for parameter in keys.values():
        if isinstance(parameter.envvar, str):
            monkeypatch.setenv(parameter.envvar, "of the environment")
    config(f"[profiles.p.{table}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in values.items()))
    root = cli.make_context("jsbackup", ["--profile", "p", *table.split(".")])
    level: click.Context = root
    for word in table.split(".")[:-1]:
        group = root.command.get_command(level, word)  # type: ignore[attr-defined]
        level = group.make_context(word, [table.split(".")[-1]], parent=level)
    ctx = command.make_context(table.split(".")[-1], [], parent=level)
    assert isinstance(ctx, CommandContext)
    for key, parameter in keys.items():
        assert parameter.name is not None
        assert ctx.get_parameter_source(parameter.name) in GIVEN, key
        wanted = values[key]
        got = ctx.params[parameter.name]
        assert (list(map(str, got)) if isinstance(wanted, list) else str(got) if isinstance(wanted, str) else got) in (
            wanted,
            [str(one) for one in wanted] if isinstance(wanted, list) else wanted,
        ), key


def test_keys_of_profiles_are_no_names_of_commands() -> None:
    assert not set(COMMANDS) & set(option_keys([*S3_OPTIONS, *KEY_OPTIONS, *SERVER_OPTIONS, *HOOK_OPTIONS]))
    assert "hooks" not in COMMANDS


# --- what wins over what ---


def test_typed_wins_over_the_profile_wins_over_the_environment(
    config: Callable[[str], Path], told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = config(
        """
        [defaults]
        repo = "of defaults"
        s3-region = "of defaults"
        s3-path-style = true
        [defaults.backup]
        jobs = 2
        tag = ["of=defaults"]
        [profiles.p]
        repo = "of p"
        verbose = 2
        s3-virtual-style = true
        writer-key-command = "print the key"
        [profiles.p.backup]
        streams = ["ORDERS", "KV_*"]
        exclude = ["tmp-*", "x"]
        no-consumers = true
        repo = "of backup in p"
        """
    )
    monkeypatch.setenv("JSBACKUP_REPO", "of the environment")
    shared, own = told("backup", "--profile", "p")
    assert shared.repo == "of backup in p" and shared.verbose == 2
    assert shared.s3 == {"s3_region": "of defaults", "s3_path_style": False}
    assert shared.keys == {"writer_key_command": "print the key"}
    assert (shared.profile, shared.config) == ("p", path)
    assert own["streams"] == ("ORDERS", "KV_*") and own["exclude"] == ("tmp-*", "x")
    assert (own["jobs"], own["no_consumers"], own["tags"]) == (2, True, ("of=defaults",))
    assert "hook_before" not in own

    typed = ["-r", "typed", "--exclude", "y", "--jobs", "9", "--s3-path-style", "--writer-key", "file", "OTHER"]
    for words in (["--profile", "p", "backup", *typed], ["backup", *typed, "--profile", "p"]):
        shared, own = told(*words)
        assert (shared.repo, shared.s3["s3_path_style"], shared.keys) == ("typed", True, {"writer_key": "file"})
        assert (own["streams"], own["exclude"], own["jobs"]) == (("OTHER",), ("y",), 9)
    shared, _ = told("-r", "typed", "--profile", "p", "list")
    assert (shared.repo, shared.server) == ("typed", {})
    assert told("list", "--profile", "p")[0].repo == "of p"
    assert told("list")[0].repo == "of the environment"  # without a profile nothing of the file counts

    monkeypatch.setenv("JSBACKUP_PROFILE", "p")
    assert told("list")[0].repo == "of p"
    path.write_text("[profiles.q]\nrepo = 'of q'\n")
    assert told("list", "--profile", "q")[0].repo == "of q"


SERVERS = """
    [defaults]
    timeout = "7s"
    creds = "default.creds"
    context = "default"
    [profiles.p]
    server = "nats://p:4222"
    user = "u"
    password = "env://SECRET"
    [profiles.c]
    context = "shop"
    [profiles.open]
    repo = "r"
    [profiles.domain]
    js-domain = "d"
    password = "env://SECRET"
"""


@pytest.mark.parametrize(
    ("words", "server"),
    [
        (["p"], {"timeout": "7s", "server": "nats://p:4222", "user": "u", "password": "env://SECRET"}),
        (["p", "--creds", "x"], {"timeout": "7s", "server": "nats://p:4222", "creds": "x"}),
        (
            ["p", "--password-file", "f"],
            {"timeout": "7s", "server": "nats://p:4222", "user": "u", "password_file": "f"},
        ),
        (["p", "-s", "nats://x"], {"timeout": "7s", "server": "nats://x", "user": "u", "password": "env://SECRET"}),
        (["p", "-s", "nats://a:b@x"], {"timeout": "7s", "server": "nats://a:b@x"}),
        (["p", "--context", "other"], {"timeout": "7s", "context": "other"}),
        (["c"], {"timeout": "7s", "context": "shop"}),
        (["open"], {"timeout": "7s", "creds": "default.creds", "context": "default"}),
        (["domain", "--js-api-prefix", "X"], {"timeout": "7s", "context": "default", "js_api_prefix": "X"}),
    ],
)
def test_a_login_is_that_of_whoever_names_one(
    config: Callable[[str], Path], told: Callable[..., Told], words: list[str], server: dict[str, str]
) -> None:
    config(SERVERS)
    shared = told("backup", "--profile", *words)[0]
    given = {name: value for name, value in shared.server.items() if name != "password" or "domain" not in words}
    assert given == server


def test_a_profile_that_names_a_server_has_nothing_of_the_environment(
    config: Callable[[str], Path], told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "nats").mkdir()
    (tmp_path / "nats" / "context.txt").write_text("nowhere")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("NATS_URL", "nats://wrong:1")
    monkeypatch.setenv("NATS_USER", "wrong")
    monkeypatch.setenv("NATS_PASSWORD", "wrong")
    config("[profiles.p]\nserver = 'nats://right:2'\n[profiles.open]\njs-domain = 'd'\n")
    shared = told("backup", "--profile", "p")[0]
    found = connection_of(shared)
    assert (found.url, found.login, found.context) == ("nats://right:2", None, None)
    reference = connection_reference_of(shared)
    assert (reference.variables, reference.context) == (ConnectionOptions(), None)
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    open_ended = connection_of(told("backup", "--profile", "open")[0])
    assert (open_ended.url, open_ended.js_domain) == ("nats://wrong:1", "d")


def test_passwords_and_tokens_come_from_files_and_commands(
    config: Callable[[str], Path], told: Callable[..., Told], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "password").write_text("env://is no reference here\n")
    monkeypatch.setenv("FOLDER", str(tmp_path))
    config(
        """
        [profiles.file]
        server = "nats://h"
        user = "u"
        password-file = "${FOLDER}/password"
        [profiles.command]
        server = "nats://h"
        user = "u"
        password-command = "cat '${FOLDER}/password'"
        [profiles.token]
        server = "nats://h"
        token-command = "cat ${FOLDER}/password"
        """
    )
    for profile in ("file", "command"):
        login = connection_of(told("backup", "--profile", profile)[0]).login
        assert isinstance(login, UserPassword)
        assert (login.user, login.password.reveal()) == ("u", "env://is no reference here")
    token = connection_of(told("backup", "--profile", "token")[0]).token
    assert token is not None and token.reveal() == "env://is no reference here"
    shared = told("backup", "--profile", "file", "--user", "v", "--password-command", "false")[0]
    with pytest.raises(UsageError, match="the command for the password failed with exit code 1"):
        connection_of(shared)
    for profile, travels in (("file", True), ("command", False)):
        shared = told("backup", "--profile", profile)[0]
        if travels:
            assert connection_reference_of(shared).options.password == f"file://{tmp_path}/password"
        else:
            with pytest.raises(UsageError, match="--password holds a secret, and none is sent to executors"):
                connection_reference_of(shared)
    shared = told("backup", "-s", "nats://h", "--user", "u", "--password", "x", "--password-file", "f")[0]
    with pytest.raises(UsageError, match="the password is given twice"):
        connection_of(shared)


def test_of_contradicting_options_the_upper_one_stays() -> None:
    assert over({"sample": "1", "jobs": 1}, {"max_bytes": "r"}) == {"jobs": 1, "max_bytes": "r"}
    assert over({"to_creds": "c", "creds": "d"}, {"to_context": "x"}) == {"creds": "d", "to_context": "x"}
    assert over({"identity": "f", "writer_key": "w"}, {"identity_command": "c"}) == {
        "writer_key": "w",
        "identity_command": "c",
    }


def test_the_shell_s_home_is_known_in_file_names(
    config: Callable[[str], Path], told: Callable[..., Told], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    config("[profiles.p]\nrepo = '~/backups'\ncreds = '~/x.creds'\n")
    shared = told("backup", "--profile", "p")[0]
    assert (shared.repo, shared.server["creds"]) == ("/home/me/backups", "/home/me/x.creds")


# --- what is wrong ---


@pytest.mark.parametrize(
    ("text", "says", "hint"),
    [
        ("[profiles.p]\nsever = 'x'", "profile p: unknown key 'sever'", "Did you mean server?"),
        ("[profiles.p]\nexclude = ['x']", "profile p: unknown key 'exclude'", "It is an option of backup, "),
        ("[profiles.p.bakcup]\n", "profile p: unknown key 'bakcup'", "Did you mean backup?"),
        ("[profiles.p.backup]\nexlude = []", "profile p: backup: unknown key 'exlude'", "Did you mean exclude?"),
        ("[profiles.p]\nbackup = 1", "profile p: backup: it is not a table", ""),
        ("[profiles.p.backup]\nexclude = 'x'", "profile p: backup: exclude has to be a list of texts", ""),
        ("[profiles.p.backup]\njobs = '4'", "profile p: backup: jobs has to be a number", ""),
        ("[profiles.p.backup]\njobs = 400", "profile p: backup: jobs: 400 is not in the range 1 to 64", ""),
        ("[profiles.p.backup]\nincremental = 'x'", "profile p: backup: incremental: 'x' is not one of", ""),
        ("[profiles.p]\nlock-timeout = '3'", "profile p: lock-timeout: not a duration: '3'", "500ms"),
        ("[profiles.p.backup]\nstreams = ['a.b']", "backup: streams: no stream can be named 'a.b'", "not by subject"),
        ("[profiles.p]\nquiet = 1", "profile p: quiet has to be true or false", ""),
        ("[profiles.p]\nrepo = ''", "profile p: repo is empty", ""),
        ("[profiles.p]\nrepo = '${NOT_SET_ANYWHERE}'", "repo: the variable NOT_SET_ANYWHERE is not set", "$$"),
        ("[profiles.p.hooks]\nbefor = 'x'", "profile p: hooks: unknown key 'befor'", "Did you mean before?"),
        ("[profiles.p]\nprofile = 'q'", "profile p: unknown key 'profile'", "on the command line"),
        ("[profiles.p.backup]\ntag = ['x']", "backup: tag: not a tag: 'x'", "KEY=VALUE"),
        ("[profiles.p.backup]\nlock-until = 'sometime'", "backup: lock-until: not a duration: 'sometime'", "500ms"),
        ("[profiles.p.backup]\nlock-until = '2026-13-01T00:00:00Z'", "backup: lock-until: no such time: ", ""),
        ('[profiles.p]\npassword-command = "pass \'x"', "profile p: password-command: it is not a command", "quoted"),
        ('[profiles.p.hooks]\nafter = "sh -c \'x"', "profile p: hooks: after: it is not a command", "quoted"),
        ("[profiles.p.hooks]\nping-url = 'ftp://x/y'", "ping-url: a ping URL is not an http or https URL", "https://"),
        ("[profiles.p.hooks]\ntimeout = '5'", "profile p: hooks: timeout: not a duration", ""),
        ("[defaults]\nrpo = 'x'\n[profiles.p]", "defaults: unknown key 'rpo'", "Did you mean repo?"),
        ("[profiles.q]", "has no profile 'p'", "There are q."),
        ("[profiles.p]\nserver = 2026-01-01", "profile p: server has to be a text", ""),
    ],
)
def test_what_is_wrong_is_named(
    config: Callable[[str], Path], capsys: pytest.CaptureFixture[str], text: str, says: str, hint: str
) -> None:
    path = config(text)
    err = _wrong(capsys, "backup", "--profile", "p")
    assert err.startswith(f"error: {path}") and says in err.splitlines()[0]
    assert hint in err


def test_tables_of_other_commands_do_not_stop_this_one(
    config: Callable[[str], Path], told: Callable[..., Told]
) -> None:
    config("[profiles.p]\nrepo = 'r'\n[profiles.p.restore]\nnonsense = 1\n[profiles.p.key.ad]\n")
    assert told("backup", "--profile", "p")[0].repo == "r"


def test_a_file_or_a_profile_that_is_missing_is_said(
    config: Callable[[str], Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = config("[profiles.p]\n")
    assert "'list' runs for one profile at a time" in _wrong(capsys, "list", "--profile", "p", "--profile", "q")
    assert "Profiles there: p." in _wrong(capsys, "--config", str(path), "list")
    assert "cannot read the config file" in _wrong(capsys, "list", "--profile", "p", "--config", "/nonexistent/x")
    monkeypatch.delenv("JSBACKUP_CONFIG")
    assert "cannot read the config file /nonexistent/jsbackup/config.toml" in _wrong(capsys, "list", "--profile", "p")
    monkeypatch.setenv("XDG_CONFIG_HOME", f"/{'x' * 300}")  # as a folder that may not be looked into
    assert "file name too long" in _wrong(capsys, "list", "--profile", "p")
    run(["doctor"])
    assert capsys.readouterr().out.startswith("CHECK")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "jsbackup").mkdir()
    path.rename(tmp_path / "jsbackup" / "config.toml")
    assert "no repository given" in _wrong(capsys, "list", "--profile", "p")


def test_help_needs_no_profile(config: Callable[[str], Path], typed: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JSBACKUP_PROFILE", "nothing")
    assert typed("backup", "--help").code == 0 and typed("--help").code == 0 and typed("--version").code == 0


def test_a_profile_says_how_errors_are_printed(config: Callable[[str], Path], typed: Type, tmp_path: Path) -> None:
    config(f"[profiles.p]\nrepo = '{tmp_path / 'nothing'}'\nlog-format = 'json'\n[profiles.j]\njson = true\n")
    (entry,) = typed("list", "--profile", "p").log
    assert (entry["level"], entry["code"], entry["profile"]) == ("error", 10, "p")
    assert typed("list", "--profile", "j").document["error"]["code"] == 2


def test_a_runbook_stands_for_all_and_a_plan_for_what_it_was_made_with(
    config: Callable[[str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    config("[profiles.p]\nrepo = 'r'\n[profiles.p.restore]\nif-exists = 'skip'\nmask = ['a:$.b=hash']\n")
    book = tmp_path / "book.toml"
    err = _wrong(capsys, "restore", "--profile", "p", "--runbook", str(book))
    assert "of the profile makes no sense with --runbook, which says it already" in err
    assert "cannot read the plan" in _wrong(capsys, "restore", "--profile", "p", "--plan", str(book))
    config("[profiles.p]\nrepo = 'r'\n[profiles.p.restore]\npartial = true\n")
    err = _wrong(capsys, "restore", "--profile", "p", "--plan", str(book))
    assert "--partial of the profile makes no sense with --plan" in err


# --- doctor ---


def test_doctor_shows_all_mistakes_at_once(config: Callable[[str], Path], typed: Type) -> None:
    path = config(
        """
        [defaults]
        repo = "s3://b/${NOT_SET_ANYWHERE}"
        timeout = "3s"
        [profiles.a]
        server = "nats://u:hunter2@h"
        token = "hunter2"
        timeout = "4s"
        [profiles.a.backup]
        exclude = ["tmp-*"]
        [profiles.a.hooks]
        ping-url = "https://h/hunter2"
        [profiles.b]
        password = "env://PASSWORD"
        sever = "x"
        [profiles.b.restore]
        if-exists = "relace"
        [profiles.b.key.add]
        encrypt-tw = []
        """
    )
    path.chmod(0o644)
    done = typed("doctor", "--json")
    assert done.code != 0 and "hunter2" not in done.out + done.err
    found = _of_config(done)
    assert [one["found"].removeprefix(f"{path}: ") for one in found] == [
        "defaults: repo: the variable NOT_SET_ANYWHERE is not set",
        "profile b: unknown key 'sever'",
        "profile b: restore: if-exists: 'relace' is not one of 'fail', 'skip', 'replace'",
        "profile b: key: add: unknown key 'encrypt-tw'",
        f"{path} can be read by others and holds secrets (hooks.ping-url, server, token)",
    ]
    assert [(one["result"], one["code"]) for one in found] == [("problem", 2)] * 4 + [("warning", None)]
    assert found[-1]["fix"] == f"chmod 600 {path}"
    text = typed("doctor", "--profile", "b")
    assert text.code == 2 and "hunter2" not in text.out + text.err
    assert "unknown key 'encrypt-tw'" in text.out and "server" not in text.out.split()[3:]
    missing = typed("doctor", "--profile", "c", "--config", path)
    assert missing.code == 2 and "has no profile 'c'" in missing.out
    path.write_text("")
    assert "has no profiles" in typed("doctor").out
    path.write_text("[profiles.a]\nrepo = 'r'\n")
    (good,) = _of_config(typed("doctor", "--config", path, "--json"))
    assert (good["result"], good["found"]) == ("ok", f"{path}: a")


def test_doctor_goes_on_behind_tables_of_wrong_names(config: Callable[[str], Path], typed: Type) -> None:
    config("x = 1\n[default]\n[profiles]\np = 3\n[profiles.'b c']\n[profiles.a]\nsever = 'x'\n")
    found = [one["found"] + (one["fix"] or "") for one in _of_config(typed("doctor", "--json"))]
    assert len(found) == 5
    for says in ("'x'", "Did you mean defaults?", "profile p is not a table", "'b c'", "'sever'"):
        assert any(says in one for one in found)


def _of_config(done: Typed) -> list[dict[str, Any]]:
    document = check("doctor", Typed(0, done.out, done.err))
    return [one for one in document["checks"] if one["check"] == "config"]


def test_a_secret_that_others_can_read_is_warned_of(
    config: Callable[[str], Path], told: Callable[..., Told], capsys: pytest.CaptureFixture[str]
) -> None:
    path = config("[profiles.p]\npassword = 'hunter2'\nuser = 'u'\n[profiles.q]\npassword = 'env://X'\nuser = 'u'\n")
    told("backup", "--profile", "p")
    assert capsys.readouterr().err == ""
    path.chmod(0o640)
    told("backup", "--profile", "p")
    assert capsys.readouterr().err == (
        f"warning: {path} can be read by others and holds secrets (password): chmod 600 it\n"
    )
    told("backup", "--profile", "q")
    assert capsys.readouterr().err == ""
