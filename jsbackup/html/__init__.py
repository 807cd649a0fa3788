"""Pages by jinja2: the base, the elements and the style sheet that all pages share.

In come templates and plain values, which are never trusted; out goes markup. Who knows the content has the template:

    status --html   cli/output/templates/status.html, and parts of browse/templates/overview.html
    stats --html    cli/output/templates/stats.html
    browse          browse/templates/
"""
