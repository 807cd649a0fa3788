"""`backup --all-accounts`, and what it prints."""

from __future__ import annotations

from collections import Counter
from contextlib import AbstractContextManager

from jsbackup.cli.accounts.options import AskedAccounts
from jsbackup.cli.options.leases import writing
from jsbackup.cli.options.opening import open_or_make_repository, run_async
from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, error_json, format_bytes, format_count
from jsbackup.cli.output.progress import make_progress
from jsbackup.cli.output.reports import backup_json
from jsbackup.cli.output.result import Said, said_lines
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.engine.accounts.backups import (
    AccountBackup,
    AllBackups,
    back_up_accounts,
    earlier_backups,
    with_streams,
)
from jsbackup.engine.accounts.chosen import choose_accounts
from jsbackup.engine.accounts.found import FoundAccount
from jsbackup.engine.accounts.least_rights import LoginPurpose
from jsbackup.engine.backup.options import BackupOptions
from jsbackup.engine.backup.run import BackupRun
from jsbackup.model import JsonObject
from jsbackup.progress import Progress
from jsbackup.readable import in_short
from jsbackup.repository.manifest import Result

__all__ = ["account_json", "back_up_all"]

_NAMED = 5  # streams in a line


def back_up_all(shared: Shared, accounts: AskedAccounts, options: BackupOptions, *, may_make: bool) -> int:
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

    with writing(shared, repository, "backup") as lease:
        run = BackupRun(connection, repository, options)
        done = back_up_accounts(run, chosen, earlier, lease, complete=run_async, show_progress=show_progress)
    document: JsonObject = {
        "result": _result(done.code),
        "accounts": [_json(one) | {"listed": one.account not in chosen.gone} for one in done.accounts],
        "left_out": [account_json(one) for one in chosen.survey.accounts if one not in chosen.logins],
        "servers": {"known": chosen.survey.servers, "answered": chosen.survey.answered},
        "problems": list(done.problems),
        "notes": list(chosen.notes),
    }
    shared.output.result(document, lambda: _tell(shared.output, done, document["accounts"]))
    return done.code


def account_json(account: FoundAccount) -> JsonObject:
    """Return how an account is named in all documents."""
    return {"account": account.account, "account_name": account.name or None, "domain": account.domain or None}


def _json(one: AccountBackup) -> JsonObject:
    report = one.report
    result = None
    if report is not None and report.manifest is not None:
        notes = [*report.notes, *report.lost_readers]
        result = backup_json(report.manifest, report.streams, report.failures, notes)
    return {
        **account_json(one.account),
        "code": one.code,
        "login": one.login or None,
        "result": result,
        "error": None if one.error is None else error_json(one.error)["error"],
        "idle": one.idle or None,
        "unsaved_streams": list(one.unsaved),
    }


def _result(code: int) -> str:
    return {0: "complete", 3: "partial"}.get(code, "failed")


def _tell(output: Output, done: AllBackups, accounts: list[JsonObject]) -> None:
    both = list(zip(done.accounts, (document["result"] for document in accounts), strict=True))
    header = ["ACCOUNT", "RESULT", ">STREAMS", ">MESSAGES", ">BYTES", ">ADDED", "BACKUP"]
    output.table(header, [_row(one, result) for one, result in both])
    for one, result in both:
        _tell_more(output, one, result)
    # Many accounts may lack the same.
    for hint in dict.fromkeys(one.error.hint for one in done.accounts if one.error and one.error.hint):
        output.line(f"hint: {hint}")
    for word, texts in (("note", done.chosen.notes), ("warning", done.problems)):
        for text in texts:
            output.line(State(word), f": {text}")
    counts = Counter(_state(one) for one in done.accounts)
    parts = ", ".join(f"{counts[word]} {word}" for word in ("complete", "partial", "failed") if counts[word])
    streams = [stream for _, result in both if result for stream in result["streams"]]
    output.line(
        f"backup of {format_count(len(accounts), 'account')} is ",
        State(_result(done.code)),
        f": {parts or 'nothing'}; {format_count(len(streams), 'stream')}, "
        f"{format_count(_sum(streams, 'messages'), 'message')}, "
        f"{format_bytes(_sum(streams, 'stored_bytes_added'))} added",
    )


def _row(one: AccountBackup, result: JsonObject | None) -> list[str]:
    name = one.account.name or one.account.account
    start = [f"{name} ({one.account.domain})" if one.account.domain else name, State(_state(one))]
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


def _state(one: AccountBackup) -> str:
    if one.error is not None:
        return "failed"
    if one.report is None or one.report.manifest is None:
        return "nothing"
    return "complete" if one.report.manifest.result is Result.COMPLETE else "partial"


def _tell_more(output: Output, one: AccountBackup, result: JsonObject | None) -> None:
    """Print what is to be said about one account."""
    about = f"account {one.account.words}"
    if one.error is not None:
        lead = "" if one.account.account in one.error.message else f"{about}: "
        output.line(State("failed"), f": {lead}{one.error.message}")
    if one.unsaved:
        output.line(
            f"  not backed up: {format_count(len(one.unsaved), 'stream')}, {in_short(one.unsaved, most=_NAMED)}"
        )
    if one.idle:
        output.line(State("note"), f": {about}: {one.idle}")
    if not result:
        return
    said = [Said("failed", skipped["name"], skipped["reason"]) for skipped in result["skipped"]]
    said += [Said("warning", stream["name"], text) for stream in result["streams"] for text in stream["warnings"]]
    if said or result["notes"]:
        output.line(about)
    output.blocks(said_lines(said))
    for note in result["notes"]:
        output.line(State("warning"), f": {note}")
