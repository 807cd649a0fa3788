"""Convert typed parameters to the options of a plan, for commands and for programs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jsbackup.config import environment, parse_glob
from jsbackup.config.secrets import expand_path
from jsbackup.errors import UsageError
from jsbackup.planning.asked import AskedChanges, AskedRestore
from jsbackup.planning.changed_streams import ChangeOptions
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

__all__ = [
    "TableOptions",
    "_rename_options",
    "_reshape_options",
    "change_options",
    "keeping_obfuscated",
    "restore_options",
]


def restore_options(asked: AskedRestore) -> RestoreOptions:
    """Return the options of a restore. Raises UsageError."""
    return RestoreOptions(
        streams=tuple(map(parse_glob, asked.streams)),
        exclude=tuple(map(parse_glob, asked.exclude)),
        if_exists=IfExists(asked.if_exists),
        replace_with_part=asked.replace_with_part,
        adapt=asked.adapt,
        allow_nothing=asked.allow_nothing,
        resume_sources=asked.resume_sources,
        consumers=Consumers(asked.consumers),
        replicas=asked.replicas,
        fields=_overrides(asked),
        unitless=frozenset(map(unitless_duration, asked.fields)) - {""},
        renames=_rename_options(asked),
        reshape=_reshape_options(asked),
    )


def change_options(asked: AskedChanges, streams: Iterable[str]) -> ChangeOptions:
    """Return the options of a changed copy of these streams (names or globs). Raises UsageError."""
    return ChangeOptions(
        streams=tuple(map(parse_glob, streams)),
        renames=_rename_options(asked),
        reshape=_reshape_options(asked),
        allow_nothing=asked.allow_nothing,
    )


def _rename_options(asked: AskedChanges) -> RenameOptions:
    """Return the new names of streams. Raises UsageError."""
    return RenameOptions.parse(asked.rename)


def _reshape_options(asked: AskedChanges) -> Reshape:
    """Return how messages are reshaped. Raises UsageError; FormatError for a damaged key file of --obfuscate."""
    return Reshape(
        cut=Cut.parse(asked.since, asked.until, time.time_ns()),
        filters=Filters.parse(asdict(asked)),
        maps=SubjectMaps.parse(asked.map_subject),
        masks=Masks.parse(asked.mask, asked.unmaskable),
        newest=NewestRule.of(asked.last_per_subject, asked.kv_compact),
        renumber=asked.renumber,
        obfuscation=_obfuscation(asked),
    )


def _obfuscation(asked: AskedChanges) -> Obfuscation | None:
    key_file = asked.obfuscation_key
    if not asked.obfuscate:
        if key_file is not None:
            raise UsageError("--obfuscation-key makes sense with --obfuscate only", hint="Add --obfuscate.")
        return None
    if asked.mask:
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


def _overrides(asked: AskedRestore) -> dict[str, Any]:
    overrides: dict[str, Any] = {}
    for text in asked.fields:
        name, value = parse_override(text)
        if name in overrides:
            raise UsageError(f"--set {name} is given twice")
        overrides[name] = value
    if asked.replicas is not None and "num_replicas" in overrides:
        raise UsageError("--replicas and --set num_replicas exclude each other")
    return overrides


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

    def check(self, asked: AskedChanges) -> None:
        """Raise UsageError for options that exclude others, or are wrong; `asked` are those that change streams."""
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
        for name, text in (("since", asked.since), ("until", asked.until)) if self.append else ():
            if text and counts_from_now(text):
                raise UsageError(
                    f"--{name} {text[:40]} counts from now, so it would be another one in the next export",
                    hint="Write a time or a sequence, or leave it out: --append adds only what is new.",
                )
