"""The streams of a server, to check whether all of them are backed up.

With `--all-accounts` those of all accounts of a system. No account's login is needed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jsbackup.config import Glob
from jsbackup.config.connection import Connection
from jsbackup.engine.accounts.logins import AccountChoice, refuse_missing
from jsbackup.engine.accounts.system_view import system_view
from jsbackup.engine.check.health_rules import Breach, BreachRule, LiveStreams, breach_of_streams
from jsbackup.engine.check.status import RepositoryStatus
from jsbackup.engine.link.concurrency import with_own_threads
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.source import describe_source
from jsbackup.planning.interrupted import useless_copies
from jsbackup.readable import format_count
from jsbackup.repository.origin import origin_of

__all__ = ["LiveAccounts", "find_account_breaches", "list_live_accounts", "list_live_streams"]


@with_own_threads
async def list_live_streams(connection: Connection, exclude: Sequence[Glob] = ()) -> LiveStreams:
    """Return all streams of the account, including those that do not answer. Raises NatsError.

    Copies that backups leave out (`interrupted.py`) are not included.
    """
    async with connect_jetstream(connection) as js:
        await js.account()
        source = await describe_source(js, connection)
        listing = await js.streams()
    names = {*listing.entries, *listing.missing, *listing.offline} - useless_copies(listing.entries)
    return LiveStreams(origin_of(source), tuple(sorted(names)), tuple(exclude))


@dataclass(frozen=True, slots=True)
class LiveAccounts:
    """The streams of each account. `problems` are sentences about servers that may have more accounts."""

    accounts: tuple[LiveStreams, ...]
    problems: tuple[str, ...] = ()


@with_own_threads
async def list_live_accounts(
    connection: Connection, choice: AccountChoice, exclude: Sequence[Glob] = ()
) -> LiveAccounts:
    """Return the streams of the chosen accounts, as the system account sees them. Raises NatsError, FormatError, and
    UsageError for an account that was named and is not there.
    """
    async with system_view(connection) as view:
        survey = await view.survey()
        refuse_missing(choice.only, survey.accounts)
        live = []
        for account in filter(choice.takes, survey.accounts):
            streams = await view.streams(account)
            names = sorted(streams.keys() - useless_copies(streams))
            live.append(LiveStreams(view.origin(account), tuple(names), tuple(exclude)))
    return LiveAccounts(tuple(live), survey.problems)


def find_account_breaches(status: RepositoryStatus, live: LiveAccounts) -> Iterator[Breach]:
    """Yield what of the accounts is not backed up."""
    for problem in live.problems:
        yield Breach(
            BreachRule.SERVERS,
            "",
            problem,
            "Bring the servers back. A server that is gone for good has to be removed from the cluster: 'nats server "
            "raft peer-remove'.",
        )
    known = {line.origin for line in status.lines}
    for account in live.accounts:
        if account.origin in known:
            yield from breach_of_streams(status, account)
        elif names := [name for name in account.names if not any(glob.matches(name) for glob in account.exclude)]:
            yield Breach(
                BreachRule.ACCOUNT_NOT_BACKED_UP,
                str(account.origin),
                f"{account.origin.words} has {format_count(len(names), 'stream')}, and no backup",
                "Give credentials for it to 'jsbackup backup --all-accounts', or name the others with --account here "
                "and there.",
            )
