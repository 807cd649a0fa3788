"""Plan a transform of a backup into a new one (`planning/transforming.py`)."""

from __future__ import annotations

from dataclasses import dataclass

from jsbackup.errors import UsageError
from jsbackup.pipeline.messages.chosen import choose_streams
from jsbackup.planning.transforming import PlannedStream, TransformOptions, plan_streams
from jsbackup.repository.manifest import Manifest

__all__ = ["TransformPlan", "plan_transform"]


@dataclass(frozen=True, slots=True)
class TransformPlan:
    """The planned changes of a backup."""

    manifest: Manifest
    options: TransformOptions
    streams: tuple[PlannedStream, ...]


def plan_transform(manifest: Manifest, options: TransformOptions) -> TransformPlan:
    """Plan the changes of each stream; reads no messages.

    Raises:
        UsageError: the options name no stream of the backup, or nothing is to be done.
        PlanRefused, TargetConflict: a restore with these options would be refused.
        FormatError: a configuration is damaged.
    """
    if not options.words:
        raise UsageError("nothing to transform", hint="Say what to change, such as --mask or --rename-prefix.")
    entries = choose_streams(manifest, [glob.pattern for glob in options.streams])
    return TransformPlan(manifest, options, plan_streams(manifest, entries, options, "transformed"))
