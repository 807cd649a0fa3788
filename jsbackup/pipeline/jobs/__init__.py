"""Jobs on a backup: statistics, queries, changed copies, comparison, checks, and new backups."""
