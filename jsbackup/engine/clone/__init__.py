"""Clones: streams from one server to another without storing them; planned and proved like a restore."""
