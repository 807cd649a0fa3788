"""Convert typed parameters to the options of a plan, for commands and for programs."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsbackup.config import environment, parse_glob
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError
from jsbackup.planning.configs.overrides import parse_override, unitless_duration
from jsbackup.planning.model import Consumers, IfExists, RestoreOptions
from jsbackup.transforms.cut import Cut, counts_from_now
from jsbackup.transforms.filters.filters import Filters
from jsbackup.transforms.filters.newest import NewestRule
from jsbackup.transforms.mask import Masks
from jsbackup.transforms.rename import RenameOptions
from jsbackup.transforms.reshape import Reshape
from jsbackup.transforms.subject_map import SubjectMaps

if TYPE_CHECKING:
    from jsbackup.transforms.obfuscate.messages import Obfuscation

__all__ = ["TableOptions", "keeping_obfuscated", "rename_options", "reshape_options", "restore_options"]


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


@dataclass(frozen=True, slots=True)
class TableOptions:
    """How tables are written. `kind` is a format. With `append`, tables that are there get what is new."""

    kind: str
    append: bool = False
    by_day: bool = False
    catalog: str | None = None

    def check(self, typed: Mapping[str, Any]) -> None:
        """Raise UsageError for options that exclude others, or are wrong; `typed` are those that change streams."""
        for option, given, kinds in (
            ("--append", self.append, "parquet, delta and iceberg"),
            ("--partition-by", self.by_day, "parquet, delta and iceberg"),
            ("--catalog", self.catalog, "iceberg"),
        ):
            if given and self.kind not in kinds:
                raise UsageError(
                    f"{option} is for --format {kinds}, and this is --format {self.kind}",
                    hint=f"Leave out {option}, or choose another format.",
                )
        for name in ("since", "until") if self.append else ():
            if typed[name] and counts_from_now(typed[name]):
                raise UsageError(
                    f"--{name} {typed[name][:40]} counts from now, so it would be another one in the next export",
                    hint="Write a time or a sequence, or leave it out: --append adds only what is new.",
                )
