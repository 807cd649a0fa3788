"""Import of the store folder of a nats-server that is stopped or dead, damaged or not. Nothing is written there."""
