"""Options of commands from a TOML file: read, checked, run for several profiles in turn."""
