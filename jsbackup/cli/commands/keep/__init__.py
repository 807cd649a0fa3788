"""Commands that decide what a repository keeps, copy it or repair it: those under "Keep" in `--help`."""
