"""Checks of a repository: objects, documents, the chain of manifests, and what was verified when."""
