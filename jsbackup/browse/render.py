"""Templates to pages. All text is escaped, and what is not visible in it too, unless it is markup."""

from __future__ import annotations

import json
from collections.abc import Callable
from html import escape
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from jsbackup.browse.payloads import payload_preview, visible
from jsbackup.browse.query import address
from jsbackup.config import format_bytes, hide_logins
from jsbackup.html.charts import spark
from jsbackup.html.page import Markup
from jsbackup.html.page_parts import with_labels
from jsbackup.html.tiles import tile_row
from jsbackup.model import JsonObject
from jsbackup.names import is_subject
from jsbackup.readable import clip, format_count, format_seconds, format_time, printable
from jsbackup.shell import quoted_command
from jsbackup.times import format_time as exact_time

__all__ = ["Renderer"]

_MOST_CONFIG = 256 << 10
_TEMPLATES = Path(__file__).parent / "templates"


def _shown(value: object) -> object:
    return value if hasattr(value, "__html__") else printable(str(value))


def _kept(text: str) -> Markup:
    """Return text whose line breaks count."""
    return Markup(escape(text))


def _config(document: Any) -> Markup:
    """Return a configuration, without logins that URLs in it may have."""
    text = hide_logins(json.dumps(document, indent=2, ensure_ascii=False))
    end = f"\n… cut here, of {format_bytes(len(text))}" if len(text) > _MOST_CONFIG else ""
    return _kept(visible(text[:_MOST_CONFIG]) + end)


def _second(ns: int) -> str:
    return _moment(format_time(ns)) if ns else "-"


def _clip(text: str, columns: int = 120) -> str:
    return clip(printable(str(text)[: 4 * columns]), columns)


def _moment(text: str) -> str:
    """Return RFC 3339 without fractions of a second, for people."""
    return text[:19].replace("T", " ") + " Z" if text else "-"


class Renderer:
    """Renders templates for one repository."""

    def __init__(self, **shared: object) -> None:
        self._environment = Environment(
            loader=FileSystemLoader(_TEMPLATES),
            autoescape=True,
            undefined=StrictUndefined,
            finalize=_shown,
            trim_blocks=True,
            lstrip_blocks=True,
            auto_reload=False,
        )
        filters: dict[str, Callable[..., object]] = {
            "bytes": format_bytes,
            "count": format_count,
            "seconds": format_seconds,
            "time": _second,
            "exact": exact_time,
            "moment": _moment,
            "clip": _clip,
            "kept": _kept,
            "config": _config,
            "logins": hide_logins,
        }
        self._environment.filters.update(filters)
        self._environment.tests["subject"] = is_subject
        self._environment.globals |= {
            "address": address,
            "spark": spark,
            "tiles": tile_row,
            "preview": payload_preview,
            "quoted_command": quoted_command,
            **shared,
        }

    def page(self, request: Request, template: str, status: int = 200, **values: object) -> HTMLResponse:
        given: JsonObject = {"nonce": request.scope["state"]["nonce"], **values}
        return HTMLResponse(with_labels(self._environment.get_template(template).render(given)), status)
