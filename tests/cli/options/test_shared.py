"""Options that every command shares: before the command or after it, from the environment, and what they change."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from jsbackup.cli.main import cli, run
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, SERVER_OPTIONS, Shared
from tests.cli.typed import Shop, Typed, in_shell, in_terminal

pytestmark = pytest.mark.nats

Type = Callable[..., Typed]


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shared]:
    """What `backup` would be told by the shared options of a command line."""
    from jsbackup.cli.commands import backup

    seen: list[Shared] = []

    def callback(shared: Shared, **_own: object) -> None:
        seen.append(shared)

    monkeypatch.setattr(backup.COMMANDS["backup"], "callback", callback)
    for option in GLOBAL_OPTIONS:
        if isinstance(option.envvar, str):
            monkeypatch.delenv(option.envvar, raising=False)

    def told(line: str) -> Shared:
        assert run(line.split()) == 0
        return seen.pop()

    return told


@pytest.mark.parametrize("before", [True, False], ids=["before", "after"])
@pytest.mark.parametrize(
    ("option", "read"),
    [
        ("--repo R", lambda shared: shared.repo == "R"),
        ("-r R", lambda shared: shared.repo == "R"),
        ("--json", lambda shared: shared.output.as_json),
        ("-q", lambda shared: shared.output.quiet and not shared.progress),
        ("-vv", lambda shared: shared.verbose == 2),
        ("--verbose", lambda shared: shared.verbose == 1),
        ("--no-progress", lambda shared: not shared.progress),
        ("--log-format json", lambda shared: shared.output.log_json and not shared.progress),
        ("-s nats://h", lambda shared: shared.server == {"server": "nats://h"}),
        ("--tlsfirst", lambda shared: shared.server == {"tlsfirst": True}),
    ],
)
def test_shared_options_stand_anywhere(
    shared: Callable[..., Shared], option: str, read: Callable[[Shared], bool], before: bool
) -> None:
    assert not read(shared("backup"))
    assert read(shared(f"{option} backup" if before else f"backup {option}"))


@pytest.mark.parametrize("name", [str(option.name) for option in SERVER_OPTIONS])
def test_every_server_option_reaches_the_connection(shared: Callable[..., Shared], name: str) -> None:
    option = next(option for option in SERVER_OPTIONS if option.name == name)
    text = "7s" if option.metavar == "DURATION" else "some-value"
    value = "" if option.is_flag else f" {text}"
    for line in (f"{option.opts[-1]}{value} backup", f"backup {option.opts[-1]}{value}"):
        assert shared(line).server == {name: True if option.is_flag else text}


@pytest.mark.parametrize(
    ("typed", "given"),
    [
        ("--s3-endpoint http://store", {"s3_endpoint": "http://store"}),
        ("--s3-region r --s3-profile p", {"s3_region": "r", "s3_profile": "p"}),
        ("--s3-path-style", {"s3_path_style": True}),
        ("--s3-virtual-style", {"s3_path_style": False}),
        ("--s3-ca ca.pem", {"s3_ca": "ca.pem"}),
        ("--s3-sse aws:kms --s3-sse-kms-key k", {"s3_sse": "aws:kms", "s3_sse_kms_key": "k"}),
        ("--s3-storage-class STANDARD_IA", {"s3_storage_class": "STANDARD_IA"}),
    ],
)
def test_every_s3_option_reaches_the_store(shared: Callable[..., Shared], typed: str, given: dict[str, object]) -> None:
    for line in (f"{typed} backup", f"backup {typed}"):
        assert shared(line).s3 == given
    assert shared(f"--s3-region other {typed} backup {typed}").s3 == {"s3_region": "other"} | given


def test_the_option_behind_the_command_wins_and_both_win_over_the_environment(
    shared: Callable[..., Shared], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shared("-r first backup -r second").repo == "second"
    assert shared("--log-format json backup --log-format text").log_format == "text"
    assert shared("-s a backup -s b").server == {"server": "b"}
    monkeypatch.setenv("JSBACKUP_REPO", "environment")
    assert shared("backup").repo == "environment"
    assert shared("-r first backup").repo == "first"
    assert shared("backup -r second").repo == "second"


def test_options_of_both_places_come_together(shared: Callable[..., Shared]) -> None:
    told = shared("-s nats://h --json backup --user u -v")
    assert told.server == {"server": "nats://h", "user": "u"}
    assert told.output.as_json and told.verbose == 1


def test_no_option_is_spelled_as_another() -> None:
    spelled = [opt for option in [*GLOBAL_OPTIONS, *SERVER_OPTIONS] for opt in option.opts]
    assert len(spelled) == len(set(spelled))
    own = {opt for param in cli.params for opt in param.opts}
    assert set(spelled) < own


def test_repository_and_server_come_from_the_environment(shop: Shop, tmp_path: Path) -> None:
    repo = str(tmp_path / "repo")
    done = in_shell("backup", "ORDERS", "--json", JSBACKUP_REPO=repo, NATS_URL=shop.url)
    assert done.code == 0
    assert in_shell("list", "--json", JSBACKUP_REPO=repo).document["backups"][0]["backup"] == done.document["backup"]


def test_a_nats_context_is_used_by_option_by_variable_and_where_it_is_selected(shop: Shop, tmp_path: Path) -> None:
    contexts = tmp_path / "nats" / "context"
    contexts.mkdir(parents=True)
    (contexts / "shop.json").write_text(json.dumps({"url": shop.url, "description": "the shop"}))
    (contexts / "wrong.json").write_text(json.dumps({"url": "nats://127.0.0.1:1"}))
    repo = str(tmp_path / "repo")

    def context(*line: str, **extra: str) -> str:
        done = in_shell("backup", "ORDERS", "-r", repo, "--json", *line, XDG_CONFIG_HOME=str(tmp_path), **extra)
        assert done.code == 0, done
        shown = in_shell("show", done.document["backup"], "-r", repo, "--json")
        name: str = shown.document["source"]["context"]
        return name

    assert context("--context", "shop", NATS_CONTEXT="wrong") == "shop"
    assert context(NATS_CONTEXT="shop") == "shop"
    (tmp_path / "nats" / "context.txt").write_text("shop")
    assert context() == "shop"


def test_quiet_prints_what_went_wrong_only(shop: Shop, tmp_path: Path) -> None:
    line = ["-q", "backup", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo"]
    done = in_shell(*line)
    # A repository comes to be once: whoever did not expect that has to hear of it.
    assert (done.code, done.out, done.err) == (0, "", f"no repository at {tmp_path / 'repo'}: creating one\n")
    done = in_shell(*line)
    assert (done.code, done.out, done.err) == (0, "", "")
    failed = in_shell("-q", "list", "-r", tmp_path / "nothing")
    assert (failed.code, failed.out) == (10, "") and failed.err.startswith("error: no repository at ")


def test_verbose_shows_advisories_and_plain_does_not(shop: Shop, tmp_path: Path) -> None:
    line = ["backup", "ORDERS", "-s", shop.url, "-r", tmp_path / "repo"]
    plain = in_shell(*line)
    assert plain.err.splitlines() == [f"no repository at {tmp_path / 'repo'}: creating one"]
    told = in_shell(*line, "--incremental", "never", "-v")
    assert "info: server: snapshot of ORDERS began, 1000 messages" in told.err
    assert told.out.splitlines()[0].startswith("STREAM")


def test_json_log_lines_are_json_every_one(shop: Shop, tmp_path: Path) -> None:
    line = ["--log-format", "json", "-vv", "backup", "-s", shop.url, "-r", tmp_path / "repo"]
    told = in_shell(*line)
    assert told.code == 0
    assert [entry["message"] for entry in told.log if entry["message"].endswith("creating one")]
    assert [entry for entry in told.log if entry["message"].startswith("server: snapshot of ORDERS began")]
    for entry in told.log:
        assert entry["level"] in ("debug", "info", "warning") and entry["time"].endswith("Z")
    failed = in_shell(*line[:3], "list", "-r", tmp_path / "nothing")
    (entry,) = failed.log
    assert (failed.out, entry["level"], entry["code"], entry["hint"]) == (
        "",
        "error",
        10,
        "Check the location. 'jsbackup init' makes a repository there.",
    )


def test_in_a_terminal_json_log_lines_stand_alone(shop: Shop, tmp_path: Path) -> None:
    done = in_terminal("backup", "-s", shop.url, "-r", tmp_path / "repo", "--log-format", "json", "-v")
    assert done.code == 0 and len(done.log) > 3


def test_nothing_is_asked_for(shop: Shop, tmp_path: Path) -> None:
    """Not even in a terminal: what is missing is an error, at once."""
    for line in (["backup", "-s", shop.url], ["restore", "-r", shop.repo], ["backup", "-r", tmp_path, "--user", "u"]):
        done = in_terminal(*line, seconds=20, NATS_URL="nats://127.0.0.1:1")
        assert done.code in (2, 20) and "error: " in done.err
