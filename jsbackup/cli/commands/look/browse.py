"""`jsbackup browse`. The web server is imported when it is called: `--help` and completion load this module."""

from __future__ import annotations

import sys
import webbrowser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

import click

from jsbackup.cli.loop import run_loop
from jsbackup.cli.options.backup_choice import policy_in_use
from jsbackup.cli.options.opening import connection_of, open_repository
from jsbackup.cli.output.result import Result
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import KEY_OPTIONS, S3_OPTIONS, SERVER_OPTIONS, Shared
from jsbackup.cli.parsing.typed_values import WholeNumber
from jsbackup.config import environment, hide_logins, parse_duration
from jsbackup.config.connection import ConnectionOptions, context_names, target_connection
from jsbackup.errors import JsBackupError, UnsupportedError, UsageError
from jsbackup.model import JsonObject
from jsbackup.readable import format_seconds
from jsbackup.shell import without_logins

if TYPE_CHECKING:
    from jsbackup.browse.library import Library, RestoreTarget

__all__ = ["COMMANDS"]

_SECRETS = {"password", "token"}


@click.command(cls=Command, needs_server=True)
@click.option("--open", "opened", is_flag=True, help="Also open it in the browser of this desktop.")
@click.option(
    "--port",
    type=WholeNumber(0, 65535),
    default=0,
    metavar="N",
    help="The port to listen on (default: any free one).",
)
@click.option(
    "--bind",
    default="127.0.0.1",
    show_default=True,
    metavar="ADDRESS",
    help="Address to listen on. With any other than a loopback address, other machines can connect, unencrypted.",
)
@click.option("--for", "duration", metavar="DURATION", help="Stop after this time, such as 1h.")
def browse(shared: Shared, opened: bool, port: int, bind: str, *, duration: str | None) -> None:
    """Show backups in a browser: their state, streams, messages, keys as they were, files, differences, plans.

    It serves pages on this machine until Ctrl-C, and prints their address with a token that opens them. They only
    read; nothing is restored. Plans are made for the given server, and for contexts of the nats CLI.
    """
    seconds = None if duration is None else parse_duration(duration)
    if seconds == 0:
        raise UsageError("--for 0 would show nothing", hint="Leave it out to go on until Ctrl-C.")
    try:
        from jsbackup.browse.app import PageServer
        from jsbackup.browse.library import Library
    except ImportError as error:
        raise UnsupportedError(
            f"'browse' needs packages that are not installed ({error.name})",
            hint="Install them with `pip install 'jsbackup[browse]'`.",
        ) from error

    repository = open_repository(shared)
    repository.inventory()  # without the key that it needs, it is an error now and not on each page
    policy = policy_in_use(click.get_current_context(), shared)
    typed = shared.repo or ""
    library = Library(
        repository,
        hide_logins(typed) if "://" in typed else str(Path(typed).absolute()),  # a command line in any folder names it
        targets=_targets(shared),
        policy=policy,
        profile=shared.profile,
        options=[*_typed(S3_OPTIONS, shared.s3), *_typed(KEY_OPTIONS, shared.keys)],
    )
    server = PageServer(library, bind, port)
    output = shared.output
    if not server.loopback:
        output.warning("other machines can reach this page, and the connection is not encrypted")
        output.announce("anyone who knows the address can read all backups")
    end = "Ctrl-C" if duration is None else f"Ctrl-C or {format_seconds(seconds or 0)}"
    # Also with --quiet: nothing can be seen without it.
    document: JsonObject = {"url": server.url, "repository": library.location}
    output.show(Result(document, [f"{server.url}  ({end} ends it)"], at_once=True))
    # In a terminal, a browser would take the place of this command.
    has_desktop = sys.platform != "linux" or bool({"DISPLAY", "WAYLAND_DISPLAY"} & environment().keys())
    if opened and has_desktop:
        Thread(target=webbrowser.open, args=(server.url_once(),), daemon=True).start()
    elif opened:
        output.warning("there is no desktop to open a browser on: open the address yourself")
    Thread(target=_look, args=(library,), daemon=True).start()
    run_loop(server.serve(seconds), server.stop)


def _typed(options: Iterable[click.Option], given: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return given options for a command line in any folder, without secrets; "" is the value of a flag."""
    for option in options:
        value = given.get(str(option.name))
        if value is None or option.name in _SECRETS:
            continue
        if option.is_flag:
            names = option.opts if value else option.secondary_opts
            yield from ((name, "") for name in names[:1])
        else:
            is_place = option.metavar == "FILE" and not str(value).startswith(("~", "$"))
            yield option.opts[0], str(Path(value).absolute()) if is_place else str(value)


def _look(library: Library) -> None:
    """Take the status before someone asks for it. What is wrong is shown by the page."""
    with suppress(JsBackupError):
        library.status()


def _targets(shared: Shared) -> list[RestoreTarget]:
    """Return the servers that plans can be made for: the named one first, then all contexts."""
    from jsbackup.browse.library import RestoreTarget

    targets = []
    given = shared.server.get("context"), shared.server.get("server")
    if any(given):
        connection_of(shared)  # a wrong name is an error now
        context, server = given
        name = str(context or hide_logins(str(server)))
        options = tuple((n, without_logins(value)) for n, value in _typed(SERVER_OPTIONS, shared.server))
        hidden = bool(_SECRETS & shared.server.keys()) or without_logins(str(server)) != str(server)
        targets.append(RestoreTarget(name, options, partial(connection_of, shared), hidden))
    with suppress(JsBackupError):  # there is no home directory
        for name in context_names(environment()):
            if all(name != target.name for target in targets):
                connect = partial(target_connection, ConnectionOptions(context=name), environment())
                targets.append(RestoreTarget(name, (("--context", name),), connect))
    return targets


COMMANDS = {"browse": browse}
