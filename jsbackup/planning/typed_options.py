"""Convert typed parameters to the options of a plan, for commands and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsbackup.config import environment, parse_glob
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError
from jsbackup.planning.configs.overrides import parse_override, unitless_duration
from jsbackup.planning.model import Consumers, IfExists, RestoreOptions
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps

if TYPE_CHECKING:
    from jsbackup.transforms.obfuscate.messages import Obfuscation

__all__ = ["keeping_obfuscated", "rename_options", "reshape_options", "restore_options"]


def restore_options(typed: Mapping[str, Any]) -> RestoreOptions:
    """Return the options of a restore. Raises UsageError."""
    return RestoreOptions(
        streams=tuple(map(parse_glob, typed["streams"])),
        exclude=tuple(map(parse_glob, typed["exclude"])),
        if_exists=IfExists(typed["if_exists"]),
        replace_with_part=typed["replace_with_part"],
        adapt=typed["adapt"],
        allow_nothing=typed["allow_nothing"],
        resume_sources=typed["resume_sources"],
        consumers=Consumers(typed["consumers"]),
        replicas=typed["replicas"],
        fields=_overrides(typed),
        unitless=frozenset(map(unitless_duration, typed["fields"])) - {""},
        renames=rename_options(typed),
        reshape=reshape_options(typed),
    )


def rename_options(typed: Mapping[str, Any]) -> RenameOptions:
    """Return the new names of streams. Raises UsageError."""
    return RenameOptions.parse(typed["rename"], typed["rename_prefix"])


def reshape_options(typed: Mapping[str, Any]) -> Reshape:
    """Return how messages are reshaped. Raises UsageError; FormatError for a damaged key file of --obfuscate."""
    return Reshape(
        cut=Cut.parse(typed["since"], typed["until"], time.time_ns()),
        filters=Filters.parse(typed),
        maps=SubjectMaps.parse(typed["map_subject"]),
        masks=Masks.parse(typed["mask"], typed["unmaskable"]),
        newest=NewestRule.of(typed["last_per_subject"], typed["kv_compact"]),
        renumber=typed["renumber"],
        obfuscation=_obfuscation(typed),
    )


def _obfuscation(typed: Mapping[str, Any]) -> Obfuscation | None:
    key_file = typed.get("obfuscation_key")
    if not typed.get("obfuscate"):
        if key_file is not None:
            raise UsageError("--obfuscation-key makes sense with --obfuscate only", hint="Add --obfuscate.")
        return None
    if typed["mask"]:
        raise UsageError("--mask and --obfuscate exclude each other: nothing is left to mask", hint="Leave one out.")
    if key_file is None:
        raise UsageError(
            "--obfuscate needs --obfuscation-key FILE",
            hint="The file is made if it does not exist, and leads back from the obfuscated names.",
        )
    # Not imported for restores without it.
    from jsbackup.planning.obfuscation_file import names_of_file
    from jsbackup.transforms.obfuscate.messages import Obfuscation

    return Obfuscation(names_of_file(expand_path(key_file, environment())))


def _overrides(typed: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for text in typed["fields"]:
        name, value = parse_override(text)
        if name in found:
            raise UsageError(f"--set {name} is given twice")
        found[name] = value
    if typed["replicas"] is not None and "num_replicas" in found:
        raise UsageError("--replicas and --set num_replicas exclude each other")
    return found


def keeping_obfuscated(
    key_file: str | None, reshape: Reshape, *, whole: Path | None = None
) -> AbstractContextManager[None]:
    """Make the key file of --obfuscate while a copy is made, and add the names to it (`obfuscation_file.py`); nothing
    without --obfuscate. `whole`: where the copy appears completely or not at all.
    """
    if reshape.obfuscation is None or key_file is None:
        return nullcontext()
    from jsbackup.planning.obfuscation_file import keeping_names

    return keeping_names(expand_path(key_file, environment()), reshape.obfuscation.names, whole=whole)
