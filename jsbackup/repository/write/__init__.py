"""How a backup gets into a repository: cut into segments, built on what is stored, copied, repaired, locked."""
