"""The commands that look into backups print the same of a repository in S3 as of one in a folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.commands.look.conftest import Changing, Shelf
from tests.cli.typed import Typed, in_shell
from tests.harness.s3server import BUCKET, S3Server

pytestmark = [pytest.mark.nats, pytest.mark.s3, pytest.mark.timeout(300)]

_SHELF = [
    "view latest ORDERS --subject orders.eu.* --last 5 --json",
    "view {0} ORDERS --header Nats-Msg-Id:order-9",
    "view latest ORDERS --sequence 12 --raw",
    "show latest ORDERS --subjects 5 --json",
    "kv latest --json",
    "kv latest settings --json",
    "kv latest settings lang --at 3",
    "kv latest settings lang",
    "kv latest settings lang --at 3 --json",
    "object latest files --json",
    "object latest files twice",
    "object latest files gone",
    "history settings --key lang --json",
    "history ORDERS --json",
    "history --grep evil --json",
    "history ORDERS --subject none",
]
_CHANGING = [
    "kv latest settings theme --at {1}",
    "kv latest settings --at {1} --json",
    "kv {newest} settings theme --at {0}",
    "kv latest settings gone",
    "history settings --key theme --json",
    "history files --object draft",
    "object latest files draft",
    "history ORDERS --grep 4711 --json",
    "put-back latest settings --key theme --at {0} --to copy -s {url} --dry-run",
    "put-back {newest} settings --key theme --to copy -s {url} --dry-run --json",
]


class Copied:
    """A repository in S3."""

    def __init__(self, server: S3Server, name: str, origin: Path) -> None:
        self.location = f"s3://{BUCKET}/{name}"
        self._variables = server.environment
        to = {key.replace("JSBACKUP_", "JSBACKUP_TO_"): value for key, value in self._variables.items()}
        done = in_shell("copy", "-r", origin, "--to-repo", self.location, **{**self._variables, **to})
        assert done.code == 0, done

    def run(self, line: str) -> Typed:
        return in_shell(*line.split(), "-r", self.location, **self._variables)


@pytest.fixture(scope="module")
def copied_shelf(shelf: Shelf, s3_server: S3Server) -> Iterator[Copied]:
    yield Copied(s3_server, "look-shelf", shelf.repo)


@pytest.fixture(scope="module")
def copied_changing(changing: Changing, s3_server: S3Server) -> Iterator[Copied]:
    yield Copied(s3_server, "look-changing", changing.repo)


@pytest.mark.by_turns
@pytest.mark.parametrize("line", _SHELF)
def test_of_a_backup(shelf: Shelf, copied_shelf: Copied, line: str) -> None:
    typed = line.format(shelf.backup)
    there, here = copied_shelf.run(typed), in_shell(*typed.split(), "-r", shelf.repo)
    assert there == here
    assert here.code in (0, 1) and (here.out or here.err)


@pytest.mark.by_turns
@pytest.mark.parametrize("line", _CHANGING)
def test_of_several_backups(changing: Changing, copied_changing: Copied, line: str) -> None:
    typed = line.format(*changing.moments, newest=changing.backups[-1], url=changing.url)
    there, here = copied_changing.run(typed), in_shell(*typed.split(), "-r", changing.repo)
    assert there == here
    assert here.out or here.err
