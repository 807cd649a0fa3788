"""The login of each account, as the file of `--accounts` says: a table of its own, a context, a credentials file, or a
user made with a signing key.

The first of these that has a usable login for an account counts, in this order. What was found and cannot be used is
named, with the reason, if nothing else can be.

Users of an account, made with its seed or that of a signing key: in memory, for minutes, with the least rights.

The JWT is as https://github.com/nats-io/jwt (v2) describes it: `base64url(header).base64url(claims).signature`, signed
with Ed25519 over the first two parts. A user of a scoped signing key has the rights of its role and must name none.

These are the rights in `jsbackup/manual/permissions.md`, and no others (`least_rights`).

Which of the accounts that were found are meant is decided here too, with the login of each (`choose_accounts`).
"""

from __future__ import annotations

import base64
import json
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from jsbackup.config import Glob, Secret, nearest
from jsbackup.config.accounts import (
    ACCOUNT,
    OTHERS,
    AccountClaims,
    AccountSeed,
    AccountsFile,
    CredsFile,
    find_creds,
    find_seeds,
    place,
    read_creds,
    with_login,
    with_options,
)
from jsbackup.config.connection import Connection, ConnectionOptions, IssuedUser, UserJwt
from jsbackup.config.secrets import expand_path, is_reference, resolve_reference
from jsbackup.engine.accounts.system_view import AccountSurvey, FoundAccount, system_view
from jsbackup.engine.link.connection import new_user_seed, public_key, sign
from jsbackup.engine.restore.run import Complete
from jsbackup.errors import UsageError
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import in_short
from jsbackup.repository.origin import Origin
from jsbackup.times import format_time

__all__ = [
    "AccountChoice",
    "AccountLogin",
    "AccountLogins",
    "AccountsChosen",
    "LoginPurpose",
    "LoginSources",
    "choose_accounts",
    "read_sources",
    "refuse_missing",
    "streams_of",
    "twin_names",
]

_READ = (
    "$JS.API.INFO",
    "$JS.API.STREAM.NAMES",
    "$JS.API.STREAM.LIST",
    "$JS.API.STREAM.INFO.*",
    "$JS.API.CONSUMER.LIST.*",
    "$JS.API.STREAM.SNAPSHOT.*",
    "$JS.SNAPSHOT.ACK.>",
    # Streams in memory, buckets in use, and what mirrors and sources copy.
    "$JS.API.CONSUMER.CREATE.>",
    "$JS.API.CONSUMER.DELETE.*.*",
    "$JS.API.STREAM.MSG.GET.*",
    "$JS.FC.>",
    # Before 2.12, to find out which account it is.
    "$SYS.REQ.USER.INFO",
)
_WRITE = (
    "$JS.API.STREAM.RESTORE.*",
    "$JS.SNAPSHOT.RESTORE.*.*",
    "$JS.API.STREAM.CREATE.*",
    "$JS.API.STREAM.UPDATE.*",
    "$JS.API.STREAM.DELETE.*",
)
_API = "$JS.API."


class LoginPurpose(StrEnum):
    BACKUP = "backup"
    RESTORE = "restore"


@dataclass(frozen=True, slots=True)
class Permissions:
    """Subjects that a user may publish and subscribe to."""

    publish: Sequence[str]
    subscribe: Sequence[str]


def least_rights(purpose: LoginPurpose, api_prefix: str, inbox_prefix: str) -> Permissions:
    """Return the permissions for a JetStream API, such as `$JS.API` or `$JS.leaf.API`, and replies below an inbox."""
    subjects = _READ if purpose is LoginPurpose.BACKUP else (*_READ, *_WRITE)
    allowed = [f"{api_prefix}.{subject[len(_API) :]}" if subject.startswith(_API) else subject for subject in subjects]
    return Permissions(allowed, [f"{inbox_prefix}.>"])


_HEADER = {"typ": "JWT", "alg": "ed25519-nkey"}
_NO_LIMIT = -1
# A quarter of an hour, and time to move the data at 1 MiB/s, but no more than a day.
_LEAST_SECONDS = 15 * 60
_MOST_SECONDS = 24 * 3600
_BYTES_PER_SECOND = 1 << 20


@dataclass(frozen=True, slots=True)
class SigningKey:
    """The seed of an account, or of one of its signing keys; `scoped` if it issues users of a role. `path` is for
    messages.
    """

    path: str
    account: str
    seed: Secret
    scoped: bool = False


def lifetime_seconds(stored_bytes: int) -> int:
    """Return for how long a user is made that has so much to read or to write."""
    return min(_LEAST_SECONDS + stored_bytes // _BYTES_PER_SECOND, _MOST_SECONDS)


def mint_user(
    key: SigningKey,
    permissions: Permissions,
    *,
    name: str,
    now_seconds: int,
    for_seconds: int,
    random: Callable[[int], bytes],
) -> UserJwt:
    """Return a new user of the account, who may log in from now on for so many seconds."""
    seed = new_user_seed(random(32))
    issuer = public_key(key.seed)
    rights: dict[str, Any] = {
        "pub": {"allow": list(permissions.publish)},
        "sub": {"allow": list(permissions.subscribe)},
        "subs": _NO_LIMIT,
        "data": _NO_LIMIT,
        "payload": _NO_LIMIT,
    }
    claims: dict[str, Any] = {
        "jti": base64.b32encode(random(32)).rstrip(b"=").decode(),
        "iat": now_seconds,
        "exp": now_seconds + for_seconds,
        "iss": issuer,
        "name": name,
        "sub": public_key(seed),
        "nats": {
            **({"pub": {}, "sub": {}} if key.scoped else rights),
            **({} if issuer == key.account else {"issuer_account": key.account}),
            "type": "user",
            "version": 2,
        },
    }
    signed = ".".join(_encoded(json.dumps(part, separators=(",", ":")).encode()) for part in (_HEADER, claims))
    return UserJwt(Secret(f"{signed}.{_encoded(sign(key.seed, signed.encode()))}"), seed)


def _encoded(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


_USERS_NAMED = 5


@dataclass(frozen=True, slots=True)
class AccountLogin:
    """How to log in to an account. `told` says from where the login is. `proved`: its JWT names the account, so no
    server lets it into another one.
    """

    connection: Connection
    told: str
    proved: bool


@dataclass(frozen=True, slots=True)
class LoginSources:
    """What a file names, read. `patterns` are references to credentials with `{account}` in them. `seeds` are by public
    key.
    """

    file: AccountsFile
    creds: tuple[CredsFile, ...] = ()
    patterns: tuple[str, ...] = ()
    seeds: Mapping[str, AccountSeed] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def accounts(self) -> frozenset[str]:
        """The public keys of accounts for which there surely is something."""
        return frozenset(cred.claims.account for cred in self.creds) | frozenset(self.seeds)


def read_sources(file: AccountsFile, environ: Mapping[str, str]) -> LoginSources:
    """Read what a file names. Raises UsageError for what is not there."""
    creds: list[CredsFile] = []
    notes: list[str] = []
    for text in file.creds:
        if ACCOUNT not in text:
            more, problems = find_creds(place(text, "creds", f"creds of {file.path}", environ))
            creds += more
            notes += problems
    seeds: dict[str, AccountSeed] = {}
    for text in file.signing_keys:
        read, problems = find_seeds(place(text, "keys", f"signing-keys of {file.path}", environ))
        seeds |= {public_key(seed.seed): seed for seed in read}
        notes += problems
    patterns = tuple(text for text in file.creds if ACCOUNT in text)
    return LoginSources(file, tuple(creds), patterns, seeds, tuple(notes))


class _Unusable(Exception):
    """There is something for an account, and it cannot be used; the text says why."""


class AccountLogins:
    """Finds the login of each account. `twins` are names that several accounts have: nothing is found by them alone.
    `random` and `now` are for users that are made here.
    """

    def __init__(
        self,
        sources: LoginSources,
        environ: Mapping[str, str],
        *,
        twins: frozenset[str] = frozenset(),
        now: Callable[[], float] = time.time,
        random: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.sources = sources
        self._environ = environ
        self._twins = twins
        self._now = now
        self._random = random

    def find(
        self, account: FoundAccount, claims: AccountClaims | None, base: Connection, purpose: LoginPurpose
    ) -> AccountLogin:
        """Return the login of an account, for its connection `base`. `claims` is its JWT, if it is known. Raises
        UsageError: there is none; the message names the account.
        """
        reasons: list[str] = []
        for way in (self._of_file, self._of_contexts, self._of_creds, self._of_patterns):
            try:
                login = way(account, base)
            except _Unusable as unusable:
                reasons.append(str(unusable))
                continue
            if login is not None:
                return login
        login = self._minted(account, claims, base, purpose)
        if login is not None:
            return login
        why = f": {'; '.join(reasons)}" if reasons else ""
        raise UsageError(
            f"there are no credentials for account {account.words}{why}",
            hint=None
            if reasons
            else f"Name them in {self.sources.file.path}, or name only the other accounts with --account.",
        )

    def names(self, account: FoundAccount) -> Iterator[str]:
        """Yield what stands for `{account}`: the name, unless another account has it too, then the key."""
        for name in (account.name, account.account):
            if name and name not in self._twins:
                yield name

    def account_by_pattern(self, name: str) -> str | None:
        """Return the key of the account whose credentials a pattern leads to by this name, if there are any."""
        for pattern in self.sources.patterns:
            try:
                return self._read(pattern.replace(ACCOUNT, name), name).claims.account
            except UsageError:
                continue
        return None

    # --- the ways ---

    def _of_file(self, account: FoundAccount, base: Connection) -> AccountLogin | None:
        file = self.sources.file
        own = [name for name in (account.account, account.name) if name in file.tables]
        if own and own[0] in self._twins:
            raise _Unusable(f"{file.path} names it {own[0]}, which is the name of several accounts: write its key")
        table = own[0] if own else OTHERS
        if table not in file.tables:
            return None
        name = next(self.names(account), account.account)
        return self._by_options(lambda: file.options(table, name, self._environ), f"[{table}] of {file.path}", base)

    def _of_contexts(self, account: FoundAccount, base: Connection) -> AccountLogin | None:
        reasons = []
        for pattern in self.sources.file.contexts:
            for name in self.names(account):
                context = pattern.replace(ACCOUNT, name)
                try:
                    return self._by_options(lambda: ConnectionOptions(context=context), f"nats context {context}", base)  # noqa: B023
                except _Unusable as unusable:
                    reasons.append(str(unusable))
        if reasons:
            raise _Unusable(reasons[0])
        return None

    def _by_options(self, options: Callable[[], ConnectionOptions], told: str, base: Connection) -> AccountLogin:
        try:
            return AccountLogin(with_options(base, options(), self._environ), told, proved=False)
        except UsageError as error:
            raise _Unusable(error.message) from error

    def _of_creds(self, account: FoundAccount, base: Connection) -> AccountLogin | None:
        mine = [cred for cred in self.sources.creds if cred.claims.account == account.account]
        return self._chosen(mine, base) if mine else None

    def _of_patterns(self, account: FoundAccount, base: Connection) -> AccountLogin | None:
        reasons = []
        for pattern in self.sources.patterns:
            for name in self.names(account):
                try:
                    login = self._by_pattern(pattern.replace(ACCOUNT, name), name, account)
                except UsageError as error:
                    reasons.append(error.message)
                    continue
                return self._chosen([login], base)
        if reasons:
            raise _Unusable(reasons[0])
        return None

    def _by_pattern(self, reference: str, name: str, account: FoundAccount) -> CredsFile:
        creds = self._read(reference, name)
        if creds.claims.account != account.account:
            raise UsageError(f"{creds.path} has credentials of account {creds.claims.account}")
        return creds

    def _read(self, reference: str, name: str) -> CredsFile:
        """Return the credentials that a pattern leads to by a name. Raises UsageError."""
        if "/" in name or "\0" in name or name in (".", ".."):
            raise UsageError(f"no file is looked for by the name {name!r}")
        text = resolve_reference(reference, "credentials file", self._environ)
        shown = reference if is_reference(reference) else str(expand_path(reference, self._environ))
        return read_creds(text, shown)

    def _chosen(self, creds: Sequence[CredsFile], base: Connection) -> AccountLogin:
        """Return the login of the user that is meant. Raises _Unusable."""
        wanted = self.sources.file.user
        if wanted is not None:
            named = [file for file in creds if wanted in (file.claims.name, file.claims.user)]
            if not named:
                raise _Unusable(f"user {wanted} is not among those there are credentials of, {_users(creds)}")
            creds = named
        now = self._now()
        valid = [file for file in creds if file.claims.expires is None or file.claims.expires > now]
        if not valid:
            last = max(creds, key=lambda file: file.claims.expires or 0)
            when = format_time((last.claims.expires or 0) * 10**9)[:19]
            raise _Unusable(f"the credentials in {last.path} expired at {when}Z")
        if len({file.claims.user for file in valid}) > 1:
            raise _Unusable(f"there are credentials of several users, {_users(valid)}: choose one by user = …")
        # The same user twice: the one that may log in for longer.
        best = max(valid, key=lambda file: file.claims.expires or float("inf"))
        return AccountLogin(with_login(base, best.login), f"credentials file {best.path}", proved=True)

    def _minted(
        self, account: FoundAccount, claims: AccountClaims | None, base: Connection, purpose: LoginPurpose
    ) -> AccountLogin | None:
        key = self._signing_key(account.account, claims)
        if key is None:
            return None
        inbox = f"{base.inbox_prefix}.{self._random(8).hex()}"
        permissions = least_rights(purpose, base.api_prefix, inbox)
        seconds = self.sources.file.lifetime_seconds or lifetime_seconds(account.bytes)

        def issue() -> UserJwt:
            return mint_user(
                key,
                permissions,
                name=f"jsbackup-{purpose}",
                now_seconds=int(self._now()),
                for_seconds=seconds,
                random=self._random,
            )

        connection = with_login(base, IssuedUser(account.account, issue))
        connection = connection if key.scoped else replace(connection, inbox_prefix=inbox)
        kind = (
            "scoped signing key" if key.scoped else "signing key" if public_key(key.seed) != account.account else "seed"
        )
        return AccountLogin(connection, f"a user made with the {kind} in {key.path}", proved=True)

    def _signing_key(self, account: str, claims: AccountClaims | None) -> SigningKey | None:
        """Return the key that makes users with the fewest rights: a signing key, else the account's own, else one of a
        role, whose rights only the role says.
        """
        known = claims or AccountClaims(account, "")
        for keys, scoped in ((known.signing_keys, False), ((account,), False), (known.scoped_keys, True)):
            for key in keys:
                if (seed := self.sources.seeds.get(key)) is not None:
                    return SigningKey(seed.path, account, seed.seed, scoped)
        return None


def _users(creds: Sequence[CredsFile]) -> str:
    names = sorted({file.claims.name or file.claims.user for file in creds})
    return in_short(names, most=_USERS_NAMED)


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

    async def look() -> tuple[AccountsChosen, dict[FoundAccount, Connection], dict[FoundAccount, AccountClaims | None]]:
        async with system_view(connection) as view:
            survey = await view.survey()
            cluster = view.origin(FoundAccount("")).cluster
            domains = frozenset(view.origin(FoundAccount("", domain=domain)).domain for domain in survey.domains)
            origins = {account: view.origin(account) for account in survey.accounts}
            absent = {
                FoundAccount(origin.account, origin.account_name, origin.domain): origin
                for origin in earlier
                if origin not in origins.values() and _is_of(origin, cluster, domains)
            }
            everything = [*survey.accounts, *absent]
            refuse_missing(choice.only, everything)
            meant = [account for account in everything if choice.takes(account)]
            bases = {account: view.connection(account, connection) for account in meant}
            claims = {account: await view.claims(account.account) if sources.seeds else None for account in meant}
            chosen = AccountsChosen(survey, choice, {}, origins | absent, cluster, domains, frozenset(absent))
            return chosen, bases, claims

    chosen, bases, claims = complete(look())
    # Not above: a program that looks up a secret may take its time.
    finder = AccountLogins(sources, environ, twins=twin_names(chosen.survey.accounts))
    logins: dict[FoundAccount, AccountLogin | UsageError] = {}
    for owner, base in bases.items():  # still with the login of the system user
        try:
            logins[owner] = finder.find(owner, claims[owner], base, purpose)
        except UsageError as error:
            logins[owner] = error
    return replace(chosen, logins=logins, notes=tuple(sources.notes))


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
            return {account: await view.streams(account) for account in accounts}

    return complete(look()) if accounts else {}


def twin_names(accounts: Iterable[FoundAccount]) -> frozenset[str]:
    """Return the names that several accounts have."""
    counts = Counter(name for name, _ in {(account.name, account.account) for account in accounts} if name)
    return frozenset(name for name, count in counts.items() if count > 1)


def refuse_missing(globs: Sequence[Glob], accounts: Sequence[FoundAccount]) -> None:
    """Raise UsageError for a pattern that matches no account."""
    known = sorted({name for account in accounts for name in account.names})
    for glob in globs:
        if not any(map(glob.matches, known)):
            hint = nearest(glob.pattern, known) or "Leave --account out to see those there are."
            raise UsageError(f"no account with JetStream is named {glob.pattern}", hint=hint)
