"""What a restore would do, and the command line for it. The page itself restores nothing."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

from starlette.requests import Request
from starlette.responses import Response

from jsbackup.api.restore_arguments import RestoreArguments, typed_arguments
from jsbackup.api.worker import blocking
from jsbackup.browse.library import Library, RestoreTarget
from jsbackup.browse.query import Query
from jsbackup.browse.render import Renderer
from jsbackup.engine.restore.preview import Preview, preview_restore
from jsbackup.errors import JsBackupError, UsageError
from jsbackup.look.moment import option_text
from jsbackup.names import BLANKS
from jsbackup.planning.model import RestoreOptions
from jsbackup.planning.typed_options import restore_options
from jsbackup.repository.manifest import Manifest
from jsbackup.shell import command_line
from jsbackup.transforms.cut import parse_edge

__all__ = ["PlanPages"]

_CHOICES = 200
_STREAMS = 1000
_IF_EXISTS = ("fail", "skip", "replace")
_ROWS = 500
_READS = {"--identity", "--identity-command", "--passphrase-file", "--passphrase-command"}


class PlanPages:
    """Handlers of requests. They raise the errors of what they read."""

    def __init__(self, library: Library, renderer: Renderer) -> None:
        self._library = library
        self._renderer = renderer

    def plan(self, request: Request) -> Response:
        query, library = Query.of(request), self._library
        asked = {name: query.line(name) for name in ("backup", "streams", "until", "target", "if_exists", "prefix")}
        preview: Preview | None = None
        problem: JsBackupError | None = None
        command = ""
        lacking: list[str] = []
        manifest = library.manifest(asked["backup"]) if asked["backup"] else None
        if manifest is not None and query.flag("go"):
            try:
                target = self._target(asked["target"])
                how, options = _asked(asked)
                preview = self._preview(manifest, target, restore_options(typed_arguments("plan", how)))
                # Not before: what cannot be planned is not to be run either.
                options += [*target.options, ("-r", library.place), *library.options]
                command = command_line("restore", manifest.id, options=options, names=how.get("streams", ()))
                lacking = list(_lacking(library, target))
            except JsBackupError as error:
                problem = error
        plan = None if preview is None else preview.plan
        return self._renderer.page(
            request,
            "plan.html",
            asked=asked,
            manifest=manifest,
            streams=[] if manifest is None else [one.name for one in manifest.streams[:_STREAMS]],
            choices=library.status().inventory.summaries[:-_CHOICES:-1],
            targets=library.targets,
            if_exists=_IF_EXISTS,
            preview=preview,
            plan=plan,
            actions=[] if plan is None else plan.actions[:_ROWS],
            warnings=[]
            if plan is None
            else [*plan.warnings, *(found for action in plan.actions for found in action.warnings)][:_ROWS],
            refusals=[] if plan is None else [*plan.refusals, *plan.missing][:_ROWS],
            problem=problem,
            command=command,
            lacking=lacking,
        )

    def _preview(self, manifest: Manifest, target: RestoreTarget, options: RestoreOptions) -> Preview:
        connection, repository = target.connect(), self._library.repository
        with self._library.reading():
            return blocking(
                lambda worker: worker.complete(
                    preview_restore(connection, repository, manifest, options, now_ns=time.time_ns)
                )
            )

    def _target(self, name: str) -> RestoreTarget:
        found = next((one for one in self._library.targets if one.name == name), None)
        if found is None:
            raise UsageError("choose a server to restore into", hint="Contexts of the nats CLI are offered.")
        return found


def _lacking(library: Library, target: RestoreTarget) -> Iterator[str]:
    """Say what the command line does not have and needs."""
    if target.hidden:
        yield "User and password, or the token, of the server were left out: give them in the environment or in a file."
    named = {name for name, _ in library.options}
    if library.repository.descriptor.recipient is not None and not named & _READS:
        yield "The repository is encrypted: add --identity or --passphrase-file, unless the environment has the key."


def _asked(asked: dict[str, str]) -> tuple[RestoreArguments, list[tuple[str, str]]]:
    """Return what is asked for, as arguments and as options of a command line; streams are arguments alone."""
    how: RestoreArguments = {}
    options = []
    streams = re.findall(f"[^{BLANKS}]+", asked["streams"])
    if streams:
        how["streams"] = streams
    if asked["until"]:
        # A duration ago is another moment when the command is run.
        how["until"] = until = option_text(parse_edge("--until", asked["until"], time.time_ns()))
        options.append(("--until", until))
    if asked["prefix"]:
        how["rename_prefix"] = asked["prefix"]
        options.append(("--rename-prefix", asked["prefix"]))
    if asked["if_exists"] == "skip":
        how["if_exists"] = "skip"
    elif asked["if_exists"] == "replace":
        how["if_exists"] = "replace"
    elif asked["if_exists"] not in ("", "fail"):
        raise UsageError(f"not one of {', '.join(_IF_EXISTS)}: {asked['if_exists']}")
    if "if_exists" in how:
        options.append(("--if-exists", how["if_exists"]))
    return how, options
