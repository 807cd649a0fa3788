"""What a server reports about itself on connecting: its INFO, parsed defensively."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod

from jsbackup.model import JsonObject

__all__ = ["ServerFacts"]

_VERSION = re.compile(r"v?(\d{1,6})\.(\d{1,6})\.(\d{1,6})", re.ASCII)


class ServerFacts(ABC):
    """The facts as properties of `server_info`, which may change with the connection."""

    @property
    @abstractmethod
    def server_info(self) -> JsonObject:
        """The INFO as JSON."""

    @property
    def server_version(self) -> tuple[int, int, int]:
        """Major, minor, patch; (0, 0, 0) if the server reports no version."""
        match = _VERSION.match(self._text("version") or "")
        return (int(match[1]), int(match[2]), int(match[3])) if match else (0, 0, 0)

    @property
    def server_version_text(self) -> str:
        """The version as the server writes it, such as `2.15.0-dev`."""
        return self._text("version") or "unknown"

    @property
    def server_name(self) -> str | None:
        return self._text("server_name")

    @property
    def cluster_name(self) -> str | None:
        return self._text("cluster")

    @property
    def domain(self) -> str | None:
        """The JetStream domain of the server itself."""
        return self._text("domain")

    @property
    def jetstream(self) -> bool:
        """Whether the server runs JetStream itself; a leaf node may reach one elsewhere."""
        return self.server_info.get("jetstream") is True

    @property
    def max_payload_bytes(self) -> int:
        """The largest message that the server accepts, including headers. 0 if it does not report it."""
        limit = self.server_info.get("max_payload")
        return limit if isinstance(limit, int) else 0

    def _text(self, key: str) -> str | None:
        value = self.server_info.get(key)
        return value if isinstance(value, str) and value else None
