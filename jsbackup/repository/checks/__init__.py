"""Whether a repository is whole: objects, documents, the chain of manifests, and what was verified when."""
