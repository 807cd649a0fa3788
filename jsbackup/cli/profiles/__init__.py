"""Options of commands from a TOML file: read, checked, and run for several profiles."""
