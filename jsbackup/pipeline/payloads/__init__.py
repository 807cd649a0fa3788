"""Payloads as columns: their schema, given or inferred, and a parser that changes no value."""
