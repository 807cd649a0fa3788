"""Stored messages on Spark; the only code that imports it.

`session/` opens a session, `messages/` reads backups as DataFrames, `tables/` reads and writes foreign files, `tasks/`
run on executors, `jobs/` implement the commands.
"""
