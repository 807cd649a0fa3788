"""Read stream configurations from the JSON output of commands.

{"name": …, …}                       a config itself, as in the files of `config_files.py`
{"config": {…}, …}                   `nats stream info --json`, or the `backup.json` of `nats backup stream`
{"streams": [{"config": {…}}, …]}    `jsbackup show --json`
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import MAX_CONFIG_BYTES
from jsbackup.exchange.folder import printable_name
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject
from jsbackup.strict_json import read_object

__all__ = ["read_configs_of", "read_printed_configs"]


def read_printed_configs(path: Path) -> dict[str, JsonObject]:
    """Return the configs in a file, by the names of their streams. Raises `UsageError` if there are none."""
    shown = printable_name(str(path))
    try:
        with path.open("rb") as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{shown} cannot be read: {os.strerror(error.errno or 0).lower()}") from error
    if len(data) > MAX_CONFIG_BYTES:
        raise UsageError(f"{shown} is too large for a configuration")
    document = read_object(data, shown, kind=UsageError, unique_names=True)
    streams = document.get("streams")
    if isinstance(streams, list):
        configs = [one.get("config") if isinstance(one, dict) else None for one in streams]
    else:
        configs = [document.get("config", document)]
    found: dict[str, JsonObject] = {}
    for config in configs:
        name = _name_of(config)
        if name is None or not isinstance(config, dict):
            raise UsageError(
                f"{shown} has no configuration of a stream",
                hint="Give what `nats stream info --json` or `jsbackup show --json` prints.",
            )
        if name in found:
            raise UsageError(f"{shown} has two configurations of stream {name}")
        found[name] = config
    return found


def _name_of(config: object) -> str | None:
    name = config.get("name") if isinstance(config, dict) else None
    return name if isinstance(name, str) and asset_name_is_sound(name) else None


def read_configs_of(files: Sequence[Path], streams: Sequence[str]) -> dict[str, JsonObject]:
    """Return the configurations of `streams` by name, from several files; a single one also fits a single stream.

    Raises the errors of `read_printed_configs`, and UsageError if there are two of a stream, or none that is needed.
    """
    by_name: dict[str, JsonObject] = {}
    for file in files:
        found = read_printed_configs(file)
        if twice := found.keys() & by_name.keys():
            raise UsageError(f"there are two configurations of stream {min(twice)}")
        by_name |= found
    if len(by_name) == len(streams) == 1:
        return dict(zip(streams, by_name.values(), strict=True))
    if files and not by_name.keys() & set(streams):
        raise UsageError(f"--stream-config has no configuration of stream {streams[0]}")
    return by_name
