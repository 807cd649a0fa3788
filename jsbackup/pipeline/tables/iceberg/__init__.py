"""Iceberg tables (version 2): of messages that an export writes, and over the segments of a repository.

In: written files, or backups. Out: metadata below `STREAM/metadata`, as https://iceberg.apache.org/spec has it, written
with the writers of `pyiceberg`. Tasks that write files need `columns.py` alone, and not that package.
"""
