"""How this program names itself in what it writes: name and version."""

from __future__ import annotations

from jsbackup import __version__

__all__ = ["TOOL"]

TOOL = f"jsbackup {__version__}"
