"""Archives v1 and v2 of a stream, both ways: decoded to message batches, and encoded from them."""
