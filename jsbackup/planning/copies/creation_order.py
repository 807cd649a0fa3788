"""The order in which streams are created: the origins of a mirror or a stream with sources come before it.

A copy that is created first would begin to copy as soon as its origin appears, with its own sequences.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jsbackup.model import JsonObject

__all__ = ["origin_names", "origins_first", "upstreams_of"]


def origins_first(configs: Mapping[str, JsonObject]) -> Sequence[Sequence[str]]:
    """Return names in stages: those of a stage do not wait for each other. Circles and their copies come last."""
    left = {name: origin_names(config) - {name} for name, config in configs.items()}
    stages: list[list[str]] = []
    while left:
        ready = [name for name, origins in left.items() if not origins & left.keys()] or list(left)
        stages.append(ready)
        for name in ready:
            del left[name]
    return stages


def upstreams_of(config: JsonObject) -> list[JsonObject]:
    """Return its mirror and its sources, as in the configuration."""
    origins = [config.get("mirror"), *(config.get("sources") or [])]
    return [upstream for upstream in origins if isinstance(upstream, dict)]


def origin_names(config: JsonObject) -> set[str]:
    """Return the streams of the same account that this one copies from."""
    return {
        upstream["name"]
        for upstream in upstreams_of(config)
        if not upstream.get("external") and isinstance(upstream.get("name"), str)
    }
