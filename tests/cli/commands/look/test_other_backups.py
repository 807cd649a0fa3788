"""What the newest backup does not have any more: others are asked, or the command that asks them is named."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.commands.look.changes import DRAFT, server_time
from tests.cli.commands.look.conftest import Changing
from tests.cli.test_json import check
from tests.cli.typed import Typed
from tests.harness.api import connected
from tests.harness.commands import command_line, environment

Type = Callable[..., Typed]
pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


def _value(changing: Changing, *words: str) -> tuple[int, bytes, str]:
    done = subprocess.run(
        command_line("kv", *words, "-r", changing.repo), capture_output=True, timeout=60, env=environment()
    )
    return done.returncode, done.stdout, done.stderr.decode()


def test_latest_asks_the_backups_around_the_moment(changing: Changing, typed: Type) -> None:
    first, second, _ = changing.backups
    code, out, err = _value(changing, "latest", "settings", "theme", "--at", changing.moments[1])
    assert (code, out) == (0, b"light") and f"note: revision 4 is in backup {second}" in err
    code, out, err = _value(changing, "latest", "settings", "gone", "--at", changing.moments[0])
    assert (code, out) == (0, b"here") and f"is in backup {first}" in err
    listed = check("kv", typed("kv", "latest", "settings", "--at", changing.moments[1], "--json", "-r", changing.repo))
    assert [one["key"] for one in listed["keys"]] == ["lang", "theme"]
    assert listed["unknown"] == [] and listed["whole"] is True and listed["backups"][-1] == second


def test_a_named_backup_says_what_it_does_not_know(changing: Changing, typed: Type) -> None:
    newest, moment = changing.backups[-1], changing.moments[0]
    code, out, err = _value(changing, newest, "settings", "theme", "--at", moment)
    assert (code, out) == (3, b"") and "cannot say what key theme of bucket settings was" in err
    listed = typed("kv", newest, "settings", "--at", moment, "--json", "-r", changing.repo)
    assert (listed.code, listed.document["unknown"], listed.document["whole"]) == (3, ["theme"], False)


def test_put_back_of_latest_asks_the_backups_around_the_moment(changing: Changing, typed: Type) -> None:
    first, second, _ = changing.backups
    line = ["put-back", "latest", "settings", "--to", "copy", "-s", changing.url, "-r", changing.repo]
    done = typed(*line, "--key", "theme", "--at", changing.moments[1], "--overwrite")
    assert done.code == 0 and f"note: revision 4 of theme is in backup {second}\n" in done.out
    assert _copied(changing) == "light"
    done = typed(*line, "--key", "theme", "--at", changing.moments[0], "--overwrite")
    assert done.code == 0 and _copied(changing) == "dark"
    every = typed(*line, "--key", ">", "--at", changing.moments[0], "--dry-run", "--json")
    assert every.code == 0 and every.document["backup"] == first
    assert sorted(one["name"] for one in every.document["messages"]) == ["gone", "lang", "theme"]
    assert typed(*line, "--key", "gone", "--at", changing.moments[1]).code == 1  # it had no value then


def test_where_a_bucket_takes_values_that_expire_the_way_to_its_last_value_is_named(
    changing: Changing, typed: Type, tmp_path: Path
) -> None:
    """As nats-py makes every bucket: nothing tells whether a value between these two has expired."""
    repo = tmp_path / "repo"

    async def fill() -> str:
        async with connected(changing.url) as nc:
            bucket = await nc.jetstream().create_key_value(bucket="short", history=3)
            await bucket.put("theme", b"light")
            for _ in range(5):
                await bucket.put("other", b"")
            moment = await server_time(changing.url)
            await bucket.put("theme", b"broken")
            return moment

    moment = asyncio.run(fill())
    typed("backup", "KV_short", "-s", changing.url, "-r", repo)
    asked = ["put-back", "latest", "short", "--key", "theme", "--overwrite", "-s", changing.url, "-r", repo]
    unknown = typed(*asked, "--at", moment)
    assert unknown.code == 3 and "may have expired (Nats-TTL)" in unknown.err
    hinted = re.search(r"If none has, add '(--at \d+)'", unknown.err)
    assert hinted is not None
    done = typed(*asked, *hinted[1].split(" "), "--json")
    assert (done.code, done.document["written"]) == (0, 1)


def _copied(changing: Changing) -> str:
    async def read() -> str:
        async with connected(changing.url) as nc:
            value = (await (await nc.jetstream().key_value("copy")).get("theme")).value
            return (value or b"").decode()

    return asyncio.run(read())


def test_put_back_of_a_named_backup_says_what_asks_the_others(changing: Changing, typed: Type) -> None:
    line = ["put-back", changing.backups[-1], "settings", "--to", "copy", "-s", changing.url, "-r", changing.repo]
    done = typed(*line, "--key", "theme", "--at", changing.moments[0])
    assert done.code == 3 and "jsbackup history KV_settings --key theme" in done.err
    partly = typed(*line, "--key", ">", "--at", changing.moments[0], "--partial", "--dry-run", "--json")
    assert partly.code == 3 and [one["name"] for one in partly.document["messages"]] == ["lang"]


def test_a_deleted_file_is_found_with_the_command_that_gets_it(changing: Changing, typed: Type, tmp_path: Path) -> None:
    a, b, c = changing.backups
    document = check("history", typed("history", "files", "--object", "report", "--json", "-r", changing.repo))
    versions = [(one["size"], one["deleted"], one["backups"], one["gone"]) for one in document["versions"]]
    assert versions == [(260_000, False, [a], b), (13, False, [b, c], None)]
    lost = typed("object", "latest", "files", "draft", "-o", tmp_path / "draft", "-r", changing.repo)
    assert lost.code == 1 and "jsbackup history files --object draft" in lost.err
    every = typed("history", "files", "--object", "draft", "-r", changing.repo)
    command = re.search(r"jsbackup (object \S+ files draft -o )FILE", every.out)
    assert command is not None, every.out
    assert typed(*command[1].split(), tmp_path / "draft", "-r", changing.repo).code == 0
    assert (tmp_path / "draft").read_bytes() == DRAFT


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["history", "files"], 2, "files is an object store: name a file of it with --object."),
        (["history", "files", "--key", "report", "--object", "report"], 2, "--key and --object contradict each other"),
        (["history", "ORDERS", "--object", "report"], 2, "no backup has a stream OBJ_ORDERS"),
        (["history", "ORDERS", "--origin", "x"], 2, "no backup that --origin and --tag choose has a stream ORDERS"),
    ],
)
def test_a_wrong_name_is_corrected(changing: Changing, typed: Type, words: list[str], *, code: int, text: str) -> None:
    done = typed(*words, "-r", changing.repo)
    assert (done.code, text in done.err) == (code, True), done


def test_nothing_found_is_said_on_stderr(changing: Changing, typed: Type) -> None:
    for more in ([], ["--raw"], ["--json"], ["--last", "3"]):
        done = typed("view", "latest", "ORDERS", "--grep", "nowhere", *more, "-r", changing.repo)
        assert (done.code, done.out) == (0, "") and "no message of stream ORDERS matches" in done.err
