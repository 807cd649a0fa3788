"""Which backups stay: retention, holds, forget, prune, and leases for running commands."""
