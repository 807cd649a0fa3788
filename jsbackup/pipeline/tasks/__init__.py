"""What runs on executors: reading, reshaping and storing messages; backups and restores spread over them."""
