"""`jsbackup copy`. What only changed copies and encrypted repositories need is imported where it is used.

The second repository has the options of the first, with the prefix `--to-`, and its variables begin with
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

from jsbackup.cli.options.backup_choice import WantedBackup, find_backup, find_ids, job_runner
from jsbackup.cli.options.opening import (
    Where,
    keys_of,
    make_repository,
    new_repository_id,
    no_init_option,
    not_made,
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
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.completion import complete_backup, complete_stream
from jsbackup.cli.parsing.context import GIVEN, GLOBAL_OPTIONS, KEY_OPTIONS, S3_OPTIONS, Shared, write_options
from jsbackup.errors import IncompleteError, IntegrityError, KeyUnavailable, RepositoryNotFound, StoreError, UsageError
from jsbackup.exit_codes import damage
from jsbackup.model import JsonObject
from jsbackup.planning.asked import AskedChanges
from jsbackup.readable import count_are, in_short
from jsbackup.repository import layout
from jsbackup.repository.checks.verify_run import lost_readers, tend_readers
from jsbackup.repository.crypto.access import NO_KEYS, GivenKeys
from jsbackup.repository.descriptor import Descriptor
from jsbackup.repository.inventory import find_missing
from jsbackup.repository.keep.damage import known_damage
from jsbackup.repository.keep.holds import held_backups
from jsbackup.repository.repository import Repository
from jsbackup.repository.write.copying import CopyReport, UncopiedBackup, copy_backups, is_replica
from jsbackup.repository.write.late_repository import make_late, make_now
from jsbackup.shell import quoted_command
from jsbackup.stores.base import Store
from jsbackup.times import format_time
from jsbackup.tool import TOOL

__all__ = ["COMMANDS"]

_log = logging.getLogger(__name__)

_PREFIX = "to_"
_JOBS = 4  # objects at the same time


def _to(option: click.Option) -> click.Option:
    """Return the same option for the second repository."""
    names = [f"--to-{name.removeprefix('--')}" for name in (*option.opts, *option.secondary_opts)]
    text = (option.help or "").replace("JSBACKUP_", "JSBACKUP_TO_").replace("--s3-", "--to-s3-")
    return click.Option(["/".join(names)], metavar=option.metavar, type=option.type, default=None, help=text)


# The second repository is written and not read: no identity and no passphrase.
_WRITES = ("writer_key", "writer_key_command", "expect_signer")

TO_OPTIONS = [_to(option) for option in [*S3_OPTIONS, *(one for one in KEY_OPTIONS if one.name in _WRITES)]]


class CopyCommand(Command):
    """A command with options for a second repository. Its function gets those given as `second`: by their group, `s3`
    or `keys`, and by the name that the first repository's have.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.params = [*self.params, *TO_OPTIONS]

    def invoke(self, ctx: click.Context) -> Any:
        second: dict[str, dict[str, Any]] = {"s3": {}, "keys": {}}
        for option in TO_OPTIONS:
            name = str(option.name).removeprefix(_PREFIX)
            given, value = ctx.get_parameter_source(_PREFIX + name) in GIVEN, ctx.params.pop(_PREFIX + name)
            if given:
                second["s3" if name.startswith("s3_") else "keys"][name] = value
        ctx.params["second"] = second
        return super().invoke(ctx)

    def format_shared_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_shared_options(ctx, formatter)
        write_options(ctx, formatter, "Options of the second repository", TO_OPTIONS)


@click.command(cls=CopyCommand, unattended=True, on_spark=True)
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
    second: Mapping[str, Mapping[str, Any]],
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
    --writer-key, and none that reads messages. A replica whose newest backup is older also gets the readers' keys that
    it lacks, but for those that `key remove` has taken away there. Readers that were removed here are named, and stay
    there: remove a reader in each replica.
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
    to = replace(shared, repo=to_repo, variables="JSBACKUP_TO_", s3=second["s3"], keys=second["keys"])
    if streams or asked != AskedChanges():
        return _copy_changed(
            shared,
            to,
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
    target, notes = _open_target(shared, to, source, keys, decrypt=decrypt, may_make=not no_init)
    with (
        reading(shared, source, "copy"),
        writing(to, target, "copy") as lease,
        make_progress("copy", wanted=shared.progress) as progress,
    ):
        report = copy_backups(source, target, chosen, lease, progress=progress, jobs=_JOBS)
        if not backups:
            gaps = [gap for gap in find_missing(source.documents) if gap.backup not in known]
            missing = (UncopiedBackup(gap.backup, IntegrityError(gap.problem)) for gap in gaps)
            report = replace(report, failed=(*report.failed, *missing))
        lost = _lost_readers(source, target)
        there = [*report.present, *report.copied]
        damaged, unknown = known_damage(target, there)
        held = held_backups(source).intersection(there)
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
    here, there = (os.path.realpath(each.store().location) for each in (place, target_place))
    # Buckets of two servers may have the same name.
    if here == there and (place.folder is not None or place.s3.endpoint == target_place.s3.endpoint):
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
    return [*lost, *(f"{target.store.location}: {each}" for each in tend_readers(target) if each not in lost)]


def _open_target(
    shared: Shared, to: Shared, source: Repository, keys: GivenKeys, *, decrypt: bool, may_make: bool
) -> tuple[Repository, list[str]]:
    """Open the second repository; if the location is empty, it is created when something is stored in it. `keys` are
    those of the first one. A replica gets the keys that it lacks: also returns a sentence for each thing to know of it.
    """
    assert to.repo is not None
    store, own_keys = store_at(to.repo, to), keys_of(to)
    here, there = (os.path.realpath(each.location) for each in (source.store, store))
    one_server = s3_of(shared).endpoint == s3_of(to).endpoint or "://" not in source.store.location
    if one_server and (here == there or there.startswith(f"{here}/") or here.startswith(f"{there}/")):
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
    except StoreError as error:
        if not s3_of(to).endpoint and s3_of(shared).endpoint and to.repo.lower().startswith("s3://"):
            own = "The second repository has an endpoint of its own: --to-s3-endpoint, or JSBACKUP_TO_S3_ENDPOINT."
            raise error.with_more_hint(own) from None
        raise
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
    # Only then it is known which of the two follows the other, and so has readers that were removed since.
    theirs, ours = (each.backups()[-1:] for each in (target, source))
    behind = not theirs or theirs < ours
    done = follow_keys(source.store, target.store, source.descriptor, source.signers, given=given, behind=behind)
    here, there = source.store.location, target.store.location
    if done.readers:
        _log.warning(
            "the readers of %s can read %s from now on, too; take away those that were removed there: 'jsbackup key "
            "remove'",
            ", ".join(done.readers),
            there,
        )
    sentences = (
        (f"brought to {there}", done.writers, ""),
        (f"brought to {there}", done.readers, ""),
        (
            f"{here} has no newer backup than {there}, so these readers' key files were not brought, which may have "
            "been removed there",
            done.left,
            "; the copy after the next backup brings them, so a reader who was removed there has to be removed here, "
            "too, by 'jsbackup key remove'",
        ),
        (
            f"these readers' key files were removed in {there} and were not brought",
            done.removed,
            "; 'jsbackup key add' there lets them read it again",
        ),
        (
            f"{there} has readers' key files that {here} does not have",
            done.only_there,
            "; if their readers were removed, take them away with 'jsbackup key remove' there, too; if they were lost, "
            "copy back",
        ),
        (
            f"{there} has other key files than {here}, and no records of them",
            done.different,
            "; try whether their readers can open it",
        ),
    )
    return [f"{found}: {', '.join(names)}{advice}" for found, names, advice in sentences if names]


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


COMMANDS = {"copy": copy}
