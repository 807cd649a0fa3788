"""The connection to a server: the NATS protocol (with nats-py), subscriptions, JetStream requests, and its source."""
