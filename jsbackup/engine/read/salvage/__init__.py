"""Reading what can be read of a stream that its server cannot read completely any more."""
