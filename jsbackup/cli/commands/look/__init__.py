"""Commands that show single things in backups: messages, keys, object files, histories."""
