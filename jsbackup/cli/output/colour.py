"""Old names of what is in terminal.py and result.py, until nothing imports them."""

from jsbackup.cli.output.result import State as State
from jsbackup.cli.output.terminal import bold as bold
from jsbackup.cli.output.terminal import paint as paint
from jsbackup.cli.output.terminal import wants_colour as wants_colour
