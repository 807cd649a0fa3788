"""A configuration for a stream whose own is lost: from a file, from an earlier backup, or made up from its messages."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from jsbackup.errors import JsBackupError
from jsbackup.model import JsonObject
from jsbackup.repository.repository import Repository

__all__ = ["FoundConfig", "find_config", "make_up"]

_LOOK_BACK = 50
_MOST_SUBJECTS = 20
_MOST_HISTORY = 64
_KV, _OBJECTS = "KV_", "OBJ_"

FoundConfig = tuple[JsonObject, str]


def find_config(repository: Repository, name: str, given: Mapping[str, JsonObject]) -> FoundConfig | None:
    """Return the config of the stream, and where it comes from: one that was given, or that of its last backup."""
    if name in given:
        return given[name], "from --stream-config"
    for backup in reversed(repository.backups()[-_LOOK_BACK:]):
        try:
            streams = repository.manifest(backup).streams
        except JsBackupError:
            continue
        for stream in streams:
            if stream.name == name:
                return stream.config, f"that of backup {backup}"
    return None


def make_up(name: str, subjects: Counter[bytes]) -> FoundConfig:
    """Return a config with which a server would take these messages."""
    config: JsonObject = {"name": name, "retention": "limits", "storage": "file", "num_replicas": 1}
    why = "made up from its messages"
    if name.startswith(_KV):
        bucket, history = name.removeprefix(_KV), min(max(subjects.values(), default=1), _MOST_HISTORY)
        return {
            **config,
            "subjects": [f"$KV.{bucket}.>"],
            "max_msgs_per_subject": history,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "deny_delete": True,
            "allow_direct": True,
        }, why
    if name.startswith(_OBJECTS):
        bucket = name.removeprefix(_OBJECTS)
        bucket_subjects = [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]
        return {
            **config,
            "subjects": bucket_subjects,
            "discard": "new",
            "allow_rollup_hdrs": True,
            "allow_direct": True,
        }, why
    return {**config, "subjects": _patterns(subjects)}, why


def _patterns(subjects: Counter[bytes]) -> list[str]:
    """Return the subjects, or wildcards for their first tokens if they are many."""
    found = sorted(subject.decode("utf-8", "replace") for subject in subjects)
    if len(found) <= _MOST_SUBJECTS:
        return found
    heads = {subject.partition(".")[0] if "." not in subject else f"{subject.partition('.')[0]}.>" for subject in found}
    return sorted(heads)
