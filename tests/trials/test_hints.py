"""Hints after a slip name what was meant, not something else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness.servers import NEWEST, NatsServer
from tests.trials.accounts import Type, ask, fill, typing

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]


@pytest.fixture
def typed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Type:
    return typing(capsys, monkeypatch)


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server with a stream, a consumer and a bucket, and a folder with their backup in `repository`."""
    folder = tmp_path_factory.mktemp("hints")
    with NatsServer(NEWEST, name="C1") as server, pytest.MonkeyPatch.context() as patch:
        fill(server.url, "ORDERS", 3)
        fill(server.url, "KV_settings", 0, subjects=["$KV.settings.>"], max_msgs_per_subject=1, allow_rollup_hdrs=True)
        ask(server.url, "CONSUMER.DURABLE.CREATE.ORDERS.c", {"stream_name": "ORDERS", "config": {"durable_name": "c"}})
        from jsbackup.cli.main import run

        patch.setenv("HOME", "/nonexistent")
        assert run(["backup", "-s", server.url, "-r", str(folder / "repository"), "-q"]) == 0
        yield server.url, folder


def test_a_mistyped_location_names_the_repository_beside_it(
    started: tuple[str, Path], typed: Type, tmp_path: Path
) -> None:
    right, wrong = started[1] / "repository", started[1] / "repositroy"
    done = typed("list", "-r", wrong)
    assert done.code == 10 and f"no repository at {wrong}\nhint: Did you mean {right}?\n" in done.err
    done = typed("list", "-r", tmp_path / "elsewhere")
    assert done.code == 10 and "hint: Check the location. 'jsbackup init' makes a repository there.\n" in done.err
    done = typed("repair", "--from", tmp_path / "elsewhere", "-r", right)
    assert done.code == 10 and f"error: --from: no repository at {tmp_path / 'elsewhere'}\n" in done.err
    assert "hint: Name a repository that has copies of these backups.\n" in done.err


def test_a_mistyped_target_of_put_back_names_the_stream(started: tuple[str, Path], typed: Type) -> None:
    where = ("-s", started[0], "-r", started[1] / "repository")
    done = typed("put-back", "latest", "ORDERS", "--subject", ">", "--to", "ORDRES", *where)
    assert done.code == 15 and "no stream ORDRES at the target\nhint: Did you mean ORDERS?\n" in done.err
    done = typed("put-back", "latest", "ORDERS", "--subject", ">", "--to", "ELSEWHERE", *where)
    assert done.code == 15 and "hint: Restore it (jsbackup restore), or name another one with --to.\n" in done.err


def test_what_happens_elsewhere_is_only_said_if_something_is_written(started: tuple[str, Path], typed: Type) -> None:
    where = ("-s", started[0], "-r", started[1] / "repository")
    done = typed("put-back", "latest", "ORDERS", "--subject", ">", *where)
    assert done.code == 0 and "nothing was written into ORDERS" in done.out and "consumers" not in done.out
    ask(started[0], "STREAM.MSG.DELETE.ORDERS", {"seq": 2})
    done = typed("put-back", "latest", "ORDERS", "--subject", ">", "--dry-run", *where)
    assert done.code == 0 and "note: the consumers of stream ORDERS (1) get the messages as new ones\n" in done.out


def test_a_stream_where_only_a_backup_is_taken_is_told_so(started: tuple[str, Path], typed: Type) -> None:
    done = typed("show", "ORDERS", "-r", started[1] / "repository")
    assert done.code == 2 and "or only 'latest', where a command takes no stream" in done.err


def test_an_archive_of_another_format_names_both_ways_out(started: tuple[str, Path], typed: Type) -> None:
    repo = ("-r", started[1] / "repository")
    done = typed("export", "latest", "--archive", "v2", "--format", "parquet", "--output", started[1] / "out", *repo)
    assert done.code == 2
    assert "error: --archive is for --format nats-cli, and this is --format parquet\n" in done.err
    assert "hint: Leave out --archive, or write --format nats-cli.\n" in done.err
