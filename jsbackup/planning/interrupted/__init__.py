"""What interrupted restores leave on a server, and how to recognize it: the mark, incomplete streams, staged copies."""
