"""`python -m jsbackup`."""

from jsbackup.cli.main import main

main()
