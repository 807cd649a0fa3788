"""One module for each command, or for few that belong together. Imported when the command is run."""
