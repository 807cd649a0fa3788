"""The public JSON Schemas of the JetStream API as an independent witness (`../shared/schemas` beside the repository).

Where a schema (August 2026) and a real server differ, the difference is written down here, and nothing else passes:

- Advisories: `advisory_snapshot_create` is of a time before 2.10 (`blocks` and `block_size`, which no server sends any
  more, no `state`), none of the four knows `domain`, and `advisory_snapshot_complete` not the `error` of 2.15.
- Lists: an error of a list comes with an empty list beside it (`"consumers": []`, `"streams": null`), which matches
  two branches of a `oneOf`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from tests.harness.servers import missing

FOLDER = Path(__file__).resolve().parents[3] / "shared" / "schemas"

NEWER_FIELDS = {
    "advisory_snapshot_create": {"state", "domain"},
    "advisory_snapshot_complete": {"error", "domain"},
    "advisory_restore_create": {"domain"},
    "advisory_restore_complete": {"domain"},
}
NO_LONGER_SENT = {"advisory_snapshot_create": {"blocks", "block_size"}}
LISTS = ("streams", "consumers")


def schema(name: str) -> dict[str, Any] | None:
    """The schema of that name, None if there is none; skips the test where the folder is absent (fails it under CI)."""
    if not FOLDER.is_dir():
        missing(f"the JSON Schemas are not at {FOLDER}")
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return None
    document: dict[str, Any] = json.loads(path.read_text())
    document["required"] = [key for key in document.get("required", []) if key not in NO_LONGER_SENT.get(name, ())]
    return document


def follows(payload: bytes, name: str) -> None:
    """Proves that the JSON in `payload` follows the schema `name`, but for the differences above."""
    rules = schema(name)
    assert rules is not None, f"there is no schema {name}"
    document = json.loads(payload)
    for key in NEWER_FIELDS.get(name, ()):
        document.pop(key, None)
    if "error" in document:
        for key in LISTS:
            if not document.get(key):
                document.pop(key, None)
    jsonschema.Draft7Validator(rules).validate(document)
