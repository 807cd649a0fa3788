"""Queries that need no Spark, answered by the manifest or by DuckDB, and what all engines have in common."""
