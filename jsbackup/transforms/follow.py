"""Adapt the configurations of a stream and its consumers when messages get other subjects.

| field | change |
| --- | --- |
| `subjects` | covers the same messages; a pattern that is mapped in part is kept beside its image |
| `subject_transform` | maps from mapped subjects to mapped subjects |
| `republish` | likewise; a source of all, or one that contains its images, stays |
| `mirror`, `sources` | filters and transforms are mapped on the origin's side if it is mapped too, and on our side |
| `filter_subject(s)` of a consumer | selects the same messages |
| deliver subjects | stay: nothing of the stream is stored under them |

`held_by` says whether a stream may have reserved subjects (`subject_map.py`); patterns such as `>` do not. Copying from
an origin that is not mapped continues to bring the old subjects: `arriving_unmapped` reports that. A change that the
server's syntax cannot express is a PlanRefused with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jsbackup.errors import FormatError, PlanRefused, UsageError
from jsbackup.model import JsonObject
from jsbackup.transforms.rename import subjects_of_bucket
from jsbackup.transforms.subject_map import SubjectMaps, wildcard_of
from jsbackup.transforms.subjects import contains, overlaps

__all__ = [
    "arriving_unmapped",
    "held_by",
    "map_consumer_config",
    "map_stream_config",
    "may_hold",
    "origins_of",
    "subjects_of",
]

_ALL = ("", ">")


def subjects_of(config: JsonObject) -> Sequence[str]:
    """Return patterns of what a stream may hold: its subjects, or all if it is also filled in another way."""
    subjects = _texts("subjects", config.get("subjects"))
    if not subjects or config.get("mirror") or config.get("sources") or config.get("subject_transform"):
        return (">",)
    return subjects


def origins_of(config: JsonObject) -> Iterator[JsonObject]:
    """Yield the mirror and the sources of a stream's config. Raises FormatError."""
    mirror, sources = config.get("mirror"), config.get("sources")
    if sources is not None and not isinstance(sources, list):
        raise FormatError("sources are damaged")
    for origin in (*([] if mirror is None else [mirror]), *(sources or ())):
        if not isinstance(origin, dict) or not isinstance(origin.get("name"), str):
            raise FormatError("mirror or sources are damaged")
        yield origin


def held_by(config: JsonObject) -> Sequence[str]:
    """Return patterns of what a stream holds, as far as its config says; `>` for an unknown origin.

    Raises FormatError.
    """
    held = [] if config.get("mirror") else list(_texts("subjects", config.get("subjects")))
    if config.get("subject_transform"):
        held += _led_to("subject_transform", [config["subject_transform"]])
    for origin in origins_of(config):
        transforms = _transforms(origin)
        held += _led_to("subject_transforms", transforms) if transforms else [_brought_by(origin)]
    return held


def may_hold(config: JsonObject, restored: Collection[str]) -> Sequence[str]:
    """Return patterns of all that a stream may hold, except what it copies from origins that are `restored` too.

    Raises FormatError.
    """
    others = [origin for origin in origins_of(config) if not _is_mapped(origin, restored) or _transforms(origin)]
    if config.get("mirror"):
        held = held_by({"mirror": others[0]}) if others else []
    else:
        held = held_by({**config, "sources": others})
    return [_as_pattern(subject) for subject in held] or ([] if any(origins_of(config)) else [">"])


def _as_pattern(dest: str) -> str:
    """Return a pattern of all results of a transform's destination. A function of the server may produce any tokens."""
    tokens = dest.split(".")
    for at, token in enumerate(tokens):
        if "{{" in token:
            return ".".join([*tokens[:at], ">"])
        if re.fullmatch(r"\$\d{1,9}", token, re.ASCII):
            tokens[at] = "*"
    return ".".join(tokens)


def _brought_by(origin: JsonObject) -> str:
    """Return a pattern of what comes from an origin without transforms."""
    pattern = _text("filter_subject", origin.get("filter_subject") or "")
    return subjects_of_bucket(origin["name"]) or ">" if pattern in _ALL else pattern


def _led_to(what: str, transforms: Sequence[Any]) -> list[str]:
    if not all(isinstance(transform, dict) for transform in transforms):
        raise FormatError(f"{what} is damaged")
    return [_text(what, transform.get("dest") or transform.get("src") or ">") for transform in transforms]


def map_stream_config(config: JsonObject, maps: SubjectMaps, mapped: Collection[str]) -> JsonObject:
    """Return the config of a stream whose messages are mapped. `mapped` names the streams that are mapped with it.

    Raises:
        PlanRefused: it cannot be adapted.
        FormatError: a field that names subjects is damaged.
    """
    config = dict(config)
    ours = maps.guarding(held_by(config))
    subjects = _texts("subjects", config.get("subjects"))
    if subjects:
        with _named("subjects"):
            config["subjects"] = list(maps.cover(subjects))
    for key in ("subject_transform", "republish"):
        if config.get(key):
            with _named(key):
                config[key] = _through(key, config[key], ours, maps)
    if config.get("mirror"):
        (mirror,) = origins_of({"mirror": config["mirror"]})
        config["mirror"] = _origin("mirror", mirror, maps, mapped)
    if config.get("sources"):
        sources = origins_of({"sources": config["sources"]})
        config["sources"] = [_origin("sources", origin, maps, mapped) for origin in sources]
    return config


def map_consumer_config(config: JsonObject, maps: SubjectMaps, subjects: Sequence[str] = (">",)) -> JsonObject:
    """Return the config of a consumer of a stream with `subjects` (before they are mapped).

    `maps` are the result of `guarding` for the stream. Raises the same errors as `map_stream_config`.
    """
    single = config.get("filter_subject") or ""
    many = _texts("filter_subjects", config.get("filter_subjects"))
    if not isinstance(single, str):
        raise FormatError("filter_subject is damaged")
    filters = [single] if single else many
    if not filters or filters == [">"]:  # all messages, whatever their subjects
        return config
    with _named("its filter"):
        selected = list(maps.select(filters, subjects))
    if selected == filters:
        return config
    rest = {key: value for key, value in config.items() if key not in ("filter_subject", "filter_subjects")}
    return {**rest, **({"filter_subject": selected[0]} if len(selected) == 1 else {"filter_subjects": selected})}


def arriving_unmapped(config: JsonObject, maps: SubjectMaps, mapped: Collection[str]) -> list[str]:
    """Return the names of origins from which messages continue to arrive whose subjects would have been mapped."""
    subjects = []
    for origin in origins_of(config):
        transforms = _transforms(origin)
        if _is_mapped(origin, mapped) or transforms:
            continue  # the transforms' destinations have been mapped
        if maps.meets(_brought_by(origin)):
            subjects.append(origin["name"])
    return subjects


def _origin(what: str, origin: JsonObject, maps: SubjectMaps, mapped: Collection[str]) -> JsonObject:
    origin = dict(origin)
    theirs = maps.guarding([subjects_of_bucket(origin["name"]) or ">"]) if _is_mapped(origin, mapped) else SubjectMaps()
    if origin.get("filter_subject") not in (None, *_ALL):
        pattern = _text("filter_subject", origin["filter_subject"])
        with _named(f"the filter of {what}"):
            selected = theirs.select([pattern])
        if len(selected) > 1:
            raise PlanRefused(f"{what}: the filter {pattern} would have to be {' and '.join(selected)}")
        origin["filter_subject"] = selected[0]
    transforms = _transforms(origin)
    if transforms:
        with _named(f"a transform of {what}"):
            followed = [_through("subject_transforms", transform, theirs, maps) for transform in transforms]
        origin["subject_transforms"] = followed
        sources = [source.get("src") or ">" for source in followed]
        if any(overlaps(source, other) for at, source in enumerate(sources) for other in sources[:at]):
            raise PlanRefused(f"{what}: its transforms would overlap")
    return origin


def _is_mapped(origin: JsonObject, mapped: Collection[str]) -> bool:
    return not origin.get("external") and origin["name"] in mapped


def _transforms(origin: JsonObject) -> list[Any]:
    transforms = origin.get("subject_transforms") or []
    if not isinstance(transforms, list):
        raise FormatError("subject_transforms are damaged")
    return transforms


def _through(what: str, transform: Any, theirs: SubjectMaps, ours: SubjectMaps) -> JsonObject:
    """Return a transform between mapped subjects: from `theirs` to `ours`."""
    if not isinstance(transform, dict):
        raise FormatError(f"{what} is damaged")
    src, dest = (_text(what, transform.get(key) or "") for key in ("src", "dest"))
    if not dest or (src in _ALL and dest in _ALL):  # changes no subject
        return {**transform, **({"src": _source(src, theirs)[0]} if src not in _ALL else {})}
    new_src, places = _source(src, theirs)
    new_dest = _destination(dest, places, ours)
    return {**transform, **({"src": new_src} if "src" in transform else {}), "dest": new_dest}


def _source(src: str, maps: SubjectMaps) -> tuple[str, dict[int, int] | None]:
    """Return the mapped source of a transform, and the new numbers of its wildcards, None if they are unchanged."""
    pattern = src or ">"
    if not maps.meets(pattern) or list(maps.select([pattern])) == [pattern]:
        return src, None
    whole = maps.whole(pattern)
    if whole is None:
        raise PlanRefused(f"{pattern} is mapped in part")
    if loss := whole.loss(pattern):
        raise PlanRefused(f"{pattern} cannot follow its messages: {loss}")
    # Wildcards are mapped as numbered tokens, which then show their new places.
    tokens, count = [], 0
    for token in pattern.split("."):
        count += token == "*"
        tokens.append(f"${count}" if token == "*" else token)
    numbers = [int(token[1:]) for token in whole.substitute(tokens) if re.fullmatch(r"\$\d{1,9}", token, re.ASCII)]
    (image,) = maps.select([pattern])
    return image, {old: new for new, old in enumerate(numbers, start=1)}


def _destination(dest: str, places: dict[int, int] | None, maps: SubjectMaps) -> str:
    """Return the mapped destination of a transform whose wildcards have moved to `places`."""
    tokens = dest.split(".")
    try:
        numbers = [wildcard_of(token) for token in tokens]
    except UsageError as error:
        at = next(at for at, token in enumerate(tokens) if "{{" in token)
        if places is None and not maps.meets(".".join([*tokens[:at], ">"])):
            return dest
        raise PlanRefused(f"{dest[:200]} cannot follow: {error.message}") from error
    if places is not None:
        if missing := [number for number in numbers if number is not None and number not in places]:
            raise PlanRefused(f"{dest[:200]} uses wildcard {missing[0]}, which the map drops")
        tokens = [t if n is None else f"${places[n]}" for t, n in zip(tokens, numbers, strict=True)]
    pattern = ".".join(token if number is None else "*" for token, number in zip(tokens, numbers, strict=True))
    if not maps.meets(pattern):
        return ".".join(tokens)
    whole = maps.whole(pattern)
    if whole is None or not contains(whole.source, pattern):
        raise PlanRefused(f"{dest[:200]} leads to subjects that are mapped in part")
    return ".".join(whole.substitute(tokens))


@contextmanager
def _named(what: str) -> Iterator[None]:
    try:
        yield
    except PlanRefused as error:
        raise PlanRefused(f"{what}: {error.message}", hint=error.hint) from error


def _text(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise FormatError(f"{what} is damaged")
    return value


def _texts(what: str, value: object) -> list[str]:
    if value is None:
        return []
    if not isinstance(value, list) or not all(isinstance(text, str) for text in value):
        raise FormatError(f"{what} are damaged")
    return value
