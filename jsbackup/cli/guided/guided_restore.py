"""`jsbackup restore` without a backup, on a terminal: ask, show the plan, ask again before anything is changed.

What was shown is what is done: the plan is handed on as a saved one, and refused if the target has changed since.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from jsbackup.cli.commands.plan import preview_asked
from jsbackup.cli.guided.questions import STAYS, Questions
from jsbackup.cli.guided.restore_questions import ask_backup, ask_moment, ask_repository, ask_server, ask_streams
from jsbackup.cli.guided.same_line import same_line
from jsbackup.cli.options.restore_options import Asked
from jsbackup.cli.output.plan_report import plan_code, plan_json, tell_plan
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment
from jsbackup.errors import Interrupted, NatsError
from jsbackup.planning.configs.adapting import ADAPT
from jsbackup.planning.rules import Rule
from jsbackup.readable import in_short
from jsbackup.times import format_time
from jsbackup.tool import TOOL

if TYPE_CHECKING:
    from jsbackup.engine.restore.preview import Preview
    from jsbackup.planning.saved_plan import SavedPlan

__all__ = ["GuidedRestore", "guide_restore"]

_WORD = "replace"
_MOMENTS = (Rule.UNTIL_AFTER_BACKUP, Rule.UNTIL_BEFORE_FIRST, Rule.KEEPS_NOTHING)
_SHOWN = 10


@dataclass(frozen=True, slots=True)
class GuidedRestore:
    """The parameters that were asked for. `plan` is None if there is nothing to do; `code` is the exit code then."""

    shared: Shared
    asked: Asked
    plan: SavedPlan | None
    code: int


def guide_restore(
    shared: Shared, asked: Asked, mask_secret: bytes, *, lock_timeout: str, dry_run: bool
) -> GuidedRestore:
    """Ask for what was not given, show the plan, and ask whether to go on.

    Raises Interrupted if the answer is no, at Ctrl-C and Ctrl-D: then nothing was changed. Also raises what a restore
    raises before it begins.
    """
    questions, output, before = Questions(shared.output), shared.output, (asked, shared)
    shared, repository = ask_repository(questions, shared)
    manifest = ask_backup(questions, repository)
    asked = replace(asked, backup=manifest.id, streams=asked.streams or ask_streams(questions, manifest))
    asks_moment = asked.until is None
    if asks_moment:
        asked = replace(asked, until=ask_moment(questions))
    given, server = shared, list[tuple[str, str]]()
    asks_server = not shared.server_named and not {"server", "context"} & set(shared.server)
    if asks_server:
        shared, server = ask_server(questions, given)
    while True:
        try:
            finder, preview, options = preview_asked(shared, asked, mask_secret, lock_timeout)
        except NatsError as error:
            if not asks_server:
                raise
            questions.wrong(error)
            shared, server = ask_server(questions, given)
            continue
        changed = _resolve(questions, asked, preview, asks_moment=asks_moment)
        if changed is None:
            break
        asked = changed
    document = plan_json(finder, preview, None)
    tell_plan(output, document)
    if preview.plan.refusals:
        output.line(STAYS)
        return GuidedRestore(shared, asked, None, plan_code(preview.plan))
    _tell_line(questions, asked, (*_repository(shared, before[1]), *server), before=before[0])
    if dry_run:
        return GuidedRestore(shared, asked, None, plan_code(preview.plan))
    _confirm(questions, preview)

    from jsbackup.planning.saved_plan import decode_plan, encode_plan

    created = format_time(time.time_ns())
    data = encode_plan(preview.plan, preview.target, finder.found, options, tool=TOOL, created=created)
    return GuidedRestore(shared, asked, decode_plan(data, "plan"), 0)


def _resolve(questions: Questions, asked: Asked, preview: Preview, *, asks_moment: bool) -> Asked | None:
    """Ask about refusals that another answer resolves; None if there are none."""
    refusals = preview.plan.refusals
    output = questions.output
    moments = [one for one in refusals if one.rule in _MOMENTS]
    if moments and asks_moment and asked.until is not None:
        for one in moments[:_SHOWN]:
            output.line(f"{one.stream or 'all'}: {one.reason}")
        return replace(asked, until=ask_moment(questions))
    there = [one.stream for one in refusals if one.rule is Rule.EXISTS]
    if there and asked.if_exists == "fail":
        output.line(f"These streams already exist at the target: {_named(there)}")
        while True:
            answer = questions.ask("Skip what is there, replace it, or stop", "stop", ("skip", "replace", "stop"))
            if answer == "stop":
                raise Interrupted(STAYS)
            if answer in ("skip", "replace"):
                return replace(asked, if_exists=answer)
            output.line("Please type skip, replace or stop.")
    unknown = [one for one in refusals if one.rule is Rule.STREAM_FEATURE and ADAPT in one.hint]
    if unknown and not asked.adapt:
        for one in unknown[:_SHOWN]:
            output.line(f"{one.stream}: {one.reason}")
        if len(unknown) > _SHOWN:
            output.line(f"… and {len(unknown) - _SHOWN:,} more")
        if _is_yes(questions.ask("Leave out such settings where no message needs them? (y/n)", "n")):
            return replace(asked, adapt=True)
        raise Interrupted(STAYS)
    part = [one for one in refusals if one.rule is Rule.PART_REPLACES]
    if part and not asked.replace_with_part:
        for one in part[:_SHOWN]:
            output.line(f"{one.stream}: {one.reason}")
        if _is_yes(questions.ask("Replace them with this part anyway? (y/n)", "n")):
            return replace(asked, replace_with_part=True)
        raise Interrupted(STAYS)
    return None


def _confirm(questions: Questions, preview: Preview) -> None:
    """Raise Interrupted unless the restore is wanted; where something is deleted, a word must be typed."""
    replaced = [action.name for action in preview.plan.actions if action.replaces]
    if replaced:
        questions.output.line(f"The current content of these streams will be deleted: {_named(replaced)}")
        if questions.ask(f"Type '{_WORD}' to go on, anything else stops") == _WORD:
            return
    elif _is_yes(questions.ask("Restore now? (y/n)", "n")):
        return
    raise Interrupted(STAYS)


def _is_yes(answer: str) -> bool:
    return answer.lower() in ("y", "yes")


def _named(names: list[str]) -> str:
    return in_short(names, most=_SHOWN)


def _repository(shared: Shared, before: Shared) -> list[tuple[str, str]]:
    """Return the option for the repository, unless it was typed or is in the profile."""
    if before.repo and before.repo != environment().get("JSBACKUP_REPO"):
        return []
    return [("-r", str(shared.repo))]


def _tell_line(questions: Questions, asked: Asked, places: Iterable[tuple[str, str]], *, before: Asked) -> None:
    """Print the command line that does the same; `before` is what was given without being asked for."""
    options = list(places)
    if asked.until != before.until:
        options.append(("--until", str(asked.until)))
    if asked.if_exists != before.if_exists:
        options.append(("--if-exists", asked.if_exists))
    if asked.adapt != before.adapt:
        options.append((ADAPT, ""))
    if asked.replace_with_part != before.replace_with_part:
        options.append(("--replace-with-part", ""))
    line, hidden = same_line(sys.argv[1:], options, (asked.backup, *(() if before.streams else asked.streams)))
    questions.output.line("The same without questions:")
    questions.output.line(f"  {line}")
    if hidden:
        questions.output.line("  (without the login that was typed: see 'jsbackup help connecting')")
