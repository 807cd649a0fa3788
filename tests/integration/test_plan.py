"""Each rule of a plan, provoked on a real server or cluster, where nothing changes; and plans that are carried out.

`ROWS` is the table: what is at the target, what is asked for, and the rule, exit code, sentence and hint that come of
it. A refusal is the restore's, too.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from jsbackup.cli.main import run
from jsbackup.engine.rules import Rule
from jsbackup.errors import UnknownArchiveFormat
from jsbackup.formats.archive import ArchiveDecoder
from tests.harness.api import JSON, PATIENCE_SECONDS, call, connected
from tests.harness.clusters import NatsCluster
from tests.harness.commands import PATIENT, Ran, jsbackup
from tests.harness.oracle import compare
from tests.harness.servers import NatsServer
from tests.integration.witness import announced, seen

pytestmark = [pytest.mark.nats, pytest.mark.timeout(900)]

DAY_NS = 24 * 3600 * 1_000_000_000
SECOND_NS = 1_000_000_000

# ------------------------------------------------------------------------------------------------ what is backed up


def _stream(name: str, **more: object) -> JSON:
    config: JSON = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file", "retention": "limits"}
    return {**config, "num_replicas": 1, **more}


STREAMS = [
    _stream("FILE", max_msg_size=1024),
    _stream("COPY", subjects=None, mirror={"name": "FILE"}, max_msg_size=2048),
    _stream("AFAR", subjects=None, sources=[{"name": "X", "external": {"api": "$JS.afar.API", "deliver": "afar.in"}}]),
    _stream("LARGE", max_bytes=10 << 20),
    _stream("WORDY", description="words " * 600),
    _stream("MEMORY", storage="memory", max_bytes=1 << 20),
    _stream("INTEREST", retention="interest"),
    _stream("PLACED", placement={"cluster": "elsewhere"}),
    _stream("GROUPS"),
    _stream("TTL", allow_msg_ttl=True),
    _stream("MARKER", allow_msg_ttl=True, subject_delete_marker_ttl=SECOND_NS, allow_rollup_hdrs=True),
    _stream("COUNTER", allow_msg_counter=True),
    _stream("ATOMIC", allow_atomic=True),
    _stream("SCHEDULES", allow_msg_schedules=True, allow_rollup_hdrs=True),
    _stream("BATCHED", allow_batched=True),
    _stream("ASYNC", persist_mode="async"),
    _stream("FIRST", first_seq=100),
    _stream("TAIL"),
]
CONSUMERS: list[tuple[str, JSON]] = [
    ("FILE", {"durable_name": "one", "ack_policy": "explicit", "max_ack_pending": 500}),
    ("FILE", {"durable_name": "two", "ack_policy": "explicit"}),
    ("INTEREST", {"durable_name": "one", "ack_policy": "explicit"}),
    ("GROUPS", {"durable_name": "paused", "ack_policy": "explicit", "pause_until": "2090-01-01T00:00:00Z"}),
    (
        "GROUPS",
        {"durable_name": "some", "ack_policy": "explicit", "priority_groups": ["g"], "priority_policy": "overflow"},
    ),
    (
        "GROUPS",
        {
            "durable_name": "ranked",
            "ack_policy": "explicit",
            "priority_groups": ["g"],
            "priority_policy": "prioritized",
        },
    ),
]
BLIND = ("$JS.API.STREAM.SNAPSHOT.TTL", "$JS.API.STREAM.MSG.GET.TTL", "$JS.API.DIRECT.GET.TTL", "$JS.API.CONSUMER.>")


async def _fill(url: str) -> None:
    async with connected(url) as nc:
        for config in STREAMS:
            wanted = {key: value for key, value in config.items() if value is not None}
            await call(nc, f"STREAM.CREATE.{config['name']}", wanted)
        for stream, consumer in CONSUMERS:
            await _consume(nc, stream, consumer)
        for name in ("FILE", "INTEREST", "TTL", "FIRST", "TAIL"):
            for number in range(5):
                await nc.request(f"{name.lower()}.{number}", b"data", timeout=PATIENCE_SECONDS)
        await call(nc, "STREAM.MSG.DELETE.TAIL", {"seq": 5})
        for name in ("LARGE", "MEMORY"):
            await nc.request(f"{name.lower()}.0", bytes(50_000), timeout=PATIENCE_SECONDS)


async def _consume(nc: object, stream: str, consumer: JSON) -> None:
    request = {"stream_name": stream, "config": consumer}
    await call(nc, f"CONSUMER.DURABLE.CREATE.{stream}.{consumer['durable_name']}", request)  # type: ignore[arg-type]


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
    """Repositories: `all`; `config` without messages; `opaque`; `overlapping`; `lost` objects; `partial`."""
    folder = tmp_path_factory.mktemp("backups")
    denied = json.dumps(["$JS.API.STREAM.SNAPSHOT.TTL", *BLIND[1:]])
    users = f"{{ user: blind, password: p, permissions: {{ publish: {{ deny: {denied} }} }} }}"
    config = f"accounts {{ A {{ jetstream: enabled, users: [{{ user: u, password: p }}, {users}] }} }}\nno_auth_user: u"
    with NatsServer("2.15.1", config=config) as server:
        asyncio.run(_fill(server.url))
        for name, code, more in (
            ("all", 0, ()),
            ("config", 0, ("FILE", "--config-only")),
            ("partial", 3, ("FILE", "TTL", "--no-consumers")),
        ):
            url = f"nats://blind:p@127.0.0.1:{server.port}" if name == "partial" else server.url
            made = jsbackup("backup", *more, "-s", url, "-r", folder / name, *PATIENT)
            assert made.code == code, made.out
        _kept_as_it_came(server.url, folder / "opaque")
    shutil.copytree(folder / "all", folder / "lost")
    for segment in (folder / "lost").rglob("*.parquet"):
        segment.unlink()
    jsbackup(
        "export", "latest", "FILE", "TTL", "--format", "config", "--output", folder / "files", "-r", folder / "all"
    ).ok()
    (path,) = [one for one in (folder / "files").rglob("*.json") if "TTL" in one.name]
    path.write_text(path.read_text().replace("ttl.>", "file.*"))
    jsbackup("import", folder / "files", "-r", folder / "overlapping").ok()
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
    """`targets("2.12.8")` → a URL of a server of that name, started when it is first asked for; `user@name` too."""
    started: dict[str, NatsServer | NatsCluster] = {}
    with contextlib.ExitStack() as stack:

        def start(name: str) -> str:
            user, _, kind = name.rpartition("@")
            if kind not in started:
                made: NatsServer | NatsCluster
                if kind == "cluster":
                    made = NatsCluster("2.12.8")
                elif kind == "small":
                    made = NatsServer("2.12.8", max_payload_bytes=2048)
                else:
                    made = NatsServer(kind, config=_limited())
                started[kind] = stack.enter_context(made)
            target = started[kind]
            if isinstance(target, NatsServer) and user:
                return f"nats://{user}:p@127.0.0.1:{target.port}"
            return target.url

        yield start


# --------------------------------------------------------------------------------------------------------- the table


@dataclass(frozen=True, slots=True)
class Row:
    """`there` are streams made at the target first, each with `messages`; `begun`: a restore of FILE that goes on."""

    rule: Rule
    target: str
    arguments: str
    reason: str
    hint: str = ""
    repo: str = "all"
    there: tuple[JSON, ...] = ()
    messages: int = 0
    consumers: tuple[JSON, ...] = field(default=())
    begun: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: {self.arguments} at {self.target}"


_NEWER = "Restore into a newer server, or leave the stream out."
_NO_CONSUMERS = "Restore into a newer server, or with --consumers none."
_RAISE = "Raise that limit, make room, or leave the stream out with --exclude."
_GRANT = "Grant the user this subject"
_ROOM = "Change the subjects of that one or remove it, or leave this one out with --exclude."
_OTHER = {"name": "OTHER", "subjects": ["x", "file.*.y"]}
_FILE = _stream("FILE")


def _feature(stream: str, field_name: str, since: str, target: str) -> Row:
    reason = f"{field_name} needs nats-server {since}, the target is nats-server {target}"
    return Row(Rule.STREAM_FEATURE, target, f"{stream} --consumers none", reason, _NEWER)


ROWS = [
    # What is there already.
    Row(
        Rule.EXISTS,
        "2.12.8",
        "FILE",
        "exists at the target",
        "Choose with --if-exists skip or replace.",
        there=(_FILE,),
        messages=2,
    ),
    Row(Rule.EXISTS, "2.15.1", "MEMORY", "exists at the target", "--if-exists", there=(_stream("MEMORY"),)),
    Row(
        Rule.NAME_TAKEN,
        "cluster",
        "FILE",
        "has its name taken by another restore",
        "If that one has failed, choose --if-exists replace.",
        begun=True,
    ),
    Row(
        Rule.SUBJECT_OVERLAP,
        "2.15.1",
        "FILE",
        "its subject file.> overlaps with file.*.y of stream OTHER at the target",
        _ROOM,
        there=(_OTHER,),
        messages=1,
    ),
    Row(
        Rule.SUBJECT_OVERLAP,
        "2.12.8",
        "FILE",
        "its subject file.> overlaps with *.a.> of stream OTHER",
        _ROOM,
        there=({"name": "OTHER", "subjects": ["*.a.>"], "no_ack": True},),
    ),
    Row(Rule.SUBJECT_OVERLAP, "cluster", "FILE", "overlaps with file.*.y of stream OTHER", _ROOM, there=(_OTHER,)),
    Row(
        Rule.SUBJECT_OVERLAP,
        "2.12.8",
        'LARGE --set subjects=["other.x"]',
        "its subject other.x overlaps with other.> of stream OTHER",
        _ROOM,
        there=(_stream("OTHER"),),
    ),
    Row(
        Rule.SUBJECT_OVERLAP_IN_PLAN,
        "2.12.8",
        "--consumers none",
        "its subject file.* overlaps with file.> of stream FILE in the same backup",
        "Leave one of them out with --exclude.",
        repo="overlapping",
    ),
    # Limits of the account, by name.
    Row(Rule.MAX_STREAMS, "streams@2.12.8", "FILE LARGE", "would be stream 2, the account's max_streams is 1", _RAISE),
    Row(
        Rule.MAX_STREAMS,
        "streams@2.15.1",
        "FILE",
        "would be stream 2, the account's max_streams is 1",
        _RAISE,
        there=(_stream("OTHER"),),
    ),
    Row(
        Rule.MAX_CONSUMERS,
        "consumers@2.12.8",
        "FILE",
        "has 2 consumers, the account's max_consumers is 1",
        "Restore it with --consumers none, or raise that limit.",
    ),
    Row(
        Rule.MAX_ACK_PENDING,
        "pending@2.12.8",
        "FILE",
        "consumer one has max_ack_pending 500, the account allows 100",
        "Raise that limit, or restore with --consumers none.",
    ),
    Row(
        Rule.MAX_BYTES_REQUIRED,
        "required@2.12.8",
        "FILE",
        "has no max_bytes, which the account requires",
        "Set one with --set max_bytes=BYTES, or lift that.",
    ),
    Row(
        Rule.MAX_STREAM_BYTES,
        "perfile@2.12.8",
        "LARGE",
        "has max_bytes 10485760, the account allows 1000000 for a stream in file",
        _RAISE,
    ),
    Row(
        Rule.MAX_STREAM_BYTES,
        "permemory@2.15.1",
        "MEMORY",
        "has max_bytes 1048576, the account allows 1000 for a stream in memory",
        _RAISE,
    ),
    Row(
        Rule.MAX_STORAGE, "disk@2.12.8", "LARGE --set max_bytes=null", "bytes in file, its max_storage is 20000", _RAISE
    ),
    Row(
        Rule.MAX_MEMORY,
        "disk@2.15.1",
        "MEMORY --set max_bytes=null",
        "bytes in memory, its max_memory is 20000",
        _RAISE,
    ),
    Row(
        Rule.RESERVED_STORAGE,
        "reserved@2.12.8",
        "LARGE",
        "would bring what max_bytes reserve in file to 10485760 bytes, the account's max_storage is 5000000",
        _RAISE,
    ),
    Row(
        Rule.RESERVED_MEMORY,
        "reserved@2.15.1",
        "MEMORY",
        "would bring what max_bytes reserve in memory to 1048576 bytes, the account's max_memory is 100000",
        _RAISE,
    ),
    Row(
        Rule.REQUEST_TOO_LARGE,
        "small",
        "WORDY",
        "the max_payload of the target is 2048",
        "Raise max_payload at the target.",
    ),
    # What servers can do.
    _feature("TTL", "allow_msg_ttl", "2.11", "2.10.26"),
    _feature("MARKER", "subject_delete_marker_ttl", "2.11", "2.10.26"),
    _feature("COUNTER", "allow_msg_counter", "2.12", "2.10.26"),
    _feature("ATOMIC", "allow_atomic", "2.12", "2.10.26"),
    _feature("SCHEDULES", "allow_msg_schedules", "2.12", "2.10.26"),
    _feature("ASYNC", "persist_mode", "2.12", "2.10.26"),
    _feature("BATCHED", "allow_batched", "2.14", "2.12.8"),
    Row(
        Rule.CONSUMER_FEATURE,
        "2.10.26",
        "GROUPS",
        "consumer paused: pause_until needs nats-server 2.11, the target is nats-server 2.10.26",
        _NO_CONSUMERS,
    ),
    Row(
        Rule.CONSUMER_FEATURE,
        "2.10.26",
        "GROUPS",
        "consumer some: priority_groups needs nats-server 2.11",
        _NO_CONSUMERS,
    ),
    Row(
        Rule.CONSUMER_FEATURE,
        "2.10.26",
        "GROUPS",
        "consumer some: priority_policy needs nats-server 2.11",
        _NO_CONSUMERS,
    ),
    Row(
        Rule.SINGLE_SERVER,
        "2.15.1",
        "FILE --replicas 3",
        "has 3 replicas, the target is a single server",
        "Restore it with --replicas 1.",
    ),
    Row(
        Rule.ASYNC_REPLICAS,
        "cluster",
        "ASYNC --replicas 3",
        "has persist_mode async, which is for one replica, not 3",
        "Restore it with --replicas 1.",
    ),
    Row(
        Rule.MEMORY_STREAM,
        "2.12.8",
        "MEMORY",
        "is kept in memory, which nats-server 2.12.8 cannot restore (2.15 can)",
        "Restore it with --storage file.",
    ),
    Row(Rule.MEMORY_STREAM, "2.12.8", "FILE --storage memory", "is kept in memory", "Restore it with --storage file."),
    Row(
        Rule.WIRE_V2,
        "2.12.8",
        "FILE --wire v2",
        "--wire v2 needs nats-server 2.15, the target is nats-server 2.12.8",
        "Leave --wire out, or use --wire v1.",
    ),
    Row(
        Rule.WIRE_V1_MEMORY,
        "2.15.1",
        "MEMORY --wire v1",
        "--wire v1 cannot restore a stream kept in memory",
        "Leave --wire out, or use --storage file.",
    ),
    # What was asked for.
    Row(
        Rule.DUPLICATE_WINDOW,
        "2.12.8",
        f"FILE --set max_age={60 * SECOND_NS}",
        "would have a duplicate_window of 120 s, longer than its max_age of 60 s",
        f"Set it as well: --set duplicate_window={60 * SECOND_NS}.",
    ),
    Row(
        Rule.LIMIT_TRIMS,
        "2.15.1",
        "FILE --set max_msgs=2",
        "would keep 2 of its 5 messages, and so cannot be proved",
        "Restore it with a larger max_msgs, and lower that afterwards.",
    ),
    Row(Rule.LIMIT_TRIMS, "2.12.8", "LARGE --set max_bytes=1000", "would keep 1000 of its", "with a larger max_bytes"),
    # What a backup has.
    Row(
        Rule.CONFIG_ONLY_REPLACES,
        "2.12.8",
        "FILE --if-exists replace",
        "is backed up without messages, and would replace one that has 3",
        "Choose a backup that has its messages.",
        repo="config",
        there=(_FILE,),
        messages=3,
    ),
    Row(
        Rule.OPAQUE_REPLACES,
        "2.15.1",
        "FILE --if-exists replace",
        "was kept as it came and cannot be proved beside the one that it would replace",
        "Delete that one first, if it may go.",
        repo="opaque",
        there=(_FILE,),
    ),
    Row(
        Rule.OPAQUE_WIRE,
        "2.15.1",
        "FILE --wire v1",
        "was kept as it came, not decoded; --wire v1 is not possible",
        "Leave --wire out.",
        repo="opaque",
    ),
    Row(
        Rule.OPAQUE_CONSUMERS,
        "2.15.1",
        "FILE --consumers none",
        "was kept as it came, its consumers with it; --consumers none is not possible",
        "Leave --consumers out, and delete them after the restore.",
        repo="opaque",
    ),
    Row(
        Rule.OPAQUE_NEWER,
        "2.12.8",
        "FILE",
        "was kept as it came from nats-server 2.15, the target is nats-server 2.12.8",
        "Restore it into a server of that release, or a newer one.",
        repo="opaque",
    ),
    Row(Rule.OBJECT_LOST, "2.12.8", "FILE", "missing", "Restore what is left with --partial", repo="lost"),
    # Mirrors and sources.
    Row(
        Rule.CYCLE,
        "2.12.8",
        'FILE --set sources=[{"name":"OTHER"}]',
        "would copy in a circle: FILE from OTHER from FILE",
        "Leave one of these streams out, or change its sources at the target.",
        there=({"name": "OTHER", "sources": [{"name": "FILE"}]},),
    ),
    Row(
        Rule.CYCLE,
        "2.15.1",
        'AFAR --set sources=[{"name":"AFAR"}]',
        "would copy in a circle: AFAR from AFAR",
        "Leave one",
    ),
    Row(
        Rule.ORIGIN_MESSAGE_SIZE,
        "2.12.8",
        "COPY",
        "takes messages of 2048 bytes at most and copies from FILE, which takes 4096",
        "Lower max_msg_size of the origin at the target, or restore the origin as well.",
        there=(_stream("FILE", max_msg_size=4096),),
    ),
    # Permissions.
    Row(Rule.NOT_ALLOWED, "nochunks@2.12.8", "FILE", "does not allow publishing to $JS.SNAPSHOT.RESTORE.FILE.", _GRANT),
    Row(
        Rule.NOT_ALLOWED, "norestore@2.12.8", "FILE", "does not allow publishing to $JS.API.STREAM.RESTORE.FILE", _GRANT
    ),
    Row(
        Rule.NOT_ALLOWED,
        "norestore@2.15.1",
        "MEMORY",
        "does not allow publishing to $JS.API.STREAM.RESTORE.MEMORY",
        _GRANT,
    ),
    Row(
        Rule.NOT_ALLOWED,
        "nodelete@2.15.1",
        "FILE --if-exists replace",
        "does not allow publishing to $JS.API.STREAM.DELETE.",
        "Grant the user this subject, for stream FILE that is to be removed too.",
        there=(_FILE,),
        messages=1,
    ),
    Row(
        Rule.NOT_ALLOWED,
        "nocreate@2.12.8",
        "FILE",
        "does not allow publishing to $JS.API.STREAM.CREATE.FILE",
        _GRANT,
        repo="config",
    ),
    # Warnings.
    Row(Rule.SKIPPED, "2.12.8", "FILE --if-exists skip", "exists at the target", there=(_FILE,)),
    Row(
        Rule.INCOMPLETE_BACKUP,
        "2.12.8",
        "",
        "is not in this backup: ",
        "Restore it from another backup.",
        repo="partial",
    ),
    Row(Rule.UNPROVED, "noproof@2.12.8", "FILE", "cannot be read back and compared: ", "or restore with --no-verify."),
    Row(Rule.MAX_AGE, "2.12.8", f"FILE --set max_age={DAY_NS}", "has max_age: messages older than that are removed"),
    Row(
        Rule.EXPIRES,
        "2.15.1",
        "FILE --set max_age=100000000 --set duplicate_window=100000000",
        "5 of its 5 messages are older than its max_age and expire at once",
        "Restore a newer backup, if these messages are needed.",
    ),
    Row(Rule.MESSAGE_TTL, "2.12.8", "TTL", "messages whose own TTL has passed meanwhile are removed by the target"),
    Row(
        Rule.LARGE_MESSAGES,
        "small",
        "LARGE",
        "bytes and more, and the max_payload of the target is 2048",
        "They are restored; raise max_payload before clients publish their like again.",
    ),
    Row(Rule.DELETED_TAIL, "2.15.1", "TAIL --wire v2", "its last message was deleted"),
    Row(Rule.FIRST_SEQ, "2.10.26", "FIRST", "first_seq is left out: nats-server 2.10.26 would empty the stream"),
    Row(Rule.COPIES_ON, "2.12.8", "COPY FILE", "goes on copying from its origins as soon as it is restored"),
    Row(
        Rule.ORIGIN_ABSENT,
        "2.12.8",
        "COPY",
        "copies from FILE, which neither the target has nor this restore brings",
        "Restore these streams as well, or make them: it waits for them.",
    ),
    Row(
        Rule.ORIGIN_ELSEWHERE,
        "2.12.8",
        "AFAR",
        "copies from X behind $JS.afar.API, which cannot be looked at from here",
        "Make sure that the target reaches it under the same prefix.",
    ),
    Row(
        Rule.COPIED_BY,
        "2.12.8",
        "FILE --if-exists replace",
        "stream OTHER copies from it",
        "Restore OTHER as well, or make it anew.",
        there=(_FILE, {"name": "OTHER", "mirror": {"name": "FILE"}}),
    ),
    Row(
        Rule.FEW_SERVERS,
        "cluster",
        "FILE --replicas 5",
        "has 5 replicas, and the target tells of 3 servers",
        "Choose fewer with --replicas, unless there are more servers.",
    ),
    Row(
        Rule.PLACEMENT_CLUSTER,
        "cluster",
        "PLACED",
        "is to be placed in cluster elsewhere, the target is in c1",
        "It is refused there unless the two are connected.",
    ),
    Row(
        Rule.PLACEMENT_CLUSTER,
        "cluster",
        "FILE --placement-cluster c2 --placement-tag ssd",
        "is to be placed in cluster c2, the target is in c1",
    ),
    Row(Rule.PLACEMENT_SINGLE, "2.12.8", "PLACED", "has a placement, which means nothing to a single server"),
    Row(
        Rule.NOBODY_INTERESTED,
        "2.12.8",
        "INTEREST --consumers none",
        "keeps messages for its consumers, and none is restored",
        "Restore its consumers as well.",
    ),
    Row(
        Rule.DESTROYS_ANOTHER,
        "2.12.8",
        "FILE --if-exists replace",
        "not the one that was backed up",
        "Compare them with 'jsbackup diff'.",
        there=(_FILE,),
    ),
    Row(
        Rule.DESTROYS_CONSUMERS,
        "2.15.1",
        "FILE --if-exists replace --consumers none",
        "has 1 consumers at the target, of which 0 at most come back",
        "Make the others anew after the restore.",
        there=(_FILE,),
        consumers=({"durable_name": "mine", "ack_policy": "explicit"},),
    ),
    Row(
        Rule.STAGED_BEFORE,
        "2.12.8",
        "FILE",
        "an interrupted replace left its copy FILE-jsbackup-0123abcd",
        there=(_stream("FILE-jsbackup-0123abcd", subjects=["jsbackup.staged.0123abcd"]),),
    ),
]
# Rules that other tests show.
ELSEWHERE = {
    Rule.NO_TIER: "tests/engine/test_limits.py: tiers need an operator's JWT",
    Rule.ACK_FLOOR: "tests/engine/test_forecast.py: what a clustered snapshot of 2.15 loses",
    Rule.DESTROYS_NEWER: "test_a_plan_is_carried_out_if_nothing_has_changed",
}


def test_each_rule_has_a_row() -> None:
    assert {row.rule for row in ROWS} | ELSEWHERE.keys() == set(Rule)
    assert len(ROWS) >= 60


async def _make(url: str, row: Row) -> None:
    async with connected(url) as nc:
        for config in row.there:
            with contextlib.suppress(TimeoutError):
                await call(nc, f"STREAM.CREATE.{config['name']}", config)
            await call(nc, f"STREAM.INFO.{config['name']}")
            subject = (config.get("subjects") or [""])[0].replace(">", "made").replace("*", "made")
            for _ in range(row.messages):
                await nc.request(subject, b"there", timeout=PATIENCE_SECONDS)
            for consumer in row.consumers:
                await _consume(nc, config["name"], consumer)
        if row.begun:
            config = {
                "name": "FILE",
                "subjects": ["file.>"],
                "retention": "limits",
                "storage": "file",
                "num_replicas": 1,
            }
            moment = "2026-11-21T01:45:00Z"
            state: JSON = {"messages": 0, "bytes": 0, "consumer_count": 0, "first_seq": 0, "last_seq": 0}
            await call(
                nc, "STREAM.RESTORE.FILE", {"config": config, "state": state | {"first_ts": moment, "last_ts": moment}}
            )


async def _clear(url: str, names: set[str]) -> None:
    async with connected(url) as nc:
        for name in names:
            await call(nc, f"STREAM.DELETE.{name}")


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_a_rule_is_told_with_its_hint_and_nothing_changes(
    row: Row, backups: Path, targets: Callable[[str], str], capsys: pytest.CaptureFixture[str]
) -> None:
    url = targets(row.target)
    user = row.target.partition("@")[0]
    whole = targets(row.target.rpartition("@")[2]) if user in DENIED else url
    asyncio.run(_make(whole, row))
    try:
        # A name that a restore has taken is listed and not found.
        before = {} if row.begun else seen(whole)
        words = ["latest", *row.arguments.split(), "-s", url, "-r", str(backups / row.repo), *PATIENT, "--json"]
        planned = _typed(capsys, "plan", *words)
        plan = planned.document
        assert "refusals" in plan, planned.out
        found = [one for one in [*plan["refusals"], *plan["warnings"]] if one["rule"] == row.rule]
        if row.rule is Rule.SKIPPED:
            assert plan["skipped"] == [{"name": "FILE", "reason": row.reason}]
        else:
            matching = [one for one in found if row.reason in one["reason"] and row.hint in (one["hint"] or "")]
            assert matching, planned.out
        if row.rule.code:
            assert planned.code == row.rule.code == matching[0]["code"], planned.out
            refused = _typed(capsys, "restore", *words)
            assert refused.code == row.rule.code, refused.out
            assert matching[0]["reason"].partition(":")[0] in refused.document["error"]["message"], refused.out
        else:
            assert planned.code == 0, planned.out
        assert row.begun or compare(before, seen(whole)) == []
    finally:
        asyncio.run(_clear(whole, {config["name"] for config in row.there} | ({"FILE"} if row.begun else set())))


def _typed(capsys: pytest.CaptureFixture[str], *arguments: str) -> Ran:
    """In this process, which is quicker."""
    capsys.readouterr()
    code = run([*arguments, "--no-progress"])
    printed = capsys.readouterr()
    return Ran(code, json.loads(printed.out), printed.out, printed.err)


# ----------------------------------------------------------------------------------------------- plans that are saved


@pytest.mark.parametrize("version", ["2.12.8", "2.15.1"])
def test_a_plan_is_carried_out_if_nothing_has_changed(version: str, tmp_path: Path) -> None:
    repo, saved = tmp_path / "repo", tmp_path / "plan.json"
    with NatsServer(version) as server:
        asyncio.run(_begin(server.url))
        before = seen(server.url)
        jsbackup("backup", "-s", server.url, "-r", repo, *PATIENT).ok()
        asyncio.run(_publish(server.url, "a.late"))
        onto = ("-s", server.url, "-r", repo, *PATIENT)

        planned = jsbackup("plan", "latest", "A", "--if-exists", "replace", *onto, "-o", saved).ok().document
        (action,) = planned["actions"]
        assert (action["action"], action["destroys"]["messages"], action["destroys"]["last_seq"]) == ("replace", 4, 4)
        rules = {warning["rule"]: warning["reason"] for warning in planned["warnings"]}
        assert rules["destroys-newer"] == "up to 1 messages stored after sequence 3 are destroyed"
        changed = seen(server.url)

        # A message more than was planned to be destroyed.
        asyncio.run(_publish(server.url, "a.later"))
        later = seen(server.url)
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15
        assert "the target is not as planned" in refused.document["error"]["message"]
        assert "target removed A last_seq is 5, was 4" in refused.document["error"]["message"]
        assert "Make a new plan" in refused.document["error"]["hint"]
        assert compare(later, seen(server.url)) == [] and compare(changed, later) != []

        jsbackup("plan", "latest", "A", "--if-exists", "replace", *onto, "-o", saved).ok()
        restored = jsbackup("restore", "--plan", saved, *onto).ok()
        assert [(one["name"], one["verified"]) for one in restored.document["streams"]] == [("A", True)]
        assert compare(before, seen(server.url), ignore=announced(restored)) == []

        # The same plan again: what it replaces is not what it was.
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15 and "target removed A last_seq is 3, was 5" in refused.document["error"]["message"]

    with NatsServer(version, name="other") as server:
        onto = ("-s", server.url, "-r", repo, *PATIENT)
        fields = ("--set", "max_msgs=7", "--set", "description=null", "--consumers", "config")
        planned = jsbackup("plan", "latest", *fields, *onto, "-o", saved).ok().document
        assert {
            change["field"]: (change["before"], change["after"]) for change in planned["actions"][0]["config_changes"]
        } == {
            "max_msgs": (-1, 7),
            "description": ("of a test", None),
        }
        assert seen(server.url) == {}
        # A stream has come that is in the way.
        asyncio.run(_stand_in_the_way(server.url))
        there = seen(server.url)
        refused = jsbackup("restore", "--plan", saved, *onto)
        assert refused.code == 15 and "overlaps with a.x of stream C" in refused.document["error"]["message"]
        assert compare(there, seen(server.url)) == []
        asyncio.run(_clear(server.url, {"C"}))
        restored = jsbackup("restore", "--plan", saved, *onto).ok()
        after = seen(server.url)
        assert (after["A"].config["max_msgs"], after["A"].config.get("description")) == (7, None)
        assert after["A"].messages == before["A"].messages
        assert {one["fidelity"] for stream in restored.document["streams"] for one in stream["consumers"]} == {
            "config only"
        }

    # Another release is another target.
    with NatsServer("2.14.6", name="third") as server:
        refused = jsbackup("restore", "--plan", saved, "-s", server.url, "-r", repo, *PATIENT)
        assert refused.code == 15 and f"target version is 2.14.6, was {version}" in refused.document["error"]["message"]
        assert seen(server.url) == {}


async def _begin(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.A", _stream("A", subjects=["a.>"], description="of a test"))
        await _consume(nc, "A", {"durable_name": "one", "ack_policy": "explicit"})
        for number in range(3):
            await nc.request(f"a.{number}", b"data", timeout=PATIENCE_SECONDS)


async def _publish(url: str, subject: str) -> None:
    async with connected(url) as nc:
        await nc.request(subject, b"late", timeout=PATIENCE_SECONDS)


async def _stand_in_the_way(url: str) -> None:
    async with connected(url) as nc:
        await call(nc, "STREAM.CREATE.C", _stream("C", subjects=["a.x"]))
