"""Message batches in, message batches out: cut, filtered, renamed, masked; configurations that follow. Pure."""
