"""What stays and what goes: retention, holds, forget, prune, and leases for those who are at work."""
