"""Key figures side by side, each with its state, and a line of backups to copy."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from jsbackup.html.page import Markup, element

__all__ = ["Tile", "tile_row"]


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure. `state` is `good`, `bad`, `warn`, or "" for none."""

    name: str
    value: str
    note: str = ""
    state: str = ""


def tile_row(tiles: Iterable[Tile]) -> Markup:
    return element("dl", *(_tile(one) for one in tiles), class_="tiles")


def _tile(one: Tile) -> Markup:
    note = [element("dd", one.note, class_="quiet")] if one.note else []
    value = element("dd", one.value, class_="value")
    return element("div", element("dt", one.name), value, *note, class_=f"tile {one.state}".strip())
