"""Progress bars: which there are, how far each is, and that nothing else is drawn anywhere."""

from __future__ import annotations

import asyncio
import io
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from jsbackup.cli.output import progress as bars
from jsbackup.cli.output.output import Output
from jsbackup.cli.output.progress import TqdmProgress, make_progress
from jsbackup.progress import NullProgress
from tests.cli.conftest import EVIL
from tests.cli.screen import Screen
from tests.cli.typed import in_shell, in_terminal
from tests.harness.api import call, connected, until_stored
from tests.harness.servers import NEWEST, NatsServer

MIB = 1 << 20


class Terminal(io.StringIO):
    """A stderr that says it is a terminal."""

    encoding = "utf-8"

    def isatty(self) -> bool:
        return True

    @property
    def screen(self) -> Screen:
        screen = Screen()
        screen.feed(self.getvalue())
        return screen

    @property
    def lines(self) -> list[str]:
        return self.screen.lines


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setattr(bars, "_REDRAW_SECONDS", 0)
    return Terminal()


@pytest.fixture
def progress(terminal: Terminal) -> Iterator[TqdmProgress]:
    watching = TqdmProgress("backup", terminal)
    yield watching
    watching.close()


def _numbers(line: str) -> tuple[str, str]:
    """Share and amount of a line."""
    match = re.search(r"(\d+%)\|.*\| (\S+) ", line)
    assert match is not None, line
    return match[1], match[2]


def test_the_bar_is_of_all_streams_and_names_those_that_run(terminal: Terminal, progress: TqdmProgress) -> None:
    progress.expect({"A": 10 * MIB, "B": 30 * MIB, "C": 0})
    progress.start("A", 10 * MIB, 100)
    progress.start("B", 30 * MIB, 300)
    progress.advance("A", 5 * MIB, 50)
    progress.advance("B", 15 * MIB, 150)
    (line,) = terminal.lines
    assert line.startswith("backup 0/3 ") and line.endswith(", B, A]")
    assert _numbers(line) == ("50%", "20.0M/40.0M")
    progress.finish("A")
    (line,) = terminal.lines
    assert line.startswith("backup 1/3 ") and line.endswith(", B]")


def test_a_retry_starts_from_nothing(terminal: Terminal, progress: TqdmProgress) -> None:
    progress.expect({"A": 10 * MIB, "B": 10 * MIB})
    progress.start("A", 10 * MIB, 100)
    progress.start("B", 10 * MIB, 100)
    progress.advance("A", 8 * MIB, 80)
    progress.advance("B", 5 * MIB, 50)
    progress.start("A", 20 * MIB, 200)
    assert [_numbers(line) for line in terminal.lines] == [("17%", "5.00M/30.0M")]


def test_totals_that_were_missed_are_set_right(terminal: Terminal, progress: TqdmProgress) -> None:
    progress.expect(dict.fromkeys("ABC", 10 * MIB))
    progress.start("A", 12 * MIB, 1)  # more than expected
    progress.advance("A", 14 * MIB, 1)  # and more than announced
    assert [_numbers(line) for line in terminal.lines] == [("41%", "14.0M/34.0M")]
    progress.finish("A")
    progress.start("B", 10 * MIB, 1)
    progress.advance("B", 6 * MIB, 1)
    progress.finish("B")  # less than announced
    assert _numbers(terminal.lines[0]) == ("67%", "20.0M/30.0M")
    progress.finish("C")  # never began
    assert terminal.lines[0].startswith("backup 3/3 ")
    assert _numbers(terminal.lines[0]) == ("100%", "20.0M/20.0M")


def test_calls_for_what_is_not_running_are_passed_over(terminal: Terminal, progress: TqdmProgress) -> None:
    progress.advance("A", 1, 1)
    progress.finish("A")
    assert len(terminal.lines) == 1


def test_of_many_streams_the_latest_are_named(terminal: Terminal, progress: TqdmProgress) -> None:
    for number in range(60):
        progress.start(f"S{number}", MIB, 1)
    progress.advance("S7", MIB, 1)
    (line,) = terminal.lines
    assert line.startswith("backup ") and line.endswith(", S7, S59, S58, S57]")


def test_nothing_is_left_behind(terminal: Terminal, progress: TqdmProgress) -> None:
    for name in "ABC":
        progress.start(name, MIB, 1)
    progress.close()
    assert terminal.lines == []


def test_log_lines_stand_above_the_bars(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", terminal)
    with make_progress("backup", wanted=True) as watching:
        watching.start("A", MIB, 1)
        Output().log("info", "hello", {})
        assert [line.split()[0] for line in terminal.lines] == ["info:", "backup"]
    assert terminal.lines == ["info: hello"]
    Output().log("info", "after", {})
    assert terminal.lines == ["info: hello", "info: after"]


def test_labels_are_safe(terminal: Terminal, progress: TqdmProgress) -> None:
    progress.start(EVIL, MIB, 1)  # an escape sequence would fail the screen
    assert r"evil\x1b[31" in terminal.lines[0]


@pytest.mark.parametrize("wanted", [True, False])
def test_without_a_terminal_nobody_watches(wanted: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    with make_progress("backup", wanted=wanted) as watching:
        assert isinstance(watching, NullProgress)


# ------------------------------------------------------------------------------------------------------ for real


@pytest.fixture(scope="module")
def large() -> Iterator[NatsServer]:
    """Two streams of 24 MiB: more than is on the way at once."""

    async def fill(url: str) -> None:
        async with connected(url) as nc:
            for name in ("LARGE", "WIDE-注文"):
                config = {"name": name, "subjects": [name], "storage": "file", "retention": "limits"}
                await call(nc, f"STREAM.CREATE.{name}", {**config, "num_replicas": 1})
                for number in range(240):
                    await nc.publish(name, bytes([number % 256]) * 100_000)
                    if not number % 50:
                        await nc.flush()
            await until_stored(nc, "LARGE", "WIDE-注文")

    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url))
        yield server


RATE_AND_TIME = re.compile(r"[0-9.]+[kM]?/[0-9.]+M \[\d\d:\d\d<\d\d:\d\d, +[0-9.]+[kM]B/s")


@pytest.mark.nats
def test_backup_verify_and_restore_draw_bars_on_stderr_alone(large: NatsServer, tmp_path: Path) -> None:
    def hold_up(_pid: int) -> None:
        # However fast the machine: bars are drawn again after a while, and by then not everything has come.
        large.freeze()
        time.sleep(2 * bars._REDRAW_SECONDS)
        large.thaw()

    repo = tmp_path / "repo"
    lines: list[list[str | Path]] = [
        ["backup", "-s", large.url, "-r", repo],
        ["restore", "latest", "-s", large.url, "-r", repo, "--if-exists", "replace"],
        ["verify", "latest", "-r", repo, "--level", "data"],
    ]
    for line in lines:
        done = in_terminal(*line, "--json", when_drawn=("LARGE", hold_up))
        assert done.code == 0 and done.document, done
        assert done.out.startswith("{") and "MiB" not in done.out
        assert f"{line[0]} 0/" in done.err and "LARGE" in done.err and "WIDE-注文" in done.err
        if line[0] != "verify":  # which does not wait for a server
            drawn = re.split(r"[\r\n]|\x1b\[A", done.err)
            assert [text for text in drawn if text.startswith(line[0]) and RATE_AND_TIME.search(text)], drawn
        screen = Screen()
        screen.feed(done.err)
        assert [text for text in screen.lines if not text.startswith(("no repository at", "latest is "))] == []


@pytest.mark.nats
def test_no_bars_where_none_are_wanted(large: NatsServer, tmp_path: Path) -> None:
    line: list[str | Path] = ["backup", "-s", large.url, "-r", tmp_path / "repo"]
    assert in_shell(*line).err == f"no repository at {tmp_path / 'repo'}: creating one\n"
    for option in ("--no-progress", "-q", "--log-format=json"):
        done = in_terminal(*line, option)
        assert (done.code, done.err) == (0, "")
