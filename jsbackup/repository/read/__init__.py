"""What a repository holds: the backup that is meant, its messages, and what differs between two."""
