"""Jobs on a backup: statistics, queries, transforms, compaction, comparison, checks, and new backups."""
