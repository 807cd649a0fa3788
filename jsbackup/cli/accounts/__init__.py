"""All accounts of a system in one command: options, the commands' work, reports."""
