"""Mirrors and streams with sources in a plan: where each continues to copy, and in which order streams are created."""
