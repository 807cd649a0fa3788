"""The options of commands that handle all accounts of a system.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click
from click.core import ParameterSource

from jsbackup.cli.options.opening import connection_of
from jsbackup.cli.parsing.context import GIVEN, Shared
from jsbackup.config import Glob, environment, expand_path
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.config import Connection
    from jsbackup.engine.accounts.chosen import AccountChoice
    from jsbackup.engine.accounts.logins import LoginSources

__all__ = [
    "AskedAccounts",
    "account_choice_options",
    "account_options",
    "map_account_option",
    "parse_account",
    "refuse_mapped",
]

F = TypeVar("F", bound=Callable[..., Any])


def _choosing(all_accounts: str) -> Sequence[Callable[[F], F]]:
    return (
        click.option("--all-accounts", is_flag=True, help=all_accounts),
        click.option("--account", multiple=True, metavar="ACCOUNT", help="Only these accounts, by name, key or glob."),
        click.option("--exclude-account", multiple=True, metavar="ACCOUNT", help="Leave these accounts out."),
    )


_ACCOUNTS_FILE: Callable[[Any], Any] = click.option(
    "--accounts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Their logins: 'jsbackup help accounts'.",
)


@dataclass(frozen=True, slots=True)
class AskedAccounts:
    """The parameters as typed."""

    all_accounts: bool
    account: tuple[str, ...]
    exclude_account: tuple[str, ...]
    accounts: Path | None = None

    def choice(self, connection: Connection) -> AccountChoice:
        """Return which accounts are meant. Raises UsageError."""
        from jsbackup.engine.accounts.chosen import AccountChoice

        return AccountChoice(
            tuple(map(parse_account, self.account)),
            tuple(map(parse_account, self.exclude_account)),
            connection.js_domain,
        )

    def sources(self, shared: Shared) -> LoginSources:
        """Read what the file names. Raises UsageError."""
        from jsbackup.config.accounts.accounts_file import read_accounts
        from jsbackup.engine.accounts.logins import read_sources

        if self.accounts is None:
            raise UsageError(
                "--all-accounts needs a login for each account",
                hint="Give --accounts FILE, which says where they are: 'jsbackup help accounts'.",
            )
        environ = environment()
        file = read_accounts(expand_path(str(self.accounts), environ), environ)
        if file.exposed:
            shared.output.warning(f"{file.path} can be read by others and holds secrets: chmod 600 it")
        return read_sources(file, environ)

    def connection(self, shared: Shared) -> Connection:
        """Return the connection as the system user. Raises UsageError."""
        connection = connection_of(shared)
        if connection.js_api_prefix is not None:
            raise UsageError(
                "--js-api-prefix makes no sense with --all-accounts", hint="Back that account up in a run of its own."
            )
        return connection


_NAMES = [field.name for field in fields(AskedAccounts)]


def account_options(all_accounts: str) -> Callable[[F], F]:
    """Add the options, passed as `accounts`; `all_accounts` is the help of the first."""
    return _collected([*_choosing(all_accounts), _ACCOUNTS_FILE])


def account_choice_options(all_accounts: str) -> Callable[[F], F]:
    """Add those that need no logins."""
    return _collected(_choosing(all_accounts))


map_account_option = click.option(
    "--map-account",
    "mapped",
    multiple=True,
    metavar="OLD=NEW",
    help="Restore account OLD into account NEW.",
)
"""Add `--map-account`, passed as `mapped`."""


def refuse_mapped(mapped: tuple[str, ...], accounts: AskedAccounts) -> None:
    """Raise UsageError for a --map-account that does nothing."""
    if mapped and not accounts.all_accounts:
        raise UsageError("--map-account makes no sense without --all-accounts", hint="Add it, or leave this out.")


def _collected(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        @wraps(command)
        def run(*arguments: Any, **values: Any) -> Any:
            asked = {name: values.pop(name) for name in _NAMES if name in values}
            if not asked["all_accounts"]:
                _refuse_idle(click.get_current_context())
            return command(*arguments, accounts=AskedAccounts(**asked), **values)

        for option in reversed(options):
            option(run)
        return run  # type: ignore[return-value]

    return decorate


def _refuse_idle(ctx: click.Context) -> None:
    """Raise UsageError for an option that does nothing without --all-accounts."""
    for parameter in ctx.command.params:
        if parameter.name in _NAMES[1:] and ctx.get_parameter_source(parameter.name) in GIVEN:
            of_profile = ctx.get_parameter_source(parameter.name) is ParameterSource.DEFAULT_MAP
            typed = f"{parameter.opts[0]}{' of the profile' if of_profile else ''}"
            raise UsageError(f"{typed} makes no sense without --all-accounts", hint="Add it, or leave this out.")


def parse_account(text: str) -> Glob:
    """Parse a name or a key of an account, or a glob. Raises UsageError."""
    if not text.strip() or not text.isprintable():
        raise UsageError(
            f"no account can be named {text!r}", hint="Give its name or its public key; globs may be used."
        )
    return Glob(text)
