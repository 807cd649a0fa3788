"""What a command prints: text for people, one JSON document, progress bars, log lines, pages."""
