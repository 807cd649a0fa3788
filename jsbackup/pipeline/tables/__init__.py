"""Tables of messages in files: Parquet, JSON lines, Delta, written, extended and read; Iceberg tables over segments."""
