"""Writing backups: cutting into segments, reusing stored ones, copying, repairing, locking."""
