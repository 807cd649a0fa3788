"""Foreign text on a terminal: nothing is interpreted, nothing crashes, and columns stay columns."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.cli.output.result import pad, to_json
from jsbackup.readable import clip, display_width, format_count, format_seconds, printable, time_to_second
from tests.cli.conftest import EVIL, WIDE
from tests.cli.typed import Shop, Typed, in_terminal
from tests.harness.commands import command_line, environment

ANY_TEXT = st.text(st.characters(exclude_categories=()))
ENCODINGS = st.sampled_from(["utf-8", "ascii", "latin-1", "cp1252"])


@given(ANY_TEXT, ENCODINGS)
def test_what_is_printed_is_visible_and_can_be_encoded(text: str, encoding: str) -> None:
    shown = printable(text, encoding)
    assert shown.isprintable()
    shown.encode(encoding)


@given(st.text(st.characters(categories=["L", "N", "P"])))
def test_ordinary_text_is_not_touched(text: str) -> None:
    assert printable(text) == text


def test_escape_sequences_are_spelled_out() -> None:
    assert printable("a\x1b[31m\x07\u202e\x9b\ud800\n") == r"a\x1b[31m\x07\u202e\x9b\ud800\x0a"


@given(st.recursive(ANY_TEXT | st.integers() | st.none(), lambda one: st.lists(one) | st.dictionaries(ANY_TEXT, one)))
def test_json_keeps_every_text_and_shows_none_raw(document: object) -> None:
    for encoding in ("utf-8", "ascii", "latin-1"):
        for indent in (None, 2):
            text = to_json(document, indent=indent, encoding=encoding)
            assert json.loads(text) == document
            assert text.replace("\n", "").isprintable()
            text.encode(encoding)


@given(ANY_TEXT, st.integers(1, 50))
def test_clipped_and_padded_text_has_its_width(text: str, columns: int) -> None:
    shown = printable(text)
    cut = clip(shown, columns)
    assert display_width(cut) <= columns
    assert cut == shown or cut.endswith("…")
    for right in (False, True):
        assert display_width(pad(cut, columns, right=right)) == columns


def test_widths_are_those_of_terminals() -> None:
    assert [display_width(text) for text in ("abc", "注文", "e\u0301", "ﬁ", "")] == [3, 4, 1, 1, 0]
    assert (clip("注文履歴", 5), clip("abc", 3), clip("abcd", 3)) == ("注文…", "abc", "ab…")


def test_numbers_are_short_and_exact_where_they_can_be() -> None:
    assert format_count(1234567) == "1,234,567"
    assert [format_seconds(s) for s in (0.04, 59.94, 60, 3600, 7384)] == [
        "0.0 s",
        "59.9 s",
        "1 min 0 s",
        "1 h 0 min",
        "2 h 3 min",
    ]
    assert [time_to_second(ns) for ns in (0, 1_000_000_000)] == ["-", "1970-01-01T00:00:01Z"]


# Nothing that a terminal would act on, but for words of ours in colour; tqdm's own sequences move the cursor up and go
# back to the left.
def _harmless(text: str) -> bool:
    plain = re.sub("\x1b\\[3[123]m(error|warning)\x1b\\[0m", r"\1", text)
    plain = plain.replace("\x1b[A", "").replace("\r", "").replace("\n", "")
    return plain.isprintable()


@pytest.mark.nats
def test_names_from_a_server_and_a_repository_never_reach_the_terminal_raw(shop: Shop, tmp_path: Path) -> None:
    shown = EVIL.replace("\x1b", r"\x1b").replace("\u202e", r"\u202e").replace("\x9b", r"\x9b")
    repo = tmp_path / "repo"
    lines: list[list[str | Path]] = [
        ["backup", "-s", shop.url, "-r", repo, "-vv", "--tag", "a=\x1b[2J"],
        ["backup", "-s", shop.url, "-r", repo, "-v", "--log-format", "json"],
        ["list", "-r", repo],
        ["show", "latest", "-r", repo],
        ["show", "latest", "-r", repo, "--json"],
        ["verify", "-r", repo],
        ["restore", "latest", "-s", shop.url, "-r", repo],
        ["restore", "latest", "-s", shop.url, "-r", repo, "--log-format", "json"],
        ["restore", "latest", "-s", shop.url, "-r", repo, "--json"],
        ["restore", "latest", EVIL, "-s", shop.url, "-r", repo, "--if-exists", "skip", "-vv"],
        ["restore", "latest", "\x1b[31m", "-s", shop.url, "-r", repo],
        ["export", "latest", EVIL, "-r", repo, "--format", "nats-cli", "--output", tmp_path / "out"],
        ["import", tmp_path / "out", "-r", repo],
        ["list", "-r", "/nonexistent/\x1b[31m"],
        ["\x1b[31m"],
        ["list", "--\x1b[31m"],
    ]
    for line in lines:
        done = in_terminal(*line, NO_COLOR="")
        assert _harmless(done.out) and _harmless(done.err), (line, done)
        if line[0] == "show" and "--json" not in line:
            assert shown in done.out


@pytest.mark.nats
def test_json_gives_names_as_they_are(shop: Shop, typed: Callable[..., Typed]) -> None:
    document = typed("show", "latest", "-r", shop.repo, "--json").document
    assert {stream["name"] for stream in document["streams"]} == {"ORDERS", EVIL, WIDE}


@pytest.mark.by_turns
@pytest.mark.slow
@pytest.mark.nats
@pytest.mark.parametrize(
    "extra",
    [{"PYTHONIOENCODING": "ascii"}, {"LANG": "C", "LC_ALL": "C"}, {"PYTHONIOENCODING": "latin-1"}, {"LC_ALL": "POSIX"}],
    ids=lambda extra: " ".join(f"{k}={v}" for k, v in extra.items()),
)
def test_output_that_knows_no_unicode_is_no_obstacle(shop: Shop, extra: dict[str, str], tmp_path: Path) -> None:
    encoding = extra.get("PYTHONIOENCODING", "utf-8")

    def run(*line: str | Path) -> tuple[int, str, str]:
        done = subprocess.run(command_line(*line), capture_output=True, env=environment(**extra), timeout=240)
        return done.returncode, done.stdout.decode(encoding), done.stderr.decode(encoding)

    code, out, err = run("show", "latest", "-r", shop.repo)
    assert (code, err) == (0, "")
    assert (r"\u6ce8\u6587" if encoding != "utf-8" else "注文") in out
    code, out, err = run("show", "latest", "-r", shop.repo, "--json")
    assert code == 0
    assert WIDE in [stream["name"] for stream in json.loads(out)["streams"]]
    code, out, err = run("backup", WIDE, "-s", shop.url, "-r", tmp_path / "repo", "-vv")
    assert code == 0
    code, out, err = run("list", "-r", "/nonexistent/注文")
    assert code == 10 and err.startswith("error: no repository at /nonexistent/")


@pytest.mark.slow
def test_text_that_is_no_unicode_is_no_obstacle(tmp_path: Path) -> None:
    done = subprocess.run(
        [*command_line("list", "-r"), b"/nonexistent/\xff\x1b"], capture_output=True, env=environment(), timeout=240
    )
    assert done.returncode == 10
    assert b"error: no repository at /nonexistent/\\udcff\\x1b\n" in done.stderr


@pytest.mark.nats
def test_columns_stay_columns_with_wide_names(shop: Shop, typed: Callable[..., Typed]) -> None:
    lines = typed("show", "latest", "-r", shop.repo).out.splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("STREAM"))
    table = lines[start : start + 4]
    column = display_width(table[0][: table[0].index("MESSAGES") + len("MESSAGES")])
    for line, count in zip(table[1:], ("1,000", "0", "1"), strict=True):
        ends = [display_width(line[: i + len(count)]) for i in range(len(line)) if line.startswith(count, i)]
        assert column in ends, line


def _closing_reader(*line: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command whose output nobody reads: the pipe is closed before anything is written."""
    process = subprocess.Popen(
        command_line(*line), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment()
    )
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    return subprocess.CompletedProcess([], process.wait(timeout=240), "", err)


@pytest.mark.nats
def test_a_reader_that_has_gone_is_no_error(shop: Shop) -> None:
    for line in (["--help"], ["backup", "--help"], ["--version"], ["list", "-r", shop.repo]):
        done = _closing_reader(*line)
        assert (done.returncode, done.stderr) == (0, ""), line
    # What went wrong is told by the exit code all the same.
    assert _closing_reader("list", "-r", "/nonexistent", "--json").returncode == 10


@pytest.mark.nats
def test_closed_standard_streams_are_no_obstacle(shop: Shop) -> None:
    for closed in ("1", "2", "1 2"):
        words = " ".join(f"{number}>&-" for number in closed.split())
        line = ["sh", "-c", f'exec "$@" {words}', "sh", *command_line("list", "-r", shop.repo)]
        done = subprocess.run(line, capture_output=True, text=True, env=environment(), timeout=240)
        assert (done.returncode, done.stderr) == (0, "")


def test_a_typo_in_a_terminal_is_two_lines() -> None:
    done = in_terminal("bakcup")
    assert (done.code, done.out) == (2, "")
    assert done.err == "error: no such command 'bakcup'\r\nhint: Did you mean backup?\r\n"
