"""Notifications about runs: hooks, pings, metrics."""
