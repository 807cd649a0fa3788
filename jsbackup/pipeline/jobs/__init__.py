"""Jobs on a backup: statistics, queries, transforms, comparison, checks, and new backups."""
