"""Which of the accounts that were found are meant, and the login of each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from jsbackup.config import Connection, Glob, nearest
from jsbackup.config.accounts import AccountClaims
from jsbackup.engine.accounts.found import AccountSurvey, FoundAccount, system_view
from jsbackup.engine.accounts.least_rights import LoginPurpose
from jsbackup.engine.accounts.logins import AccountLogin, AccountLogins, LoginSources
from jsbackup.engine.restore.run import Complete
from jsbackup.errors import UsageError
from jsbackup.protocol.info import StreamInfo
from jsbackup.repository.origin import Origin

__all__ = [
    "AccountChoice",
    "AccountsChosen",
    "choose_accounts",
    "refuse_missing",
    "streams_of",
    "twin_names",
]


@dataclass(frozen=True, slots=True)
class AccountChoice:
    """Accounts are chosen by globs of names or keys. No `only` means all."""

    only: tuple[Glob, ...] = ()
    domain: str | None = None

    def takes(self, account: FoundAccount) -> bool:
        if self.domain is not None and account.domain != self.domain:
            return False
        return not self.only or any(glob.matches(name) for glob in self.only for name in account.names)


@dataclass(frozen=True, slots=True)
class AccountsChosen:
    """The meant accounts, each with its login or the reason why there is none.

    `origins` are of all accounts that were found, and of those that are `gone`: earlier backups have them, and no
    server lists them among those with JetStream. `cluster` is that of the system, `domains` those of servers that
    answered. `notes` are sentences about options.
    """

    survey: AccountSurvey
    choice: AccountChoice
    logins: Mapping[FoundAccount, AccountLogin | UsageError]
    origins: Mapping[FoundAccount, Origin]
    cluster: str
    domains: frozenset[str]
    gone: frozenset[FoundAccount] = frozenset()
    notes: tuple[str, ...] = ()


def choose_accounts(
    connection: Connection,
    choice: AccountChoice,
    sources: LoginSources,
    environ: Mapping[str, str],
    *,
    purpose: LoginPurpose,
    complete: Complete,
    earlier: Iterable[Origin] = (),
) -> AccountsChosen:
    """Find the accounts as a user of the system account, and their logins. `earlier` are the origins of backups; their
    accounts in this system are meant too. `complete` runs what waits for servers.

    Raises NatsError, FormatError; UsageError if an account that was named is not there.
    """

    async def look() -> _Look:
        async with system_view(connection) as view:
            survey = await view.survey()
            cluster = view.origin(FoundAccount("")).cluster
            domains = frozenset(view.origin(FoundAccount("", domain=domain)).domain for domain in survey.domains)
            origins = {one: view.origin(one) for one in survey.accounts}
            gone = {
                FoundAccount(origin.account, origin.account_name, origin.domain): origin
                for origin in earlier
                if origin not in origins.values() and _is_of(origin, cluster, domains)
            }
            everything = [*survey.accounts, *gone]
            refuse_missing(choice.only, everything)
            meant = [one for one in everything if choice.takes(one)]
            return _Look(
                survey,
                {one: view.connection(one, connection) for one in meant},
                {one: await view.claims(one.account) if sources.seeds else None for one in meant},
                origins | gone,
                cluster,
                domains,
                frozenset(gone),
            )

    seen = complete(look())
    # Not above: a program that looks up a secret may take its time.
    finder = AccountLogins(sources, environ, twins=twin_names(seen.survey.accounts))
    logins: dict[FoundAccount, AccountLogin | UsageError] = {}
    for one, base in seen.connections.items():
        try:
            logins[one] = finder.find(one, seen.claims[one], base, purpose)
        except UsageError as error:
            logins[one] = error
    return AccountsChosen(
        survey=seen.survey,
        choice=choice,
        logins=logins,
        origins=seen.origins,
        cluster=seen.cluster,
        domains=seen.domains,
        gone=seen.gone,
        notes=tuple(sources.notes),
    )


@dataclass(frozen=True, slots=True)
class _Look:
    """What the system account sees. The connections still have the login of the system user."""

    survey: AccountSurvey
    connections: Mapping[FoundAccount, Connection]
    claims: Mapping[FoundAccount, AccountClaims | None]
    origins: Mapping[FoundAccount, Origin]
    cluster: str
    domains: frozenset[str]
    gone: frozenset[FoundAccount]


def _is_of(origin: Origin, cluster: str, domains: frozenset[str]) -> bool:
    """Return whether a backup's account is one of the system, as far as servers of its domain answer. A system without
    a name cannot be told from others.
    """
    known = bool(origin.account) and not origin.api_prefix
    return known and cluster != "" and origin.cluster == cluster and origin.domain in domains


def streams_of(
    connection: Connection, accounts: Sequence[FoundAccount], complete: Complete
) -> dict[FoundAccount, dict[str, StreamInfo]]:
    """Return the streams of accounts, as the system account sees them. Raises NatsError and FormatError."""

    async def look() -> dict[FoundAccount, dict[str, StreamInfo]]:
        async with system_view(connection) as view:
            await view.survey()
            return {one: await view.streams(one) for one in accounts}

    return complete(look()) if accounts else {}


def twin_names(accounts: Iterable[FoundAccount]) -> frozenset[str]:
    """Return the names that several accounts have."""
    counts = Counter(name for name, _ in {(one.name, one.account) for one in accounts} if name)
    return frozenset(name for name, count in counts.items() if count > 1)


def refuse_missing(globs: Sequence[Glob], accounts: Sequence[FoundAccount]) -> None:
    """Raise UsageError for a pattern that matches no account."""
    known = sorted({name for one in accounts for name in one.names})
    for glob in globs:
        if not any(map(glob.matches, known)):
            hint = nearest(glob.pattern, known) or "Leave --account out to see those there are."
            raise UsageError(f"no account with JetStream is named {glob.pattern}", hint=hint)
