"""`jsbackup copy` and `repair`: backups into a second repository, and what is lost here back from one.

What only changed copies and encrypted repositories need is imported where it is used.

The second repository of a copy has the options of the first, with the prefix `--to-`, and its variables begin with
`JSBACKUP_TO_`.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import WantedBackup, find_backup, find_ids, job_runner
from jsbackup.cli.options.opening import (
    Where,
    connection_of,
    keys_of,
    make_repository,
    new_repository_id,
    no_init_option,
    not_made,
    open_to_repair,
    open_with_keys,
    place_given,
    reading,
    s3_of,
    store_at,
    writing,
)
from jsbackup.cli.options.restore_options import (
    mask_key_name,
    refuse_obfuscation,
    reshaping_options,
)
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    failure_json,
    format_bytes,
    format_count,
    said_lines,
    table,
)
from jsbackup.cli.parsing.command import Command, for_second
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, Shared
from jsbackup.errors import (
    IncompleteError,
    IntegrityError,
    JsBackupError,
    KeyUnavailable,
    RepositoryNotFound,
    UsageError,
)
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject
from jsbackup.planning.asked import AskedChanges
from jsbackup.readable import count_are, in_short
from jsbackup.repository import layout
from jsbackup.repository.checks.verify_run import lost_readers
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.inventory import find_missing
from jsbackup.repository.keep.damage import known_damage
from jsbackup.repository.keep.holds import held_backups
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import CopyReport, UncopiedBackup, copy_backups, is_replica
from jsbackup.repository.write.late_repository import make_late, make_now
from jsbackup.repository.write.repair import Broken, RepairOutcome
from jsbackup.repository.write.repair_run import RepairReport, RepairRun
from jsbackup.shell import quoted_command
from jsbackup.stores.base import Store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS"]

_log = logging.getLogger(__name__)

_JOBS = 4  # objects at the same time


# The second repository is written and not read: no identity and no passphrase.
_WRITES = ("writer_key", "writer_key_command", "expect_signer")

TO_OPTIONS = [
    for_second(option, (option.help or "").replace("JSBACKUP_", "JSBACKUP_TO_").replace("--s3-", "--to-s3-"))
    for option in [*S3_OPTIONS, *(option for option in KEY_OPTIONS if option.name in _WRITES)]
]


@click.command(cls=Command, unattended=True, on_spark=True, second=TO_OPTIONS)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--to-repo",
    metavar="LOCATION",
    type=GLOBAL_OPTIONS[0].type,  # as for --repo, so that shells complete it
    required=True,
    help="The repository to copy into.",
)
@click.option(
    "--stream",
    "streams",
    multiple=True,
    metavar="GLOB",
    shell_complete=complete_stream,
    help="Copy only these streams of BACKUP.",
)
@reshaping_options
@mask_key_name
@click.option("--decrypt", is_flag=True, help="Allow a plain repository to be the copy of an encrypted one.")
@no_init_option
def copy(
    shared: Shared,
    to: Mapping[str, Any],
    backups: tuple[str, ...],
    to_repo: str,
    *,
    asked: AskedChanges,
    streams: tuple[str, ...],
    mask_key: tuple[tuple[str, str | bytes], ...],
    decrypt: bool,
    no_init: bool,
    where: Where | None,
) -> Result:
    """Copy backups into another repository: all of them, or those that you name (ids, their starts, or `latest`).

    Only what is missing there is transferred, and checked on the way, so you can interrupt and repeat the command. An
    empty location becomes a repository as soon as there is something to store, unless you give --no-init. If the
    source is encrypted or signed, the new repository is a replica with the same keys. Copying then needs the key of
    --writer-key, and none that reads messages. A replica also gets the readers' keys that it lacks, unless its list of
    readers is newer and does not name them. Readers that were removed here are named, and stay there: remove a reader
    in each replica.
    Into any other repository, encrypted backups are copied with --identity and encrypted again.

    With --stream, or with options of 'jsbackup restore' such as --mask, a new, changed backup is made from one BACKUP:
    to restore it is the same as to restore BACKUP with these options. Nothing is written into the first repository,
    unless --to-repo names that one. If it is encrypted, this needs --identity.

    Holds belong to one repository and are not copied. The output names backups that are held here and not there.

    A backup that cannot be copied does not stop the others: the output names it, and the exit code is 3. It is 14 if a
    reader's key file is missing or damaged: such a file is named, and not copied. It is also 14 if one of the backups
    is known to be damaged in the second repository. 0 means that all of them are there, and that each object of those
    that were copied was checked. Objects of backups that were there before are not looked at again: 'jsbackup verify'
    does that.
    """
    own = {name: value for name, value in to.items() if not name.startswith("s3_")}
    second = replace(shared, repo=to_repo, variables="JSBACKUP_TO_", s3=to, keys=own)
    if streams or asked != AskedChanges():
        return _copy_changed(
            shared,
            second,
            backups,
            asked,
            streams=streams,
            mask_key=mask_key,
            decrypt=decrypt,
            may_make=not no_init,
            where=where,
        )
    if mask_key or where:
        raise UsageError("nothing to change", hint="--spark and --mask-key-file are of a changed copy: add --mask.")
    source, keys = open_with_keys(shared)
    known = source.backups()
    chosen = [layout.resolve_backup(text, known) for text in find_ids(shared, source, backups)] or known
    target, notes = _open_target(shared, second, source, keys, decrypt=decrypt, may_make=not no_init)
    with (
        reading(shared, source, "copy"),
        writing(second, target, "copy") as lease,
        make_progress("copy", wanted=shared.progress) as progress,
    ):
        report = copy_backups(source, target, chosen, lease, progress=progress, jobs=_JOBS)
        if not backups:
            gaps = [gap for gap in find_missing(source.documents) if gap.backup not in known]
            missing = (UncopiedBackup(gap.backup, IntegrityError(gap.problem)) for gap in gaps)
            report = replace(report, failed=(*report.failed, *missing))
        lost = _lost_readers(source, target)
        copies = [*report.present, *report.copied]
        damaged, unknown = known_damage(target, copies)
        held = held_backups(source).intersection(copies)
        lacking = sorted(held - held_backups(target)) if held else []
    locations = source.store.location, target.store.location
    if lacking:
        notes.append(
            f"held in {locations[0]}, not in {locations[1]}: {in_short(lacking)}; a hold is of one repository, so "
            "'forget' may remove them there: hold them there, too, with 'jsbackup hold'"
        )
    lost += [f"{locations[1]}: {each}" for each in unknown]
    return _copy_result(report, locations, damaged=sorted(damaged), lost=lost, notes=notes)


def _copy_result(
    report: CopyReport, locations: tuple[str, str], *, damaged: Sequence[str], lost: Sequence[str], notes: Sequence[str]
) -> Result:
    """Return the result of a copy from one location to the other. Raises the error of a single backup that was not
    copied.
    """
    if len(report.failed) == 1 and not report.copied and not report.present:
        raise report.failed[0].error
    source, target = locations
    blocks: list[Block] = [(State("not copied"), f": {each.id}: {each.error.message}") for each in report.failed]
    if damaged:
        known = f"{count_are(len(damaged), 'backup')} known to be damaged: {in_short(damaged)}"
        how = quoted_command("repair", options=[("--from", source), ("-r", target)])
        blocks.append((State("problem"), f": in {target}, {known}; {how} brings back what is lost"))
    present = f", {format_count(len(report.present))} there already" if report.present else ""
    blocks += [
        *_sentences(lost, notes),
        f"copied {format_count(len(report.copied), 'backup')} to {target}: "
        f"{format_count(report.copied_objects, 'object')}, {format_bytes(report.copied_bytes)}{present}",
    ]
    document = {
        "copied_objects": report.copied_objects,
        "copied_bytes": report.copied_bytes,
        "skipped_objects": report.skipped_objects,
        "backups": list(report.copied),
        "present": list(report.present),
        "failed": [failure_json(each.id, each.error, "backup") for each in report.failed],
        "damaged": list(damaged),
        "notes": [*lost, *notes],
    }
    code = damage([*damaged, *lost]) or (IncompleteError.exit_code if report.failed else 0)
    return Result(document, blocks, code)


def _sentences(lost: Sequence[str], notes: Sequence[str]) -> Iterator[Block]:
    for word, sentences in (("warning", lost), ("note", notes)):
        yield from ((State(word), f": {sentence}") for sentence in sentences)


def _copy_changed(
    shared: Shared,
    to: Shared,
    backups: Sequence[str],
    asked: AskedChanges,
    *,
    streams: Sequence[str],
    mask_key: tuple[tuple[str, str | bytes], ...],
    decrypt: bool,
    may_make: bool,
    where: Where | None,
) -> Result:
    """Make a changed copy of a backup."""
    from jsbackup.pipeline.jobs.changed_copy import make_changed_copy, plan_changed_copy
    from jsbackup.pipeline.jobs.job_run import JobRun
    from jsbackup.pipeline.session.repository_ref import check_readable, lent
    from jsbackup.pipeline.tasks.reshape_task import MaskKey
    from jsbackup.planning.typed_options import change_options, keeping_obfuscated

    if len(backups) != 1:
        raise UsageError(
            "a changed copy is of exactly one backup", hint="Name it: its id, or latest. Name streams with --stream."
        )
    options, key = change_options(asked, streams), MaskKey(mask_key)
    options.reshape.masks.check_secret(key.secret())
    if where is not None and where.is_elsewhere:
        refuse_obfuscation(options.reshape, "Spark on other machines: its secret stays on this one")
    place, target_place = place_given(shared), place_given(to)
    source, keys = open_with_keys(shared)
    here, target_path = (os.path.realpath(each.store().location) for each in (place, target_place))
    # Buckets of two servers may have the same name.
    if here == target_path and (place.folder is not None or place.s3.endpoint == target_place.s3.endpoint):
        target, target_place, notes = source, place, list[str]()
    else:
        target, notes = _open_target(shared, to, source, keys, decrypt=decrypt, may_make=may_make)
        if is_replica(source, target) and keys_of(to) == NO_KEYS:  # as it was opened
            target_place = replace(target_place, keys=place.keys, variables=place.variables)
    target.documents.ensure_writable()
    with (
        reading(shared, source, "copy"),
        writing(to, target, "copy") as lease,
        keeping_obfuscated(asked.obfuscation_key, options.reshape),
        make_progress("copy", wanted=shared.progress) as progress,
    ):
        wanted = WantedBackup(backups[0], streams=options.streams, silent=shared.output.as_json)
        manifest = find_backup(shared, source, wanted)
        check_readable(source)
        plan = plan_changed_copy(manifest, options)
        if where is not None:
            make_now(target)  # executors open it themselves
        with job_runner(where, place, source) as runner, lent(target_place, target):
            run = JobRun(runner, target_place, target, lease, progress)
            made, results = make_changed_copy(run, plan, place, mask_key=key)
        lost = _lost_readers(source, target)
    document: JsonObject = {
        "backup": made.id,
        "made_of": manifest.id,
        "result": made.result,
        "streams": [
            {
                "name": each.kept.entry.name,
                "as": each.stored.stream.name,
                "messages_before": each.kept.had,
                "messages": each.stored.stream.captured.messages,
                "bytes": each.stored.stream.captured.bytes,
                "first_seq": each.stored.stream.captured.first_seq,
                "last_seq": each.stored.stream.captured.last_seq,
                "digest": each.stored.stream.digest.hex,
                "segments": len(each.stored.stream.segments),
                "notes": list(each.notes),
            }
            for each in results
        ],
        "skipped": [{"name": skipped.name, "reason": skipped.reason} for skipped in made.skipped],
        "notes": [*lost, *notes],
    }
    blocks = [
        table(
            document["streams"],
            {
                "STREAM": "as",
                "OF": "name",
                ">MESSAGES BEFORE": ("messages_before", format_count),
                ">MESSAGES": ("messages", format_count),
                ">BYTES": ("bytes", format_bytes),
                ">SEGMENTS": "segments",
            },
        ),
        *said_lines(Said("note", row["as"], note) for row in document["streams"] for note in row["notes"]),
        *said_lines(Said("skipped", row["name"], row["reason"]) for row in document["skipped"]),
        *_sentences(lost, notes),
        f"made backup {made.id} in {target.store.location} from {manifest.id}",
    ]
    return Result(document, blocks, damage(lost))


def _lost_readers(source: Repository, target: Repository) -> list[str]:
    """Return a sentence for each reader's key file that is missing or damaged in one of them."""
    lost = lost_readers(source)
    return [*lost, *(f"{target.store.location}: {each}" for each in lost_readers(target) if each not in lost)]


def _open_target(
    shared: Shared, to: Shared, source: Repository, keys: GivenKeys, *, decrypt: bool, may_make: bool
) -> tuple[Repository, list[str]]:
    """Open the second repository; if the location is empty, it is created when something is stored in it. `keys` are
    those of the first one. A replica gets the keys that it lacks: also returns a sentence for each thing to know of it.
    """
    assert to.repo is not None
    store, own_keys = store_at(to.repo, to), keys_of(to)
    here, target_path = (os.path.realpath(each.location) for each in (source.store, store))
    one_server = s3_of(shared).endpoint == s3_of(to).endpoint or "://" not in source.store.location
    if one_server and (here == target_path or target_path.startswith(f"{here}/") or here.startswith(f"{target_path}/")):
        raise UsageError(
            f"{source.store.location} would be copied into itself, or one of the two is inside the other",
            hint="Name another one with --to-repo.",
        )
    try:
        target = Repository.open(store)
    except RepositoryNotFound as missing:
        if own_keys != NO_KEYS:  # given keys mean that a repository is expected there
            raise
        if not may_make:
            raise not_made(missing) from None
        return _late_target(to, store, source, keys, missing=missing, decrypt=decrypt), []
    if source.descriptor.recipient is not None and target.descriptor.recipient is None and not decrypt:
        raise UsageError(
            f"{source.store.location} is encrypted, and {store.location} is not",
            hint="If everyone who has that store may read the backups, add --decrypt.",
        )
    if source.descriptor.authority is None or not is_replica(source, target):
        target = Repository.open(store, own_keys)
        try:
            target.documents.ensure_writable()
        except KeyUnavailable as error:
            raise error.with_message(f"{store.location}: {error.message}").with_hint(
                "Give its writer key with --to-writer-key FILE, or in JSBACKUP_TO_WRITER_KEY_FILE."
            ) from None
        return target, []
    own_keys = keys if own_keys == NO_KEYS else own_keys
    notes = _follow_keys(source, target, own_keys)  # first: the given identity may be among what is brought
    return Repository.open(store, own_keys), notes


def _follow_keys(source: Repository, target: Repository, keys: GivenKeys) -> list[str]:
    """Bring the keys that a replica lacks, and return what is to be said of it."""
    from jsbackup.repository.crypto.new_keys import follow_keys

    given = keys if source.secret is None else GivenKeys(identities=(source.secret.identity,))
    done = follow_keys(source.store, target.store, source.descriptor, given)
    here, target_location = source.store.location, target.store.location
    if done.readers:
        _log.warning(
            "the readers of %s can read %s from now on, too; 'jsbackup key remove' takes readers away",
            ", ".join(done.readers),
            target_location,
        )
    sentences = (
        (f"brought to {target_location}", (*done.writers, *done.readers), ""),
        (
            f"the list of readers of {target_location} is not older than that of {here}, and does not name these key "
            "files, which were not brought",
            done.left,
            "; 'jsbackup key add' there lets their readers read it",
        ),
        (
            f"{target_location} has readers' key files that no list of readers names",
            done.only_there,
            "; if their readers were removed, take them away with 'jsbackup key remove' there, too",
        ),
    )
    return [f"{said}: {', '.join(names)}{advice}" for said, names, advice in sentences if names]


def _late_target(
    to: Shared,
    store: Store,
    source: Repository,
    keys: GivenKeys,
    *,
    missing: RepositoryNotFound,
    decrypt: bool,
) -> Repository:
    """Return a repository to be created at `store`: a plain one, or a replica."""
    from jsbackup.repository.crypto.opening import open_access

    created = format_time(time.time_ns())
    if source.descriptor.authority is None or (decrypt and source.descriptor.recipient is not None):
        repository_id, like = new_repository_id(), source.descriptor

        def make_plain() -> Repository:
            to.output.announce(f"{missing.message}: creating one")
            return make_repository(to, repository_id, segment_bytes=like.segment_bytes, compression=like.compression)

        descriptor = Descriptor(
            repository_id, created, TOOL, segment_bytes=like.segment_bytes, compression=like.compression
        )
        return make_late(store, descriptor, make_plain, clock=time.time)

    def make_replica() -> Repository:
        to.output.announce(f"{missing.message}: creating one, a replica")
        return Repository.create_replica(
            store, source, probe_id=os.urandom(8).hex(), created=created, tool=TOOL, keys=keys
        )

    # Its keys are those of the first one, if they can still be found.
    access = open_access(source.store, source.descriptor, keys)
    descriptor = replace(source.descriptor, created=created, tool=TOOL)
    return make_late(store, descriptor, make_replica, access=access, clock=time.time)


# --- repair ---


@click.command(cls=Command, needs_server=True)
@click.argument("backups", nargs=-1, metavar="[BACKUP]...", shell_complete=complete_backup)
@click.option(
    "--from",
    "from_repo",
    metavar="LOCATION",
    type=GLOBAL_OPTIONS[0].type,
    help="A repository that has copies of these backups; its S3 settings are JSBACKUP_FROM_S3_ENDPOINT and so on.",
)
@click.option("--check", is_flag=True, help="Read all objects first, not only what verify found damaged.")
@click.option(
    "--trust-copy",
    is_flag=True,
    help="Put back manifests that nothing here proves, too, as --from has them; not in a signed repository.",
)
@click.option("--dry-run", is_flag=True, help="Show what could be repaired; change nothing.")
def repair(
    shared: Shared,
    backups: tuple[str, ...],
    from_repo: str | None,
    check: bool,
    *,
    trust_copy: bool,
    dry_run: bool,
) -> Result:
    """Restore stored objects and manifests that are missing or damaged, in all backups or in those that you name.

    Their bytes come from another repository (--from), or from the messages of a server (-s or --context). With both,
    the server is asked for what the repository lacks. Only the very same bytes are stored; SHA-256 decides. A server
    can supply only plain segments, if it still has the messages and this version of jsbackup writes them as they
    were. A manifest is put back only if the catalog, the next backup, its witness or its signature proves that it is
    the right one, or with --trust-copy; the public key of a writer (keys/writer-….json) only if the root signing key
    has signed it; a reader's key file (keys/….age) as the signed list of readers says.

    Without --check, damage is only known where verify has recorded it. A verify without the writer key records nothing.

    What cannot be repaired is named, and the exit code is 3. A later backup stores messages that the server still
    has.
    """
    live = bool(shared.server.get("server") or shared.server.get("context"))
    if from_repo is None and not live:
        raise UsageError(
            "no source for the repair was given",
            hint="Name another repository with --from, or a server with -s or --context.",
        )
    if trust_copy and from_repo is None:
        raise UsageError("--trust-copy needs --from", hint="Name the copy that you trust with --from.")
    repository, keys, unopened = open_to_repair(shared)
    with (
        writing(shared, repository, "repair"),
        make_progress("repair", wanted=shared.progress) as progress,
    ):

        def ask(broken: Sequence[Broken]) -> Sequence[RepairOutcome | JsBackupError]:
            from jsbackup.engine.read.reread import repair_from_server

            return run_loop(repair_from_server(connection_of(shared), repository, broken, progress, dry_run=dry_run))

        run = RepairRun(
            repository,
            find_ids(shared, repository, backups) or repository.backups(),
            progress,
            time.time,
            os.urandom,
            keys=keys,
            unopened=unopened,
            other=None if from_repo is None else _other(shared, repository, from_repo),
            ask_server=ask if live else None,
            whole=not backups,
            check=check,
            trust_copy=trust_copy,
            dry_run=dry_run,
        )
        report = run.carry_out()
    if (reason := report.not_recorded) is not None:
        with_key = " --writer-key FILE" if isinstance(reason, KeyUnavailable) else ""
        shared.output.note(f"the repair is not recorded; run 'jsbackup verify{with_key}': {reason.message}")
    document = _repair_json(report)
    return Result(document, _repair_text(report, document), IncompleteError.exit_code if report.incomplete else 0)


def _other(shared: Shared, repository: Repository, location: str) -> Store:
    other = store_at(location, replace(shared, s3={}, variables="JSBACKUP_FROM_"))
    if other.location == repository.store.location:
        raise UsageError(f"{other.location} cannot be repaired from itself", hint="Name another one with --from.")
    try:
        Repository.open(other)  # checks that it is a repository; objects are copied without a key
    except RepositoryNotFound as error:
        hint = "Name a repository that has copies of these backups."
        raise error.with_message(f"--from: {error.message}").with_hint(hint) from None
    return other


def _repair_json(report: RepairReport) -> JsonObject:
    last = report.last_verify
    return {
        "dry_run": report.dry_run,
        "mended": report.mended,
        "beside": report.beside,
        "lost": report.lost,
        "sound": report.sound,
        "checked": report.checked,
        "last_verify": None if last is None else {"ended": last.ended, "problems": last.problems},
        "readers": [{"key": each.key, "problem": each.problem, **_outcome(error)} for each, error in report.readers],
        "writers": [{"key": each.key, "problem": each.problem, **_outcome(error)} for each, error in report.writers],
        "manifests": [
            {"backup": each.backup or None, "key": each.key, "problem": each.problem, **_outcome(error)}
            for each, error in report.manifests
        ],
        "objects": [
            {
                "key": broken.ref.key,
                "stream": broken.first,
                "messages": broken.messages,
                "problem": broken.problem,
                "backups": list(broken.backups),
                **_outcome(outcome),
            }
            for broken, outcome in report.objects
        ],
        "beyond": [{"key": key, "problem": problem} for key, problem in report.beyond],
    }


def _outcome(outcome: RepairOutcome | JsBackupError | None) -> JsonObject:
    if isinstance(outcome, JsBackupError):
        return {"outcome": "lost", "reason": outcome.message}
    return {"outcome": outcome or RepairOutcome.MENDED, "reason": None}


def _repair_text(report: RepairReport, document: JsonObject) -> Iterator[Block]:
    dry_run, sound = report.dry_run, report.sound
    if sound:
        are = "object that is recorded as damaged is" if sound == 1 else "objects that are recorded as damaged are"
        yield f"{sound:,} {are} sound" + ("" if dry_run or report.not_recorded else "; recorded")
    documents = [*document["readers"], *document["writers"], *document["manifests"]]
    if not (documents or report.objects or report.beyond):
        yield from _nothing_text(report)
        return
    for row in documents:
        mended = "could be put back" if dry_run else "put back"
        yield f"{row['problem']}: {'lost: ' + row['reason'] if row['reason'] else mended}"
    outcomes = {
        RepairOutcome.MENDED: "could be repaired" if dry_run else "repaired",
        RepairOutcome.BESIDE: "stored under another name for later backups, because the damaged object is locked",
    }
    for row in document["objects"]:
        holds = f" ({format_count(row['messages'], 'message')})" if row["messages"] else ""
        outcome = outcomes.get(row["outcome"], f"lost: {row['reason']}")
        yield f"{row['stream']}: {row['problem']}{holds}: {outcome}"
    yield from (f"{problem}: lost" for _, problem in report.beyond)
    would = "would be repaired" if dry_run else "repaired"
    beside = f", {report.beside:,} stored under another name" if report.beside else ""
    yield f"{format_count(report.mended, 'object')} {would}{beside}, {report.lost_keys:,} lost"


def _nothing_text(report: RepairReport) -> Iterator[Block]:
    """Say that nothing is broken, as far as was looked."""
    where, last = "" if report.whole else " in these backups", report.last_verify
    if report.checked:
        yield f"nothing {'else ' if report.sound else ''}is missing or damaged{where}"
        return
    which = f"no {'other ' if report.sound else ''}object is missing, has a wrong size, or is recorded as damaged"
    yield f"{which}{where}; objects were not read: --check reads them all"
    if last is not None and not last.ok and not report.sound:
        # What an earlier repair has done about it is not recorded as such.
        yield (
            f"the last recorded verify, of {last.ended}, found {format_count(last.problems, 'problem')}, which may "
            "have been repaired since; 'jsbackup verify' checks again"
        )


COMMANDS = {"copy": copy, "repair": repair}
