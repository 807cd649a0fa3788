"""The files of a stream's segments, found without jsbackup: from the manifest and its pages, as anybody can."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import zstandard

__all__ = ["segment_files"]


def segment_files(repository: Path, stream: dict[str, Any]) -> list[Path]:
    """Return the Parquet files of a stream of a manifest (JSON), in order."""
    return list(_files(repository / stream["segments"]["folder"], stream["segments"]["parts"]))


def _files(folder: Path, rows: list[Any]) -> Iterator[Path]:
    for row in rows:
        if len(row) == 14:  # a page
            page = zstandard.decompress((folder / f"page-{row[1]}{_dotted(row[2])}.json.zst").read_bytes())
            yield from _files(folder, json.loads(page)["parts"])
        else:
            yield folder / f"{row[0]:020}-{row[1]:020}-{row[8]}{_dotted(row[12])}.parquet"


def _dotted(replacement: str) -> str:
    return f".{replacement}" if replacement else ""
