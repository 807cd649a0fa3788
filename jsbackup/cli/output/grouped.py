"""Old names of what is in result.py, until nothing imports them."""

from collections.abc import Iterable, Mapping

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.result import Said as Said
from jsbackup.cli.output.result import broken_json as broken_json
from jsbackup.cli.output.result import said_lines as said_lines
from jsbackup.errors import JsBackupError


def tell_each(output: Output, said: Iterable[Said]) -> None:
    output.blocks(said_lines(said))


def tell_broken(output: Output, broken: Mapping[str, JsBackupError]) -> None:
    tell_each(output, (Said("failed", name, error.message, error.hint or "") for name, error in broken.items()))
