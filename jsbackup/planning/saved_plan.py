"""A saved plan: written by `plan -o`, and compared when `restore --plan` executes it.

A file is one JSON document of `repository/document.py` (canonical, with its SHA-256): `kind`, `format` 1 and
`required_features`; `tool` and `created`; `backup` and `manifest_sha256`, over the canonical manifest as a plain
repository stores it; `options` as typed, with times that do not count from now; and the decisions:

- `target`: the version, the cluster, and `created` and `last_seq` of each stream that is to be removed;
- `stages`: the order of streams, by name; `skipped`: those left out, because they are there;
- `streams`: for each its name at the target, wire, configuration, whether something is replaced, and consumers.

To execute it, the restore is planned again with the saved options, and compared. Nothing in the file is sent anywhere,
so a forged one can only make a restore refuse. Effects that only depend on time (how much expires) are not in it, and
neither are secrets.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import Any

from jsbackup.errors import FormatError, JsBackupError, PlanRefused, UnsupportedError, UsageError
from jsbackup.model import JsonObject
from jsbackup.planning.asked import AskedRestore
from jsbackup.planning.model import Action, Consumers, IfExists, RestoreOptions, RestorePlan, Target
from jsbackup.planning.typed_options import restore_options
from jsbackup.repository.document import INT64_MAX, MAX_DOCUMENT_BYTES, DocumentFields, decode_document, encode_document
from jsbackup.repository.manifest import Manifest
from jsbackup.repository.manifest_json import encode_manifest
from jsbackup.transforms.cut import Cut
from jsbackup.transforms.mask import Unmaskable

__all__ = ["SavedPlan", "decode_plan", "encode_plan", "read_plan", "refuse_if_changed", "write_plan"]

_KIND = "jsbackup restore plan"
# What is saved of the options: all as typed, but what has to do with a secret.
_SAVED = {name: value for name, value in asdict(AskedRestore()).items() if not name.startswith("obfuscat")}
_CHOICES: Mapping[str, type[StrEnum]] = {"if_exists": IfExists, "consumers": Consumers, "unmaskable": Unmaskable}
_NUMBERS = {"replicas": 5, "last_per_subject": INT64_MAX}
_FORMAT = 1
_SHOWN = 5  # how many differences are listed
_AGAIN = "Make a new plan with 'jsbackup plan -o', and look at it."


@dataclass(frozen=True, slots=True)
class SavedPlan:
    """The content of a file. `decided` is only compared."""

    backup: str
    manifest_sha256: str
    options: RestoreOptions
    decided: JsonObject

    def refuse_other(self, manifest: Manifest) -> None:
        """Raise PlanRefused if this is not the backup of the plan."""
        if manifest.id != self.backup or _sha256_of(manifest) != self.manifest_sha256:
            raise PlanRefused(f"backup {self.backup} is not the one that the plan was made for", hint=_AGAIN)


def encode_plan(
    plan: RestorePlan, target: Target, manifest: Manifest, asked: AskedRestore, *, cut: Cut, tool: str, created: str
) -> bytes:
    """Encode a plan without refusals as a file. `cut` is that of the options, which may count from now. Raises
    FormatError if a config cannot be written as JSON.
    """
    document = {
        "kind": _KIND,
        "format": _FORMAT,
        "required_features": [],
        "tool": tool,
        "created": created,
        "backup": manifest.id,
        "manifest_sha256": _sha256_of(manifest),
        "options": _options_to_json(asked, cut),
        "decided": _decided(plan, target),
    }
    return encode_document(document, "plan")


def decode_plan(data: bytes, what: str) -> SavedPlan:
    """Decode the file `what`.

    Raises:
        FormatError: damaged, or not a plan.
        UnsupportedError: written by a later tool.
        UsageError: a stream name in it is invalid.
    """
    try:
        fields = decode_document(data, what)
        if fields.get("kind") != _KIND:
            raise FormatError(f"{what} is not a saved plan")
        fields.version(_FORMAT, frozenset())
        return SavedPlan(
            backup=fields.text("backup"),
            manifest_sha256=fields.hex256("manifest_sha256"),
            options=_options(fields.fields("options")),
            decided=fields.object("decided"),
        )
    except FormatError as error:
        raise error.with_hint(error.hint or _AGAIN) from error.__cause__


def write_plan(path: Path, data: bytes) -> None:
    """Write the file atomically, replacing an existing one. Raises JsBackupError if that fails."""
    temporary: str | None = None
    try:
        handle, temporary = tempfile.mkstemp(prefix=f".{path.name[:100]}.", dir=path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).replace(path)
    except (OSError, ValueError) as error:
        if temporary is not None:
            with suppress(OSError):
                Path(temporary).unlink()
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable name"
        raise JsBackupError(f"cannot write the plan to {path}: {reason.lower()}") from error


def read_plan(path: Path) -> SavedPlan:
    """Read a plan from a file. Raises UsageError if it cannot be read, and as `decode_plan`."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_DOCUMENT_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "not a usable name"
        raise UsageError(f"cannot read the plan {path}: {reason.lower()}") from error
    return decode_plan(data, f"plan {path}")


def refuse_if_changed(saved: SavedPlan, plan: RestorePlan, target: Target) -> None:
    """Raise PlanRefused, with the first differences, if `plan` differs from the saved one."""
    now = decode_document(encode_document(_decided(plan, target), "plan"), "plan").value
    differences = _differences(saved.decided, now)
    shown = list(islice(differences, _SHOWN))
    if shown:
        more = sum(1 for _ in differences)
        message = f"nothing was restored, the target has changed since the plan was made: {'; '.join(shown)}"
        raise PlanRefused(message + (f"; and {more} more" if more else ""), hint=_AGAIN)


def _sha256_of(manifest: Manifest) -> str:
    return hashlib.sha256(encode_manifest(manifest)).hexdigest()


def _options_to_json(asked: AskedRestore, cut: Cut) -> JsonObject:
    values = {**asdict(asked), **cut.typed}
    return {name: values[name] for name in _SAVED}


def _options(fields: DocumentFields) -> RestoreOptions:
    values: dict[str, Any] = {}
    for name, default in _SAVED.items():
        if isinstance(default, tuple):
            values[name] = fields.texts(name)
        elif isinstance(default, bool):
            values[name] = fields.boolean(name)
        elif name in _CHOICES:
            values[name] = fields.choice(name, _CHOICES[name])
        elif name in _NUMBERS:
            values[name] = None if fields.get(name) is None else fields.number(name, 1, _NUMBERS[name])
        else:
            values[name] = fields.optional_text(name)
    if unknown := sorted(fields.rest()):
        raise UnsupportedError(
            f"{fields.where}: not known here: {', '.join(unknown)[:200]}", hint="Use a newer jsbackup."
        )
    return restore_options(AskedRestore(**values))


def _decided(plan: RestorePlan, target: Target) -> JsonObject:
    removed = {
        action.name: {"created": stream.created, "last_seq": stream.state.last_seq}
        for action in plan.actions
        if (stream := target.streams.get(action.name)) is not None
    }
    return {
        "target": {
            "version": ".".join(map(str, target.version)),
            "clustered": target.clustered,
            "cluster": target.cluster,
            "removed": removed,
        },
        "stages": [[action.name for action in stage] for stage in plan.stages],
        "streams": {action.entry.name: _action(action) for action in plan.actions},
        "skipped": sorted(refusal.stream for refusal in plan.skipped),
        "refused": {refusal.stream: refusal.reason for refusal in plan.refusals},
    }


def _action(action: Action) -> JsonObject:
    return {
        "as": action.name,
        "wire": action.wire,
        "config": action.config,
        "replaces": action.replaces,
        "leftover": action.leftover,
        "consumers": {
            planned.consumer.name: {
                "config": planned.consumer.config,
                "fidelity": planned.fidelity,
                "with_state": planned.consumer.state is not None,
            }
            for planned in action.consumers
        },
    }


def _differences(before: Any, now: Any, path: str = "") -> Iterator[str]:
    """Yield the differences, each with its path. Not deeper than `now`, which is our own."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in sorted(before.keys() | now.keys()):
            yield from _differences(before.get(key), now.get(key), f"{path} {key}".lstrip())
    elif before != now:
        if before is None:
            yield f"{path} is new{'' if isinstance(now, dict) else f': {_shown(now)}'}"
        elif now is None:
            yield f"{path} is gone"
        else:
            yield f"{path} changed from {_shown(before)} to {_shown(now)}"


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    try:
        text = str(value)
    except RecursionError:  # the file may be forged
        return "something else"
    return text if len(text) <= 80 else f"{text[:77]}..."
