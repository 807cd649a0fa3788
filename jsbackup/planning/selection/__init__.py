"""Which messages a plan keeps: a point in time, a subset, and what masks and filters come to."""
