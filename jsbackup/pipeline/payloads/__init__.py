"""Payloads as columns: their schema, given or inferred, and parsers of JSON, Avro and Protobuf that change no value."""
