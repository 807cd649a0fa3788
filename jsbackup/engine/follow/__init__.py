"""Streams that are followed: a backup every few seconds, each of all that was published by then."""
