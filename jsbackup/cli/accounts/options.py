"""The options of commands that handle all accounts of a system.

What takes long to import is imported where it is used: `--help` and completion load this module and do not wait.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from jsbackup.cli.options.opening import connection_of
from jsbackup.cli.parsing.context import Shared, gathered
from jsbackup.config import Glob, environment, expand_path
from jsbackup.errors import UsageError

if TYPE_CHECKING:
    from jsbackup.config import Connection
    from jsbackup.engine.accounts.chosen import AccountChoice
    from jsbackup.engine.accounts.logins import LoginSources

__all__ = ["AskedAccounts", "account_options"]

F = TypeVar("F", bound=Callable[..., Any])


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


def _asked(**given: Any) -> AskedAccounts:
    if not given["all_accounts"] and (idle := [name for name, value in given.items() if value]):
        option = f"--{idle[0].replace('_', '-')}"
        raise UsageError(f"{option} makes no sense without --all-accounts", hint="Add it, or leave this out.")
    return AskedAccounts(**given)


def account_options(all_accounts: str, *, logins: bool = True, mapped: bool = False) -> Callable[[F], F]:
    """Add the options, passed as `accounts`; `all_accounts` is the help of the first. They are those with `logins`, and
    with `--map-account` if they are `mapped`.
    """
    options: list[Callable[[Any], Any]] = [
        click.option("--all-accounts", is_flag=True, help=all_accounts),
        click.option("--account", multiple=True, metavar="ACCOUNT", help="Only these accounts, by name, key or glob."),
    ]
    if logins:
        file = click.Path(path_type=Path)
        options.append(
            click.option("--accounts", type=file, metavar="FILE", help="Their logins: 'jsbackup help accounts'.")
        )
    if mapped:
        text = "Restore account OLD into account NEW."
        options.append(click.option("--map-account", multiple=True, metavar="OLD=NEW", help=text))
    return gathered("accounts", _NAMES, _asked, options)
