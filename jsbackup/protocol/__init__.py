"""The JetStream API without I/O: requests, answers, snapshot and restore as state machines."""
