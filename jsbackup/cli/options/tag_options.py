"""The options `--tag` and `--origin` of all commands that have them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from jsbackup.cli.parsing.completion import complete_tag

__all__ = ["CHOOSING_OPTIONS", "tagged_as"]

F = TypeVar("F", bound=Callable[..., Any])

CHOOSING_OPTIONS = [
    click.Option(
        ["--origin", "origins"], multiple=True, metavar="ORIGIN", help="Only backups of this cluster or account."
    ),
    click.Option(
        ["--tag", "tags"],
        multiple=True,
        metavar="K[=V]",
        shell_complete=complete_tag,
        help="Only backups with this tag; if repeated, with all of them.",
    ),
]
"""The options of commands that choose among backups: which of them `latest` is, or which count."""


def tagged_as(help_text: str) -> Callable[[F], F]:
    """Add `--tag K=V` of a command that makes a backup, passed as `tags`."""
    return click.option("--tag", "tags", multiple=True, metavar="K=V", shell_complete=complete_tag, help=help_text)
