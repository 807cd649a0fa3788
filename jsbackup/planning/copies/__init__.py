"""Mirrors and streams with sources in a plan: where each goes on copying, and in which order streams are made."""
