"""The HTML files that `status --html` and `stats --html` write, with the markup of `html/`."""
