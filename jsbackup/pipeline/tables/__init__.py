"""Tables of messages in files: Parquet, JSON lines, Delta and Iceberg, written and extended; the first two are read."""
