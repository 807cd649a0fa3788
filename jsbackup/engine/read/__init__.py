"""Reading streams from a server: by snapshot, message by message, or only what is new."""
