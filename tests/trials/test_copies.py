"""Mirrors and streams with sources, restored and cloned in many ways, and looked at again when copying has settled.

One server for each version holds a scene of origins and copies, and empty accounts to restore them into. Whatever is
done, no message may come twice unless the plan said so in numbers, and what is published afterwards has to come once.
"""

from __future__ import annotations

import asyncio
import signal
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import call, connected
from tests.harness.clusters import NatsCluster
from tests.harness.commands import Ran, command_line, environment, jsbackup
from tests.harness.copied import Copied, infos, make, publish, read, settled
from tests.harness.natscli import jsm_account_backup
from tests.harness.servers import NatsServer, version_tuple

pytestmark = [pytest.mark.nats, pytest.mark.timeout(300)]

VERSIONS = ("2.10.26", "2.12.8", "2.15.1", "2.15.2")
NEW = ("2.15.1", "2.15.2")
ACCOUNTS = [f"T{number}" for number in range(20)]
COUNT = 40

_ORIG = {"name": "ORIG"}
_A, _B = ({**_ORIG, "filter_subject": f"orig.{letter}"} for letter in "ab")
_TURNED = {**_ORIG, "subject_transforms": [{"src": "orig.a", "dest": "turned.a"}]}
_BOTH = {**_ORIG, "subject_transforms": [{"src": "orig.a", "dest": "two.a"}, {"src": "orig.b", "dest": "two.b"}]}

# Name, which of the subjects it gets (`orig.a` and `orig.b`), and its configuration.
SCENE: list[tuple[str, str, dict[str, Any]]] = [
    ("ORIG", "ab", {"subjects": ["orig.>"]}),
    ("ALL", "ab", {"sources": [_ORIG]}),
    ("FILTERED", "a", {"sources": [_A]}),
    ("TWICE", "ab", {"sources": [_A, _B]}),
    ("TURNED", "a", {"sources": [_TURNED]}),
    ("BOTH", "ab", {"sources": [_BOTH]}),
    ("FROM", "ab", {"sources": [{**_ORIG, "opt_start_seq": 21}]}),
    ("LATER", "ab", {"sources": [{**_ORIG, "opt_start_time": "2020-01-01T00:00:00Z"}]}),
    ("MIRROR", "ab", {"mirror": _ORIG}),
    ("MIRROR_A", "a", {"mirror": _A}),
    ("CHAIN", "ab", {"sources": [{"name": "ALL"}]}),
    ("CHAIN_A", "a", {"sources": [{"name": "CHAIN", "filter_subject": "orig.a"}]}),
    ("OF_MIRROR", "ab", {"mirror": {"name": "MIRROR"}}),
]
GETS = {name: subjects for name, subjects, _ in SCENE}
CONFIGS = [{"name": name, **config} for name, _, config in SCENE]


# It is published to as well, the same subjects over and over.
OWN = {"name": "OWN", "subjects": ["own.>"], "sources": [_ORIG], "max_msgs_per_subject": 1000}


@dataclass(slots=True)
class Scene:
    """A server with the scene in account SCENE, a backup of it, and accounts that nobody has used."""

    version: str
    server: NatsServer
    repo: Path
    before: dict[str, Copied]
    unused: list[str]

    def url(self, account: str = "") -> str:
        return f"nats://{account or self.unused.pop(0)}:p@127.0.0.1:{self.server.port}"

    @property
    def new(self) -> bool:
        return version_tuple(self.version) >= (2, 15)


def _accounts() -> str:
    users = [f"{name} {{ jetstream: enabled, users: [{{ user: {name}, password: p }}] }}" for name in ("S", *ACCOUNTS)]
    return "accounts {\n" + "\n".join(users) + "\n}\n"


async def _fill(url: str) -> dict[str, Copied]:
    await make(url, CONFIGS)
    async with connected(url) as nc:
        for number in range(COUNT):
            await nc.request(f"orig.{'ab'[number % 2]}", f"m{number}".encode(), timeout=20)
    await settled(url, {name: COUNT // 2 if GETS[name] == "a" else COUNT for name in ("ALL", "CHAIN", "CHAIN_A")})
    return await read(url)


@pytest.fixture(scope="module", params=VERSIONS)
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    with NatsServer(request.param, config=_accounts()) as server:
        made = Scene(request.param, server, tmp_path_factory.mktemp("copies") / "repo", {}, [*ACCOUNTS])
        made.before = asyncio.run(_fill(made.url("S")))
        jsbackup("backup", "-r", made.repo, "-s", made.url("S")).ok()
        yield made


def restore(url: str, repo: Path, *arguments: str, ok: bool = True) -> Ran:
    done = jsbackup("restore", "latest", *arguments, "-r", repo, "-s", url)
    return done.ok() if ok else done


def notes(ran: Ran, name: str) -> str:
    return "; ".join(next(one for one in ran.document["streams"] if one["as"] == name)["notes"])


async def _new_ones(url: str, prefix: str = "", before: Iterable[str] = GETS, subject: str = "orig") -> None:
    """Publish, and find each message once wherever it belongs, and nothing else."""
    was = {name: info["state"] for name, info in (await infos(url)).items()}
    payloads = {letter: [f"new-{letter}{number}-{time.time_ns()}" for number in range(3)] for letter in "ab"}
    for pair in zip(payloads["a"], payloads["b"], strict=True):
        for letter, payload in zip("ab", pair, strict=True):
            await publish(url, f"{subject}.{letter}", [payload])
    wanted = {f"{prefix}{name}": was[f"{prefix}{name}"]["messages"] + 3 * len(GETS.get(name, "ab")) for name in before}
    await settled(url, wanted, quiet=0.6)
    came = await read(url, behind={name: state["last_seq"] for name, state in was.items()})
    for name in before:
        expected = sorted(payload for letter in GETS.get(name, "ab") for payload in payloads[letter])
        assert sorted(came[f"{prefix}{name}"].payloads) == expected, name


async def _as_before(scene: Scene, url: str, prefix: str = "", only: Sequence[str] = ()) -> None:
    """Nothing has come since the streams were restored, and then what is published comes once."""
    await settled(url)
    now = await read(url)
    for name, was in scene.before.items():
        if not only or name in only:
            assert now[f"{prefix}{name}"].payloads == was.payloads, name
            assert not now[f"{prefix}{name}"].twice, name


def unharmed(scene: Scene, url: str, prefix: str = "", *, subject: str = "orig") -> None:
    asyncio.run(_as_before(scene, url, prefix))
    asyncio.run(_new_ones(url, prefix, subject=subject))


# ------------------------------------------------------------------------------------- 9: nothing is copied twice


def test_copies_go_on_where_they_were_after_a_restore(scene: Scene) -> None:
    url = scene.url()
    done = restore(url, scene.repo)
    assert all("copying has settled: nothing has come since" in notes(done, name) for name in GETS if name != "ORIG")
    assert all(one["copying"]["settled"] for one in done.document["streams"] if one["name"] != "ORIG")
    unharmed(scene, url)


@pytest.mark.parametrize("scene", NEW, indirect=True)
def test_copies_go_on_where_they_were_after_a_restore_by_archives_v2(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo, "--wire", "v2")
    unharmed(scene, url)


@pytest.mark.parametrize("scene", NEW, indirect=True)
def test_copies_of_origins_in_memory_go_on_where_they_were(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo, "ORIG", "--storage", "memory")
    restore(url, scene.repo, "--exclude", "ORIG")
    unharmed(scene, url)


def test_copies_go_on_where_they_were_under_other_names_and_subjects(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo, "--rename-prefix", "t_", "--map-subject", "orig.>=>moved.>")
    unharmed(scene, url, "t_", subject="moved")


def test_copies_go_on_where_they_were_in_the_same_account_under_other_names(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo)
    restore(url, scene.repo, "--rename-prefix", "t_", "--map-subject", "orig.>=>moved.>")
    unharmed(scene, url, "t_", subject="moved")
    asyncio.run(_as_before(scene, url))


def test_copies_go_on_where_they_were_when_all_are_replaced(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo)
    asyncio.run(_new_ones(url))
    restore(url, scene.repo, "--if-exists", "replace")
    unharmed(scene, url)


def test_copies_go_on_where_they_were_when_they_are_cloned(scene: Scene) -> None:
    url = scene.url()
    jsbackup("clone", "*", "-s", scene.url("S"), "--to-server", url).ok()
    unharmed(scene, url)


def test_copies_go_on_where_they_were_when_a_folder_of_the_nats_cli_is_imported(scene: Scene, tmp_path: Path) -> None:
    jsm_account_backup(scene.url("S"), GETS, tmp_path / "cli")
    jsbackup("import", tmp_path / "cli", "-r", tmp_path / "repo").ok()
    url = scene.url()
    restore(url, tmp_path / "repo")
    unharmed(scene, url)


@pytest.mark.parametrize("first", ["ORIG", "copies"])
def test_copies_go_on_where_they_were_when_parts_are_restored_one_by_one(scene: Scene, first: str) -> None:
    url = scene.url()
    parts = [["ORIG"], ["FILTERED", "MIRROR"]]
    for part in parts if first == "ORIG" else reversed(parts):
        restore(url, scene.repo, *part)
    asyncio.run(_as_before(scene, url, only=["ORIG", "FILTERED", "MIRROR"]))
    asyncio.run(_new_ones(url, before=["ORIG", "FILTERED", "MIRROR"]))


@pytest.mark.parametrize("version", NEW)
def test_copies_go_on_where_they_were_in_a_cluster(version: str, tmp_path: Path) -> None:
    """There no archive gives a stream its time of creation back."""
    few = [config for config in CONFIGS if config["name"] in ("ORIG", "ALL", "TWICE", "MIRROR", "CHAIN")]
    names = [config["name"] for config in few]
    with NatsServer(version) as server, NatsCluster(version) as cluster:
        asyncio.run(make(server.url, few))
        asyncio.run(publish(server.url, "orig.a", (f"m{number}" for number in range(COUNT))))
        asyncio.run(settled(server.url, dict.fromkeys(names, COUNT)))
        jsbackup("backup", "-r", tmp_path / "repo", "-s", server.url).ok()
        restore(cluster.url, tmp_path / "repo", "--replicas", "3", "--timeout", "60s")
        asyncio.run(settled(cluster.url))
        now = asyncio.run(read(cluster.url))
        assert {name: len(now[name].payloads) for name in names} == dict.fromkeys(names, COUNT)
        asyncio.run(_new_ones(cluster.url, before=names))


def test_copies_that_were_backed_up_alone_go_on_beside_their_origins(scene: Scene, tmp_path: Path) -> None:
    url = scene.url()
    restore(url, scene.repo)
    few = ["FILTERED", "MIRROR"]
    jsbackup("backup", *few, "-r", tmp_path / "repo", "-s", url).ok()

    async def lose() -> None:
        async with connected(url) as nc:
            for name in few:
                await call(nc, f"STREAM.DELETE.{name}")

    asyncio.run(lose())
    restore(url, tmp_path / "repo")
    asyncio.run(_as_before(scene, url, only=few))
    asyncio.run(_new_ones(url, before=few))


@pytest.mark.parametrize("scene", NEW, indirect=True)
def test_copies_go_on_when_their_origin_is_restored_into_memory_after_them(scene: Scene) -> None:
    url = scene.url()
    restore(url, scene.repo, "FILTERED", "MIRROR")
    restore(url, scene.repo, "ORIG", "--storage", "memory")
    asyncio.run(_as_before(scene, url, only=["ORIG", "FILTERED", "MIRROR"]))
    asyncio.run(_new_ones(url, before=["ORIG", "FILTERED", "MIRROR"]))


# --------------------------------------------------------------------------- 21: an origin has what its copies have


class Publishing:
    """Publishes to `orig.a` and `orig.b` from a thread of its own, some hundred messages a second, while entered."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._loop = asyncio.new_event_loop()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def _run(self) -> None:
        self._loop.run_until_complete(self._publish())
        self._loop.close()

    async def _publish(self) -> None:
        number = 0
        async with connected(self._url) as nc:
            while not self._stop.is_set():
                for n in range(number, number + 5):
                    await nc.request(f"orig.{'ab'[n % 2]}", b"%d" % time.time_ns(), timeout=30)
                await nc.request("own.x", b"%d" % time.time_ns(), timeout=30)
                number += 5
                await asyncio.sleep(0.01)

    def __enter__(self) -> None:
        self._thread.start()
        time.sleep(0.3)

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(60)


def _fits(streams: dict[str, Copied]) -> None:
    """No copy has more than its origin had."""
    for name, config in ((name, config) for name, _, config in SCENE):
        of = [*config.get("sources", []), *([config["mirror"]] if "mirror" in config else [])]
        for origin in of:
            end = streams[origin["name"]].state["last_seq"]
            marks = [mark for mark in streams[name].marks if mark.split(" ")[0] == origin["name"]]
            assert max((int(mark.split(" ")[1]) for mark in marks), default=0) <= end, name
            if "mirror" in config:
                assert streams[name].state["last_seq"] <= end, name


@pytest.fixture(scope="module", params=VERSIONS)
def busy(request: pytest.FixtureRequest) -> Iterator[NatsServer]:
    """A server with the scene in accounts S, T0 and T1, which tests publish to."""
    with NatsServer(request.param, config=_accounts()) as server:
        for account in ("S", "T0", "T1"):
            asyncio.run(make(_account(server, account), [*CONFIGS, OWN]))
        yield server


def _account(server: NatsServer, name: str) -> str:
    return f"nats://{name}:p@127.0.0.1:{server.port}"


def test_backups_made_while_publishers_are_at_work_are_restored_with_nothing_ahead(
    busy: NatsServer, tmp_path: Path
) -> None:
    url, target = _account(busy, "S"), _account(busy, "T2")
    with Publishing(url):
        for _ in range(2):
            jsbackup("backup", "-r", tmp_path / "repo", "-s", url, "--jobs", "4").ok()
    done = restore(target, tmp_path / "repo")
    for name in GETS:
        assert "goes on copying behind" not in notes(done, name) and "left out" not in notes(done, name), name
    _fits(asyncio.run(_settled_read(target)))
    asyncio.run(_new_ones(target))


def test_backups_that_follow_publishers_are_restored_with_nothing_ahead(busy: NatsServer, tmp_path: Path) -> None:
    url, target = _account(busy, "T0"), _account(busy, "T3")
    with Publishing(url):
        arguments = ("follow", "-r", tmp_path / "repo", "-s", url, "--every", "1s")
        following = subprocess.Popen(command_line(*arguments), env=environment(), stderr=subprocess.PIPE)
        time.sleep(6)
        following.send_signal(signal.SIGINT)
        _, said = following.communicate(timeout=60)
    assert following.returncode in (0, 130), said.decode()
    done = restore(target, tmp_path / "repo")
    for name in GETS:
        assert "goes on copying behind" not in notes(done, name) and "left out" not in notes(done, name), name
    _fits(asyncio.run(_settled_read(target)))
    asyncio.run(_new_ones(target))


def test_clones_made_while_publishers_are_at_work_have_nothing_ahead(busy: NatsServer) -> None:
    url, target = _account(busy, "T1"), _account(busy, "T4")
    with Publishing(url):
        jsbackup("clone", "*", "-s", url, "--to-server", target, "--jobs", "4").ok()
    found = asyncio.run(_settled_read(target))
    _fits(found)
    assert {name: copied.twice for name, copied in found.items() if copied.twice} == {}
    asyncio.run(_new_ones(target, before=[*GETS, "OWN"]))


async def _settled_read(url: str) -> dict[str, Copied]:
    await settled(url, quiet=0.6)
    return await read(url)


def test_copies_of_a_later_backup_go_on_where_their_origin_ends(scene: Scene, tmp_path: Path) -> None:
    """As in backups of earlier releases, which read origins first."""
    source, url = scene.url(), scene.url()
    few = [config for config in CONFIGS if config["name"] in ("ORIG", "ALL", "TWICE", "MIRROR", "OF_MIRROR")]
    names = [config["name"] for config in few]
    asyncio.run(make(source, few))
    asyncio.run(publish(source, "orig.a", (f"m{number}" for number in range(20))))
    asyncio.run(settled(source, dict.fromkeys(names, 20)))
    jsbackup("backup", "ORIG", "-r", tmp_path / "early", "-s", source).ok()
    asyncio.run(publish(source, "orig.a", (f"m{number}" for number in range(20, 30))))
    asyncio.run(settled(source, dict.fromkeys(names, 30)))
    jsbackup("backup", "-r", tmp_path / "late", "-s", source).ok()
    restore(url, tmp_path / "early", "ORIG")
    planned = jsbackup("plan", "latest", "--exclude", "ORIG", "-r", tmp_path / "late", "-s", url).ok().document
    said = {action["stream"]: "; ".join(action["notes"]) for action in planned["actions"]}
    assert "ends at sequence 30, and ORIG at 20: 10 messages behind that are left out" in said["MIRROR"]
    assert "ends at sequence 30, and MIRROR at 20: 10 messages behind that are left out" in said["OF_MIRROR"]
    for name in ("ALL", "TWICE"):
        assert "has copied ORIG up to sequence 30, and that will end at 20: it keeps what it has" in said[name]
    restore(url, tmp_path / "late", "--exclude", "ORIG")
    now = asyncio.run(_settled_read(url))
    counts = {name: len(now[name].payloads) for name in names}
    assert counts == {"ORIG": 20, "ALL": 30, "TWICE": 30, "MIRROR": 20, "OF_MIRROR": 20}
    asyncio.run(_new_ones(url, before=names))


def test_a_mirror_of_another_stream_that_is_shorter_is_refused(scene: Scene) -> None:
    url = scene.url()
    asyncio.run(make(url, [{"name": "ORIG", "subjects": ["orig.>"]}]))
    asyncio.run(publish(url, "orig.a", ["of another life"]))
    refused = restore(url, scene.repo, "MIRROR", ok=False)
    assert refused.code == 15 and "--set mirror=null" in refused.err + refused.out


def test_sources_of_another_stream_of_that_name_copy_what_it_has(scene: Scene) -> None:
    url = scene.url()
    asyncio.run(make(url, [{"name": "ORIG", "subjects": ["orig.>"]}]))
    asyncio.run(publish(url, "orig.a", ["of another life"]))
    done = restore(url, scene.repo, "ALL")
    assert "ORIG at the target is not the stream that it copied from" in notes(done, "ALL")
    assert asyncio.run(_settled_read(url))["ALL"].payloads == [*scene.before["ALL"].payloads, "of another life"]
    asyncio.run(_new_ones(url, before=["ORIG", "ALL"]))


# --------------------------------------------------------------------------------------- 22: the origin alone


def test_a_plan_says_what_copies_do_when_their_origin_alone_is_replaced(scene: Scene) -> None:
    url = scene.url()
    few = ["ORIG", "ALL", "FILTERED", "MIRROR"]
    restore(url, scene.repo, *few)
    by = ("--wire", "v2") if scene.new else ()
    command = ("latest", "ORIG", "--if-exists", "replace", *by, "-r", scene.repo, "-s", url)
    (action,) = jsbackup("plan", *command).ok().document["actions"]
    said = "; ".join(action["notes"])
    again = f"copy all of it again: {COUNT} messages at most"
    assert (again in said) == scene.new
    assert ("stream ALL copies from it, keeps what it has" in said) != scene.new
    done = jsbackup("restore", *command).ok()
    asyncio.run(settled(url))
    now = asyncio.run(read(url))
    more = {name: len(now[name].payloads) - len(scene.before[name].payloads) for name in few}
    assert more == ({"ORIG": 0, "ALL": 40, "FILTERED": 20, "MIRROR": 0} if scene.new else dict.fromkeys(few, 0))
    assert f"stream ALL, which copies from it, has got {more['ALL']} messages since" in notes(done, "ORIG")
    if not scene.new:
        asyncio.run(_new_ones(url, before=few))


@pytest.mark.parametrize(("argument", "kept"), [("--subject=orig.a", "a"), ("--until=20", "ab"), ("--since=21", "ab")])
def test_copies_go_on_where_they_were_when_parts_of_them_are_restored(scene: Scene, argument: str, kept: str) -> None:
    url = scene.url()
    restore(url, scene.repo, argument, "--allow-empty")
    asyncio.run(settled(url))
    now = asyncio.run(read(url))
    for name, copied in now.items():
        assert not copied.twice, name
        if kept == "a":
            assert all(int(payload[1:]) % 2 == 0 for payload in copied.payloads), name
    asyncio.run(_new_ones(url))


# ------------------------------------------------------------------------- 23: what was deleted or acknowledged


@dataclass(slots=True)
class Gone:
    """A server with streams whose last messages were deleted, and a backup of them."""

    version: str
    server: NatsServer
    repo: Path


# How many messages each of them lacks, of 20 (10 where it is filtered), and which would come again.
GONE = {"TAIL": 5, "TAIL_A": 4, "WORK": 20, "MOST": 19, "TAIL_TWO": 5, "HIDDEN": 0}


async def _delete(url: str) -> None:
    two = [_A, _B]
    await make(
        url,
        [
            {"name": "ORIG", "subjects": ["orig.>"]},
            {"name": "TAIL", "sources": [_ORIG]},
            {"name": "TAIL_A", "sources": [_A]},
            {"name": "WORK", "sources": [_ORIG], "retention": "workqueue"},
            {"name": "MOST", "sources": [_ORIG], "retention": "workqueue"},
            {"name": "TAIL_TWO", "sources": two},
            {"name": "HIDDEN", "sources": [_A], "subject_transform": {"src": ">", "dest": "hidden.>"}},
        ],
    )
    async with connected(url) as nc:
        for number in range(20):
            await nc.request(f"orig.{'ab'[number % 2]}", f"m{number}".encode(), timeout=20)
    await settled(url, {"TAIL": 20, "TAIL_A": 10, "WORK": 20, "MOST": 20, "TAIL_TWO": 20, "HIDDEN": 10})
    async with connected(url) as nc:
        for name, count in GONE.items():
            last = 10 if name == "TAIL_A" else 20
            for sequence in range(last - count + 1, last + 1):
                await call(nc, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})


@pytest.fixture(scope="module", params=VERSIONS)
def gone(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gone]:
    with NatsServer(request.param, config=_accounts()) as server:
        repo = tmp_path_factory.mktemp("gone") / "repo"
        url = _account(server, "S")
        asyncio.run(_delete(url))
        time.sleep(3.5)  # until it is certain that nothing is on its way
        jsbackup("backup", "-r", repo, "-s", url).ok()
        yield Gone(request.param, server, repo)


async def _came(url: str) -> dict[str, int]:
    """How many messages have come to each that had been there before."""
    await settled(url, quiet=0.8)
    now = await read(url)
    had = {name: (10 if name in ("TAIL_A", "HIDDEN") else 20) - count for name, count in GONE.items()}
    return {name: now[name].state["messages"] - had[name] for name in GONE}


def test_a_plan_says_in_numbers_what_is_copied_again(gone: Gone) -> None:
    """2.15 is told where sources had got to, so nothing comes again there, as nothing does when it is restarted."""
    url = _account(gone.server, "T1")
    planned = jsbackup("plan", "latest", "-r", gone.repo, "-s", url).ok().document
    said = {action["stream"]: "; ".join(action["notes"]) for action in planned["actions"]}
    restore(url, gone.repo)
    came = asyncio.run(_came(url))
    for name, number in came.items():
        expected = 0 if gone.version in NEW or name == "WORK" else GONE[name]
        if name == "HIDDEN" and gone.version == "2.12.8":
            expected = 10
            assert "its subject_transform hides from the server how far it has copied ORIG" in said[name]
            said[name] += "10 messages of ORIG that it had, and that are gone from it, are copied again"
        assert number == expected, name
        assert ("are copied again" in said[name]) == bool(expected), name
        if expected and name != "TAIL_TWO":
            assert f"{number} messages of ORIG that it had, and that are gone from it, are copied again" in said[name]
    asyncio.run(_new_in_gone(url))


def test_sources_resume_where_they_had_got_to_when_that_is_asked_for(gone: Gone) -> None:
    url = _account(gone.server, "T2")
    by = ("--wire", "v2") if gone.version in NEW else ()
    done = restore(url, gone.repo, "--resume-sources", *by)
    assert asyncio.run(_came(url)) == dict.fromkeys(GONE, 0)
    for name in GONE:
        resumed = name != "HIDDEN" or gone.version == "2.12.8"
        assert ("in its configuration from now on" in notes(done, name)) == resumed, name
    config = asyncio.run(infos(url))["TAIL"]["config"]
    assert config["sources"][0]["opt_start_seq"] == 21
    asyncio.run(_new_in_gone(url))


async def _new_in_gone(url: str) -> None:
    before = {name: copied.state["messages"] for name, copied in (await read(url)).items()}
    await publish(url, "orig.a", ["new"])
    await settled(url, {name: count + 1 for name, count in before.items()}, quiet=0.6)
    now = await read(url)
    assert {name: now[name].payloads.count("new") for name in before} == dict.fromkeys(before, 1)
