"""Reading a repository: choosing a backup, reading its messages, comparing two backups."""
