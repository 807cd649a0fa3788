"""Looks that change nothing: preconditions, drills, how backups stand, what differs from a server."""
