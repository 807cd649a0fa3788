"""Output of commands: text, one JSON document, progress bars, log lines, pages."""
