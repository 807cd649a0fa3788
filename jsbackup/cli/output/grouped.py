"""Old names of what is in result.py, until nothing imports them."""

from collections.abc import Iterable

from jsbackup.cli.output.output import Output
from jsbackup.cli.output.result import Said as Said
from jsbackup.cli.output.result import broken_json as broken_json
from jsbackup.cli.output.result import said_lines as said_lines


def tell_each(output: Output, said: Iterable[Said]) -> None:
    output.blocks(said_lines(said))
