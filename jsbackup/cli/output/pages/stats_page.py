"""The results of `stats` as a page: a table of all streams, and charts and tables of the largest of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from jsbackup.cli.output.stats_report import format_width
from jsbackup.html.page import environment

if TYPE_CHECKING:
    from jsbackup.pipeline.queries.stats import StreamStats

__all__ = ["stats_page"]


def stats_page(backup: str, created: str, found: Sequence[StreamStats]) -> bytes:
    """Return the page in UTF-8. `created` is RFC 3339, as in the manifest."""
    pages = environment(Path(__file__).with_name("templates"))
    pages.filters["width"] = format_width
    streams = sorted(found, key=lambda one: -one.bytes)
    return pages.get_template("stats.html").render(backup=backup, created=created, streams=streams).encode()
