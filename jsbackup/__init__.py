"""jsbackup: verified backup and restore of NATS JetStream streams."""

__version__ = "0.1.0"

__all__ = ["__version__"]
