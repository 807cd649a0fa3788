"""Commands that need Spark, or can run on it: tables, statistics, queries, work on executors."""
