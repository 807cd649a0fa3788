"""Markup of pages: elements, tables, charts, and the style sheet that all pages share.

In come text, which is never trusted, and numbers; out goes markup. A page is drawn by what knows its content:

    status --html   cli/output/pages/status_page.py   made of this markup alone
    stats --html    cli/output/pages/stats_page.py    made of this markup alone
    browse          browse/*.py and its templates     with the charts and the style sheet from here
"""
