"""Mirrors and streams with sources, restored and cloned in many ways, and looked at again when copying has settled.

One server for each version holds a scene of origins and copies, and empty accounts to restore them into. Whatever is
done, no message may come twice unless the plan said so in numbers, and what is published afterwards has to come once.

Nearly all of the time is spent on waiting until copying has settled. So the cases of a version run beside each other,
each in accounts of its own, and its tests are told what came of them (`Scene.outcome`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.harness.api import call, connected
from tests.harness.clusters import NatsCluster
from tests.harness.commands import Ran, jsbackup
from tests.harness.copied import Copied, infos, make, read, settled
from tests.harness.filling import publish
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.trials.accounts import delete

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

NEW = (NEWEST,)
VERSIONS = (ENDS[0], *NEW)
ACCOUNTS = [f"T{number}" for number in range(40)]
COUNT = 40
AT_ONCE = 4

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


class Scene:
    """A server with the scene in account S, a backup of it, and accounts that nobody has used."""

    def __init__(self, server: NatsServer, folder: Path, pool: ThreadPoolExecutor, cases: Iterable[str]) -> None:
        self.version = server.version
        self.new = server.version in NEW
        self.repo = folder / "repo"
        self._port = server.port
        self._unused = [*ACCOUNTS]
        self.before = asyncio.run(_fill(self.url("S")))
        jsbackup("backup", "-r", self.repo, "-s", self.url("S")).ok()
        for name in cases:
            (folder / name).mkdir()
        self._cases = {name: pool.submit(CASES[name][1], self, folder / name) for name in cases}

    def url(self, account: str = "") -> str:
        return f"nats://{account or self._unused.pop(0)}:p@127.0.0.1:{self._port}"

    def outcome(self, name: str) -> None:
        """Wait for a case, and raise what it raised."""
        self._cases[name].result()


Case = Callable[[Scene, Path], None]
CASES: dict[str, tuple[Sequence[str], Case]] = {}


def case(*versions: str) -> Callable[[Case], Case]:
    """Marks what is tried on each version, or on those named: with the scene and a folder of its own."""

    def mark(function: Case) -> Case:
        CASES[function.__name__] = (versions or VERSIONS, function)
        return function

    return mark


def _accounts() -> str:
    users = [f"{name} {{ jetstream: enabled, users: [{{ user: {name}, password: p }}] }}" for name in ("S", *ACCOUNTS)]
    return "accounts {\n" + "\n".join(users) + "\n}\n"


async def _fill(url: str) -> dict[str, Copied]:
    await make(url, CONFIGS)
    for number in range(COUNT):
        await publish(url, f"orig.{'ab'[number % 2]}", [f"m{number}"])
    await settled(url, {name: COUNT // 2 if GETS[name] == "a" else COUNT for name in ("ALL", "CHAIN", "CHAIN_A")})
    return await read(url)


@pytest.fixture(scope="module")
def scene_of(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[[str], Scene]]:
    """The scene on a server of that version, made when it is asked for."""
    made: dict[str, Scene] = {}
    chosen = [item.callspec.params for item in request.session.items if getattr(item, "function", None) is test_copies]
    with contextlib.ExitStack() as servers, ThreadPoolExecutor(AT_ONCE) as pool:

        def scene(version: str) -> Scene:
            if version not in made:
                server = servers.enter_context(NatsServer(version, config=_accounts()))
                wanted = [one["name"] for one in chosen if one["version"] == version]
                made[version] = Scene(server, tmp_path_factory.mktemp("copies"), pool, wanted)
            return made[version]

        try:
            yield scene
        finally:
            pool.shutdown(cancel_futures=True)


def restore(url: str, repo: Path, *arguments: str, which: str = "latest", ok: bool = True, wire: str = "auto") -> Ran:
    done = jsbackup("restore", which, *arguments, "-r", repo, "-s", url, wire=wire)
    return done.ok() if ok else done


def notes(ran: Ran, name: str) -> str:
    return "; ".join(next(one for one in ran.document["streams"] if one["as"] == name)["notes"])


async def _new_ones(url: str, prefix: str = "", before: Iterable[str] = GETS, subject: str = "orig") -> None:
    """Publish, and find each message once wherever it belongs, and nothing else."""
    was = {name: info["state"] for name, info in (await infos(url)).items()}
    payloads = {letter: [f"new-{letter}{number}-{time.time_ns()}" for number in range(3)] for letter in "ab"}
    for letter in "ab":
        await publish(url, f"{subject}.{letter}", payloads[letter])
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


# ---------------------------------------------------------------------------------------------- nothing is copied twice


@case()
def restored_then_beside_itself_under_other_names_then_replaced(scene: Scene, _: Path) -> None:
    url = scene.url()
    done = restore(url, scene.repo)
    assert all("copying has settled: nothing was copied since" in notes(done, name) for name in GETS if name != "ORIG")
    assert all(one["copying"]["settled"] for one in done.document["streams"] if one["name"] != "ORIG")
    restore(url, scene.repo, "--rename", "*=t_*", "--map-subject", "orig.>=>moved.>")
    unharmed(scene, url, "t_", subject="moved")
    unharmed(scene, url)
    restore(url, scene.repo, "--if-exists", "replace", "--replace-with-part")
    unharmed(scene, url)


@case(*NEW)
def restored_by_archives_v2(scene: Scene, _: Path) -> None:
    url = scene.url()
    restore(url, scene.repo, wire="v2")
    unharmed(scene, url)


@case(*NEW)
def restored_with_their_origin_in_memory(scene: Scene, _: Path) -> None:
    url = scene.url()
    restore(url, scene.repo, "ORIG", "--set", "storage=memory")
    restore(url, scene.repo, "--exclude", "ORIG")
    unharmed(scene, url)


@case()
def cloned(scene: Scene, _: Path) -> None:
    url = scene.url()
    jsbackup("clone", "*", "-s", scene.url("S"), "--to-server", url).ok()
    unharmed(scene, url)


def _one_by_one(scene: Scene, *parts: Sequence[str]) -> None:
    url = scene.url()
    for part in parts:
        restore(url, scene.repo, *part)
    names = ["ORIG", "FILTERED", "MIRROR"]
    asyncio.run(_as_before(scene, url, only=names))
    asyncio.run(_new_ones(url, before=names))


@case()
def restored_after_their_origin(scene: Scene, _: Path) -> None:
    _one_by_one(scene, ["ORIG"], ["FILTERED", "MIRROR"])


@case()
def restored_before_their_origin(scene: Scene, _: Path) -> None:
    _one_by_one(scene, ["FILTERED", "MIRROR"], ["ORIG"])


@case()
def backed_up_alone_and_restored_beside_their_origin(scene: Scene, folder: Path) -> None:
    url = scene.url()
    few = ["FILTERED", "MIRROR"]
    restore(url, scene.repo, "ORIG", *few)
    jsbackup("backup", *few, "-r", folder / "repo", "-s", url).ok()

    delete(url, *few)
    restore(url, folder / "repo")
    asyncio.run(_as_before(scene, url, only=few))
    asyncio.run(_new_ones(url, before=few))


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


# ----------------------------------------------------------------------------------- an origin has what its copies have


async def _settled_read(url: str) -> dict[str, Copied]:
    await settled(url, quiet=0.6)
    return await read(url)


@case()
def of_a_later_backup_than_their_origin(scene: Scene, folder: Path) -> None:
    """As in backups of earlier releases, which read origins first."""
    source, url = scene.url(), scene.url()
    few = [config for config in CONFIGS if config["name"] in ("ORIG", "ALL", "TWICE", "MIRROR", "OF_MIRROR")]
    names = [config["name"] for config in few]
    asyncio.run(make(source, few))
    asyncio.run(publish(source, "orig.a", (f"m{number}" for number in range(20))))
    asyncio.run(settled(source, dict.fromkeys(names, 20)))
    jsbackup("backup", "ORIG", "-r", folder / "early", "-s", source).ok()
    asyncio.run(publish(source, "orig.a", (f"m{number}" for number in range(20, 30))))
    asyncio.run(settled(source, dict.fromkeys(names, 30)))
    jsbackup("backup", "-r", folder / "late", "-s", source).ok()
    restore(url, folder / "early", "ORIG")
    planned = jsbackup("plan", "latest", "--exclude", "ORIG", "-r", folder / "late", "-s", url).ok().document
    said = {action["stream"]: "; ".join(action["notes"]) for action in planned["actions"]}
    assert "ends at sequence 30, and ORIG at 20: 10 messages after that are not restored" in said["MIRROR"]
    assert "ends at sequence 30, and MIRROR at 20: 10 messages after that are not restored" in said["OF_MIRROR"]
    for name in ("ALL", "TWICE"):
        assert "has copied ORIG up to sequence 30, and that will end at 20: it keeps what it has" in said[name]
    restore(url, folder / "late", "--exclude", "ORIG")
    now = asyncio.run(_settled_read(url))
    counts = {name: len(now[name].payloads) for name in names}
    assert counts == {"ORIG": 20, "ALL": 30, "TWICE": 30, "MIRROR": 20, "OF_MIRROR": 20}
    asyncio.run(_new_ones(url, before=names))


@case(*NEW)
def a_mirror_of_another_stream_that_is_shorter_is_refused(scene: Scene, _: Path) -> None:
    url = scene.url()
    asyncio.run(make(url, [{"name": "ORIG", "subjects": ["orig.>"]}]))
    asyncio.run(publish(url, "orig.a", ["of another life"]))
    refused = restore(url, scene.repo, "MIRROR", ok=False)
    assert refused.code == 15 and "--set mirror=null" in refused.err + refused.out


# ----------------------------------------------------------------------------------------------------- the origin alone


@case()
def a_plan_says_what_they_do_when_their_origin_alone_is_replaced(scene: Scene, _: Path) -> None:
    url = scene.url()
    few = ["ORIG", "ALL", "FILTERED", "MIRROR"]
    restore(url, scene.repo, *few)
    wire = "v2" if scene.new else "auto"
    command = ("latest", "ORIG", "--if-exists", "replace", "-r", scene.repo, "-s", url)
    (action,) = jsbackup("plan", *command, wire=wire).ok().document["actions"]
    said = "; ".join(action["notes"])
    again = f"copies all of it again: {COUNT} message"
    assert (again in said) == scene.new
    assert ("stream ALL copies from it, keeps what it has" in said) != scene.new
    jsbackup("restore", *command, wire=wire).ok()
    asyncio.run(settled(url))
    now = asyncio.run(read(url))
    more = {name: len(now[name].payloads) - len(scene.before[name].payloads) for name in few}
    assert more == ({"ORIG": 0, "ALL": 40, "FILTERED": 20, "MIRROR": 0} if scene.new else dict.fromkeys(few, 0))
    if not scene.new:
        asyncio.run(_new_ones(url, before=few))


@case(*NEW)
def restored_in_part_by_subject(scene: Scene, _: Path) -> None:
    url = scene.url()
    restore(url, scene.repo, "--subject=orig.a", "--allow-nothing")
    for name, copied in asyncio.run(_settled_read(url)).items():
        assert not copied.twice and all(int(payload[1:]) % 2 == 0 for payload in copied.payloads), name
    asyncio.run(_new_ones(url))


# ------------------------------------------------------------------------------------- what was deleted or acknowledged


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
    for number in range(20):
        await publish(url, f"orig.{'ab'[number % 2]}", [f"m{number}"])
    await settled(url, {"TAIL": 20, "TAIL_A": 10, "WORK": 20, "MOST": 20, "TAIL_TWO": 20, "HIDDEN": 10})
    async with connected(url) as nc:
        for name, count in GONE.items():
            last = 10 if name == "TAIL_A" else 20
            for sequence in range(last - count + 1, last + 1):
                await call(nc, f"STREAM.MSG.DELETE.{name}", {"seq": sequence})


async def _came(url: str) -> dict[str, int]:
    """How many messages have come to each that had been there before."""
    await settled(url, quiet=0.8)
    now = await read(url)
    had = {name: (10 if name in ("TAIL_A", "HIDDEN") else 20) - count for name, count in GONE.items()}
    return {name: now[name].state["messages"] - had[name] for name in GONE}


@case()
def with_messages_gone(scene: Scene, folder: Path) -> None:
    repo, source = folder / "repo", scene.url()
    asyncio.run(_delete(source))
    time.sleep(3.5)  # until it is certain that nothing is on its way
    jsbackup("backup", "-r", repo, "-s", source).ok()
    _said_in_numbers(scene, repo)
    _resumed(scene, repo)


def _said_in_numbers(scene: Scene, repo: Path) -> None:
    """2.15 is told where sources had got to, so nothing comes again there, as nothing does when it is restarted."""
    url = scene.url()
    planned = jsbackup("plan", "latest", "-r", repo, "-s", url).ok().document
    said = {action["stream"]: "; ".join(action["notes"]) for action in planned["actions"]}
    restore(url, repo)
    came = asyncio.run(_came(url))
    for name, number in came.items():
        expected = 0 if scene.new or name == "WORK" else GONE[name]
        assert number == expected, name
        assert ("are copied again" in said[name]) == bool(expected), name
        if expected and name != "TAIL_TWO":
            assert f"messages of ORIG that were deleted from it are copied again ({number})" in said[name]
    asyncio.run(_new_in_gone(url))


def _resumed(scene: Scene, repo: Path) -> None:
    """Where sources had got to, if that is asked for."""
    url = scene.url()
    done = restore(url, repo, "--resume-sources", wire="v2" if scene.new else "auto")
    assert asyncio.run(_came(url)) == dict.fromkeys(GONE, 0)
    for name in GONE:
        assert ("in its configuration from now on" in notes(done, name)) == (name != "HIDDEN"), name
    config = asyncio.run(infos(url))["TAIL"]["config"]
    assert config["sources"][0]["opt_start_seq"] == 21
    asyncio.run(_new_in_gone(url))


async def _new_in_gone(url: str) -> None:
    before = {name: copied.state["messages"] for name, copied in (await read(url)).items()}
    await publish(url, "orig.a", ["new"])
    await settled(url, {name: count + 1 for name, count in before.items()}, quiet=0.6)
    now = await read(url)
    assert {name: now[name].payloads.count("new") for name in before} == dict.fromkeys(before, 1)


EACH = [
    pytest.param(version, name, marks=pytest.mark.xdist_group(f"copies-{version}"))
    for version in VERSIONS
    for name, (versions, _) in CASES.items()
    if version in versions
]


@pytest.mark.parametrize(("version", "name"), EACH)
def test_copies(version: str, name: str, scene_of: Callable[[str], Scene]) -> None:
    scene_of(version).outcome(name)
