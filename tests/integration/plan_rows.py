"""The table of `test_plan.py`: each rule of a plan, how it is provoked, and the sentence and hint that tell of it.

Streams of `STREAMS` are in every backup unless its name says otherwise; `LIMITS` are accounts of single servers.
"""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.planning.rules import Rule
from tests.harness.api import JSON

DAY_NS = 24 * 3600 * 1_000_000_000
SECOND_NS = 1_000_000_000


def stream_config(name: str, **more: object) -> JSON:
    config: JSON = {"name": name, "subjects": [f"{name.lower()}.>"], "storage": "file", "retention": "limits"}
    return {**config, "num_replicas": 1, **more}


STREAMS = [
    stream_config("FILE", max_msg_size=1024),
    stream_config("COPY", subjects=None, mirror={"name": "FILE"}, max_msg_size=2048),
    stream_config(
        "AFAR", subjects=None, sources=[{"name": "X", "external": {"api": "$JS.afar.API", "deliver": "afar.in"}}]
    ),
    stream_config("LARGE", max_bytes=10 << 20),
    stream_config(
        "WORDY", description="words " * 600, republish={"src": "wordy.>", "dest": "told.>"}, max_msgs_per_subject=3
    ),
    stream_config("KV_cfg", subjects=["$KV.cfg.>"], max_msgs_per_subject=1),
    stream_config("KV_near", subjects=None, mirror={"name": "KV_cfg"}, max_msgs_per_subject=1),
    stream_config("MEMORY", storage="memory", max_bytes=1 << 20),
    stream_config("INTEREST", retention="interest"),
    stream_config("PLACED", placement={"cluster": "elsewhere"}),
    stream_config("GROUPS"),
    stream_config("TTL", allow_msg_ttl=True),
    stream_config("MARKER", allow_msg_ttl=True, subject_delete_marker_ttl=SECOND_NS, allow_rollup_hdrs=True),
    stream_config("COUNTER", allow_msg_counter=True),
    stream_config("ATOMIC", allow_atomic=True),
    stream_config("SCHEDULES", allow_msg_schedules=True, allow_rollup_hdrs=True),
    stream_config("BATCHED", allow_batched=True),
    stream_config("ASYNC", persist_mode="async"),
    stream_config("FIRST", first_seq=100),
    stream_config("TAIL"),
]
CONSUMERS: list[tuple[str, JSON]] = [
    ("FILE", {"durable_name": "one", "ack_policy": "explicit", "max_ack_pending": 500}),
    ("FILE", {"durable_name": "two", "ack_policy": "explicit"}),
    ("INTEREST", {"durable_name": "one", "ack_policy": "explicit"}),
    ("TAIL", {"durable_name": "part", "ack_policy": "explicit", "filter_subject": "tail.a.>"}),
    ("FIRST", {"durable_name": "push", "ack_policy": "none", "deliver_subject": "pushed"}),
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
    consumers: tuple[JSON, ...] = ()
    begun: bool = False

    def __str__(self) -> str:
        return f"{self.rule}: {self.arguments} at {self.target}"


_NO_CONSUMERS = "Restore into a newer server, with --consumers none, or leave the stream out with --exclude GROUPS."
_RAISE = "Raise that limit, make room, or leave the stream out with --exclude."
_GRANT = "Allow the user to publish to this subject"
_ROOM = "Map its subjects with --map-subject, leave it out with --exclude, or change that one."
_OTHER = {"name": "OTHER", "subjects": ["x", "file.*.y"]}
_FILE = stream_config("FILE")


def _feature(stream: str, field_name: str, since: str, target: str) -> Row:
    reason = f"{field_name} needs nats-server {since}, the target is nats-server {target}"
    hint = f"Leave it out with --set {field_name}=null (--adapt does where no message needs it), leave the stream out"
    return Row(Rule.STREAM_FEATURE, target, f"{stream} --consumers none", reason, hint)


ROWS = [
    # What is there already.
    Row(
        Rule.EXISTS,
        "2.12.8",
        "FILE",
        "exists at the target",
        "Choose --if-exists skip (also after an interrupted restore) or replace, or restore beside it with --rename.",
        there=(_FILE,),
        messages=2,
    ),
    Row(Rule.EXISTS, "2.15.1", "MEMORY", "exists at the target", "--if-exists", there=(stream_config("MEMORY"),)),
    Row(
        Rule.NAME_TAKEN,
        "cluster",
        "FILE",
        "has a name that another restore uses",
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
        'LARGE --set subjects=["other.x"] --allow-nothing',
        "its subject other.x overlaps with other.> of stream OTHER",
        _ROOM,
        there=(stream_config("OTHER"),),
    ),
    Row(
        Rule.SUBJECT_OVERLAP_IN_PLAN,
        "2.12.8",
        "--consumers none",
        "its subject file.* overlaps with file.> of stream FILE in the same backup",
        "Leave one of them out with --exclude, or map its subjects with --map-subject.",
        repo="overlapping",
    ),
    # Limits of the account, by name.
    Row(
        Rule.MAX_STREAMS,
        "streams@2.12.8",
        "FILE LARGE",
        "would be stream number 2; the account's max_streams is 1",
        _RAISE,
    ),
    Row(
        Rule.MAX_STREAMS,
        "streams@2.15.1",
        "FILE",
        "would be stream number 2; the account's max_streams is 1",
        _RAISE,
        there=(stream_config("OTHER"),),
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
        "Set one with --set max_bytes=BYTES, or change the account.",
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
        Rule.SERVER_REFUSES,
        "cluster",
        "ASYNC --replicas 3",
        "the target refuses its configuration: async persist mode is not supported on replicated streams",
        "or leave the stream out with --exclude ASYNC.",
    ),
    Row(
        Rule.MEMORY_STREAM,
        "2.12.8",
        "MEMORY",
        "is kept in memory, which nats-server 2.12.8 cannot restore (2.15 can)",
        "Restore it with --adapt, or --set storage=file.",
    ),
    Row(Rule.MEMORY_STREAM, "2.12.8", "FILE --set storage=memory --adapt", "is kept in memory", "--set storage=file."),
    # What was asked for.
    Row(
        Rule.SERVER_REFUSES,
        "2.12.8",
        f"FILE --set duplicate_window={10**8 - 1}",
        "the target refuses its configuration: duplicates window needs to be >= 100ms",
        "or leave the stream out with --exclude FILE.",
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
        "is backed up without messages and would replace a stream that has 3",
        "Choose a backup that has its messages.",
        repo="config",
        there=(_FILE,),
        messages=3,
    ),
    Row(
        Rule.OPAQUE_REPLACES,
        "2.15.1",
        "FILE --if-exists replace",
        "is stored undecoded and cannot be verified before it replaces the existing stream",
        "Delete the existing stream first if it is not needed.",
        repo="opaque",
        there=(_FILE,),
    ),
    Row(
        Rule.OPAQUE_CONSUMERS,
        "2.15.1",
        "FILE --consumers none",
        "is stored undecoded together with its consumers; --consumers none is not possible",
        "Leave --consumers out, and delete them after the restore.",
        repo="opaque",
    ),
    Row(
        Rule.OPAQUE_NEWER,
        "2.12.8",
        "FILE",
        "is stored undecoded, as it came from nats-server 2.15, the target is nats-server 2.12.8",
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
        there=(stream_config("FILE", max_msg_size=4096),),
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
        "FILE --if-exists replace --replace-with-part",
        "does not allow publishing to $JS.API.STREAM.DELETE.",
        "Allow the user to publish to this subject, and to that of stream FILE, which is removed too.",
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
    Row(
        Rule.UNPROVED,
        "noproof@2.12.8",
        "FILE",
        "cannot be read back and compared: ",
        "or restore with --verify quick or none.",
    ),
    Row(Rule.MAX_AGE, "2.12.8", f"FILE --set max_age={DAY_NS}", "has max_age: messages older than that are removed"),
    Row(
        Rule.LIMIT_TRIMS,
        "2.15.1",
        "FILE --set max_age=100ms --set duplicate_window=100ms",
        "would keep 0 of its 5 messages: the others are older than a max_age of 0.1 s, and expire at once",
        "Restore it with a larger max_age, and lower that afterwards.",
    ),
    Row(Rule.MESSAGE_TTL, "2.12.8", "TTL", "the target removes messages whose TTL has expired"),
    Row(
        Rule.LARGE_MESSAGES,
        "small",
        "LARGE",
        "bytes and more, and the max_payload of the target is 2048",
        "They are restored; raise max_payload before clients publish messages of that size.",
    ),
    Row(Rule.DELETED_TAIL, "2.15.1", "TAIL --set storage=memory", "its last message was deleted"),
    Row(Rule.FIRST_SEQ, "2.10.26", "FIRST", "first_seq is left out: nats-server 2.10.26 would empty the stream"),
    Row(Rule.COPIES_ON, "2.12.8", "COPY FILE", "continues copying from its origins as soon as it is restored"),
    Row(
        Rule.ORIGIN_ABSENT,
        "2.12.8",
        "COPY",
        "copies from FILE, neither at the target nor in this restore",
        "Restore what it copies from as well, or create it: the copy waits for it.",
    ),
    Row(
        Rule.ORIGIN_ELSEWHERE,
        "2.12.8",
        "AFAR",
        "copies from X behind $JS.afar.API, which cannot be checked from here",
        "Make sure that the target reaches it under the same prefix.",
    ),
    Row(
        Rule.COPIED_BY,
        "2.12.8",
        "FILE --if-exists replace",
        "stream OTHER is its mirror, keeps what it has and continues after sequence 0",
        "Restore OTHER as well to keep it identical.",
        there=(_FILE, {"name": "OTHER", "mirror": {"name": "FILE"}}),
    ),
    Row(
        Rule.FEW_SERVERS,
        "cluster",
        "FILE --replicas 5",
        "has 5 replicas, and the target reports 3 servers",
        "Choose fewer with --replicas, unless there are more servers.",
    ),
    Row(
        Rule.PLACEMENT_CLUSTER,
        "cluster",
        "PLACED",
        "would be placed in cluster elsewhere, the target is in c1",
        "It is refused there unless the two are connected.",
    ),
    Row(
        Rule.PLACEMENT_CLUSTER,
        "cluster",
        'FILE --set placement={"cluster":"c2","tags":["ssd"]}',
        "would be placed in cluster c2, the target is in c1",
    ),
    Row(Rule.PLACEMENT_SINGLE, "2.12.8", "PLACED", "has a placement, which a single server ignores"),
    Row(
        Rule.NOBODY_INTERESTED,
        "2.12.8",
        "INTEREST --consumers none",
        "keeps messages only for its consumers, and none is restored",
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
        "brings back at most 0 consumers; the replaced stream has 1",
        "Create the others again after the restore.",
        there=(_FILE,),
        consumers=({"durable_name": "mine", "ack_policy": "explicit"},),
    ),
    Row(
        Rule.STAGED_BEFORE,
        "2.12.8",
        "FILE",
        "an earlier replace was interrupted and left the copy FILE-jsbackup-0123abcd",
        there=(stream_config("FILE-jsbackup-0123abcd", subjects=["jsbackup.staged.0123abcd"]),),
    ),
    # Renamed, mapped, cut and masked.
    Row(Rule.RENAME, "2.12.8", f"FILE --rename *={'p' * 254}*", "not a stream name", "Names are one to 255 bytes"),
    Row(
        Rule.RENAME_COLLISION,
        "2.12.8",
        "FILE LARGE --rename FILE=LARGE",
        "would get the name LARGE, as would LARGE",
        "Choose names that differ.",
    ),
    Row(
        Rule.MAP_STREAM,
        "2.12.8",
        "WORDY --map-subject wordy.*.x=>w.$1.y",
        "its configuration cannot follow the subjects: republish",
        "Leave it out, or map its subjects whole.",
    ),
    Row(
        Rule.MAP_CONSUMER,
        "2.15.1",
        "TAIL --map-subject tail.*.x=>t.$1.y",
        "consumer part cannot follow the subjects",
        "Restore it with --consumers none, and create the consumer again.",
    ),
    Row(
        Rule.MAP_MERGES,
        "2.12.8",
        "WORDY --map-subject wordy.*=>wordy.one",
        "it would delete some",
        "Map subjects so that they stay apart.",
    ),
    Row(
        Rule.MAP_BUCKET,
        "2.12.8",
        "KV_cfg --map-subject $KV.cfg.>=>cfg.>",
        "--map-subject $KV.cfg.>=>cfg.>: the subjects of a bucket change with its name only",
        "Give it another name with --rename KV_cfg=NAME, or leave that map out.",
    ),
    Row(
        Rule.UNTIL_AFTER_BACKUP,
        "2.12.8",
        "FILE --until 2100-01-01T00:00:00Z",
        "messages up to 2100-01-01T00:00:00Z may be missing",
        "Choose another backup",
    ),
    Row(
        Rule.UNTIL_AFTER_BACKUP,
        "2.15.1",
        "FILE --until 4711",
        "ends at sequence 5 in this backup; 4711 is later",
        "Choose another backup",
    ),
    Row(
        Rule.UNTIL_BEFORE_FIRST,
        "2.12.8",
        "TAIL --until 2020-01-01T00:00:00Z",
        "and its state at 2020-01-01T00:00:00Z is no longer in it",
        "Choose another backup",
    ),
    Row(
        Rule.OPAQUE_RESHAPED,
        "2.15.1",
        "FILE --rename FILE=OTHER",
        "it cannot be renamed, mapped, cut, filtered, masked or obfuscated",
        "Leave it out with --exclude",
        repo="opaque",
    ),
    Row(
        Rule.MASK_AIMLESS,
        "2.12.8",
        "FILE --mask fiel.>:$.name=redact",
        "no stream of the restore has such subjects",
        "Did you mean file.>?",
    ),
    Row(
        Rule.MAP_AIMLESS,
        "2.12.8",
        "FILE --map-subject fiel.>=>x.>",
        "no stream of the restore has such subjects",
        "Did you mean file.>? With --allow-nothing it may match nothing.",
    ),
    Row(
        Rule.SUBJECTS_AIMLESS,
        "2.12.8",
        'FILE --set subjects=["fiel.>"]',
        "would have the subjects fiel.>, which have nothing in common with its subjects file.>",
        "Did you mean file.>? With --allow-nothing it may match nothing.",
    ),
    Row(
        Rule.SUBJECT_AIMLESS,
        "2.12.8",
        "FILE --subject fiel.>",
        "no stream of the restore has such subjects",
        "Did you mean file.>? With --allow-nothing it may match nothing.",
    ),
    Row(
        Rule.SUBJECT_AIMLESS,
        "2.12.8",
        "FILE --exclude-subject fiel.>",
        "--exclude-subject fiel.>: no stream of the restore has such subjects, so it would leave nothing out",
        "Did you mean file.>? With --allow-nothing it may match nothing.",
    ),
    Row(
        Rule.FILTER_MISSED,
        "2.12.8",
        "FILE --payload-match dada",
        "--payload-match dada: no message that the other options leave meets it, so it would keep nothing",
        "Correct it, or leave it out. With --allow-nothing it may match nothing.",
    ),
    Row(
        Rule.COMPACTS_NO_BUCKET,
        "2.12.8",
        "FILE --kv-compact",
        "is not a key-value bucket, and --kv-compact is for the keys of buckets",
        "Name the buckets, such as 'KV_*'.",
    ),
    Row(
        Rule.RENUMBERS_MIRROR,
        "2.12.8",
        "COPY --renumber",
        "is a mirror of FILE, and has its sequences: --renumber would set them apart",
        "make it a stream with --set mirror=null",
        there=(_FILE,),
    ),
    Row(
        Rule.RENUMBERED,
        "2.12.8",
        "FIRST --renumber",
        "its messages get new sequences, from 1 on: they had some up to 104",
    ),
    Row(
        Rule.PROMOTED,
        "2.12.8",
        "KV_near --set mirror=null",
        "becomes a bucket of its own, with the subjects $KV.near.>; its keys were $KV.cfg.>",
    ),
    Row(
        Rule.MASK_MISSED,
        "2.12.8",
        "FILE --mask file.>:header(Nobody)=redact",
        "--mask file.>:header(Nobody)=redact masks nothing in the 5 messages that it applies to",
        "Check the path of the mask",
    ),
    Row(
        Rule.MASKED_NOTHING,
        "2.12.8",
        "FILE --mask file.>:header(Nobody)=redact --allow-nothing",
        "file.>:header(Nobody)=redact masks nothing in the 5 messages that it applies to",
    ),
    Row(
        Rule.KEEPS_NOTHING,
        "2.12.8",
        "FILE --since 2090-01-01T00:00:00Z",
        "would keep none of its 5 messages",
        "--allow-nothing",
    ),
    Row(
        Rule.NOTHING_KEPT,
        "2.12.8",
        "FILE --since 2090-01-01T00:00:00Z --allow-nothing",
        "is restored empty: none of its 5 messages is kept",
    ),
    Row(Rule.SUBJECTS_MERGE, "2.12.8", "FILE --map-subject file.*=>file.one", "messages may get the same subject"),
    Row(
        Rule.COPIES_UNMAPPED,
        "2.12.8",
        "COPY --map-subject file.>=>elif.>",
        "continues copying from FILE, where subjects are not mapped",
        "Restore FILE as well, so that it is mapped too.",
    ),
    Row(
        Rule.DELIVERS_TWICE,
        "2.12.8",
        "FIRST --rename FIRST=SECOND --map-subject first.>=>second.>",
        "consumer push delivers to pushed, as that of FIRST does",
        "Restore it with --consumers none if it should not.",
        there=(stream_config("FIRST"),),
    ),
]
