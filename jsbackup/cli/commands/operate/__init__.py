"""Commands for those who operate backups: new repositories and keys, checks and drills, schedules."""
