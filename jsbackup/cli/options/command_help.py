"""The help of a command besides its options: examples, exit codes, and related commands, as in a man page.

One table for all commands. Exit codes are those of the contract; an entry only explains one if that adds to the
contract's text. Every command may end with 0, 1, 2 and 130.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field

import click

from jsbackup.exit_codes import EXIT_CODES
from jsbackup.records import dataclass

__all__ = ["COMMAND_HELP", "MANUAL_PAGES", "write_end", "write_examples"]

_WORD = re.compile(r"'[^']*'|\S+")

_ALWAYS = {0, 1, 2, 130}
_READS = {10, 12, 13, 14, 21}
_WRITES = _READS | {11}
_NATS = {20}
_TARGET = _NATS | {15, 16}
_OTHERS_AT_WORK = "another command held the exclusive lock for longer than --lock-timeout"
_RUNS_ALREADY = f"{_OTHERS_AT_WORK}; or the same run of the profile is not over"
_LACKS = "the plan can be carried out, but the backup lacks something that was asked for"
_SEVERAL = "failed, or several streams failed for different reasons"
_NO_SPARK = "format or feature not supported; Spark or Java is not there"
_NOT_SO = "nothing was made: a restore with these options would be refused"
_COLLIDE = "nothing was made: new names or subjects collide"


@dataclass(frozen=True, slots=True)
class CommandHelp:
    """`examples`: command line -> what it does. `codes`: those of the command besides the common ones and those in
    `means`.
    """

    examples: Mapping[str, str]
    codes: set[int] = field(default_factory=set)
    means: Mapping[int, str] = field(default_factory=dict)
    see_also: tuple[str, ...] = ()

    @property
    def exit_codes(self) -> dict[int, str]:
        """Return all possible exit codes of the command, in order, with their meaning."""
        given = {**EXIT_CODES, **self.means}
        return {code: given[code] for code in sorted(_ALWAYS.union(self.codes, self.means))}


COMMAND_HELP: Mapping[str, CommandHelp] = {
    "init": CommandHelp(
        {
            "jsbackup init -r ./repo": "a plain repository in a folder",
            "jsbackup init -r s3://backups/shop --s3-endpoint https://minio.internal": "in an S3 store",
            "jsbackup init -r ./vault --encrypt-to age1… --writer-key ./writer.key": "encrypted to an age key",
        },
        {21},
        {
            0: "made",
            2: "usage; the location has a repository, or something else",
            13: "the store cannot keep backups safe",
        },
        ("backup", "doctor", "key add", "key list"),
    ),
    "backup": CommandHelp(
        {
            "jsbackup backup -s nats://nats.internal:4222 -r ./repo": "all streams of the account",
            "jsbackup backup 'KV_*' ORDERS --exclude KV_tmp --tag why=release -r ./repo": "some of them",
            "jsbackup backup --profile shop --profile reports": "two profiles, one after the other",
            "jsbackup backup --all-accounts --creds sys.creds --account-creds ./creds -r ./repo": "all accounts",
            "jsbackup backup --incremental never -r ./repo": "read everything again",
            "jsbackup backup --no-init -q -r /mnt/backups/repo": "for cron: creates none if the disk is not mounted",
        },
        _WRITES | _NATS,
        {
            0: "complete, and every message was checked",
            1: _SEVERAL,
            3: "partial: the missing streams are named, or those that are gone since earlier backups",
            10: "the location has something else, or nothing and --no-init was given",
            11: _RUNS_ALREADY,
        },
        ("follow", "verify", "status", "schedule", "restore"),
    ),
    "follow": CommandHelp(
        {
            "jsbackup follow -s nats://nats.internal:4222 -r ./repo": "all streams of the account, until Ctrl-C",
            "jsbackup follow ORDERS --every 10s --every-bytes 16MiB -r ./repo": "one stream, less often",
        },
        _WRITES | _NATS,
        {
            0: "ended as asked, the last backup complete",
            3: "ended as asked, the last backup partial",
            10: "the location has something else",
            11: _RUNS_ALREADY,
        },
        ("backup", "forget", "restore"),
    ),
    "list": CommandHelp(
        {
            "jsbackup list -r ./repo": "all backups, oldest first",
            "jsbackup list --tag why=release --last 10 --json -r ./repo": "the newest ten with a tag, for a program",
            "jsbackup list --origin C1/SHOP -r ./repo": "those of one cluster and account",
        },
        _READS,
        {0: "listed", 14: "a manifest is damaged; the others are listed"},
        ("show", "diff", "forget"),
    ),
    "show": CommandHelp(
        {
            "jsbackup show latest -r ./repo": "streams and consumers of the latest backup",
            "jsbackup show 20261121T0942 --json -r ./repo": "everything about another one",
        },
        _READS,
        {0: "shown", 2: "usage; there is no such backup, or there are several"},
        ("list", "stats", "diff"),
    ),
    "view": CommandHelp(
        {
            "jsbackup view latest ORDERS --last 20 -r ./repo": "the last messages",
            "jsbackup view latest ORDERS --subject 'orders.eu.>' --since 2h --until 1h -r ./repo": "those of an hour",
            "jsbackup view latest ORDERS --header Nats-Msg-Id:4711 --json -r ./repo": "those with a header, as JSON",
            "jsbackup view latest ORDERS --grep 4711 -r ./repo": "those with a text in the payload",
            "jsbackup view latest KV_settings --kv-compact -r ./repo": "the newest revision of each key",
        },
        _READS,
        {0: "shown; there may be none"},
        ("get", "show", "export"),
    ),
    "browse": CommandHelp(
        {
            "jsbackup browse --open -r ./repo": "in the browser of this desktop",
            "jsbackup browse --port 8080 --for 1h -r ./repo": "on a known port, such as for ssh -L, for an hour",
            "jsbackup browse --context staging -r ./repo": "with plans for this server, besides all contexts",
        },
        _READS | _NATS,
        {0: "ended by Ctrl-C, SIGTERM or --for", 13: "format not supported; jsbackup[browse] is not installed"},
        ("status", "view", "kv ls", "diff", "plan"),
    ),
    "get": CommandHelp(
        {
            "jsbackup get latest ORDERS 4711 -r ./repo > message": "the payload of one message, into a file",
            "jsbackup get latest ORDERS 4711 --json -r ./repo": "with subject, time and headers",
        },
        _READS,
        {0: "printed", 1: "failed; the backup does not have the message"},
        ("view", "restore"),
    ),
    "kv ls": CommandHelp(
        {
            "jsbackup kv ls latest -r ./repo": "the buckets of a backup",
            "jsbackup kv ls latest settings --at 2h -r ./repo": "the keys of a bucket, as of two hours ago",
        },
        _READS,
        {0: "listed; there may be none"},
        ("kv get", "kv history"),
    ),
    "kv get": CommandHelp(
        {
            "jsbackup kv get latest settings theme -r ./repo": "the value of a key",
            "jsbackup kv get latest settings theme --at 2026-11-20T14:00:00Z -r ./repo": "the one that it had then",
        },
        _READS,
        {
            0: "printed",
            1: "failed; the key did not exist then, or was deleted",
            3: "the backup cannot say, because older revisions may be gone",
        },
        ("put-back", "kv history", "kv ls"),
    ),
    "kv history": CommandHelp(
        {"jsbackup kv history latest settings theme -r ./repo": "the revisions of a key that the backup has"},
        _READS,
        {0: "shown", 1: "failed; there is no revision of the key"},
        ("kv get", "kv ls"),
    ),
    "object ls": CommandHelp(
        {
            "jsbackup object ls latest -r ./repo": "the object stores of a backup",
            "jsbackup object ls latest reports -r ./repo": "the files of one",
        },
        _READS,
        {0: "listed; there may be none"},
        ("object get",),
    ),
    "object get": CommandHelp(
        {
            "jsbackup object get latest reports 2026/q3.pdf -o q3.pdf -r ./repo": "a file",
            "jsbackup object get latest reports data.tar -r ./repo > data.tar": "to stdout",
        },
        _READS,
        {
            0: "written, and size and digest are those that were stored",
            1: "failed; the backup does not have the file",
            2: "usage; FILE exists, or is a link",
            14: "the file is not whole in the backup, or has another digest",
        },
        ("object ls",),
    ),
    "subjects": CommandHelp(
        {
            "jsbackup subjects latest ORDERS --limit 20 -r ./repo": "the largest",
            "jsbackup subjects latest ORDERS --subject 'orders.eu.>' --since 24h -r ./repo": "some, of the last day",
        },
        _READS,
        {0: "listed; there may be none"},
        ("view", "stats"),
    ),
    "put-back": CommandHelp(
        {
            "jsbackup put-back latest settings --key theme -s nats://nats:4222 -r ./repo": "the value of a key",
            "jsbackup put-back latest settings --key theme --at '2h ago' --dry-run -r ./repo": "for an older one",
            "jsbackup put-back latest ORDERS --since '2h ago' -r ./repo": "the messages that are missing since then",
            "jsbackup put-back latest ORDERS --sequence 4711-4720 --to ORDERS_EU -r ./repo": "into another stream",
            "jsbackup put-back latest reports --object 2026/q3.pdf -r ./repo": "a file of an object store",
        },
        _READS | {11} | _TARGET,
        {
            0: "what was chosen is in the stream, written now or there already",
            1: "failed; no message of the backup matches, or the key had no value then",
            3: "some of it was written; the output says what was not; or the backup cannot say what a key was",
            11: _OTHERS_AT_WORK,
            15: "the stream cannot take it; nothing was written",
            16: "something newer would be replaced, or there is no room; nothing was written unless the output says so",
        },
        ("kv get", "view", "object get", "restore"),
    ),
    "consumers": CommandHelp(
        {"jsbackup consumers latest ORDERS -r ./repo": "what each had delivered and acknowledged"},
        _READS,
        {0: "listed; there may be none"},
        ("show", "diff"),
    ),
    "history": CommandHelp(
        {
            "jsbackup history settings theme -r ./repo": "every value of a key that any backup has",
            "jsbackup history ORDERS --subject orders.eu.4711 -r ./repo": "the messages of a subject",
            "jsbackup history ORDERS -r ./repo": "the backups in which a stream changed",
        },
        _READS,
        {
            0: "shown",
            1: "failed; no backup has a matching message",
            2: "usage; no backup has the stream",
            14: "a backup cannot be read; what the others have is shown",
        },
        ("find", "kv get", "get"),
    ),
    "find": CommandHelp(
        {
            "jsbackup find --grep 4711 --since 2d -r ./repo": "a text in the payloads of two days",
            "jsbackup find ORDERS --header Nats-Msg-Id:order-4711 -r ./repo": "a message by a header",
        },
        _READS,
        {0: "searched; nothing may be found", 14: "a backup cannot be read; what the others have is shown"},
        ("history", "view", "get"),
    ),
    "diff": CommandHelp(
        {
            "jsbackup diff latest live -s nats://nats.internal:4222 -r ./repo": "what changed since the last backup",
            "jsbackup diff 20261120 20261121 ORDERS --messages 20 -r ./repo": "one stream in two backups",
        },
        _WRITES | _NATS,
        {
            0: "all is equal",
            1: "something differs",
            3: "streams could not be compared, for different reasons",
            11: _OTHERS_AT_WORK,
        },
        ("show", "verify", "restore"),
    ),
    "verify": CommandHelp(
        {
            "jsbackup verify -r ./repo": "the digest of every object of every backup",
            "jsbackup verify latest --level data -r ./repo": "every message of the newest",
            "jsbackup verify --sample 4 -r ./repo": "a part; nightly runs cover everything in 25 days",
        },
        _WRITES,
        {0: "nothing wrong was found", 11: _RUNS_ALREADY, 14: "something is damaged or missing, and named"},
        ("drill", "status", "restore"),
    ),
    "drill": CommandHelp(
        {
            "jsbackup drill -r ./repo": "the latest backup, into a single server",
            "jsbackup drill --origin SHOP -r ./repo": "that of one account, where several share the repository",
            "jsbackup drill latest 'KV_*' --nodes 3 -r ./repo": "some streams, into a cluster of three",
            "jsbackup drill --keep -r ./repo": "and let the server stay until Ctrl-C",
        },
        _WRITES | _TARGET,
        {
            0: "everything was restored and proved",
            1: _SEVERAL,
            3: "finished, but something could not be proved, or there was nothing to prove",
            11: _RUNS_ALREADY,
            14: "what came back is not what was backed up, or stored objects are damaged",
            15: "the backup cannot be restored into this server",
        },
        ("restore", "verify", "status", "serve"),
    ),
    "serve": CommandHelp(
        {
            "jsbackup serve -r ./repo": "the latest backup, until Ctrl-C",
            "jsbackup serve latest ORDERS 'KV_*' --read-only -r ./repo": "some streams, for a user who may only read",
            "jsbackup serve latest ORDERS --until 'yesterday 14:02' --for 1h -r ./repo": "as it was then, for an hour",
            "jsbackup serve latest --read-only --json -r ./repo": "one line of JSON when it is ready, for a script",
        },
        _READS | _TARGET | {11},
        {
            0: "everything was restored and proved, and served until Ctrl-C, SIGTERM or --for",
            1: f"{_SEVERAL}; or the server ended by itself",
            3: "served, but the backup lacks something, or something could not be proved",
            11: _OTHERS_AT_WORK,
            14: "what came back is not what was backed up, or stored objects are damaged",
            15: "the backup cannot be restored into this server",
        },
        ("drill", "view", "kv get", "restore"),
    ),
    "status": CommandHelp(
        {
            "jsbackup status --max-age 25h --max-drill-age 31d -r ./repo": "a gate for monitoring",
            "jsbackup status --live -s nats://nats.internal:4222 -r ./repo": "are there streams that no backup has?",
            "jsbackup status --live --all-accounts --creds sys.creds -r ./repo": "in any account?",
            "jsbackup status --metrics ./jsbackup.prom --html ./status.html -r ./repo": "numbers and a page",
        },
        _READS | _NATS,
        {
            0: "all is well",
            1: "the metrics or the page could not be written, or not be pushed",
            11: "the same run of the profile is not over",
            17: "something is wrong; every broken rule is listed",
        },
        ("backup", "verify", "drill", "schedule"),
    ),
    "forget": CommandHelp(
        {
            "jsbackup forget --keep-daily 7 --keep-weekly 5 --keep-monthly 12 --dry-run -r ./repo": "what would go",
            "jsbackup forget --keep-within 30d --prune -r ./repo": "forget, and free the space",
            "jsbackup forget 20261121T094249Z-acd9df -r ./repo": "exactly this one",
        },
        _WRITES,
        {
            0: "done",
            2: "usage; nothing would be kept, or no policy was given",
            3: "done, except for backups that the store has locked or that cannot be read",
            11: _RUNS_ALREADY,
        },
        ("prune", "hold", "list"),
    ),
    "hold": CommandHelp(
        {
            "jsbackup hold latest --reason 'audit 2026' -r ./repo": "protect the newest from any forget",
            "jsbackup hold --release 20261121T094249Z-acd9df -r ./repo": "release it",
        },
        _READS,
        {0: "held or released"},
        ("forget", "list"),
    ),
    "prune": CommandHelp(
        {
            "jsbackup prune --dry-run -r ./repo": "what would be deleted",
            "jsbackup prune --grace 48h -r ./repo": "delete what has been unused for two days",
        },
        _WRITES,
        {0: "done", 11: _RUNS_ALREADY, 14: "a manifest is damaged or gone, so nothing was deleted"},
        ("forget", "unlock"),
    ),
    "unlock": CommandHelp(
        {
            "jsbackup unlock -r ./repo": "show leases; remove expired ones",
            "jsbackup unlock --force 0123456789abcdef -r ./repo": "remove an active lease",
        },
        _READS,
        {0: "shown and removed", 14: "a damaged lease stays"},
        ("prune", "doctor"),
    ),
    "upgrade": CommandHelp(
        {"jsbackup upgrade -r ./repo": "let new backups list their segments in pages"},
        _READS,
        {0: "the repository uses the newest format"},
        ("init", "list"),
    ),
    "copy": CommandHelp(
        {
            "jsbackup copy --to-repo s3://elsewhere/shop -r ./repo": "all backups that are not there yet",
            "jsbackup copy latest --to-repo ./second -r ./repo": "the newest",
        },
        _WRITES,
        {0: "all are there", 3: "some backups could not be copied, and are named", 11: _RUNS_ALREADY},
        ("verify", "forget"),
    ),
    "repair": CommandHelp(
        {
            "jsbackup repair --from ./second -r ./repo": "from a copy, what the last verify found damaged",
            "jsbackup repair --check -s nats://shop.internal:4222 -r ./repo": "read everything, and ask the server",
        },
        _WRITES | _NATS,
        {0: "nothing is broken any more", 3: "some objects could not be repaired, and are named", 11: _OTHERS_AT_WORK},
        ("verify", "copy", "restore"),
    ),
    "plan": CommandHelp(
        {
            "jsbackup plan latest -s nats://target.internal:4222 -r ./repo": "a restore of everything",
            "jsbackup plan latest ORDERS --if-exists replace -o plan.json -r ./repo": "save the plan for later",
        },
        _WRITES | _TARGET,
        {0: "the plan can be carried out", 3: _LACKS, 11: _OTHERS_AT_WORK},
        ("restore", "diff"),
    ),
    "restore": CommandHelp(
        {
            "jsbackup restore": "on a terminal: ask what to restore, and where",
            "jsbackup restore latest -s nats://target.internal:4222 -r ./repo": "everything",
            "jsbackup restore latest --origin C1/SHOP -s nats://new.internal:4222 -r ./repo": (
                "from one of several sources, into another cluster"
            ),
            "jsbackup restore latest ORDERS --until 2026-11-20T14:02:00Z --rename ORDERS=ORDERS_before -r ./repo": (
                "one stream as it was then, under another name"
            ),
            "jsbackup restore latest ORDERS --header Region:eu --rename ORDERS=ORDERS_eu -r ./repo": (
                "only messages with that header, under another name"
            ),
            "jsbackup restore --plan plan.json -r ./repo": "carry out a saved plan",
            "jsbackup restore --all-accounts --creds sys.creds --account-creds ./creds -r ./repo": "all accounts",
        },
        _WRITES | _TARGET,
        {
            0: "restored, and equal to the backup in all that --verify compares",
            1: _SEVERAL,
            3: "some streams were restored, or lost messages are missing (--partial), or the backup lacks streams",
            11: _OTHERS_AT_WORK,
            15: "nothing was changed: the plan is refused, or the target has changed since",
            16: "nothing was changed: names, limits or subjects are in the way",
        },
        ("plan", "put-back", "diff", "drill", "clone"),
    ),
    "clone": CommandHelp(
        {
            "jsbackup clone '*' -s nats://old.internal --to-server nats://new.internal": "everything",
            "jsbackup clone ORDERS --mask 'orders.>:$.email=hash' --mask-key-file ./mask.key --to-server nats://b": (
                "without personal data"
            ),
        },
        _TARGET | {13, 14},
        {
            0: "cloned, read back, and equal",
            1: _SEVERAL,
            3: "some streams were cloned",
            16: "nothing was changed: names, limits or subjects are in the way",
        },
        ("plan", "backup", "restore"),
    ),
    "import": CommandHelp(
        {
            "jsbackup import ./nats-backup -r ./repo": "what nats backup account wrote",
            "jsbackup import ./configs -r ./repo": "config files of an export, or resources of NACK or Terraform",
            "jsbackup import ./kafka.parquet --format parquet --stream ORDERS -r ./repo": "a table",
        },
        _WRITES,
        {0: "imported, and verified", 3: "some streams are damaged, and named", 11: _OTHERS_AT_WORK, 13: _NO_SPARK},
        ("export", "restore"),
    ),
    "export": CommandHelp(
        {
            "jsbackup export latest --format nats-cli --output ./for-nats -r ./repo": "for nats backup restore account",
            "jsbackup export latest --format config --output ./configs -r ./repo": "files for version control",
            "jsbackup export latest --format nack --output ./kubernetes -r ./repo": "resources for kubectl apply",
            "jsbackup export latest ORDERS --format parquet --output s3://lake/orders -r ./repo": "a table",
            "jsbackup export latest --format delta --append --output ./lake -r ./repo": "add what is new to tables",
            "jsbackup export latest ORDERS --payload-match '(?i)error' --format jsonl --output ./errors -r ./repo": (
                "only messages in which an expression matches"
            ),
        },
        _WRITES,
        {
            0: "written",
            3: "written, except for what the output names",
            11: _OTHERS_AT_WORK,
            13: _NO_SPARK,
            15: _NOT_SO,
            16: f"{_COLLIDE}; or --append: a table is of another stream, or something else writes it",
        },
        ("import", "query", "iceberg"),
    ),
    "iceberg": CommandHelp(
        {
            "jsbackup iceberg --output ./tables -r ./repo": "all streams and all backups",
            "jsbackup iceberg ORDERS --output s3://bucket/tables -r s3://bucket/prefix": "one stream, in S3",
        },
        _WRITES,
        {
            0: "written",
            11: _OTHERS_AT_WORK,
            13: "format or feature not supported; the repository is encrypted",
            16: "another command writes the same table",
        },
        ("export", "query"),
    ),
    "stats": CommandHelp(
        {
            "jsbackup stats latest -r ./repo": "messages and sizes by stream and subject",
            "jsbackup stats latest --html stats.html -r ./repo": "as a page",
            "jsbackup stats latest --spark-master spark://host:7077 -r s3://bucket/prefix": "on a cluster",
        },
        _WRITES,
        {0: "counted", 11: _OTHERS_AT_WORK, 13: _NO_SPARK},
        ("query", "show"),
    ),
    "query": CommandHelp(
        {
            "jsbackup query latest 'select subject, count(*) from orders group by subject' -r ./repo": "a count",
            "jsbackup query latest 'select count(*) from orders' --engine spark -r ./repo": "on Spark, if small too",
        },
        _WRITES,
        {0: "answered", 2: "usage; the query is not accepted", 11: _OTHERS_AT_WORK, 13: _NO_SPARK},
        ("stats", "export"),
    ),
    "transform": CommandHelp(
        {
            "jsbackup transform latest KV_settings --kv-compact -r ./repo": "a bucket without its history",
            "jsbackup transform latest --mask '>:$.email=redact' --tag for=staging -r ./repo": "without personal data",
        },
        _WRITES,
        {0: "made", 11: _OTHERS_AT_WORK, 13: _NO_SPARK, 15: _NOT_SO, 16: _COLLIDE},
        ("restore", "clone"),
    ),
    "lookup": CommandHelp(
        {
            "jsbackup lookup support.keys.json dql1khjdbl9p6msl": "the name that was obfuscated",
            "jsbackup lookup support.keys.json --obfuscate orders.eu.17": "what a clear subject became",
        },
        {14},
        {
            0: "found",
            2: "usage; the key file cannot be read",
            3: "the file has nothing of some values; these are printed as they are",
            14: "the key file is damaged, or another file",
        },
        ("transform", "export"),
    ),
    "compact": CommandHelp(
        {"jsbackup compact latest -r ./repo": "join the short segments of the newest backup"},
        _WRITES,
        {0: "made, or there was nothing to gain", 11: _OTHERS_AT_WORK, 13: _NO_SPARK},
        ("forget",),
    ),
    "key add": CommandHelp(
        {"jsbackup key add --encrypt-to age1… --identity ./operator.key -r ./vault": "let another key read it"},
        _READS,
        {0: "they can read it"},
        ("key list", "key remove"),
    ),
    "key list": CommandHelp(
        {"jsbackup key list -r ./vault": "who reads, who signs"}, _READS, {0: "listed"}, ("key add", "key remove")
    ),
    "key remove": CommandHelp(
        {"jsbackup key remove age1qqq --identity ./operator.key -r ./vault": "the key whose id begins so"},
        _READS,
        {0: "removed"},
        ("key list", "init"),
    ),
    "key replace-writer": CommandHelp(
        {
            "jsbackup key replace-writer --new-writer-key ./new.key --identity ./operator.key -r ./vault": (
                "a new writer key, written to new.key"
            ),
        },
        _READS,
        {0: "the old one signs nothing any more"},
        ("key list", "verify"),
    ),
    "schedule": CommandHelp(
        {
            "jsbackup schedule --format cron --profile shop --every 15m": "lines for a crontab",
            "jsbackup schedule --format systemd --profile shop --output ./units": "services and timers, into a folder",
            "jsbackup schedule --format kubernetes --image registry.internal/jsbackup:1 --profile shop": "CronJobs",
        },
        set(),
        {0: "printed or written", 2: "usage; something is wrong with the profile, or a file is there already"},
        ("config check", "backup", "status"),
    ),
    "doctor": CommandHelp(
        {
            "jsbackup doctor -s nats://nats.internal:4222 -r ./repo": "everything",
            "jsbackup doctor --for backup --profile shop": "what the nightly backup needs",
        },
        _READS | _NATS,
        {0: "no problems (there may be warnings)", 1: "problems of several kinds"},
        ("status", "init", "unlock"),
    ),
    "config check": CommandHelp(
        {
            "jsbackup config check": "all profiles of the file",
            "jsbackup config check --config ./config.toml --profile shop": "one of them, of another file",
        },
        set(),
        {0: "nothing is wrong", 2: "something is wrong, and all of it is listed"},
        ("schedule", "doctor"),
    ),
    "completion": CommandHelp(
        {"jsbackup completion bash > ~/.local/share/bash-completion/completions/jsbackup": "for bash"},
        set(),
        {0: "printed"},
    ),
    "help": CommandHelp(
        {
            "jsbackup help": "the topics",
            "jsbackup help restore": "one page of the manual",
            "jsbackup help key add": "the --help of a command",
            "jsbackup help --search object lock": "the chapters that have both words",
        },
        set(),
        {0: "shown or found", 2: "usage; there is no such topic, and the manual does not have the words"},
    ),
}


# command -> the page of the manual with more
MANUAL_PAGES: Mapping[str, str] = {
    **dict.fromkeys(("init", "backup", "list", "show"), "backup"),
    **dict.fromkeys(("view", "get", "kv ls", "kv get", "kv history", "object ls", "object get"), "look"),
    **dict.fromkeys(("subjects", "consumers", "history", "find", "serve"), "look"),
    **dict.fromkeys(("verify", "repair"), "verify"),
    **dict.fromkeys(("plan", "restore"), "restore"),
    "put-back": "put-back",
    **dict.fromkeys(("drill", "status"), "operate"),
    **dict.fromkeys(("forget", "hold", "prune", "unlock", "copy"), "retention"),
    "upgrade": "format",
    **dict.fromkeys(("import", "export"), "nats-cli"),
    **dict.fromkeys(("stats", "query", "iceberg", "transform", "compact"), "spark"),
    **dict.fromkeys(("key add", "key list", "key remove", "key replace-writer"), "security"),
    **dict.fromkeys(("schedule", "config check"), "profiles"),
    "clone": "recipes",
    "lookup": "obfuscate",
    "follow": "follow",
    "diff": "diff",
    "browse": "browse",
    "doctor": "doctor",
    "completion": "scripting",
}


def write_examples(formatter: click.HelpFormatter, examples: Mapping[str, str], title: str = "Examples") -> None:
    """Write command lines to copy, each with what it does."""
    with formatter.section(title):
        for line, purpose in examples.items():
            for text in (*_folded(line, formatter.width - 2), f"    {purpose}"):
                formatter.write(f"{'':>{formatter.current_indent}}{text}\n")


def write_end(formatter: click.HelpFormatter, name: str) -> None:
    """Write exit codes and related commands."""
    entry = COMMAND_HELP[name]
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(code), text) for code, text in entry.exit_codes.items()])
    others = [*entry.see_also, *([f"help {MANUAL_PAGES[name]}"] if name in MANUAL_PAGES else [])]
    if others:
        with formatter.section("See also"):
            formatter.write_text(", ".join(f"jsbackup {other}" for other in others))


def _folded(line: str, width: int) -> list[str]:
    """Fold a command line to lines that a shell joins; words in quotes stay whole."""
    lines = [""]
    for word in _WORD.findall(line):
        if lines[-1] and len(f"{lines[-1]} {word} \\") > width:
            lines[-1] += " \\"
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {word}" if lines[-1] else word
    return lines
