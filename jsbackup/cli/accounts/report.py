"""Print what a backup of all accounts came to, as JSON and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.grouped import Said, tell_each
from jsbackup.cli.output.output import Output, error_json, format_bytes, format_count
from jsbackup.cli.output.reports import backup_json, stored_json
from jsbackup.model import JsonObject
from jsbackup.readable import in_short
from jsbackup.repository.manifest import Result

if TYPE_CHECKING:
    from jsbackup.engine.accounts.backups import AccountBackup, AllBackups
    from jsbackup.engine.accounts.found import FoundAccount

__all__ = ["account_json", "short_key", "tell_all_backups"]

_NAMED = 5  # streams in a line


def tell_all_backups(output: Output, done: AllBackups) -> int:
    """Print the result; return the exit code."""
    accounts = [_account_json(one) | {"listed": one.account not in done.chosen.gone} for one in done.accounts]
    survey = done.chosen.survey
    document = {
        "result": _result(done.code),
        "accounts": accounts,
        "left_out": [account_json(one) for one in survey.accounts if one not in done.chosen.logins],
        "servers": {"known": survey.servers, "answered": survey.answered},
        "problems": list(done.problems),
        "notes": list(done.chosen.notes),
    }
    output.result(document, lambda: _tell(output, done, accounts))
    return done.code


def account_json(account: FoundAccount) -> JsonObject:
    """Return how an account is named in all documents."""
    return {"account": account.account, "account_name": account.name or None, "domain": account.domain or None}


def short_key(account: FoundAccount) -> str:
    """Return the start of the key of an account that has a name, for tables; "" if the name is all."""
    return f"{account.account[:8]}…" if account.name else ""


def _account_json(one: AccountBackup) -> JsonObject:
    report = one.report
    result = None
    if report is not None and report.manifest is not None:
        skipped = [{"name": failure.name, "reason": failure.error.message} for failure in report.failures]
        streams = [stored_json(stored) for stored in report.streams]
        result = backup_json(report.manifest, streams, skipped) | {"notes": [*report.notes, *report.lost_readers]}
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
    named = any(one.account.name for one in done.accounts)
    header = ["ACCOUNT", *(["KEY"] if named else []), "RESULT", ">STREAMS", ">MESSAGES", ">BYTES", ">ADDED", "BACKUP"]
    output.table(header, [_row(one, document, named) for one, document in zip(done.accounts, accounts, strict=True)])
    for one, document in zip(done.accounts, accounts, strict=True):
        _tell_more(output, one, document)
    # Many accounts may lack the same.
    for hint in dict.fromkeys(one.error.hint for one in done.accounts if one.error and one.error.hint):
        output.line(f"hint: {hint}")
    for note in done.chosen.notes:
        output.line(State("note"), f": {note}")
    for problem in done.problems:
        output.line(State("warning"), f": {problem}")
    backed_up = [document["result"] for document in accounts if document["result"]]
    streams = [stream for result in backed_up for stream in result["streams"]]
    counts = {word: sum(_state(one) == word for one in done.accounts) for word in ("complete", "partial", "failed")}
    parts = ", ".join(f"{count} {word}" for word, count in counts.items() if count or word == "complete")
    output.line(
        f"backup of {format_count(len(accounts), 'account')} is ",
        State(_result(done.code)),
        f": {parts}; {format_count(len(streams), 'stream')}, "
        f"{format_count(sum(one['messages'] for one in streams), 'message')}, "
        f"{format_bytes(sum(one['stored_bytes_added'] for one in streams))} added",
    )


def _row(one: AccountBackup, document: JsonObject, named: bool) -> list[str]:
    result = document["result"]
    streams = result["streams"] if result else []
    name = one.account.name or one.account.account
    return [
        f"{name} ({one.account.domain})" if one.account.domain else name,
        *([short_key(one.account)] if named else []),
        State(_state(one)),
        str(len(streams)) if result else "",
        format_count(sum(stream["messages"] for stream in streams)) if result else "",
        format_bytes(sum(stream["bytes"] for stream in streams)) if result else "",
        format_bytes(sum(stream["stored_bytes_added"] for stream in streams)) if result else "",
        result["backup"] if result else "",
    ]


def _state(one: AccountBackup) -> str:
    if one.error is not None:
        return "failed"
    if one.report is None or one.report.manifest is None:
        return "nothing"
    return "complete" if one.report.manifest.result is Result.COMPLETE else "partial"


def _tell_more(output: Output, one: AccountBackup, document: JsonObject) -> None:
    """Print what is to be said about one account."""
    words = one.account.words
    if one.error is not None:
        about = "" if one.account.account in one.error.message else f"account {words}: "
        output.line(State("failed"), f": {about}{one.error.message}")
        if one.unsaved:
            output.line(
                f"  not backed up: {format_count(len(one.unsaved), 'stream')}, {in_short(one.unsaved, most=_NAMED)}"
            )
    elif one.idle:
        output.line(State("note"), f": account {words}: {one.idle}")
    result = document["result"]
    if not result:
        return
    said = [Said("failed", skipped["name"], skipped["reason"]) for skipped in result["skipped"]]
    said += [Said("warning", stream["name"], text) for stream in result["streams"] for text in stream["warnings"]]
    if said or result["notes"]:
        output.line(f"account {words}")
    tell_each(output, said)
    for note in result["notes"]:
        output.line(State("warning"), f": {note}")
