"""`--rename OLD=NEW`: rename streams and buckets.

A key-value bucket `b` is the stream `KV_b` with subjects below `$KV.b.`, an object bucket the stream `OBJ_b` with
subjects below `$O.b.` (nats.go `kv.go`, `object.go`; nats-py `js/kv.py`, `js/object_store.py`). Clients derive both
from the bucket's name, so a renamed bucket only works if its subjects are renamed too: that is a map of subjects, for
all streams of the restore, because others copy from it. A mirror of a bucket holds the subjects of its origin, so only
its name changes.

Names are those of streams: `KV_old=KV_new`. One `*` on both sides stands for any characters: `test_*=*`, `*=test_*`.
If OLD begins with it, a bucket keeps the `KV_` or `OBJ_` in front: with `*=P*`, `KV_b` becomes `KV_Pb`.
`object_meta.py` renames buckets in the metadata of objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from jsbackup.errors import UsageError
from jsbackup.model import JsonObject
from jsbackup.names import BUCKET_STREAM, OBJECT_STREAM, is_new_name
from jsbackup.transforms.subject_map import UNTOUCHED, SubjectMap, SubjectMaps
from jsbackup.transforms.subjects import contains

__all__ = ["RenameOptions", "Renames", "StreamKind", "bucket_of", "config_subjects", "kinds_of", "subjects_of_bucket"]

_BUCKET = re.compile(r"[-_A-Za-z0-9]+", re.ASCII)


class StreamKind(StrEnum):
    """The kind of a stream by its name; the value is the prefix of the names of such streams."""

    STREAM = ""
    KEY_VALUE = BUCKET_STREAM
    OBJECT = OBJECT_STREAM


_SAID = {
    StreamKind.STREAM: "no bucket",
    StreamKind.KEY_VALUE: "a key-value bucket",
    StreamKind.OBJECT: "an object bucket",
}
_SUBJECTS = {StreamKind.KEY_VALUE: "$KV", StreamKind.OBJECT: "$O"}


def bucket_of(stream: str) -> tuple[StreamKind, str]:
    """Return the kind of a stream, and the bucket's name (the stream's if it is not a bucket)."""
    for kind in (StreamKind.KEY_VALUE, StreamKind.OBJECT):
        if stream.startswith(kind) and _BUCKET.fullmatch(stream[len(kind) :]):
            return kind, stream[len(kind) :]
    return StreamKind.STREAM, stream


def subjects_of_bucket(stream: str) -> str:
    """Return the pattern of the subjects that clients use in a bucket's stream, or MQTT in its own; "" for others."""
    kind, bucket = bucket_of(stream)
    if kind is not StreamKind.STREAM:
        return f"{_SUBJECTS[kind]}.{bucket}.>"
    return "$MQTT.>" if stream.startswith("$MQTT_") else ""


def config_subjects(stream: str) -> list[str]:
    """Return the subjects with which clients create a bucket's stream; none for others."""
    kind, bucket = bucket_of(stream)
    if kind is StreamKind.OBJECT:
        return [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"]
    return [f"$KV.{bucket}.>"] if kind is StreamKind.KEY_VALUE else []


def kinds_of(name: str, config: JsonObject) -> set[StreamKind]:
    """Return of which kind of bucket the stream is, or a mirror; a stream with other subjects is of none."""
    mirror = config.get("mirror")
    if isinstance(mirror, dict):
        return {bucket_of(stream)[0] for stream in (name, str(mirror.get("name") or ""))}
    own = subjects_of_bucket(name)
    subjects = config.get("subjects") or []
    return (
        {bucket_of(name)[0]}
        if own and all(contains(own, str(subject)) for subject in subjects)
        else {StreamKind.STREAM}
    )


@dataclass(frozen=True, slots=True)
class RenameOptions:
    """The user's request: new names by old ones, as typed."""

    names: tuple[tuple[str, str], ...] = ()

    @classmethod
    def parse(cls, texts: Iterable[str]) -> RenameOptions:
        """Parse the `--rename` texts. Raises UsageError."""
        names: dict[str, str] = {}
        for text in texts:
            old, equals, new = text.partition("=")
            if not equals:
                raise UsageError(f"--rename: not OLD=NEW: {text[:80]!r}", hint="Write --rename ORDERS=ORDERS_COPY.")
            if old.count("*") != new.count("*") or old.count("*") > 1:
                raise UsageError(f"--rename: not one * on both sides: {text[:80]!r}", hint="Write --rename '*=test_*'.")
            for name in (old, new):
                if name != "*":
                    _check_name(name.replace("*", ""))
            if names.setdefault(old, new) != new:
                raise UsageError(f"--rename: two names for {old[:80]}")
            if "*" not in old:
                _check_kinds(old, new)
        _check_distinct((old, new) for old, new in names.items() if "*" not in old)
        return cls(tuple(names.items()))

    def over(self, streams: Mapping[str, JsonObject]) -> Renames:
        """Return the new names of these streams, given by name and config. Raises UsageError if they are impossible.

        A name for a stream that is not among them is not an error here (see `unknown`).
        """
        names = {}
        for name in streams:
            becomes = sorted({new for pair in self.names if (new := _new_name(*pair, name)) is not None})
            if len(becomes) > 1:
                raise UsageError(f"--rename: two names for {name[:80]}: {becomes[0][:80]} and {becomes[1][:80]}")
            for new in becomes:
                if new != name:
                    _check_name(new)
                    _check_kinds(name, new)
                    names[name] = new
        _check_distinct([(name, names.get(name, name)) for name in streams])
        maps = []
        for old, new in names.items():
            if bucket_of(old)[0] is not StreamKind.STREAM and not streams[old].get("mirror"):
                maps.append(SubjectMap(subjects_of_bucket(old), subjects_of_bucket(new)))
        return Renames(tuple(names.items()), SubjectMaps(tuple(maps)))

    def unknown(self, streams: Iterable[str]) -> list[str]:
        """Return the names and patterns that none of these streams has; `*` is not one of them."""
        names = tuple(streams)
        return sorted(old for old, _ in self.names if old != "*" and not any(_matched(old, name) for name in names))

    def among(self, streams: Iterable[str]) -> RenameOptions:
        """Return it without those names and patterns."""
        unknown = self.unknown(streams)
        return RenameOptions(tuple(pair for pair in self.names if pair[0] not in unknown))


@dataclass(frozen=True, slots=True)
class Renames:
    """New names by old ones, and the maps for subjects of renamed buckets."""

    names: tuple[tuple[str, str], ...] = ()
    subjects: SubjectMaps = UNTOUCHED

    def __bool__(self) -> bool:
        return bool(self.names)

    def name(self, old: str) -> str:
        """Return the new name of a stream; the old one if it is not renamed."""
        return dict(self.names).get(old, old)

    def object_bucket(self, old: str) -> str:
        """Return the new name of an object bucket; the old one if it is not renamed."""
        return bucket_of(self.name(StreamKind.OBJECT + old))[1] if _BUCKET.fullmatch(old) else old

    def does(self, subject_map: SubjectMap) -> bool:
        """Return whether the renaming of a bucket includes what a map does."""
        whole = self.subjects.whole(subject_map.source)
        return (
            whole is not None and "*" not in subject_map.source and whole.image(subject_map.source) == subject_map.dest
        )

    def config(self, config: JsonObject) -> JsonObject:
        """Return a stream's config under its new name, with the new names of its origins in the same account."""
        config = dict(config)
        if isinstance(config.get("name"), str):
            config["name"] = self.name(config["name"])
        if isinstance(config.get("mirror"), dict):
            config["mirror"] = self._origin(config["mirror"])
        if isinstance(config.get("sources"), list):
            config["sources"] = [self._origin(o) if isinstance(o, dict) else o for o in config["sources"]]
        return config

    def _origin(self, origin: JsonObject) -> JsonObject:
        if origin.get("external") or not isinstance(origin.get("name"), str):
            return origin
        return {**origin, "name": self.name(origin["name"])}


def _matched(old: str, name: str) -> bool:
    before, star, after = old.partition("*")
    if not star:
        return old == name
    return name.startswith(before) and name.endswith(after) and len(name) >= len(before) + len(after)


def _new_name(old: str, new: str, name: str) -> str | None:
    """Return the new name of a stream by one OLD=NEW; None if it is not meant."""
    if not _matched(old, name):
        return None
    before, star, after = old.partition("*")
    kept = name[len(before) : len(name) - len(after)] if star else ""
    kind = bucket_of(name)[0]
    front = kind if star and not before and kept.startswith(kind) else ""
    starts, _, ends = new.partition("*")
    return f"{front}{starts}{kept.removeprefix(front)}{ends}"


def _check_name(name: str) -> None:
    if not is_new_name(name):
        raise UsageError(
            f"--rename: not a stream name: {name[:80]!r}",
            hint="Names are one to 255 bytes without spaces, dots, slashes and the wildcards * and >.",
        )


def _check_kinds(old: str, new: str) -> None:
    if old.startswith("$MQTT_"):
        raise UsageError(f"{old[:80]} cannot be renamed: the server finds it by its name")
    was, becomes = bucket_of(old)[0], bucket_of(new)[0]
    if was is not becomes:
        raise UsageError(
            f"{old[:80]} is {_SAID[was]} and cannot become {new[:80]}, which is {_SAID[becomes]}",
            hint="Clients find buckets by the names of their streams: rename KV_a to KV_b, OBJ_a to OBJ_b.",
        )
    for kind in (StreamKind.KEY_VALUE, StreamKind.OBJECT):
        if becomes is StreamKind.STREAM and new.startswith(kind) and not old.startswith(kind):
            raise UsageError(f"{new[:80]} would look like {_SAID[kind]}, but buckets cannot have that name")


def _check_distinct(names: Iterable[tuple[str, str]]) -> None:
    taken: dict[str, str] = {}
    for old, new in names:
        other = taken.setdefault(new, old)
        if other != old:
            raise UsageError(f"{other[:80]} and {old[:80]} would both be called {new[:80]}")
