"""`backup --all-accounts`."""

from __future__ import annotations

from contextlib import AbstractContextManager

from jsbackup.cli.accounts.options import AskedAccounts
from jsbackup.cli.accounts.report import tell_all_backups
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import open_or_make_repository, run_async
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.engine.accounts.backups import back_up_accounts, earlier_backups, with_streams
from jsbackup.engine.accounts.chosen import choose_accounts
from jsbackup.engine.accounts.found import FoundAccount
from jsbackup.engine.accounts.least_rights import LoginPurpose
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.progress import Progress

__all__ = ["back_up_all"]


def back_up_all(
    shared: Shared, accounts: AskedAccounts, options: BackupOptions, *, may_make: bool, lock_timeout: str
) -> int:
    """Back up all accounts and print the result; return the exit code."""
    connection = accounts.connection(shared)
    sources = accounts.sources(shared)
    repository = open_or_make_repository(shared, may_make=may_make)
    earlier = earlier_backups(repository)
    chosen = choose_accounts(
        connection,
        accounts.choice(connection),
        sources,
        environment(),
        purpose=LoginPurpose.BACKUP,
        complete=run_async,
        earlier=with_streams(earlier),
    )

    def show_progress(account: FoundAccount) -> AbstractContextManager[Progress]:
        return make_progress(f"backup {account.name or account.account}", wanted=shared.progress)

    with writing(shared, repository, "backup", lock_timeout) as lease:
        run = BackupRun(connection, repository, options)
        done = back_up_accounts(run, chosen, earlier, lease, complete=run_async, show_progress=show_progress)
    return tell_all_backups(shared.output, done)
