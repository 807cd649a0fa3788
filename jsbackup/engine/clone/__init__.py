"""Streams from one server to another, with nothing stored in between; planned and proved like a restore."""
