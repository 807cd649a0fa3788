"""Files of others, both ways: folders of the nats CLI, config files. Speaks to no server."""
