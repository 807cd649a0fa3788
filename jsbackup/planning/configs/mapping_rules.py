"""What servers refuse about mirrors, sources, subject transforms and republishing.

As nats-server checks it (`checkStreamCfg` in its stream.go, 2.10 to 2.15). All of it is checked, also what `--set` does
not change: another server may have accepted it, new names and subjects may not fit together, and a declared
configuration was never accepted by any. Circles of streams, and what depends on other streams, are checked by
`copies/mirrors.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations, permutations

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS, is_new_name
from jsbackup.planning.configs.features import Version
from jsbackup.planning.configs.subject_mappings import is_server_subject, mapping_problem
from jsbackup.planning.subjects import first_overlap
from jsbackup.times import parse_time
from jsbackup.transforms.subjects import contains, is_literal, is_pattern, overlaps

__all__ = ["mapping_problems"]

_EVERYTHING = ">"
_API = "$JS.API"
_UINT64 = (1 << 64) - 1

_Found = tuple[Sequence[str], str]  # the fields that take part, and the reason


def mapping_problems(name: str, config: JsonObject, version: Version) -> Iterator[_Found]:
    """Yield what servers of this version refuse about the configuration of the stream `name`: the fields that take
    part, and the reason, as in `stream ORDERS: <reason>`.
    """
    if mirror := _object(config, "mirror"):
        for reason in _of_mirror(mirror, version):
            yield ("mirror",), reason
    for reason in _of_sources(_objects(config, "sources"), version):
        yield ("sources",), reason
    transform = _object(config, "subject_transform")
    if problem := _transform_problem(transform, version, lenient=version < (2, 11)):
        yield ("subject_transform",), f"would have a subject_transform that is not possible: {problem}"
    if republish := _object(config, "republish"):
        yield from _of_republish(name, republish, config, version)


# What is of another type is not checked.


def _text(values: JsonObject, field: str) -> str:
    value = values.get(field)
    return value if isinstance(value, str) else ""


def _object(values: JsonObject, field: str) -> JsonObject:
    value = values.get(field)
    return value if isinstance(value, dict) else {}


def _objects(values: JsonObject, field: str) -> list[JsonObject]:
    value = values.get(field)
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


# --- mirrors and sources ---


def _of_mirror(mirror: JsonObject, version: Version) -> Iterator[str]:
    origin, transforms = _text(mirror, "name"), _objects(mirror, "subject_transforms")
    called = f"its mirror of {origin}"
    yield from _of_upstream(called, mirror, version)
    if not mirror.get("external") and not _is_stream_name(origin, version):
        yield f"would be a mirror of {origin[:80]!r}, which is not a valid stream name"
    if mirror.get("filter_subject") and transforms:
        yield f"{called} would have filter_subject and subject_transforms, which exclude each other"
    for problem in _of_transforms(transforms, version, lenient=version < (2, 11)):
        yield f"{called} would have a transform that is not possible: {problem}"
    pairs = ((one, other) for one, other in combinations(_filters(transforms), 2) if overlaps(one, other))
    if pair := next(pairs, None):
        yield f"{called} would have {_overlapping(*pair)}"


def _of_sources(sources: Sequence[JsonObject], version: Version) -> Iterator[str]:
    seen: set[object] = set()
    readers: set[object] = set()
    for source in sources:
        origin, transforms = _text(source, "name"), _objects(source, "subject_transforms")
        external = source.get("external")
        called = f"its source {origin}"
        if not _is_stream_name(origin, version):
            yield f"would have the source {origin[:80]!r}, which is not a valid stream name"
        if (identity := _identity(source, version)) in seen:
            yield f"would have the source {origin} twice, with the same filter and transforms"
        seen.add(identity)
        yield from _of_upstream(called, source, version)
        if (reader := _text(_object(source, "consumer"), "name")) and version >= (2, 14):
            if (origin, _api_of(source), reader) in readers:
                yield f"would have two sources {origin} that use the consumer {reader}"
            readers.add((origin, _api_of(source), reader))
        checked = not external or version >= (2, 12)
        if checked and source.get("filter_subject") and transforms:
            yield f"{called} would have filter_subject and subject_transforms, which exclude each other"
        unlooked = bool(external) and version < (2, 11)
        for problem in _of_transforms(transforms, version, lenient=unlooked, needs_source=not unlooked):
            yield f"{called} would have a transform that is not possible: {problem}"
        filters = _filters(transforms) if checked else []
        pairs = ((one, other) for one, other in permutations(filters, 2) if other and contains(other, one))
        if pair := next(pairs, None):
            yield f"{called} would have {_overlapping(*pair)}"


def _of_upstream(called: str, upstream: JsonObject, version: Version) -> Iterator[str]:
    """Yield what a mirror and a source must not have."""
    if (wanted := _text(upstream, "filter_subject")) and not is_server_subject(wanted):
        yield f"{called} would have the filter_subject {wanted[:80]!r}, which is not a valid subject"
    first = upstream.get("opt_start_seq")
    if isinstance(first, int) and not 0 <= first <= _UINT64:
        yield f"{called} would have an opt_start_seq of {first}"
    start = upstream.get("opt_start_time")
    if isinstance(start, str) and not _is_time(start):
        yield f"{called} would have the opt_start_time {start[:80]!r}, which is not a time in RFC 3339"
    external = _object(upstream, "external")
    api, deliver = _text(external, "api"), _text(external, "deliver")
    for field, prefix in (("api", api), ("deliver", deliver)):
        if prefix and not _is_published(prefix):
            yield f"{called} would have the external {field} prefix {prefix[:80]!r}, which has to be a plain subject"
    if api == _API:
        yield f"{called} would have the external api prefix {_API}, which is that of its own account"
    if isinstance(consumer := upstream.get("consumer"), dict) and version >= (2, 14):
        if not is_new_name(_text(consumer, "name")) or not _is_published(_text(consumer, "deliver_subject")):
            yield f"{called} would have a consumer without a valid name and deliver_subject"
        for field in ("opt_start_seq", "opt_start_time", "filter_subject"):
            if upstream.get(field):
                yield f"{called} would have a consumer and {field}, which exclude each other"


def _is_stream_name(text: str, version: Version) -> bool:
    """Return whether servers take it for a name, of any length."""
    return text != "" and not set(text) & set(BLANKS + (".*>" if version < (2, 12) else ".*>/\\"))


def _is_published(subject: str) -> bool:
    return is_server_subject(subject) and is_literal(subject)


def _is_time(text: str) -> bool:
    try:
        parse_time(text)
    except FormatError:
        return False
    return True


def _identity(source: JsonObject, version: Version) -> object:
    """Return what servers tell sources apart by."""
    transforms = _objects(source, "subject_transforms")
    mapped = [(_text(one, "src") or _EVERYTHING, _text(one, "dest") or _EVERYTHING) for one in transforms]
    consumer = _object(source, "consumer")
    reader = _text(consumer, "name") if consumer and version >= (2, 14) else None
    plain = [(_text(source, "filter_subject") or _EVERYTHING, _EVERYTHING)]
    return _text(source, "name"), _api_of(source), reader, tuple(mapped or plain)


def _api_of(source: JsonObject) -> str | None:
    external = source.get("external")
    return _text(external, "api") if isinstance(external, dict) else None


# --- transforms ---


def _of_transforms(
    transforms: Sequence[JsonObject], version: Version, *, lenient: bool, needs_source: bool = True
) -> Iterator[str]:
    """`needs_source`: servers before 2.11 want a valid source, even where an empty one is `>`."""
    for transform in transforms:
        if version < (2, 11) and needs_source and not is_server_subject(_text(transform, "src")):
            yield "the source is not a valid subject"
        elif problem := _transform_problem(transform, version, lenient=lenient):
            yield problem


def _transform_problem(transform: JsonObject, version: Version, *, lenient: bool) -> str | None:
    source, destination = _text(transform, "src"), _text(transform, "dest")
    if source and not lenient and not is_server_subject(source):
        return "the source is not a valid subject"
    problem = mapping_problem(source, destination, version, lenient=lenient)
    return None if problem is None else f"from {source or _EVERYTHING} to {destination}: {problem}"


def _filters(transforms: Sequence[JsonObject]) -> list[str]:
    return [_text(one, "src") for one in transforms]


def _overlapping(one: str, other: str) -> str:
    return f"transforms of {one or _EVERYTHING} and {other or _EVERYTHING}, which overlap"


def _of_republish(name: str, republish: JsonObject, config: JsonObject, version: Version) -> Iterator[_Found]:
    fields = ("republish", "subjects", "subject_transform")
    source, destination = _text(republish, "src") or _EVERYTHING, _text(republish, "dest")
    there = config.get("subjects") or []
    subjects = [one for one in there if isinstance(one, str) and is_pattern(one)] if isinstance(there, list) else []
    if not there and not config.get("mirror") and not config.get("sources"):
        subjects = [name]
    transform = _object(config, "subject_transform")
    everything = source == destination == _EVERYTHING
    if everything and version >= (2, 11) and there == [_text(transform, "src")]:
        source = destination = _text(transform, "dest")  # what the transform has made is republished
    if is_pattern(destination) and (pair := first_overlap([destination], subjects)):
        yield fields, f"would republish to {destination}, which overlaps with its subject {pair[1]}: a cycle"
    elif problem := mapping_problem(source, destination, version, lenient=True):
        yield fields, f"would republish from {source} to {destination}, which is not possible: {problem}"
