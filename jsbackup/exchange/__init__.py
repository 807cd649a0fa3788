"""Import and export of foreign files: folders of the nats CLI, config files. Without a server."""
