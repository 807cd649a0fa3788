"""Configurations of streams and consumers: what the target takes of them, and what is asked to be another."""
