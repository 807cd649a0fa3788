"""The JetStream API without I/O: requests, answers, and snapshot and restore as state machines."""
