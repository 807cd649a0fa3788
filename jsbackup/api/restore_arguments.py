"""Arguments that say which streams to restore, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import fields
from json import dumps
from typing import Any, Literal

from jsbackup.api.arguments import WantedMessages, as_texts, moment_text, one_of
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedRestore
from jsbackup.planning.model import Consumers, IfExists
from jsbackup.transforms.mask import Unmaskable

__all__ = ["ReshapingArguments", "RestoreArguments", "asked_by"]


class ReshapingArguments(WantedMessages, total=False):
    """Which streams are wanted, and how they are changed."""

    streams: str | Sequence[str]
    rename: Mapping[str, str]
    map_subject: str | Sequence[str]
    subject: str | Sequence[str]
    renumber: bool
    mask: str | Sequence[str]
    unmaskable: Literal["refuse", "drop", "keep"]
    obfuscate: bool
    obfuscation_key: str | os.PathLike[str] | None
    allow_nothing: bool


class RestoreArguments(ReshapingArguments, total=False):
    """Which streams to restore, and how: the options of `jsbackup restore`, by their names."""

    exclude: str | Sequence[str]
    if_exists: Literal["fail", "skip", "replace"]
    replace_with_part: bool
    replicas: int | None
    config: Mapping[str, Any]
    consumers: Literal["all", "config", "none"]
    adapt: bool
    resume_sources: bool


def asked_by(called: str, how: ReshapingArguments, kind: type[ReshapingArguments] = RestoreArguments) -> AskedRestore:
    """Return the arguments, which are those of `kind`, as typed on the command line. Raises UsageError; TypeError for
    an unknown name.
    """
    if unknown := sorted(how.keys() - kind.__annotations__.keys()):
        raise TypeError(f"{called}() got an unexpected keyword argument {unknown[0]!r}")
    texts: dict[str, Any] = dict(how)
    if "config" in texts:
        texts["fields"] = tuple(f"{name}={dumps(value)}" for name, value in texts.pop("config").items())
    if "rename" in texts:
        texts["rename"] = tuple(f"{old}={new}" for old, new in texts["rename"].items())
    for field in fields(AskedRestore):
        if field.name in texts and field.default == ():
            texts[field.name] = as_texts(texts[field.name])
    for name in texts.keys() & {"since", "until"}:
        texts[name] = moment_text(name, texts[name])
    if texts.get("obfuscation_key") is not None:
        texts["obfuscation_key"] = os.fspath(texts["obfuscation_key"])
    asked = AskedRestore(**texts)
    if asked.replicas is not None and not 1 <= asked.replicas <= 5:
        raise UsageError(f"replicas: {asked.replicas} is not in the range 1 to 5")
    one_of("if_exists", IfExists, asked.if_exists)
    one_of("consumers", Consumers, asked.consumers)
    one_of("unmaskable", Unmaskable, asked.unmaskable)
    return asked
