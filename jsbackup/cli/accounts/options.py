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

from jsbackup.cli.options.opening import connection_of
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import Glob, environment, expand_path
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.config import Connection
    from jsbackup.engine.accounts.chosen import AccountChoice
    from jsbackup.engine.accounts.logins import LoginSources

__all__ = ["AskedAccounts", "account_choice_options", "account_options"]

F = TypeVar("F", bound=Callable[..., Any])


def _choosing(all_accounts: str) -> Sequence[Callable[[F], F]]:
    return (
        click.option("--all-accounts", is_flag=True, help=all_accounts),
        click.option("--account", multiple=True, metavar="ACCOUNT", help="Only these accounts, by name, key or glob."),
    )


_ACCOUNTS_FILE: Callable[[Any], Any] = click.option(
    "--accounts",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Their logins: 'jsbackup help accounts'.",
)


_MAP_ACCOUNT: Callable[[Any], Any] = click.option(
    "--map-account", multiple=True, metavar="OLD=NEW", help="Restore account OLD into account NEW."
)


@dataclass(frozen=True, slots=True)
class AskedAccounts:
    """The parameters as typed."""

    all_accounts: bool
    account: tuple[str, ...]
    accounts: Path | None = None
    map_account: tuple[str, ...] = ()

    def choice(self, connection: Connection) -> AccountChoice:
        """Return which accounts are meant. Raises UsageError."""
        from jsbackup.engine.accounts.chosen import AccountChoice

        if not all(self.account):
            raise UsageError("the name of an account is empty", hint="Write a name, a public key, or a pattern.")
        return AccountChoice(tuple(map(Glob, self.account)), connection.js_domain)

    def sources(self, shared: Shared) -> LoginSources:
        """Read what the file names. Raises UsageError."""
        from jsbackup.config.accounts import read_accounts
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


def account_options(all_accounts: str, *, mapped: bool = False) -> Callable[[F], F]:
    """Add the options, passed as `accounts`; `all_accounts` is the help of the first; with `--map-account` if they are
    `mapped`.
    """
    return _collected([*_choosing(all_accounts), _ACCOUNTS_FILE, *([_MAP_ACCOUNT] if mapped else [])])


def account_choice_options(all_accounts: str) -> Callable[[F], F]:
    """Add those that need no logins."""
    return _collected(_choosing(all_accounts))


def _collected(options: Sequence[Callable[[Any], Any]]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        @wraps(command)
        def run(*arguments: Any, **values: Any) -> Any:
            asked = {name: values.pop(name) for name in _NAMES if name in values}
            if not asked["all_accounts"] and (idle := [name for name, value in asked.items() if value]):
                option = f"--{idle[0].replace('_', '-')}"
                raise UsageError(f"{option} makes no sense without --all-accounts", hint="Add it, or leave this out.")
            return command(*arguments, accounts=AskedAccounts(**asked), **values)

        for option in reversed(options):
            option(run)
        return run  # type: ignore[return-value]

    return decorate
