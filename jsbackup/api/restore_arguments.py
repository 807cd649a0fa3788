"""Arguments that say which streams to restore, and how."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from json import dumps
from typing import Any, Literal

from jsbackup.api.arguments import WantedMessages, as_texts, moment_text, one_of
from jsbackup.errors import UsageError
from jsbackup.planning.model import Consumers, IfExists
from jsbackup.transforms.mask import Unmaskable

__all__ = ["ReshapingArguments", "RestoreArguments", "typed_arguments"]


class ReshapingArguments(WantedMessages, total=False):
    """Which streams are wanted, and how they are changed."""

    streams: str | Sequence[str]
    rename: Mapping[str, str]
    rename_prefix: str | None
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


_NOTHING_SAID: RestoreArguments = {
    "streams": (),
    "exclude": (),
    "if_exists": "fail",
    "replace_with_part": False,
    "replicas": None,
    "config": {},
    "consumers": "all",
    "adapt": False,
    "resume_sources": False,
    "rename": {},
    "rename_prefix": None,
    "map_subject": (),
    "since": None,
    "until": None,
    "subject": (),
    "exclude_subject": (),
    "header": (),
    "exclude_header": (),
    "payload_match": (),
    "exclude_payload_match": (),
    "last_per_subject": None,
    "kv_compact": False,
    "renumber": False,
    "mask": (),
    "unmaskable": "refuse",
    "obfuscate": False,
    "obfuscation_key": None,
    "allow_nothing": False,
}


def typed_arguments(
    called: str, how: ReshapingArguments, kind: type[ReshapingArguments] = RestoreArguments
) -> dict[str, Any]:
    """Return the arguments, which are those of `kind`, as typed on the command line. Raises UsageError; TypeError for
    an unknown name.
    """
    if unknown := sorted(how.keys() - kind.__annotations__.keys()):
        raise TypeError(f"{called}() got an unexpected keyword argument {unknown[0]!r}")
    said: RestoreArguments = {**_NOTHING_SAID, **how}
    if said["replicas"] is not None and not 1 <= said["replicas"] <= 5:
        raise UsageError(f"replicas: {said['replicas']} is not in the range 1 to 5")
    one_of("if_exists", IfExists, said["if_exists"])
    one_of("consumers", Consumers, said["consumers"])
    one_of("unmaskable", Unmaskable, said["unmaskable"])
    filters = ("subject", "exclude_subject", "header", "exclude_header", "payload_match", "exclude_payload_match")
    lists = ("streams", "exclude", "map_subject", *filters, "mask")
    return {
        **said,
        **{name: as_texts(said[name]) for name in lists},  # type: ignore[literal-required]
        "fields": [f"{name}={dumps(value)}" for name, value in said["config"].items()],
        "rename": [f"{old}={new}" for old, new in said["rename"].items()],
        "obfuscation_key": None if said["obfuscation_key"] is None else os.fspath(said["obfuscation_key"]),
        "since": moment_text("since", said["since"]),
        "until": moment_text("until", said["until"]),
    }
