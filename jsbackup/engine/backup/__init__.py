"""A backup: streams are chosen, read and stored in parallel, then a manifest commits them."""
