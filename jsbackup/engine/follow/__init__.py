"""Following streams: a backup every few seconds, each with everything published by then."""
