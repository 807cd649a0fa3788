"""Restore all accounts of backups into a system: everything is planned and checked before anything is changed.

If one account cannot be restored, none is touched, and all reasons are named. After that, a failure in one account does
not stop the others.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from jsbackup.engine.accounts.targets import AccountTarget, StoredAccount
from jsbackup.engine.link.advisories import advisories
from jsbackup.engine.link.jetstream import connect_jetstream
from jsbackup.engine.link.source import KnownAccount, check_account, jetstream_place
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.engine.restore.restore import Prepared, RestoreReport, carry_out_restore, prepare_restore, refuse_if_stale
from jsbackup.engine.restore.run import Complete, RestoreRun, RestoreSettings
from jsbackup.errors import Interrupted, JsBackupError, PlanRefused
from jsbackup.exit_codes import combined
from jsbackup.planning.model import RestoreOptions, RestorePlan
from jsbackup.planning.preflight import refuse_if_refused
from jsbackup.planning.runbook_conflicts import PlannedPart, against_each_other
from jsbackup.planning.same_jetstream import JetStreamPlace
from jsbackup.planning.selection.chosen_streams import with_elsewhere
from jsbackup.progress import Progress
from jsbackup.repository.read.latest import Choice
from jsbackup.repository.repository import Repository

__all__ = ["AccountPart", "AccountPlan", "AccountRestore", "AllRestores", "preview_accounts", "restore_accounts"]

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
        return next((one for one in (self.choice, self.target) if isinstance(one, JsBackupError)), None)


@dataclass(frozen=True, slots=True)
class AccountPlan:
    """What a restore would do in an account, or why it cannot even be planned."""

    part: AccountPart
    preview: Preview | JsBackupError

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
        codes = [one.code for one in self.accounts]
        if self.refused:
            return combined((code for code in codes if code), mixed=PlanRefused.exit_code)
        done = any(one.report is not None and one.report.streams for one in self.accounts)
        return combined([*codes, *([0] if done else [])])


def preview_accounts(parts: Sequence[AccountPart], repository: Repository, complete: Complete) -> list[AccountPlan]:
    """Return the plan of each account. Conflicts of those that share a target are among the refusals."""

    async def look(part: AccountPart) -> tuple[Preview, JetStreamPlace]:
        assert isinstance(part.target, AccountTarget) and isinstance(part.choice, Choice)
        connection = part.target.login.connection
        async with connect_jetstream(connection) as js:
            await check_account(js, _known(part.target))
            place = await jetstream_place(js)
        manifest = part.choice.manifest
        preview = await preview_restore(connection, repository, manifest, part.options, now_ns=time.time_ns)
        return replace(preview, plan=with_elsewhere(preview.plan, part.choice)), place

    looked = [(part, _attempt(part, partial(_completed, complete, look))) for part in parts]
    sound = [(part, one) for part, one in looked if not isinstance(one, JsBackupError)]
    more = iter(
        against_each_other([PlannedPart(one.plan, one.target, place, _name(part)) for part, (one, place) in sound])
    )
    plans = []
    for part, seen in looked:
        if isinstance(seen, JsBackupError):
            plans.append(AccountPlan(part, seen))
        else:
            preview, _ = seen
            plan = replace(preview.plan, refusals=(*preview.plan.refusals, *next(more)))
            plans.append(AccountPlan(part, replace(preview, plan=plan)))
    return plans


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

    async def prepare(part: AccountPart) -> tuple[Prepared, JetStreamPlace]:
        assert isinstance(part.target, AccountTarget) and isinstance(part.choice, Choice)
        connection = part.target.login.connection
        async with connect_jetstream(connection) as js:
            await check_account(js, _known(part.target))
            run = RestoreRun(connection, part.options, settings)
            return await prepare_restore(run, repository, js, part.choice.manifest), await jetstream_place(js)

    tried = [(part, _attempt(part, partial(_completed, complete, prepare))) for part in parts]
    ready = _without_conflicts(tried)
    blocked = {id(part): one for part, one in ready if isinstance(one, JsBackupError)}
    if blocked:
        return AllRestores(tuple(AccountRestore(part, error=blocked.get(id(part))) for part in parts), refused=True)
    restore = partial(_restored, repository=repository, settings=settings)
    return AllRestores(
        tuple(
            restore(part, one[0], complete=complete, show_progress=show_progress)
            for part, one in ready
            if not isinstance(one, JsBackupError)
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
    target, choice = part.target, part.choice
    assert isinstance(target, AccountTarget) and isinstance(choice, Choice)

    async def work(progress: Progress) -> RestoreReport:
        run = RestoreRun(target.login.connection, part.options, settings, progress)
        async with connect_jetstream(run.connection) as js, advisories(js.link):
            await check_account(js, _known(target))
            await refuse_if_stale(run, repository, js, prepared)
            report = await carry_out_restore(run, repository, js, prepared)
        return replace(report, plan=with_elsewhere(report.plan, choice))

    try:
        with show_progress(part.stored) as progress:
            return AccountRestore(part, complete(work(progress)))
    except Interrupted:
        raise
    except JsBackupError as error:
        return AccountRestore(part, error=error)


_Ready = tuple[Prepared, JetStreamPlace] | JsBackupError


def _without_conflicts(tried: Sequence[tuple[AccountPart, _Ready]]) -> list[tuple[AccountPart, _Ready]]:
    """Return the same, with an error where a restore conflicts with one before it: both go to one account."""
    sound = [(part, one) for part, one in tried if not isinstance(one, JsBackupError)]
    found = iter(
        against_each_other([PlannedPart(one.plan, one.target, place, _name(part)) for part, (one, place) in sound])
    )
    checked: list[tuple[AccountPart, _Ready]] = []
    for part, one in tried:
        outcome = one
        if not isinstance(one, JsBackupError):
            try:
                refuse_if_refused(RestorePlan("", (), next(found)), preview=_PREVIEW)
            except JsBackupError as error:
                outcome = error
        checked.append((part, outcome))
    return checked


def _completed(complete: Complete, work: Callable[[AccountPart], Coroutine[Any, Any, T]], part: AccountPart) -> T:
    return complete(work(part))


def _attempt(part: AccountPart, work: Callable[[AccountPart], T]) -> T | JsBackupError:
    """Return the result of the work, or the error that keeps the part from being restored."""
    if part.error is not None:
        return part.error
    try:
        return work(part)
    except Interrupted:
        raise
    except JsBackupError as error:
        return error


def _name(part: AccountPart) -> str:
    return f"account {part.stored.words}"


def _known(target: AccountTarget) -> KnownAccount:
    return KnownAccount(target.account.account, target.account.name, proved=target.login.proved)
