"""One module for each command, or for a few related ones. Imported when the command is run."""
