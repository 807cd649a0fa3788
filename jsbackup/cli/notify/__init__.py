"""Who is told how a run went: hooks, pings, metrics."""
