"""`jsbackup lookup`. What takes long to import is imported where it is used: `--help` loads this module."""

from __future__ import annotations

from pathlib import Path

import click

from jsbackup.cli.output.log import start_log
from jsbackup.cli.parsing.command import Command
from jsbackup.cli.parsing.context import Shared
from jsbackup.config import environment, expand_path
from jsbackup.errors import IncompleteError

__all__ = ["COMMANDS"]


@click.command(cls=Command)
@click.argument("key_file", metavar="KEYFILE", type=click.Path(path_type=Path))
@click.argument("values", nargs=-1, required=True, metavar="VALUE...")
@click.option(
    "--obfuscate",
    is_flag=True,
    help="The values are clear ones: print what they become under this key, whether the file has them or not.",
)
def lookup(shared: Shared, key_file: Path, values: tuple[str, ...], *, obfuscate: bool) -> int:
    """Print what stands behind VALUEs of an obfuscated copy: names of streams and consumers, subjects, values of
    headers. KEYFILE was made by --obfuscate, here or by the nats CLI.

    Subjects are looked up token by token, and tokens that KEYFILE does not have stay. VALUE may be any text, such as an
    error message: what is obfuscated in it is replaced. A clear value that KEYFILE has is looked up the other way.

    Each value is one line. If KEYFILE has nothing of a value, it is printed as it is, and the exit code is 3.
    """
    from jsbackup.planning.obfuscation_file import read_key_file
    from jsbackup.transforms.obfuscate.looking_up import NameLookup

    start_log(shared)
    known = NameLookup(read_key_file(expand_path(str(key_file), environment())))
    found: list[str | None] = []
    for value in values:
        if obfuscate:
            found.append(known.obfuscated(value))
        else:
            clear = known.clear(value)
            found.append(known.obfuscated_if_known(value) if clear is None else clear)
    rows = list(zip(values, found, strict=True))
    document = {"values": [{"value": value, "found": one is not None, "result": one or value} for value, one in rows]}

    def text() -> None:
        for value, one in rows:
            shared.output.line(one or value)

    shared.output.result(document, text)
    missing = [value or "''" for value, one in rows if one is None]
    if missing:
        shared.output.note(f"not in {key_file}: {', '.join(missing)[:400]}")
    return IncompleteError.exit_code if missing else 0


COMMANDS = {"lookup": lookup}
