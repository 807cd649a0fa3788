"""What interrupted restores leave at a server, and how it is known: the mark, half-made streams, staged copies."""
