"""Shared options of commands: parsed to values, and the connection and repository opened with them."""
