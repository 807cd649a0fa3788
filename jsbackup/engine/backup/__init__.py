"""A backup: streams chosen, read and stored side by side, then the manifest that commits them."""
