"""The options `--tag` and `--origin` of all commands that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from jsbackup.cli.parsing.completion import complete_tag

__all__ = ["only_origin", "only_tagged", "tagged_as"]

F = TypeVar("F", bound=Callable[..., Any])


def tagged_as(help_text: str) -> Callable[[F], F]:
    """`--tag K=V` of a command that makes a backup."""
    return click.option("--tag", "tags", multiple=True, metavar="K=V", shell_complete=complete_tag, help=help_text)


def only_tagged(help_text: str) -> Callable[[F], F]:
    """`--tag K[=V]` of a command that chooses among backups."""
    return click.option("--tag", "tags", multiple=True, metavar="K[=V]", shell_complete=complete_tag, help=help_text)


def only_origin(verb: str) -> Callable[[F], F]:
    """`--origin ORIGIN` of a command that chooses among backups. `verb` begins its help text."""
    named = "cluster or account"
    return click.option("--origin", "origins", multiple=True, metavar="ORIGIN", help=f"{verb} this {named}.")
