"""Stored messages on Spark; the only code that imports it.

`session/` opens one, `messages/` reads backups as DataFrames, `tables/` are files of others, `tasks/` run on executors,
`jobs/` are what commands ask for.
"""
