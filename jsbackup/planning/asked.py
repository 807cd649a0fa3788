"""What users ask of a restore or a changed copy: the same names in commands, profiles, runbooks and Python, as texts.

`typed_options.py` parses them. Nothing heavy is imported here, because `--help` and completion load this module.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AskedChanges", "AskedRestore"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedChanges:
    """How streams are changed: their names, subjects, extent and contents."""

    rename: tuple[str, ...] = ()
    map_subject: tuple[str, ...] = ()
    since: str | None = None
    until: str | None = None
    subject: tuple[str, ...] = ()
    exclude_subject: tuple[str, ...] = ()
    header: tuple[str, ...] = ()
    payload_match: tuple[str, ...] = ()
    last_per_subject: int | None = None
    kv_compact: bool = False
    renumber: bool = False
    mask: tuple[str, ...] = ()
    unmaskable: str = "refuse"
    obfuscate: bool = False
    obfuscation_key: str | None = None
    allow_nothing: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedRestore(AskedChanges):
    """Which streams are restored, and how."""

    streams: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    if_exists: str = "fail"
    replace_with_part: bool = False
    replicas: int | None = None
    fields: tuple[str, ...] = ()
    consumers: str = "all"
    adapt: bool = False
    resume_sources: bool = False
