"""Restore all accounts of backups into a system: everything is planned and checked before anything is changed.

If one account cannot be restored, none is touched, and all reasons are named. After that, a failure in one account does
not stop the others.

**Streams**: from each account those are taken that are named, of the accounts that have them (`options_for`).

An account that has none of them is left out. What no account has is mistyped.

**Targets** (`find_targets`): which account of a system each stored account is restored into, and how to log in there.

    an account that is named for it (`--map-account`)
    else the account with its key, or in a server's configuration its name
    else the only one with its name: a new operator has given it another key

Accounts that nobody has logged in to yet are known to resolvers that keep files. Others are known by their credentials:
logging in makes servers load them, and tell their names.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from jsbackup.config import excludes_nothing, nearest
from jsbackup.config.accounts import AccountClaims, is_account_key
from jsbackup.config.connection import Connection
from jsbackup.engine.accounts.logins import AccountLogin, AccountLogins, LoginPurpose, LoginSources, twin_names
from jsbackup.engine.accounts.system_view import FoundAccount, SystemView, system_view
from jsbackup.engine.link.concurrency import in_thread, with_own_threads
from jsbackup.engine.link.link import Link
from jsbackup.engine.link.source import KnownAccount
from jsbackup.engine.restore.restore import Prepared, RestoreReport
from jsbackup.engine.restore.run import Complete, RestoreSettings
from jsbackup.engine.restore.runbook import RunbookPart, with_conflicts
from jsbackup.errors import Interrupted, JsBackupError, PlanRefused, UsageError
from jsbackup.exit_codes import combined
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.plan import Decision
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.same_jetstream import JetStreamPlace
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.origin import Origin
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.repository import Repository

__all__ = [
    "AccountPart",
    "AccountPlan",
    "AccountRestore",
    "AccountTarget",
    "AllRestores",
    "StoredAccount",
    "check_named",
    "find_targets",
    "names_of",
    "options_for",
    "preview_accounts",
    "restore_accounts",
]


def options_for(manifest: Manifest, options: RestoreOptions, all_names: Collection[str]) -> RestoreOptions | None:
    """Return the options for an account with this backup: without names and patterns of which it has no stream. None if
    it has none of the streams that are named. `all_names` are the streams of all accounts.

    A backup whose streams cannot all be listed may have them: its options stay.
    """
    if manifest.unlisted:
        return options
    names = names_of(manifest)
    streams = tuple(glob for glob in options.streams if any(map(glob.matches, names)))
    if options.streams and not streams:
        return None
    mistyped = excludes_nothing(all_names, options.exclude)
    missed = excludes_nothing(names, options.exclude)
    exclude = tuple(glob for glob in options.exclude if glob.pattern not in missed or glob.pattern in mistyped)
    return replace(options, streams=streams, exclude=exclude)


def check_named(manifests: Sequence[Manifest], options: RestoreOptions) -> None:
    """Raise UsageError if no account has a stream that is named. `manifests` are the backups of all accounts."""
    if any(manifest.unlisted for manifest in manifests):
        return
    names = sorted({name for manifest in manifests for name in names_of(manifest)})
    for glob in options.streams:
        if not any(map(glob.matches, names)):
            raise UsageError(
                f"no account has a stream {glob.pattern} in its latest backup",
                hint=nearest(glob.pattern, names) or "'jsbackup list' shows the backups of each account.",
            )


def names_of(manifest: Manifest) -> list[str]:
    """Return the streams of a backup, with those that it lacks."""
    return [*(stream.name for stream in manifest.streams), *(skip.name for skip in manifest.skipped)]


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoredAccount:
    """An account of backups; `bytes` is what its newest backup has."""

    origin: Origin
    bytes: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.origin.account, self.origin.account_name)))

    @property
    def words(self) -> str:
        return FoundAccount(self.origin.account, self.origin.account_name, self.origin.domain).words


@dataclass(frozen=True, slots=True)
class AccountTarget:
    """Where a stored account goes, and how to log in there."""

    account: FoundAccount
    login: AccountLogin


@with_own_threads
async def find_targets(
    connection: Connection,
    stored: Sequence[StoredAccount],
    named: Sequence[str],
    sources: LoginSources,
    *,
    environ: Mapping[str, str],
    left_out: Sequence[StoredAccount] = (),
) -> dict[StoredAccount, AccountTarget | UsageError]:
    """Return the target of each account, or the reason why there is none. `named` are texts `OLD=NEW`; accounts
    that are `left_out` cannot be OLD.

    Raises UsageError for a text that names no account, or one that another text names; NatsError and FormatError if the
    system cannot be asked.
    """
    pairs = _pairs(named, stored, left_out)
    async with system_view(connection) as view:
        known = await _known_accounts(view, sources)
        chosen = _Targets(known, stored)
        if any(chosen.find(stored_account) is None for stored_account in stored) or any(
            not chosen.knows(new) for _, _, new in pairs
        ):
            await _name_the_rest(view, chosen, sources, environ, connection=connection)
        chosen.name_by_hand(pairs)
        finder = AccountLogins(sources, environ, twins=twin_names(chosen.known.values()))
        if any(chosen.find(stored_account) is None for stored_account in stored):
            await in_thread(_name_by_patterns, chosen, finder, stored)
        targets: dict[StoredAccount, AccountTarget | UsageError] = {}
        for stored_account in stored:
            account = chosen.find(stored_account)
            try:
                if account is None:
                    raise chosen.nothing_for(stored_account)
                account = replace(
                    account, domain=_domain(view, stored_account, stored, connection), bytes=stored_account.bytes
                )
                claims = await view.claims(account.account) if sources.seeds else None
                base = view.connection(account, connection)
                login = await in_thread(finder.find, account, claims, base, LoginPurpose.RESTORE)
                targets[stored_account] = AccountTarget(account, login)
            except UsageError as error:
                targets[stored_account] = error
    return targets


async def _known_accounts(view: SystemView, sources: LoginSources) -> dict[str, FoundAccount]:
    """Return the accounts of the system by key, as far as they are known without logging in to them."""
    survey = await view.survey()
    known = {account.account: replace(account, domain="", bytes=0) for account in survey.accounts}
    for resolved in await view.resolver_accounts():
        known.setdefault(resolved.account, resolved)
    for key in sorted({cred.claims.account for cred in sources.creds}):
        known.setdefault(key, FoundAccount(key))
    return known


async def _name_the_rest(
    view: SystemView, chosen: _Targets, sources: LoginSources, environ: Mapping[str, str], *, connection: Connection
) -> None:
    """Log in to accounts whose name is not known, so that servers load them, and ask for their names."""
    finder = AccountLogins(sources, environ)
    seeds = (FoundAccount(key) for key in sorted(sources.seeds.keys() - chosen.known.keys()))
    for account in (*chosen.known.values(), *seeds):
        if account.name or not is_account_key(account.account):
            continue
        own = AccountClaims(account.account, "")  # no signing key is known by now
        try:
            base = view.connection(account, connection)
            login = await in_thread(finder.find, account, own, base, LoginPurpose.RESTORE)
            async with await Link.connect(login.connection, name="jsbackup"):
                pass
        except JsBackupError as error:
            _log.info("the name of account %s is not known: %s", account.account, error.message)
            continue
        view.forget_unknown()
        claims = await view.claims(account.account)
        chosen.known[account.account] = FoundAccount(account.account, "" if claims is None else claims.name)


def _name_by_patterns(chosen: _Targets, finder: AccountLogins, stored: Sequence[StoredAccount]) -> None:
    """Take names that lead to credentials by a pattern for the names of the accounts that these are for."""
    for account in stored:
        name = account.origin.account_name or account.origin.account
        if chosen.find(account) is None and (key := finder.account_by_pattern(name)) is not None:
            chosen.known[key] = FoundAccount(key, name)


class _Targets:
    """The accounts of the target by key, and the choice for each stored one."""

    def __init__(self, known: dict[str, FoundAccount], stored: Sequence[StoredAccount]) -> None:
        self.known = known
        accounts = {account.origin.account: account for account in stored}
        counts = Counter(name for account in accounts.values() for name in set(account.names))
        self._twins = {name for name, count in counts.items() if count > 1}
        self._by_hand: dict[Origin, FoundAccount] = {}

    def knows(self, name: str) -> bool:
        return bool(self._called(name)) or is_account_key(name)

    def name_by_hand(self, pairs: Sequence[tuple[str, Sequence[StoredAccount], str]]) -> None:
        """Take `OLD=NEW` texts, each with the accounts of OLD and the name NEW. Raises UsageError."""
        for text, old, new in pairs:
            (target, *others) = self._called(new) or [FoundAccount(new)]
            if others:
                raise UsageError(f"--map-account {text}: {len(others) + 1} accounts are named {new}", hint=_BY_KEY)
            if not self.knows(new):
                names = sorted({name for account in self.known.values() for name in account.names})
                raise UsageError(
                    f"--map-account {text}: the target has no account {new}",
                    hint=nearest(new, names) or _known_in_words(names),
                )
            for account in old:
                self._by_hand[account.origin] = target

    def find(self, stored: StoredAccount) -> FoundAccount | None:
        """Return the account that a stored one goes to; None if there is none, or there are several."""
        if (named := self._by_hand.get(stored.origin)) is not None:
            return named
        if (same := self.known.get(stored.origin.account)) is not None:
            return same
        if self._twins.intersection(stored.names):
            return None
        called = self._called(stored.origin.account_name) or self._called(stored.origin.account)
        return called[0] if len(called) == 1 else None

    def nothing_for(self, stored: StoredAccount) -> UsageError:
        """Return the error for an account without a target."""
        name = stored.origin.account_name or stored.origin.account
        called = self._called(name)
        if called and name in self._twins:
            return UsageError(
                f"account {stored.words}: several accounts of the backups are named {name}, and none of the target has "
                "this key",
                hint=_BY_KEY,
            )
        if called:
            keys = ", ".join(account.account for account in called)
            return UsageError(
                f"account {stored.words}: {len(called)} accounts of the target are named {name}: {keys}", hint=_BY_KEY
            )
        return UsageError(
            f"account {stored.words}: the target has no account with this key or name",
            hint="Name one with --map-account, or name only the others with --account.",
        )

    def _called(self, name: str) -> list[FoundAccount]:
        return [account for account in self.known.values() if name and name in account.names]


def _known_in_words(names: Sequence[str]) -> str:
    known = f"Known there: {in_short(names)}. " if names else ""
    return f"{known}An account of an operator (nsc) that has no JetStream yet is named by its public key."


_BY_KEY = "Choose one by its key, with --map-account OLD=NEW."


def _pairs(
    named: Sequence[str], stored: Sequence[StoredAccount], left_out: Sequence[StoredAccount]
) -> list[tuple[str, list[StoredAccount], str]]:
    """Return the texts, each with the accounts of OLD and the name NEW. Raises UsageError."""
    pairs: list[tuple[str, list[StoredAccount], str]] = []
    first: dict[Origin, str] = {}  # the text that names it
    for text in named:
        old, new = _split(text, stored, left_out)
        for account in old:
            if (other := first.get(account.origin)) is not None:
                name = account.origin.account_name or account.origin.account
                raise UsageError(
                    f"--map-account names {name} twice: {other} and {text}",
                    hint="An account is restored into one other: leave one of them out.",
                )
            first[account.origin] = text
        pairs.append((text, old, new))
    return pairs


def _split(
    text: str, stored: Sequence[StoredAccount], left_out: Sequence[StoredAccount]
) -> tuple[list[StoredAccount], str]:
    """Return the stored accounts on the left of an equals sign, and what is on the right: names may have such signs."""
    for at, letter in enumerate(text):
        old, new = text[:at], text[at + 1 :]
        if letter != "=" or not old or not new:
            continue
        if named := [account for account in stored if old in account.names]:
            if len({account.origin.account for account in named}) > 1:
                raise UsageError(
                    f"--map-account {text}: {len(named)} accounts of the backups are named {old}", hint=_BY_KEY
                )
            return named, new
    if "=" not in text:
        raise UsageError(f"--map-account {text}: there is no =", hint="Write OLD=NEW, by names or keys.")
    for at in (at for at, letter in enumerate(text) if letter == "="):
        if text[at + 1 :] and any(text[:at] in account.names for account in left_out):
            raise UsageError(
                f"--map-account {text}: {text[:at]} is left out by --account",
                hint="Leave this out, or restore that account, too.",
            )
    known = sorted({name for account in stored for name in account.names})
    hint = nearest(text.partition("=")[0], known) or "See 'jsbackup list' for the accounts there are."
    raise UsageError(f"--map-account {text}: no backup is of that account", hint=hint)


def _domain(view: SystemView, stored: StoredAccount, others: Sequence[StoredAccount], connection: Connection) -> str:
    """Return the domain to restore into: that of the option, the same one, or the only one. Raises UsageError."""
    if connection.js_domain is not None:
        return connection.js_domain
    own = view.link.domain or ""
    if stored.origin.domain in (own, *view.domains):
        return stored.origin.domain
    if len({other.origin.domain for other in others}) == 1:
        return own
    raise UsageError(
        f"account {stored.words}: the target has no JetStream domain {stored.origin.domain or '(none)'}",
        hint="Restore the accounts of each domain in a run of their own, with --origin and --js-domain.",
    )


T = TypeVar("T")

_PREVIEW = "jsbackup plan --all-accounts"


@dataclass(frozen=True, slots=True)
class AccountPart:
    """What is to be restored of an account: its chosen backup, and the target, or an error if either is missing; and
    with which options.
    """

    stored: StoredAccount
    choice: Choice | JsBackupError
    target: AccountTarget | JsBackupError
    options: RestoreOptions

    @property
    def error(self) -> JsBackupError | None:
        return next((problem for problem in (self.choice, self.target) if isinstance(problem, JsBackupError)), None)


@dataclass(frozen=True, slots=True)
class AccountPlan:
    """What a restore would do in an account, or why it cannot even be planned."""

    part: AccountPart
    preview: Decision | JsBackupError

    @property
    def code(self) -> int:
        return self.preview.exit_code if isinstance(self.preview, JsBackupError) else self.preview.plan.code


@dataclass(frozen=True, slots=True)
class AccountRestore:
    """What became of an account. `report` is None if it failed, or was not begun, with `error` or without."""

    part: AccountPart
    report: RestoreReport | None = None
    error: JsBackupError | None = None

    @property
    def code(self) -> int:
        if self.error is not None:
            return self.error.exit_code
        return 0 if self.report is None else self.report.code


@dataclass(frozen=True, slots=True)
class AllRestores:
    """What became of all accounts. `refused`: something blocks a part, and nothing was changed in any account."""

    accounts: tuple[AccountRestore, ...]
    refused: bool = False

    @property
    def code(self) -> int:
        codes = [account.code for account in self.accounts]
        if self.refused:
            return combined((code for code in codes if code), mixed=PlanRefused.exit_code)
        done = any(account.report is not None and account.report.streams for account in self.accounts)
        return combined([*codes, *([0] if done else [])])


def preview_accounts(parts: Sequence[AccountPart], repository: Repository, complete: Complete) -> list[AccountPlan]:
    """Return the plan of each account. Conflicts of those that share a target are among the refusals."""

    looked = [(part, _attempt(part, repository, complete, RunbookPart.preview)) for part in parts]
    sound = [(*seen, _name(part)) for part, seen in looked if not isinstance(seen, JsBackupError)]
    together = iter(with_conflicts(sound))
    return [AccountPlan(part, seen if isinstance(seen, JsBackupError) else next(together)) for part, seen in looked]


def restore_accounts(
    parts: Sequence[AccountPart],
    repository: Repository,
    settings: RestoreSettings,
    *,
    complete: Complete,
    show_progress: Callable[[StoredAccount], AbstractContextManager[Progress]],
) -> AllRestores:
    """Restore all accounts, or none if one of them cannot be restored. `complete` runs what waits for servers;
    `show_progress` is called for each account.
    """
    tried = [
        (part, _attempt(part, repository, complete, lambda attempted: attempted.prepare(settings))) for part in parts
    ]
    ready = _without_conflicts(tried)
    blocked = {id(part): prepared for part, prepared in ready if isinstance(prepared, JsBackupError)}
    if blocked:
        return AllRestores(tuple(AccountRestore(part, error=blocked.get(id(part))) for part in parts), refused=True)
    restore = partial(_restored, repository=repository, settings=settings)
    return AllRestores(
        tuple(
            restore(part, prepared[0], complete=complete, show_progress=show_progress)
            for part, prepared in ready
            if not isinstance(prepared, JsBackupError)
        )
    )


def _restored(
    part: AccountPart,
    prepared: Prepared,
    *,
    repository: Repository,
    settings: RestoreSettings,
    complete: Complete,
    show_progress: Callable[[StoredAccount], AbstractContextManager[Progress]],
) -> AccountRestore:
    try:
        with show_progress(part.stored) as progress:
            report = complete(_restore_of(part, repository).carry_out(settings, progress, prepared))
            return AccountRestore(part, report)
    except Interrupted:
        raise
    except JsBackupError as error:
        return AccountRestore(part, error=error)


_Ready = tuple[Prepared, JetStreamPlace] | JsBackupError


def _without_conflicts(tried: Sequence[tuple[AccountPart, _Ready]]) -> list[tuple[AccountPart, _Ready]]:
    """Return the same, with an error where a restore conflicts with one before it: both go to one account."""
    sound = [
        (prepared[0].decision, prepared[1], _name(part))
        for part, prepared in tried
        if not isinstance(prepared, JsBackupError)
    ]
    together = iter(with_conflicts(sound))
    checked: list[tuple[AccountPart, _Ready]] = []
    for part, prepared in tried:
        outcome = prepared
        if not isinstance(prepared, JsBackupError):
            try:
                refuse_if_refused(next(together).plan, preview=_PREVIEW)
            except JsBackupError as error:
                outcome = error
        checked.append((part, outcome))
    return checked


def _attempt(
    part: AccountPart, repository: Repository, complete: Complete, ask: Callable[[RunbookPart], Coroutine[Any, Any, T]]
) -> T | JsBackupError:
    """Return what is asked of the restore, or the error that keeps the part from being restored."""
    if part.error is not None:
        return part.error
    try:
        return complete(ask(_restore_of(part, repository)))
    except Interrupted:
        raise
    except JsBackupError as error:
        return error


def _name(part: AccountPart) -> str:
    return f"account {part.stored.words}"


def _restore_of(part: AccountPart, repository: Repository) -> RunbookPart:
    """Return the restore of an account that has a backup and a target."""
    target, choice = part.target, part.choice
    assert isinstance(target, AccountTarget) and isinstance(choice, Choice)
    known = KnownAccount(target.account.account, target.account.name, proved=target.login.proved)
    return RunbookPart(0, target.login.connection, part.options, repository, choice, known)
