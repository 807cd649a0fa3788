"""Back up all accounts of a system, one after another, into one repository: each is a backup of its own origin.

An account that fails does not stop the others. Nothing is left out silently: accounts without credentials and servers
that do not answer are named. Accounts that earlier backups have, and no server lists any more, are logged in to like
the others: then it shows whether they are empty, or gone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from jsbackup.config.connection import Connection
from jsbackup.engine.accounts.logins import AccountLogin, AccountsChosen, streams_of
from jsbackup.engine.accounts.system_view import FoundAccount
from jsbackup.engine.backup.backup import BackupReport, run_backup
from jsbackup.engine.backup.run import BackupRun
from jsbackup.engine.link.source import KnownAccount
from jsbackup.engine.restore.run import Complete
from jsbackup.errors import (
    IncompleteError,
    Interrupted,
    JsBackupError,
    NothingChosen,
    RepositoryLocked,
    UsageError,
)
from jsbackup.exit_codes import DAMAGE, combined
from jsbackup.failure import all_failed
from jsbackup.planning.interrupted import useless_copies
from jsbackup.progress import Progress
from jsbackup.repository.keep.leases import Lease
from jsbackup.repository.manifest import BackupResult, BackupSummary
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.repository import Repository

__all__ = ["AccountBackup", "AllBackups", "back_up_accounts", "earlier_backups", "with_streams"]

_log = logging.getLogger(__name__)

_GONE = "If it was deleted, name the others with --account. Its backups stay."


@dataclass(frozen=True, slots=True)
class AccountBackup:
    """What became of an account: a report, or an error, or a reason why there was nothing to do (`idle`).

    `login` says how it was logged in, "" if there was no way. `unsaved` are streams of an account without credentials.
    """

    account: FoundAccount
    login: str
    report: BackupReport | None = None
    error: JsBackupError | None = None
    idle: str = ""
    unsaved: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        if self.report is None or self.report.manifest is None:
            return 0
        if self.report.lost_readers:
            return DAMAGE
        return 0 if self.report.manifest.result is BackupResult.COMPLETE else IncompleteError.exit_code


@dataclass(frozen=True, slots=True)
class AllBackups:
    """What became of all accounts. `problems` are sentences about accounts that may be missing: then it is
    incomplete.
    """

    chosen: AccountsChosen
    accounts: tuple[AccountBackup, ...]
    problems: tuple[str, ...] = ()

    @property
    def code(self) -> int:
        """The exit code: that of IncompleteError if a part was backed up, or may be missing; `DAMAGE` comes first."""
        codes = [account.code for account in self.accounts if not account.idle]
        if any(account.report is not None for account in self.accounts):
            codes.append(0)
        if self.problems and (0 in codes or not any(codes)):
            codes.append(IncompleteError.exit_code)
        return combined(codes, first=(DAMAGE,) if any(report.lost_readers for report in self._reports) else ())

    @property
    def _reports(self) -> list[BackupReport]:
        return [account.report for account in self.accounts if account.report is not None]


def back_up_accounts(
    run: BackupRun,
    chosen: AccountsChosen,
    earlier: Mapping[Origin, Sequence[BackupSummary]] | None,
    lease: Lease,
    *,
    complete: Complete,
    show_progress: Callable[[FoundAccount], AbstractContextManager[Progress]],
) -> AllBackups:
    """Back up the chosen accounts. `run` is for the system user; `earlier` are the backups of each origin, None if they
    are not known; `show_progress` is called for each account.

    Raises UsageError if streams were named that no account has, NatsError if the system cannot be asked again, and
    RepositoryLocked if the lease was lost.
    """
    known_origins = with_streams(earlier)
    without = [account for account, login in chosen.logins.items() if isinstance(login, UsageError)]
    unsaved = _streams(run.connection, without, complete)
    done = []
    for account, login in chosen.logins.items():
        if isinstance(login, UsageError):
            known = chosen.origins[account] in known_origins
            if account in chosen.gone:
                login = UsageError(f"{login.message}; earlier backups have it, and no server lists it", hint=_GONE)
            done.append(_without_login(account, login, unsaved[account], known=known))
        else:
            own = run if earlier is None else replace(run, earlier=earlier.get(chosen.origins[account], ()))
            done.append(_backed_up(own, account, login, lease, complete=complete, show_progress=show_progress))
    idle = [account for account in done if isinstance(account.error, NothingChosen)]
    if idle and len(idle) == len(done):
        errors = [account.error for account in idle if account.error is not None]
        # The nearest name may be in any account.
        raise next((error for error in errors if (error.hint or "").startswith("Did you mean")), errors[0])
    # Streams need not be in each account.
    accounts = tuple(
        replace(account, error=None, idle=account.error.message) if account in idle and account.error else account
        for account in done
    )
    problems = [*chosen.survey.problems, *_lost_domains(chosen, known_origins)]
    if not accounts and not run.options.allow_nothing:
        problems.append("no account with JetStream is there, or all are left out")
    return AllBackups(chosen, accounts, tuple(problems))


def _backed_up(
    run: BackupRun,
    account: FoundAccount,
    login: AccountLogin,
    lease: Lease,
    *,
    complete: Complete,
    show_progress: Callable[[FoundAccount], AbstractContextManager[Progress]],
) -> AccountBackup:
    known = KnownAccount(account.account, account.name, proved=login.proved)
    _log.info("account %s: %s", account.words, login.told)
    try:
        with show_progress(account) as progress:
            own = replace(run, connection=login.connection, account=known, progress=progress)
            report = complete(run_backup(own, lease))
    except (Interrupted, RepositoryLocked):
        raise
    except JsBackupError as error:
        return AccountBackup(account, login.told, error=error)
    if report.manifest is None:
        return AccountBackup(account, login.told, error=all_failed([failure.error for failure in report.failures]))
    return AccountBackup(account, login.told, report=report)


def _without_login(
    account: FoundAccount, reason: UsageError, streams: tuple[str, ...], *, known: bool
) -> AccountBackup:
    """Return what to say about an account without credentials: nothing is wrong if it has no streams and never had."""
    if not streams and not known:
        return AccountBackup(account, "", idle="it has no streams, and there are no credentials for it")
    return AccountBackup(account, "", error=reason, unsaved=streams)


def _streams(
    connection: Connection, accounts: list[FoundAccount], complete: Complete
) -> dict[FoundAccount, tuple[str, ...]]:
    streams_by_account = streams_of(connection, accounts, complete)
    return {
        account: tuple(sorted(streams.keys() - useless_copies(streams)))
        for account, streams in streams_by_account.items()
    }


def earlier_backups(repository: Repository) -> dict[Origin, list[BackupSummary]] | None:
    """Return the backups of each origin, oldest first; None if the catalog cannot be read, which is no reason not to
    back up. An origin has the name that its account has in the newest of them.
    """
    try:
        summaries = repository.inventory().summaries
    except JsBackupError as error:
        _log.warning("earlier backups cannot be read: %s", error.message)
        return None
    earlier: dict[Origin, list[BackupSummary]] = {}
    for summary in summaries:
        if summary.is_of_a_server:
            origin = origin_of(summary)
            earlier[origin] = [*earlier.pop(origin, []), summary]
    return earlier


def with_streams(earlier: Mapping[Origin, Sequence[BackupSummary]] | None) -> list[Origin]:
    """Return the origins that had a stream once."""
    return [origin for origin, backups in (earlier or {}).items() if any(backup.streams for backup in backups)]


def _lost_domains(chosen: AccountsChosen, earlier: Iterable[Origin]) -> Iterator[str]:
    """Yield the domains of earlier backups of which no server answers."""
    lost = set()
    for origin in earlier:
        of_it = bool(chosen.cluster) and origin.cluster == chosen.cluster and origin.account and not origin.api_prefix
        meant = chosen.choice.takes(FoundAccount(origin.account, origin.account_name, origin.domain))
        if of_it and meant and origin.domain not in chosen.domains:
            lost.add(origin.domain)
    for domain in sorted(lost):
        yield f"no server of domain {domain or '(none)'} answered, and earlier backups have accounts of it"
