"""Configurations of streams and consumers: what the target accepts, and what the user changes."""
