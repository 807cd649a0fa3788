"""`jsbackup completion`: the script that a shell sources, made by click; and the ids of backups, completed."""

from __future__ import annotations

from contextlib import suppress

import click
from click.shell_completion import CompletionItem, get_completion_class

from jsbackup.cli.command import Command, Shared, merge_shared
from jsbackup.config import environment, s3_settings
from jsbackup.errors import JsBackupError

__all__ = ["COMMANDS", "complete_backup"]


def complete_backup(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """`latest`, and the ids of the backups in the repository that the command line or the environment names."""
    words = ["latest"]
    values, groups = merge_shared(ctx)
    if values["repo"]:
        from jsbackup.repository.repository import Repository
        from jsbackup.stores.url import open_store

        with suppress(JsBackupError):  # nobody looks at errors while they type
            store = open_store(values["repo"], s3_settings(groups["s3"], environment()))
            words += reversed(Repository.open(store).backups())
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shared: Shared, shell: str) -> None:
    """Print the completion script of a shell."""
    from jsbackup.cli.main import COMPLETE_VARIABLE, cli

    kind = get_completion_class(shell)
    assert kind is not None, "click offers the three shells of the choice above"
    source = kind(cli, {}, "jsbackup", COMPLETE_VARIABLE).source()
    shared.output.result({"shell": shell, "script": source}, lambda: shared.output.verbatim(source))


COMMANDS = {"completion": completion}
