"""`jsbackup completion`: the script that a shell sources, made by click."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from jsbackup.cli.command import Command, Shared

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shared: Shared, shell: str) -> None:
    """Print the completion script of a shell.

    For bash: jsbackup completion bash > ~/.local/share/bash-completion/completions/jsbackup
    """
    from jsbackup.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click offers the three shells of the choice above"
    source = kind(cli, {}, "jsbackup", "_JSBACKUP_COMPLETE").source()
    shared.output.result({"shell": shell, "script": source}, lambda: click.echo(source))


COMMANDS = {"completion": completion}
