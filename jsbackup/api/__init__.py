"""The Python API: backups to read, and functions that run backups, restores and plans.

A thin layer over the engine, which works as from the command line. Nothing here changes the process: no logging is set
up, no signals are handled, and the caller's asyncio is not touched.
"""
