"""Which streams and messages a plan keeps: by name, point in time, filters and masks."""
