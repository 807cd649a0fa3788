"""`backup`, `restore` and `plan` with `--all-accounts`, and what they print."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import LATEST, WantedBackup, make_finder
from jsbackup.cli.options.opening import AskedAccounts, open_or_make_repository, open_repository, reading, writing
from jsbackup.cli.options.restore_options import Asked, refuse_obfuscation
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import backup_json
from jsbackup.cli.output.restore_report import plan_json, plan_text, restored_json, restored_text
from jsbackup.cli.output.result import (
    Block,
    Result,
    Said,
    State,
    TextTable,
    error_json,
    format_bytes,
    format_count,
    said_lines,
)
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.engine.accounts.backups import (
    AccountBackup,
    AllBackups,
    back_up_accounts,
    earlier_backups,
    with_streams,
)
from jsbackup.engine.accounts.logins import AccountChoice, LoginPurpose, choose_accounts, refuse_missing
from jsbackup.engine.accounts.restores import (
    AccountPart,
    AccountPlan,
    AccountRestore,
    AccountTarget,
    AllRestores,
    StoredAccount,
    check_named,
    find_targets,
    names_of,
    options_for,
    preview_accounts,
    restore_accounts,
)
from jsbackup.engine.accounts.system_view import FoundAccount
from jsbackup.engine.backup.run import BackupOptions, BackupRun
from jsbackup.engine.restore.run import RestoreSettings
from jsbackup.errors import IncompleteError, JsBackupError, PlanRefused, UsageError
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject
from jsbackup.planning.model import RestoreOptions
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository.manifest import BackupResult, Source
from jsbackup.repository.origin import Origin, origin_of
from jsbackup.repository.read.latest import BackupSearch, Choice
from jsbackup.repository.read.sources import counts
from jsbackup.repository.repository import Repository

__all__ = ["back_up_all", "plan_all", "restore_all"]


_NAMED = 5  # streams in a line


def back_up_all(shared: Shared, accounts: AskedAccounts, options: BackupOptions, *, may_make: bool) -> Result:
    """Back up all accounts."""
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
        complete=run_loop,
        earlier=with_streams(earlier),
    )

    def show_progress(account: FoundAccount) -> AbstractContextManager[Progress]:
        return make_progress(f"backup {account.name or account.account}", wanted=shared.progress)

    with writing(shared, repository, "backup") as lease:
        run = BackupRun(connection, repository, options)
        done = back_up_accounts(run, chosen, earlier, lease, complete=run_loop, show_progress=show_progress)
    document: JsonObject = {
        "result": _result(done.code),
        "accounts": [_json(account) | {"listed": account.account not in chosen.gone} for account in done.accounts],
        "left_out": [_account_json(account) for account in chosen.survey.accounts if account not in chosen.logins],
        "servers": {"known": chosen.survey.servers, "answered": chosen.survey.answered},
        "problems": list(done.problems),
        "notes": list(chosen.notes),
    }
    return Result(document, _backup_text(done, document["accounts"]), done.code)


def _account_json(account: FoundAccount) -> JsonObject:
    """Return how an account is named in all documents."""
    return {"account": account.account, "account_name": account.name or None, "domain": account.domain or None}


def _json(account: AccountBackup) -> JsonObject:
    report = account.report
    result = None
    if report is not None and report.manifest is not None:
        notes = [*report.notes, *report.lost_readers]
        result = backup_json(report.manifest, report.streams, report.failures, notes)
    return {
        **_account_json(account.account),
        "code": account.code,
        "login": account.login or None,
        "result": result,
        "error": None if account.error is None else error_json(account.error)["error"],
        "idle": account.idle or None,
        "unsaved_streams": list(account.unsaved),
    }


def _result(code: int) -> str:
    return {0: "complete", 3: "partial"}.get(code, "failed")


def _backup_text(done: AllBackups, accounts: list[JsonObject]) -> Iterator[Block]:
    both = list(zip(done.accounts, (document["result"] for document in accounts), strict=True))
    header = ["ACCOUNT", "RESULT", ">STREAMS", ">MESSAGES", ">BYTES", ">ADDED", "BACKUP"]
    yield TextTable(header, [_row(backup, result) for backup, result in both])
    for backup, result in both:
        yield from _account_text(backup, result)
    # Many accounts may lack the same.
    for hint in dict.fromkeys(account.error.hint for account in done.accounts if account.error and account.error.hint):
        yield (f"hint: {hint}")
    for word, texts in (("note", done.chosen.notes), ("warning", done.problems)):
        for text in texts:
            yield (State(word), f": {text}")
    counts = Counter(_state(account) for account in done.accounts)
    parts = ", ".join(f"{counts[word]} {word}" for word in ("complete", "partial", "failed") if counts[word])
    streams = [stream for _, result in both if result for stream in result["streams"]]
    yield (
        f"backup of {format_count(len(accounts), 'account')} is ",
        State(_result(done.code)),
        f": {parts or 'nothing'}; {format_count(len(streams), 'stream')}, "
        f"{format_count(_sum(streams, 'messages'), 'message')}, "
        f"{format_bytes(_sum(streams, 'stored_bytes_added'))} added",
    )


def _row(account: AccountBackup, result: JsonObject | None) -> list[str]:
    name = account.account.name or account.account.account
    start = [f"{name} ({account.account.domain})" if account.account.domain else name, State(_state(account))]
    if not result:
        return [*start, *[""] * 5]
    streams = result["streams"]
    return [
        *start,
        str(len(streams)),
        format_count(_sum(streams, "messages")),
        format_bytes(_sum(streams, "bytes")),
        format_bytes(_sum(streams, "stored_bytes_added")),
        result["backup"],
    ]


def _sum(streams: list[JsonObject], key: str) -> int:
    return sum(stream[key] for stream in streams)


def _state(account: AccountBackup) -> str:
    if account.error is not None:
        return "failed"
    if account.report is None or account.report.manifest is None:
        return "nothing"
    return "complete" if account.report.manifest.result is BackupResult.COMPLETE else "partial"


def _account_text(account: AccountBackup, result: JsonObject | None) -> Iterator[Block]:
    """Yield what is to be said about one account."""
    about = f"account {account.account.words}"
    if account.error is not None:
        lead = "" if account.account.account in account.error.message else f"{about}: "
        yield (State("failed"), f": {lead}{account.error.message}")
    if account.unsaved:
        yield (
            f"  not backed up: {format_count(len(account.unsaved), 'stream')}, {in_short(account.unsaved, most=_NAMED)}"
        )
    if account.idle:
        yield (State("note"), f": {about}: {account.idle}")
    if not result:
        return
    said = [Said("failed", skipped["name"], skipped["reason"]) for skipped in result["skipped"]]
    said += [Said("warning", stream["name"], text) for stream in result["streams"] for text in stream["warnings"]]
    if said or result["notes"]:
        yield (about)
    yield from said_lines(said)
    for note in result["notes"]:
        yield (State("warning"), f": {note}")


_Opened = tuple[Repository, RestoreOptions, list[AccountPart], dict[StoredAccount, BackupSearch], list[StoredAccount]]
"""The repository, the options, the parts, the finder of the backup of each account, and the accounts left out."""


def plan_all(shared: Shared, asked: Asked, accounts: AskedAccounts, *, mask_secret: bytes) -> Result:
    """Plan for all accounts. The exit code is 0 if all plans can be carried out, else that of the refusals."""
    with _opened(shared, asked, accounts, "plan") as (repository, options, parts, finders, left_out):
        if mask_secret:  # otherwise the key is only needed when the plan is carried out
            options.reshape.masks.check_secret(mask_secret)
        plans = preview_accounts(parts, repository, run_loop)
    documents = [_plan_json(plan, finders) for plan in plans]
    left = [_account_json(_as_found(stored.origin)) for stored in left_out]
    lacking = any(not isinstance(plan.preview, JsBackupError) and plan.preview.plan.missing for plan in plans)
    refused = combined((plan.code for plan in plans if plan.code), mixed=PlanRefused.exit_code)
    code = refused or (IncompleteError.exit_code if lacking else 0)
    return Result({"accounts": documents, "left_out": left}, _plans_text(plans, documents), code)


def restore_all(shared: Shared, asked: Asked, accounts: AskedAccounts, *, settings: RestoreSettings) -> Result:
    """Restore all accounts, or none."""

    def show_progress(account: StoredAccount) -> AbstractContextManager[Progress]:
        return make_progress(f"restore {account.origin.account_name or account.origin.account}", wanted=shared.progress)

    with _opened(shared, asked, accounts, "restore") as (repository, options, parts, finders, left_out):
        options.reshape.masks.check_secret(settings.mask_secret)
        done = restore_accounts(parts, repository, settings, complete=run_loop, show_progress=show_progress)
    result = {0: "restored", IncompleteError.exit_code: "partial"}.get(done.code, "failed")
    document = {
        "result": "refused" if done.refused else result,
        "accounts": [_restore_json(account, finders) for account in done.accounts],
        "left_out": [_account_json(_as_found(stored.origin)) for stored in left_out],
    }
    return Result(document, _restores_text(done), done.code)


@contextmanager
def _opened(shared: Shared, asked: Asked, accounts: AskedAccounts, purpose: str) -> Iterator[_Opened]:
    """Find the backup and the target of each account; the repository is locked against a prune."""
    if asked.backup not in ("", LATEST):
        raise UsageError(
            f"--all-accounts restores the latest backup of each account, and the first argument is {asked.backup}",
            hint="Write latest, then streams. An older state comes back with --until, or with --tag.",
        )
    asked = replace(asked, backup=LATEST)
    options = asked.options()
    refuse_obfuscation(options.reshape, "--all-accounts")
    connection = accounts.connection(shared)
    sources = accounts.sources(shared)
    repository = open_repository(shared)
    with reading(shared, repository, purpose):
        stored, not_meant = _stored_accounts(shared, repository, accounts.choice(connection))
        wanted = WantedBackup(LATEST, options.streams, options.exclude, silent=True, all_needed=False, in_part=True)
        finders = {account: make_finder(shared, repository, wanted) for account in stored}
        mapped = accounts.map_account
        targets = run_loop(find_targets(connection, stored, mapped, sources, environ=environment(), left_out=not_meant))
        for note in sources.notes:
            shared.output.note(f"note: {note}")
        choices = {account: _choice(finder, account.origin) for account, finder in finders.items()}
        manifests = [choice.manifest for choice in choices.values() if isinstance(choice, Choice)]
        if len(manifests) == len(choices):  # else something is refused anyway
            check_named(manifests, options)
        names = frozenset(name for manifest in manifests for name in names_of(manifest))
        parts, left_out = [], []
        for account, choice in choices.items():
            narrowed = options_for(choice.manifest, options, names) if isinstance(choice, Choice) else options
            if narrowed is None:
                left_out.append(account)
                shared.output.note(
                    f"note: account {account.words} is left out: it has no such stream in its latest backup"
                )
            else:
                parts.append(AccountPart(account, choice, targets[account], narrowed))
        yield repository, options, parts, finders, left_out


def _choice(finder: BackupSearch, origin: Origin) -> Choice | JsBackupError:
    try:
        finder(Source(cluster=origin.cluster, account=origin.account, domain=origin.domain or None))
    except JsBackupError as error:
        return error
    return finder.choice


def _stored_accounts(
    shared: Shared, repository: Repository, choice: AccountChoice
) -> tuple[list[StoredAccount], list[StoredAccount]]:
    """Return the accounts of the backups that are meant, by name, and the others. Raises UsageError: there are none,
    or of several clusters.
    """
    choosing = shared.choosing
    newest: dict[Origin, StoredAccount] = {}
    for summary in repository.inventory().summaries:
        origin = origin_of(summary)
        if not summary.is_of_a_server or not counts(summary, choosing.tags, choosing.origins) or not summary.streams:
            continue
        if origin.account and not origin.api_prefix:
            named = origin.account_name or (newest[origin].origin.account_name if origin in newest else "")
            newest[origin] = StoredAccount(replace(origin, account_name=named), summary.bytes)
    known = [_as_found(account.origin) for account in newest.values()]
    refuse_missing(choice.only, known)
    everywhere = replace(choice, domain=None)
    meant = [account for account in newest.values() if everywhere.takes(_as_found(account.origin))]
    clusters = sorted({account.origin.cluster or "(without a name)" for account in meant})
    if len(clusters) != 1:
        of = f"{len(clusters)} clusters: {', '.join(clusters)}" if meant else "no account that is meant"
        raise UsageError(f"the backups are of {of}", hint="See 'jsbackup list'; --origin chooses a cluster.")
    others = [account for account in newest.values() if account not in meant]
    return sorted(
        meant, key=lambda account: (account.origin.account_name or account.origin.account, str(account.origin))
    ), others


def _as_found(origin: Origin) -> FoundAccount:
    return FoundAccount(origin.account, origin.account_name, origin.domain)


# --- what is printed ---


def _plan_json(account: AccountPlan, finders: dict[StoredAccount, BackupSearch]) -> JsonObject:
    document = {**_part_json(account.part), "code": account.code}
    if isinstance(account.preview, JsBackupError):
        return document | {"plan": None, "error": error_json(account.preview)["error"]}
    return document | {"plan": plan_json(finders[account.part.stored], account.preview, None), "error": None}


def _restore_json(account: AccountRestore, finders: dict[StoredAccount, BackupSearch]) -> JsonObject:
    return {
        **_part_json(account.part),
        "code": account.code,
        "result": None if account.report is None else restored_json(account.report, finders[account.part.stored]),
        "error": None if account.error is None else error_json(account.error)["error"],
    }


def _part_json(part: AccountPart) -> JsonObject:
    origin, target = part.stored.origin, part.target
    return {
        **_account_json(_as_found(origin)),
        "cluster": origin.cluster or None,
        "into": _account_json(target.account) if isinstance(target, AccountTarget) else None,
        "login": target.login.told if isinstance(target, AccountTarget) else None,
    }


def _plans_text(plans: list[AccountPlan], documents: list[JsonObject]) -> Iterator[Block]:
    for account, document in zip(plans, documents, strict=True):
        yield _heading(account.part)
        if isinstance(account.preview, JsBackupError):
            yield from said_lines([Said("failed", "", account.preview.message, account.preview.hint or "")])
        else:
            yield from (plan_text(document["plan"]))
        yield ""
    if names := ", ".join(plan.part.stored.words for plan in plans if plan.code):
        yield (State("refused"), f": nothing can be restored into any account, for {names}")
    else:
        yield (f"all accounts can be restored: {len(plans)}")


def _restores_text(done: AllRestores) -> Iterator[Block]:
    for account in done.accounts:
        if account.report is not None or account.error is not None:
            yield _heading(account.part)
            if account.report is not None:
                yield from (restored_text(account.report, "restored"))
            if account.error is not None:
                yield from said_lines([Said("failed", "", account.error.message, account.error.hint or "")])
            yield ""
    accounts = format_count(len(done.accounts), "account")
    if done.refused:
        count = sum(account.error is not None for account in done.accounts)
        yield (State("refused"), f": nothing was changed in any of {accounts}, for {count} of them")
        yield ("hint: See 'jsbackup plan --all-accounts' with the same options for all of it.")
        return
    reports = [account.report for account in done.accounts if account.report is not None]
    streams = format_count(sum(len(report.streams) for report in reports), "stream")
    skipped = sum(len(report.plan.skipped) for report in reports)
    parts = ", ".join(f"{count} {word}" for word, count in Counter(map(_word, done.accounts)).items())
    yield (f"{accounts}: {parts}; {streams} restored, {skipped:,} skipped")


def _word(account: AccountRestore) -> str:
    """Return what became of an account, in a word. It is skipped if all that it was to get is there."""
    if account.code:
        return "incomplete" if account.code == IncompleteError.exit_code else "failed"
    skipped = account.report is not None and not account.report.streams and account.report.plan.skipped
    return "skipped" if skipped else "restored"


def _heading(part: AccountPart) -> str:
    target = part.target
    into = f" into account {target.account.words}" if isinstance(target, AccountTarget) else ""
    return f"account {part.stored.words}{into}"
