"""Commands for who operates backups: those under "Operate" in `--help`."""
