"""Tasks on executors: reading, changing and storing messages; distributed backups and restores."""
