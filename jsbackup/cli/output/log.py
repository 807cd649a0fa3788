"""Old names of what is in progress.py, until nothing imports them."""

from jsbackup.cli.output.progress import silence_spark as silence_spark
from jsbackup.cli.output.progress import start_log as start_log
