"""`restore --if-exists replace` is killed: what backups make of the copy that it left, and what removes it."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path

import pytest

from tests.harness.commands import PATIENT, command_line, environment, jsbackup
from tests.harness.proxy import Direction, Proxy
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.trials.accounts import count, fill, names

pytestmark = [pytest.mark.nats, pytest.mark.timeout(600)]

COUNT = 200
SIZE = 20_000
COPY = r"BIG-jsbackup-[0-9a-f]{8}"

# Before what is sent, or after how many bytes, and whether the copy is needed then.
POINTS: dict[str, tuple[str | int, bool]] = {
    "the copy is half-made": (COUNT * SIZE // 2, False),
    "the copy is whole, and has its mark": (rf"STREAM\.UPDATE\.{COPY} ", False),
    "the copy is proved": (r"STREAM\.DELETE\.BIG ", False),
    "the old one is gone": (r'STREAM\.RESTORE\.BIG [^\r]*\r\n\{"config', True),
    "the new one is half-made": (COUNT * SIZE * 3 // 2, True),
    "the new one is whole, and has its mark": (r"STREAM\.UPDATE\.BIG ", True),
    "the new one is proved": (rf"STREAM\.DELETE\.{COPY} ", False),
}


def fill_big(url: str) -> None:
    fill(url, "BIG", COUNT, payload=os.urandom(SIZE))


def killed(server: NatsServer, repo: Path, point: str) -> str:
    """A restore that replaces BIG is killed at this point; the copy that is left."""
    where = POINTS[point][0]
    with Proxy(server.port) as proxy:
        wire = "v2" if isinstance(where, int) else "auto"  # of an archive v1 there is nothing before all of it is there
        line = command_line(
            *("restore", "latest", "BIG", "-r", repo, "-s", proxy.url, "--if-exists", "replace"),
            *PATIENT,
            wire=wire,
            window_bytes=64 << 10,
        )
        process = subprocess.Popen(line, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def kill() -> None:
            process.send_signal(signal.SIGKILL)
            process.wait(120)

        if isinstance(where, int):
            proxy.at(Direction.TO_SERVER, where, kill)
        else:
            proxy.before(where.encode(), kill)
        assert process.wait(120) == -signal.SIGKILL
    (copy,) = (name for name in names(server.url) if name.startswith("BIG-jsbackup-"))
    return copy


@pytest.mark.parametrize(
    ("version", "point"),
    [*((NEWEST, point) for point in POINTS), (ENDS[0], "the old one is gone")],
)
def test_a_copy_is_backed_up_only_where_it_is_all_that_is_left_and_goes_with_the_next_restore(
    version: str, point: str, tmp_path: Path
) -> None:
    with NatsServer(version) as server:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        fill(server.url, "OTHER", 3)
        fill_big(server.url)
        jsbackup("backup", *at).ok()
        copy = killed(server, tmp_path, point)

        made = jsbackup("backup", *at)
        streams = {stream["name"]: stream["warnings"] for stream in made.document["streams"]}
        if POINTS[point][1]:
            assert (made.code, made.document["result"]) == (3, "partial")
            assert "interrupted restore made to replace stream BIG" in streams[copy][0]
        else:
            assert (made.code, made.document["result"], sorted(streams)) == (0, "complete", ["BIG", "OTHER"])
            assert f"stream {copy} is left out" in made.document["notes"][0]

        again = jsbackup("restore", "latest", "BIG", *at, "--if-exists", "replace").ok()
        assert any(note.startswith(f"removed the copy {copy}") for note in again.document["streams"][0]["notes"])
        assert sorted(names(server.url)) == ["BIG", "OTHER"] and count(server.url, "BIG") == COUNT
        assert jsbackup("backup", *at).ok().document["notes"] == []


def test_a_stream_that_somebody_made_meanwhile_does_not_stand_for_the_copy(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server, NatsServer(NEWEST) as other:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        fill(server.url, "OTHER", 3)
        fill_big(server.url)
        jsbackup("backup", *at).ok()
        copy = killed(server, tmp_path, "the old one is gone")
        gone = jsbackup("backup", "BIG", *at)
        assert gone.code == 2 and f"left its copy {copy}" in gone.document["error"]["hint"]
        fill(server.url, "BIG", 1)
        made = jsbackup("backup", *at)
        assert (made.code, [one["name"] for one in made.document["streams"]]) == (3, ["BIG", copy, "OTHER"])
        without = jsbackup("backup", "--exclude", "BIG", *at).ok().document
        assert [one["name"] for one in without["streams"]] == ["OTHER"]
        # It is no stream of its own to anybody else.
        cloned = jsbackup("clone", "*", "-s", server.url, "--to-server", other.url, *PATIENT)
        assert (cloned.code, sorted(names(other.url))) == (3, ["BIG", "OTHER"])
        done = jsbackup(
            "restore",
            made.document["backup"],
            "-s",
            other.url,
            "-r",
            tmp_path,
            "--if-exists",
            "replace",
            "--replace-with-part",
        )
        assert done.code == 3 and [one["name"] for one in done.document["missing"]] == [copy]
        jsbackup("restore", made.document["backup"], copy, "-s", other.url, "-r", tmp_path).ok()
        assert count(other.url, copy) == COUNT
        jsbackup("restore", "latest", "BIG", *at, "--if-exists", "replace", "--replace-with-part").ok()
        assert sorted(names(server.url)) == ["BIG", "OTHER"] and count(server.url, "BIG") == COUNT


def test_what_is_restored_with_less_than_the_copy_has_does_not_remove_it(tmp_path: Path) -> None:
    with NatsServer(NEWEST) as server:
        at = ("-s", server.url, "-r", tmp_path, *PATIENT)
        fill_big(server.url)
        jsbackup("backup", *at).ok()
        copy = killed(server, tmp_path, "the old one is gone")
        part = jsbackup("restore", "latest", "BIG", "--until", "9", *at).ok()
        assert f"the copy {copy} of an interrupted replace is kept" in part.document["streams"][0]["notes"][0]
        assert sorted(names(server.url)) == ["BIG", copy]
