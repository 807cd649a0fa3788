"""Checks that change nothing: preconditions, drills, the status of backups, differences from a server."""
