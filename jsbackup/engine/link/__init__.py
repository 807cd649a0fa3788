"""The connection to a server: its protocol by nats-py, subscriptions, JetStream requests, and where it leads to."""
