"""Tables of messages in files: Parquet, JSON lines, Delta; written and read."""
