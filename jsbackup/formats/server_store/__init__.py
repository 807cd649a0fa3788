"""The files of a nats-server's own store: blocks, index and keys, decoded as far as checksums prove them. No I/O."""
