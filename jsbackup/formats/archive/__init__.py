"""Archives v1 and v2 of a stream: decoding them to message batches, and encoding them."""
