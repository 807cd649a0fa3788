"""Print the plans or the results of a restore of all accounts, as JSON and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from jsbackup.cli.output.colour import State
from jsbackup.cli.output.output import Output, error_json, format_count
from jsbackup.cli.output.plan_report import plan_json, tell_plan
from jsbackup.cli.output.restore_report import restored_json, tell_report
from jsbackup.engine.accounts.targets import AccountTarget
from jsbackup.errors import IncompleteError, JsBackupError, PlanRefused
from jsbackup.exit_codes import combined
from jsbackup.model import JsonObject

if TYPE_CHECKING:
    from jsbackup.cli.options.latest import Finder
    from jsbackup.engine.accounts.restores import AccountPart, AccountPlan, AccountRestore, AllRestores
    from jsbackup.engine.accounts.targets import StoredAccount

__all__ = ["tell_all_plans", "tell_all_restores"]

Finders = Mapping["StoredAccount", "Finder"]
"""The finder of the backup of each account."""


def tell_all_plans(
    output: Output, plans: Sequence[AccountPlan], finders: Finders, left_out: Sequence[StoredAccount]
) -> int:
    """Print the plans of all accounts; return the exit code. Those `left_out` have none of the named streams."""
    documents = [_plan_json(one, finders) for one in plans]
    refused = [one for one in plans if one.code]

    def text() -> None:
        for one, document in zip(plans, documents, strict=True):
            output.line(_heading(one.part))
            if document["plan"] is None:
                _tell_error(output, document["error"])
            else:
                tell_plan(output, document["plan"])
            output.line()
        if refused:
            names = ", ".join(one.part.stored.words for one in refused)
            output.line(State("refused"), f": nothing can be restored into any account, for {names}")
        else:
            output.line(f"all accounts can be restored: {len(plans)}")

    output.result({"accounts": documents, "left_out": [_left_out_json(one) for one in left_out]}, text)
    if refused:
        return combined((one.code for one in refused), mixed=PlanRefused.exit_code)
    lacking = any(not isinstance(one.preview, JsBackupError) and one.preview.plan.missing for one in plans)
    return IncompleteError.exit_code if lacking else 0


def tell_all_restores(output: Output, done: AllRestores, finders: Finders, left_out: Sequence[StoredAccount]) -> int:
    """Print the results of all accounts; return the exit code. `left_out` is as of `tell_all_plans`."""
    documents = [_restore_json(one, finders) for one in done.accounts]
    result = (
        "refused" if done.refused else {0: "restored", IncompleteError.exit_code: "partial"}.get(done.code, "failed")
    )

    def text() -> None:
        for one, document in zip(done.accounts, documents, strict=True):
            if done.refused and one.error is None:
                continue
            output.line(_heading(one.part))
            if one.report is not None:
                tell_report(output, one.report, "restored")
            else:
                _tell_error(output, document["error"])
            output.line()
        if done.refused:
            count = sum(one.error is not None for one in done.accounts)
            accounts = format_count(len(done.accounts), "account")
            output.line(State("refused"), f": nothing was changed in any of {accounts}, for {count} of them")
            output.line("hint: See 'jsbackup plan --all-accounts' with the same options for all of it.")
            return
        reports = [one.report for one in done.accounts if one.report is not None]
        streams = format_count(sum(len(one.streams) for one in reports), "stream")
        skipped = sum(len(one.plan.skipped) for one in reports)
        counts: dict[str, int] = {}
        for one in done.accounts:
            word = _word(one)
            counts[word] = counts.get(word, 0) + 1
        parts = ", ".join(f"{count} {word}" for word, count in counts.items())
        tail = f" restored, {skipped:,} skipped" if skipped else ""
        output.line(f"{format_count(len(done.accounts), 'account')}: {parts}; {streams}{tail}")

    left = [_left_out_json(one) for one in left_out]
    output.result({"result": result, "accounts": documents, "left_out": left}, text)
    return done.code


def _word(one: AccountRestore) -> str:
    """Return what became of an account, in a word. It is skipped if all that it was to get is there."""
    if one.code:
        return "incomplete" if one.code == IncompleteError.exit_code else "failed"
    skipped = one.report is not None and not one.report.streams and one.report.plan.skipped
    return "skipped" if skipped else "restored"


def _plan_json(one: AccountPlan, finders: Finders) -> JsonObject:
    document = {**_part_json(one.part), "code": one.code}
    if isinstance(one.preview, JsBackupError):
        return document | {"plan": None, "error": error_json(one.preview)["error"]}
    return document | {"plan": plan_json(finders[one.part.stored], one.preview, None), "error": None}


def _restore_json(one: AccountRestore, finders: Finders) -> JsonObject:
    return {
        **_part_json(one.part),
        "code": one.code,
        "result": None if one.report is None else restored_json(one.report, finders[one.part.stored]),
        "error": None if one.error is None else error_json(one.error)["error"],
    }


def _left_out_json(one: StoredAccount) -> JsonObject:
    return {
        "account": one.origin.account,
        "account_name": one.origin.account_name or None,
        "domain": one.origin.domain or None,
    }


def _part_json(part: AccountPart) -> JsonObject:
    origin, target = part.stored.origin, part.target
    return {
        "account": origin.account,
        "account_name": origin.account_name or None,
        "domain": origin.domain or None,
        "cluster": origin.cluster or None,
        "into": None
        if not isinstance(target, AccountTarget)
        else {
            "account": target.account.account,
            "account_name": target.account.name or None,
            "domain": target.account.domain or None,
        },
        "login": target.login.told if isinstance(target, AccountTarget) else None,
    }


def _heading(part: AccountPart) -> str:
    target = part.target
    into = f" into account {target.account.words}" if isinstance(target, AccountTarget) else ""
    return f"account {part.stored.words}{into}"


def _tell_error(output: Output, error: JsonObject) -> None:
    output.line(State("failed"), f": {error['message']}")
    if error["hint"]:
        output.line(f"hint: {error['hint']}")
