"""What programs import: backups to read, and functions that run backups, restores and plans.

Thin: the work is that of the engine, in the same way as from the command line. Nothing here changes the process: no
log is set up, no signal handled, and asyncio of the caller is left alone.
"""
