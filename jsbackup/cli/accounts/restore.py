"""`restore --all-accounts` and `plan --all-accounts`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace

from jsbackup.cli.accounts.options import AskedAccounts
from jsbackup.cli.accounts.restore_report import tell_all_plans, tell_all_restores
from jsbackup.cli.options.latest import LATEST, Finder, WantedBackup, make_finder
from jsbackup.cli.options.leases import reading
from jsbackup.cli.options.opening import open_repository, run_async
from jsbackup.cli.options.reshaping import refuse_obfuscation
from jsbackup.cli.options.restore_options import Asked
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.engine.accounts.asked_streams import check_named, names_of, options_for
from jsbackup.engine.accounts.chosen import AccountChoice, excluded_nothing
from jsbackup.engine.accounts.found import FoundAccount
from jsbackup.engine.accounts.restores import AccountPart, preview_accounts, restore_accounts
from jsbackup.engine.accounts.targets import StoredAccount, find_targets
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import Progress
from jsbackup.repository.layout import is_backup_id
from jsbackup.repository.manifest import Source
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.read.sources import counts
from jsbackup.repository.repository import Repository

__all__ = ["plan_all", "restore_all"]

_MOST_NAMED = 5


@dataclass(frozen=True, slots=True)
class _Opened:
    """What both commands need: the parts, each with the finder of its backup. `left_out` have none of the streams that
    are named.
    """

    repository: Repository
    options: RestoreOptions
    parts: list[AccountPart]
    finders: dict[StoredAccount, Finder]
    left_out: list[StoredAccount]


def plan_all(
    shared: Shared,
    asked: Asked,
    accounts: AskedAccounts,
    mapped: tuple[str, ...],
    *,
    mask_secret: bytes,
    lock_timeout: str,
) -> int:
    """Print the plans of all accounts; return the exit code: 0 if all can be carried out, else that of the
    refusals.
    """
    with _opened(shared, asked, accounts, mapped, purpose="plan", lock_timeout=lock_timeout) as found:
        if mask_secret:  # otherwise the key is only needed when the plan is carried out
            found.options.reshape.masks.check_secret(mask_secret)
        plans = preview_accounts(found.parts, found.repository, run_async)
    return tell_all_plans(shared.output, plans, found.finders, found.left_out)


def restore_all(
    shared: Shared,
    asked: Asked,
    accounts: AskedAccounts,
    mapped: tuple[str, ...],
    *,
    settings: RestoreSettings,
    lock_timeout: str,
) -> int:
    """Restore all accounts, or none, and print the results; return the exit code."""

    def show_progress(account: StoredAccount) -> AbstractContextManager[Progress]:
        return make_progress(f"restore {account.origin.account_name or account.origin.account}", wanted=shared.progress)

    with _opened(shared, asked, accounts, mapped, purpose="restore", lock_timeout=lock_timeout) as found:
        found.options.reshape.masks.check_secret(settings.mask_secret)
        done = restore_accounts(
            found.parts, found.repository, settings, complete=run_async, show_progress=show_progress
        )
    return tell_all_restores(shared.output, done, found.finders, found.left_out)


@contextmanager
def _opened(
    shared: Shared, asked: Asked, accounts: AskedAccounts, mapped: tuple[str, ...], *, purpose: str, lock_timeout: str
) -> Iterator[_Opened]:
    """Find the backup and the target of each account; the repository is locked against a prune."""
    if asked.backup not in ("", LATEST):
        raise _one_backup(asked.backup)
    asked = replace(asked, backup=LATEST)
    options = asked.options()
    refuse_obfuscation(options.reshape, "--all-accounts")
    connection = accounts.connection(shared)
    sources = accounts.sources(shared)
    repository = open_repository(shared)
    with reading(shared, repository, purpose, lock_timeout):
        stored, not_meant = _stored_accounts(shared, repository, asked, accounts.choice(connection))
        wanted = WantedBackup(
            LATEST, asked.choosing(), options.streams, options.exclude, silent=True, all_needed=False, in_part=True
        )
        finders = {one: make_finder(shared, repository, wanted) for one in stored}
        targets = run_async(
            find_targets(connection, stored, mapped, sources, environ=environment(), left_out=not_meant)
        )
        for note in sources.notes:
            shared.output.note(f"note: {note}")
        choices = {one: _choice(finder, one) for one, finder in finders.items()}
        manifests = [choice.manifest for choice in choices.values() if isinstance(choice, Choice)]
        if len(manifests) == len(choices):  # else something is refused anyway
            check_named(manifests, options)
        names = frozenset(name for manifest in manifests for name in names_of(manifest))
        parts, left_out = [], []
        for one, choice in choices.items():
            narrowed = options_for(choice.manifest, options, names) if isinstance(choice, Choice) else options
            if narrowed is None:
                left_out.append(one)
                shared.output.note(f"note: account {one.words} is left out: it has no such stream in its latest backup")
            else:
                parts.append(AccountPart(one, choice, targets[one], narrowed))
        yield _Opened(repository, options, parts, finders, left_out)


def _choice(finder: Finder, stored: StoredAccount) -> Choice | JsBackupError:
    try:
        finder(_source(stored.origin))
    except JsBackupError as error:
        return error
    return finder.choice


def _one_backup(text: str) -> UsageError:
    """Return the error for a BACKUP that is not `latest`: a backup, or a stream in its place."""
    what = "--all-accounts restores the latest backup of each account"
    if is_backup_id(text):
        return UsageError(
            f"{what}, and {text} is one backup",
            hint="Write latest. An older state comes back with --until, or with --tag.",
        )
    command = shlex.join(["latest", text])
    return UsageError(
        f"{what}, and the first argument is {text}",
        hint=f"Write latest. For a stream {text}, write '{command}'; --account chooses accounts.",
    )


def _source(origin: Origin) -> Source:
    return Source(cluster=origin.cluster, account=origin.account, domain=origin.domain or None)


def _stored_accounts(
    shared: Shared, repository: Repository, asked: Asked, choice: AccountChoice
) -> tuple[list[StoredAccount], list[StoredAccount]]:
    """Return the accounts of the backups that are meant, by name, and the others; say which pattern excludes none of
    them. Raises UsageError: there are none, or of several clusters.
    """
    choosing = asked.choosing()
    newest: dict[Origin, StoredAccount] = {}
    for one in repository.inventory().summaries:
        if not one.is_of_a_server or not counts(one, choosing.tags, choosing.origins) or not one.streams:
            continue
        origin = origin_of(one)
        if not origin.account or origin.api_prefix:
            continue
        named = origin.account_name or (newest[origin].origin.account_name if origin in newest else "")
        newest[origin] = StoredAccount(replace(origin, account_name=named), one.bytes)
    everywhere = replace(choice, domain=None)
    meant = [one for one in newest.values() if everywhere.takes(_as_found(one.origin))]
    if not meant:
        known = sorted({name for one in newest.values() for name in one.names})
        hint = (
            f"There are {', '.join(known[:_MOST_NAMED])}." if known else "'jsbackup list' shows the backups there are."
        )
        raise UsageError("no backup is of an account that is meant", hint=hint)
    for note in excluded_nothing(choice.exclude, [_as_found(one.origin) for one in newest.values()], " of a backup"):
        shared.output.note(f"note: {note}")
    for glob in choice.only:
        if not any(glob.matches(name) for one in newest.values() for name in one.names):
            raise UsageError(
                f"no backup is of an account {glob.pattern}", hint="See 'jsbackup list' for those there are."
            )
    clusters = sorted({one.origin.cluster for one in meant})
    if len(clusters) > 1:
        shown = ", ".join(cluster or "(without a name)" for cluster in clusters[:_MOST_NAMED])
        raise UsageError(
            f"the backups are of accounts of {len(clusters)} clusters: {shown}",
            hint="Choose one with --origin CLUSTER.",
        )
    others = [one for one in newest.values() if one not in meant]
    return sorted(meant, key=lambda one: (one.origin.account_name or one.origin.account, str(one.origin))), others


def _as_found(origin: Origin) -> FoundAccount:
    return FoundAccount(origin.account, origin.account_name, origin.domain)
