"""What newcomers want, each in one command that is found from --help: by the words of the task, and its options."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from tests.cli.commands.look.changes import DRAFT, REPORT
from tests.cli.commands.look.conftest import Changing
from tests.cli.typed import Typed
from tests.harness.commands import command_line, environment

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


@dataclass(frozen=True)
class Task:
    """A task, words that stand beside its command in `jsbackup --help`, the line, and what it prints.

    In the line `{a}` to `{c}` are backups, `{0}` to `{2}` moments, `{url}` and `{file}` those of the test.
    """

    name: str
    words: str
    line: str
    prints: str


TASKS = [
    Task(
        "that value at 14:00",
        "values of a bucket, as they were at a moment",
        "kv latest settings theme --at {1} -q",
        "light",
    ),
    Task("which keys were there then", "keys and values of a bucket", "kv latest settings --at {0}", "gone"),
    Task("when did this change", "when each changed", "history settings --key theme", "light"),
    Task("which backup has order 4711", "Find messages", "history --grep 4711", "{a}"),
    Task(
        "that message", "one byte for byte", "view {a} ORDERS --sequence 12 --raw", '{{"order": 4711, "state": "new"}}'
    ),
    Task(
        "that file",
        "get files of an object store",
        "object {a} files report -o {file}",
        "its digest is the one that was stored",
    ),
    Task(
        "that file, which was deleted",
        "keys and files in all backups",
        "history files --object draft",
        "deleted",
    ),
    Task("what is in this stream", "one stream of it", "show {a} ORDERS --subjects 9", "orders.eu"),
    Task("how far the consumer was", "consumers", "show latest ORDERS", "billing"),
    Task("the last messages", "Show messages of a stream", "view latest ORDERS --last 2", "paid"),
    Task(
        "put that key back",
        "Put messages, keys or a file",
        "put-back {a} settings --key lang --to copy -s {url}",
        "wrote 1 key into KV_copy",
    ),
]


@cache
def _help(*command: str) -> str:
    done = subprocess.run(
        command_line(*command, "--help"), capture_output=True, text=True, timeout=60, env=environment(), check=True
    )
    return " ".join(done.stdout.split())


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_task_is_one_command(changing: Changing, typed: Type, tmp_path: Path, task: Task) -> None:
    names = dict(zip("abc", changing.backups, strict=True), url=changing.url, file=tmp_path / "file")

    def filled(text: str) -> str:
        return text.format(*changing.moments, **names)

    done = typed(*filled(task.line).split(), "-r", changing.repo)
    assert done.code == 0 and filled(task.prints) in done.out, done


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_its_command_and_options_are_in_the_help(task: Task) -> None:
    words = task.line.split()
    sentence = rf" {words[0]} (?=[A-Z])[^.]*{re.escape(task.words)}"
    assert re.search(sentence, _help()), sentence
    for option in (word for word in words if word.startswith("-")):
        assert re.search(rf"(^|[ ,])({re.escape(option)})\b", _help(words[0])), option


def test_the_file_is_the_first_one(changing: Changing, typed: Type, tmp_path: Path) -> None:
    typed("object", changing.backups[0], "files", "report", "-o", tmp_path / "file", "-r", changing.repo)
    assert (tmp_path / "file").read_bytes() == REPORT
    lost = typed("object", "latest", "files", "draft", "-o", tmp_path / "draft", "-r", changing.repo)
    assert lost.code == 1 and "was deleted before the backup" in lost.err
    every = typed("history", "files", "--object", "draft", "-r", changing.repo)
    assert "jsbackup history files --object draft" in lost.err
    command = re.search(r"jsbackup (object \S+ files draft -o )FILE", every.out)
    assert command is not None, every.out
    assert typed(*command[1].split(), tmp_path / "draft", "-r", changing.repo).code == 0
    assert (tmp_path / "draft").read_bytes() == DRAFT
