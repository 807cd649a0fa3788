"""Plans on real servers and a cluster: rules that need facts of the target are told, nothing changes, a restore is
refused by the same rule; and plans that are carried out.

What a plan decides by itself is in `tests/planning/`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from nats.aio.client import Client

from jsbackup.cli.main import run
from jsbackup.errors import UnknownArchiveFormat
from jsbackup.formats.archive.archive import ArchiveDecoder
from jsbackup.planning.rules import Rule
from tests.engine.identities import Operator, creds_text
from tests.harness.api import JSON, PATIENCE_SECONDS, Refused, call, connected, create
from tests.harness.clusters import NatsCluster
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.filling import fill, publish
from tests.harness.oracle import compare
from tests.harness.servers import ENDS, NEWEST, NatsServer
from tests.integration.witness import announced, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

# ------------------------------------------------------------------------------------------------ what is backed up


def _config(name: str, **more: object) -> JSON:
    config: JSON = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file", "retention": "limits"}
    return {**config, "num_replicas": 1, **more}


_AFAR = {"name": "X", "external": {"api": "$JS.afar.API", "deliver": "afar.in"}}
STREAMS = [
    _config("FILE", max_msg_size=1024),
    _config("COPY", subjects=None, mirror={"name": "FILE"}, max_msg_size=2048),
    _config("AFAR", subjects=None, sources=[_AFAR]),
    _config("LARGE", max_bytes=10 << 20),
    _config("WORDY", description="words " * 600),
    _config("MEMORY", storage="memory", max_bytes=1 << 20),
    _config("INTEREST", retention="interest"),
    _config("PLACED", placement={"cluster": "elsewhere"}),
    _config("GROUPS"),
    _config("MARKER", allow_msg_ttl=True, subject_delete_marker_ttl=10**9, allow_rollup_hdrs=True),
    _config("ASYNC", persist_mode="async"),
    _config("FIRST", first_seq=100),
    _config("TAIL"),
]
CONSUMERS: list[tuple[str, JSON]] = [
    ("FILE", {"durable_name": "one", "ack_policy": "explicit", "max_ack_pending": 500}),
    ("FILE", {"durable_name": "two", "ack_policy": "explicit"}),
    ("INTEREST", {"durable_name": "one", "ack_policy": "explicit"}),
    ("GROUPS", {"durable_name": "paused", "ack_policy": "explicit", "pause_until": "2090-01-01T00:00:00Z"}),
]


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for config in STREAMS:
            wanted = {key: value for key, value in config.items() if value is not None}
            await call(nc, f"STREAM.CREATE.{config['name']}", wanted)
        for stream, consumer in CONSUMERS:
            await _consume(nc, stream, consumer)
        for name in ("FILE", "INTEREST", "FIRST", "TAIL"):
            await publish(nc, f"{name.lower()}.{{}}", 5)
        for sequence in (1, 5):
            await call(nc, "STREAM.MSG.DELETE.TAIL", {"seq": sequence})
        for name in ("LARGE", "MEMORY"):
            await publish(nc, f"{name.lower()}.0", [bytes(50_000)])


async def _consume(nc: Client, stream: str, consumer: JSON) -> None:
    request = {"stream_name": stream, "config": consumer}
    await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.{consumer['durable_name']}", request)


def _kept_as_it_came(url: str, repository: Path) -> None:
    """A backup by a tool that does not know the server's archive format yet."""

    def nothing_is_known(_decoder: ArchiveDecoder, start: bytes) -> None:
        raise UnknownArchiveFormat(start)

    with pytest.MonkeyPatch.context() as forgetting:
        forgetting.setattr(ArchiveDecoder, "_sniff", nothing_is_known)
        code = run(["backup", "FILE", "LARGE", "-s", url, "-r", str(repository), "-q", "--no-progress"])
    assert code == 3


@pytest.fixture(scope="module")
def backups(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories: `all`; `config` without messages; `opaque`; `lost` objects."""
    folder = tmp_path_factory.mktemp("backups")
    with NatsServer(NEWEST) as server:
        asyncio.run(_fill(server.url))
        for name, more in (("all", ()), ("config", ("FILE", "--config-only"))):
            jsbackup("backup", *more, "-s", server.url, "-r", folder / name, *PATIENT).ok()
        _kept_as_it_came(server.url, folder / "opaque")
    shutil.copytree(folder / "all", folder / "lost")
    for segment in (folder / "lost").rglob("*.parquet"):
        segment.unlink()
    return folder


# ------------------------------------------------------------------------------------------------------- the targets

# Of accounts at one server: their limits.
LIMITS = {
    "OPEN": "enabled",
    "STREAMS": "{ max_streams: 1 }",
    "CONSUMERS": "{ max_consumers: 1 }",
    "REQUIRED": "{ max_bytes_required: true }",
    "PERFILE": "{ disk_max_stream_bytes: 1000000 }",
    "PERMEMORY": "{ mem_max_stream_bytes: 1000 }",
    "DISK": "{ max_file: 20000, max_mem: 20000 }",
    "RESERVED": "{ max_file: 5000000, max_mem: 100000 }",
    "PENDING": "{ max_ack_pending: 100 }",
}
# Of users of account OPEN: what they may not publish to.
DENIED = {
    "nochunks": "$JS.SNAPSHOT.RESTORE.>",
    "norestore": "$JS.API.STREAM.RESTORE.>",
    "nodelete": "$JS.API.STREAM.DELETE.>",
    "nocreate": "$JS.API.STREAM.CREATE.>",
    "noproof": "$JS.API.STREAM.SNAPSHOT.>",
}


def _limited() -> str:
    accounts = []
    for name, limits in LIMITS.items():
        users = [f"{{ user: {name.lower()}, password: p }}"]
        if name == "OPEN":
            users += [
                f'{{ user: {user}, password: p, permissions: {{ publish: {{ deny: ["{subject}"] }} }} }}'
                for user, subject in DENIED.items()
            ]
        accounts.append(f"{name} {{ jetstream: {limits}, users: [{', '.join(users)}] }}")
    return "accounts {\n" + "\n".join(accounts) + "\n}\nno_auth_user: open\n"


@pytest.fixture(scope="module")
def targets() -> Iterator[Callable[[str], str]]:
    """`targets("new")` → the URL of that server, started when it is first asked for; `user@new` too."""
    started: dict[str, NatsServer | NatsCluster] = {}
    makers: dict[str, Callable[[], NatsServer | NatsCluster]] = {
        "cluster": lambda: NatsCluster(NEWEST),
        "small": lambda: NatsServer(NEWEST, max_payload_bytes=2048),
        "old": lambda: NatsServer(ENDS[0]),
        "new": lambda: NatsServer(NEWEST, config=_limited()),
    }
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            user, _, kind = name.rpartition("@")
            if kind not in started:
                started[kind] = stack.enter_context(makers[kind]())
            url = started[kind].url
            return url.replace("//", f"//{user}:p@") if user else url

        yield start


# --------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Row:
    """`there` are streams made at the target first, each with `messages`."""

    rule: Rule
    target: str
    arguments: str
    reason: str
    hint: str = ""
    repo: str = "all"
    there: tuple[JSON, ...] = ()
    messages: int = 0

    def __str__(self) -> str:
        return f"{self.rule}: {self.arguments} at {self.target}"


_FILE = _config("FILE")
_OTHER = {"name": "OTHER", "subjects": ["x", "file.*.y"]}
_PREFIXED = _config("FILE-jsbackup-0123abcd", subjects=["jsbackup.staged.0123abcd"])
REPLACE = "--if-exists replace"

ROWS = [
    # What is there already.
    Row(Rule.EXISTS, "new", "FILE", "exists at the target", "--rename", there=(_FILE,), messages=2),
    Row(Rule.SKIPPED, "new", "FILE --if-exists skip", "exists at the target", there=(_FILE,)),
    Row(Rule.SUBJECT_OVERLAP, "new", "FILE", "file.*.y of stream OTHER", "--map-subject", there=(_OTHER,), messages=1),
    Row(Rule.SUBJECT_OVERLAP, "cluster", "FILE", "file.*.y of stream OTHER", there=(_OTHER,)),
    Row(Rule.STAGED_BEFORE, "new", "FILE", "left the copy FILE-jsbackup-0123abcd", there=(_PREFIXED,)),
    Row(Rule.DESTROYS_ANOTHER, "new", f"FILE {REPLACE}", "not the one", "diff", there=(_FILE,)),
    Row(
        Rule.COPIED_BY,
        "new",
        f"FILE {REPLACE}",
        "stream OTHER is its mirror",
        there=(_FILE, {"name": "OTHER", "mirror": {"name": "FILE"}}),
    ),
    # Limits of the account, by name.
    Row(Rule.MAX_STREAMS, "streams@new", "FILE LARGE", "stream number 2; the account's max_streams is 1"),
    Row(Rule.MAX_STREAMS, "streams@new", "FILE", "stream number 2", there=(_config("OTHER"),)),
    Row(Rule.MAX_CONSUMERS, "consumers@new", "FILE", "2 consumers, the account's max_consumers is 1"),
    Row(Rule.MAX_ACK_PENDING, "pending@new", "FILE", "max_ack_pending 500, the account allows 100"),
    Row(Rule.MAX_BYTES_REQUIRED, "required@new", "FILE", "has no max_bytes", "--set max_bytes=BYTES"),
    Row(Rule.MAX_STREAM_BYTES, "perfile@new", "LARGE", "allows 1000000 for a stream in file"),
    Row(Rule.MAX_STREAM_BYTES, "permemory@new", "MEMORY", "allows 1000 for a stream in memory"),
    Row(Rule.MAX_STORAGE, "disk@new", "LARGE --set max_bytes=null", "its max_storage is 20000"),
    Row(Rule.MAX_MEMORY, "disk@new", "MEMORY --set max_bytes=null", "its max_memory is 20000"),
    Row(Rule.RESERVED_STORAGE, "reserved@new", "LARGE", "the account's max_storage is 5000000"),
    Row(Rule.RESERVED_MEMORY, "reserved@new", "MEMORY", "the account's max_memory is 100000"),
    Row(Rule.REQUEST_TOO_LARGE, "small", "WORDY", "the max_payload of the target is 2048"),
    Row(Rule.LARGE_MESSAGES, "small", "LARGE", "the max_payload of the target is 2048"),
    # What servers can do.
    Row(Rule.STREAM_FEATURE, "old", "MARKER", "subject_delete_marker_ttl needs nats-server 2.11", "--adapt"),
    Row(Rule.CONSUMER_FEATURE, "old", "GROUPS", "pause_until needs nats-server 2.11", "--consumers none"),
    Row(Rule.MEMORY_STREAM, "old", "MEMORY", "is kept in memory", "--set storage=file"),
    Row(Rule.FIRST_SEQ, "old", "FIRST", "first_seq is left out"),
    Row(Rule.SINGLE_SERVER, "new", "FILE --replicas 3", "the target is a single server", "--replicas 1"),
    Row(Rule.FEW_SERVERS, "cluster", "FILE --replicas 5", "the target reports 3 servers", "--replicas"),
    Row(Rule.SERVER_REFUSES, "cluster", "ASYNC --replicas 3", "async persist mode", "--exclude ASYNC"),
    Row(Rule.PLACEMENT_CLUSTER, "cluster", "PLACED", "in cluster elsewhere, the target is in c1"),
    Row(Rule.PLACEMENT_SINGLE, "new", "PLACED", "which a single server ignores"),
    # What a backup has.
    Row(
        Rule.CONFIG_ONLY_REPLACES,
        "new",
        f"FILE {REPLACE}",
        "is backed up without messages",
        repo="config",
        there=(_FILE,),
        messages=3,
    ),
    Row(Rule.OPAQUE_REPLACES, "new", f"FILE {REPLACE}", "is stored undecoded", repo="opaque", there=(_FILE,)),
    Row(Rule.OPAQUE_NEWER, "old", "FILE", "is stored undecoded", "that release, or a newer one", repo="opaque"),
    Row(Rule.OPAQUE_RESHAPED, "new", "FILE --rename FILE=OTHER", "cannot be renamed", repo="opaque"),
    Row(Rule.OBJECT_LOST, "new", "FILE", "missing", "--partial", repo="lost"),
    Row(Rule.DELETED_TAIL, "new", "TAIL --set storage=memory", "its last message was deleted"),
    Row(Rule.NOBODY_INTERESTED, "new", "INTEREST --consumers none", "none is restored", "its consumers as well"),
    # Mirrors and sources.
    Row(
        Rule.CYCLE,
        "new",
        'FILE --set sources=[{"name":"OTHER"}]',
        "in a circle: FILE from OTHER from FILE",
        there=({"name": "OTHER", "sources": [{"name": "FILE"}]},),
    ),
    Row(
        Rule.ORIGIN_MESSAGE_SIZE,
        "new",
        "COPY",
        "copies from FILE, which takes 4096",
        there=(_config("FILE", max_msg_size=4096),),
    ),
    Row(Rule.ORIGIN_ABSENT, "new", "COPY", "copies from FILE, neither at the target nor in this restore"),
    Row(Rule.ORIGIN_ELSEWHERE, "new", "AFAR", "copies from X behind $JS.afar.API"),
    # Permissions.
    Row(Rule.NOT_ALLOWED, "nochunks@new", "FILE", "publishing to $JS.SNAPSHOT.RESTORE.FILE."),
    Row(Rule.NOT_ALLOWED, "norestore@new", "FILE", "publishing to $JS.API.STREAM.RESTORE.FILE"),
    Row(
        Rule.NOT_ALLOWED,
        "nodelete@new",
        f"FILE {REPLACE} --replace-with-part",
        "publishing to $JS.API.STREAM.DELETE.",
        there=(_FILE,),
        messages=1,
    ),
    Row(Rule.NOT_ALLOWED, "nocreate@new", "FILE", "publishing to $JS.API.STREAM.CREATE.FILE", repo="config"),
    Row(Rule.UNPROVED, "noproof@new", "FILE", "cannot be read back and compared: ", "--verify"),
    # What was asked for, and what it means for what is stored.
    Row(Rule.LIMIT_TRIMS, "new", "FILE --set max_msgs=2", "would keep 2 of its 5 messages", "larger max_msgs"),
    Row(Rule.SUBJECTS_AIMLESS, "new", 'FILE --set subjects=["fiel.>"]', "fiel.>", "Did you mean file.>?"),
    Row(Rule.SUBJECT_AIMLESS, "new", "FILE --exclude-subject fiel.>", "leave nothing out", "Did you mean file.>?"),
    Row(Rule.FILTER_MISSED, "new", "FILE --payload-match dada", "keep nothing", "--allow-nothing"),
    Row(Rule.COMPACTS_NO_BUCKET, "new", "FILE --kv-compact", "is not a key-value bucket", "KV_*"),
    Row(Rule.RENUMBERS_MIRROR, "new", "COPY --renumber", "is a mirror of FILE", "mirror=null", there=(_FILE,)),
    Row(Rule.RENUMBERED, "new", "FIRST --renumber", "they had some up to 104"),
    Row(Rule.UNTIL_AFTER_BACKUP, "new", "FILE --until 4711", "ends at sequence 5", "another backup"),
    Row(Rule.MASK_MISSED, "new", "FILE --mask file.>:header(No)=redact", "masks nothing in the 5 messages"),
]


async def _make(url: str, row: Row) -> None:
    async with connected(url) as nc:
        for config in row.there:
            with contextlib.suppress(TimeoutError):
                await create(nc, config)
            # A cluster of a busy machine loses an answer now and then.
            await call(nc, f"STREAM.INFO.{config['name']}")
            if row.messages:
                await publish(nc, config["subjects"][0].replace(">", "made"), row.messages)


async def _clear(url: str, names: set[str]) -> None:
    """Delete streams, and wait until the list of the server has them no more."""
    async with connected(url) as nc:
        for name in names:
            with contextlib.suppress(Refused, TimeoutError):
                await call(nc, f"STREAM.DELETE.{name}")
        while names & set((await call(nc, "STREAM.NAMES")).get("streams") or ()):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_rule_is_told_with_its_hint_and_nothing_changes(
    row: Row, backups: Path, targets: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = targets(row.target)
    user = row.target.partition("@")[0]
    whole = targets(row.target.rpartition("@")[2]) if user in DENIED else url
    names = {config["name"] for config in row.there}
    try:
        asyncio.run(_make(whole, row))
        before = _seen_with(whole, names)
        words = ["latest", *row.arguments.split(), "-s", url, "-r", str(backups / row.repo), *PATIENT, "--json"]
        planned = _typed(capsys, "plan", *words)
        plan = planned.document
        found = [
            *plan["refusals"],
            *plan["warnings"],
            *({"rule": Rule.SKIPPED, "hint": None, **o} for o in plan["skipped"]),
        ]
        matching = [
            one
            for one in found
            if one["rule"] == row.rule and row.reason in one["reason"] and row.hint in (one["hint"] or "")
        ]
        assert matching, planned.out
        assert planned.code == row.rule.code, planned.out
        if row.rule.code:
            refused = _typed(capsys, "restore", *words)
            assert refused.code == row.rule.code, refused.out
            assert matching[0]["reason"].partition(":")[0] in refused.document["error"]["message"], refused.out
        assert compare(before, seen(whole)) == []
    finally:
        asyncio.run(_clear(whole, names))


def _seen_with(url: str, names: set[str]) -> dict[str, Any]:
    """What the server has, once its list has these streams: that of a busy cluster may lack them for a moment."""
    while not names <= (before := seen(url)).keys():
        time.sleep(0.1)
    return dict(before)


def _typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """In this process, which is quicker."""
    capsys.readouterr()
    code = run([*arguments, "--no-progress"])
    printed = capsys.readouterr()
    return Ran(code, json.loads(printed.out), printed.out, printed.err)


def test_a_name_that_another_restore_has_taken_is_refused(backups: Path, targets: Callable[[str], str]) -> None:
    """In a cluster, where such a name is listed and has no stream. A restore that nothing is sent for ends after some
    seconds, so it is begun until a plan has met it."""
    url = targets("cluster")
    state: JSON = {"messages": 0, "bytes": 0, "consumer_count": 0, "first_seq": 0, "last_seq": 0}
    moment = "2026-11-21T01:45:00Z"
    request = {"config": _FILE, "state": state | {"first_ts": moment, "last_ts": moment}}

    async def begin() -> None:
        async with connected(url) as nc:
            with contextlib.suppress(Refused, TimeoutError):
                await call(nc, "STREAM.RESTORE.FILE", request)

    end = time.monotonic() + PATIENCE_SECONDS
    rules: set[str] = set()
    while Rule.NAME_TAKEN not in rules and time.monotonic() < end:
        asyncio.run(begin())
        planned = jsbackup("plan", "latest", "FILE", "-s", url, "-r", backups / "all", *PATIENT)
        rules = {one["rule"] for one in planned.document["refusals"]}
    try:
        assert rules == {Rule.NAME_TAKEN} and planned.code == Rule.NAME_TAKEN.code, planned.out
    finally:
        asyncio.run(_clear(url, {"FILE"}))


def test_tiers_of_an_account_are_told_by_name(backups: Path, tmp_path: Path) -> None:
    operator = Operator({"R1": {"streams": 1, "disk_storage": 1 << 20}})
    creds = tmp_path / "user.creds"
    creds.write_text(creds_text(*operator.user()))
    with NatsServer(NEWEST, config=operator.config) as server:
        onto = ("latest", "FILE", "LARGE", "-s", server.url, "--creds", creds, "-r", backups / "all", *PATIENT)
        for more, code, stream, rule, said in (
            ((), 16, "LARGE", "max-streams", "the account's R1 max_streams is 1"),
            (("--replicas", "3"), 15, "FILE", "no-tier", "the account has no tier (it has R1)"),
        ):
            plan = jsbackup("plan", *onto, *more)
            assert plan.code == code == jsbackup("restore", *onto, *more).code
            reasons = {(one["stream"], one["rule"]): one["reason"] for one in plan.document["refusals"]}
            assert said in reasons[stream, rule], plan.out
        assert server.monitor("/jsz?accounts=1&streams=1")["streams"] == 0
        jsbackup("restore", *onto[:2], *onto[3:]).ok()
        assert server.monitor("/jsz")["streams"] == 1


# ----------------------------------------------------------------------------------------------- plans that are saved


def test_a_plan_is_carried_out_if_nothing_has_changed(tmp_path: Path) -> None:
    repo, saved = tmp_path / "repo", tmp_path / "plan.json"

    def refused(onto: tuple[str | Path, ...], said: str) -> None:
        done = jsbackup("restore", "--plan", saved, *onto)
        assert done.code == 15 and said in done.document["error"]["message"], done.out

    with NatsServer(NEWEST) as server:
        asyncio.run(fill(server.url, "A", 3, description="of a test"))
        before = seen(server.url)
        jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
        asyncio.run(publish(server.url, "a.late"))
        onto = ("-s", server.url, "-r", repo, *PATIENT)
        planning = ("plan", "latest", "A", "--if-exists", "replace", "--replace-with-part", *onto, "-o", saved)
        (action,) = jsbackup(*planning).ok().document["actions"]
        assert (action["action"], action["destroys"]["messages"], action["destroys"]["last_seq"]) == ("replace", 4, 4)

        # A message more than was planned to be destroyed.
        asyncio.run(publish(server.url, "a.later"))
        later = seen(server.url)
        refused(onto, "target removed A last_seq changed from 4 to 5")
        assert compare(later, seen(server.url)) == []

        jsbackup(*planning).ok()
        restored = jsbackup("restore", "--plan", saved, *onto).ok()
        assert [(one["name"], one["verified"]) for one in restored.document["streams"]] == [("A", True)]
        assert compare(before, seen(server.url), ignore=announced(restored)) == []
        # The same plan again: what it replaces is not what it was.
        refused(onto, "target removed A last_seq changed from 5 to 3")

    with NatsServer(NEWEST, name="other") as server:
        onto = ("-s", server.url, "-r", repo, *PATIENT)
        fields = ("--set", "max_msgs=7", "--set", "description=null")
        planned = jsbackup("plan", "latest", *fields, *onto, "-o", saved).ok().document
        changes = {one["field"]: (one["before"], one["after"]) for one in planned["actions"][0]["config_changes"]}
        assert changes == {"max_msgs": (-1, 7), "description": ("of a test", None)}
        assert seen(server.url) == {}
        # A stream has come that is in the way.
        asyncio.run(fill(server.url, "C", 0, subjects=["a.x"]))
        there = seen(server.url)
        refused(onto, "overlaps with a.x of stream C")
        assert compare(there, seen(server.url)) == []
        asyncio.run(_clear(server.url, {"C"}))
        jsbackup("restore", "--plan", saved, *onto).ok()
        after = seen(server.url)["A"]
        assert (after.config["max_msgs"], after.config.get("description")) == (7, None)
        assert after.messages == before["A"].messages

    # Another release is another target.
    with NatsServer(ENDS[0], name="third") as server:
        refused(("-s", server.url, "-r", repo, *PATIENT), f"target version changed from {NEWEST} to {ENDS[0]}")
        assert seen(server.url) == {}
