"""Keys, sealing and signatures of a repository that is encrypted, signed, or both."""
