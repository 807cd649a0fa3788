"""What servers refuse about mirrors, sources, subject transforms and republishing.

As nats-server checks it (`checkStreamCfg` in its stream.go, 2.10 to 2.15). All of it is checked, also what `--set` does
not change: another server may have accepted it, new names and subjects may not fit together, and a declared
configuration was never accepted by any. Circles of streams, and what depends on other streams, are checked by
`copies/mirrors.py`.

Whether a server can map one subject to another one: subject transforms, and what it republishes.

As nats-server checks it (`ValidateMapping` in its sublist.go, `NewSubjectTransform` in its subject_transform.go, 2.10
to 2.15). A destination has no wildcards: `$1` and `{{wildcard(1)}}` stand for the first `*` of the source. Other
functions make a token of several, of a part of one, or of none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS, has_blank, is_new_name
from jsbackup.planning.configs.features import Version
from jsbackup.planning.subjects import first_overlap
from jsbackup.readable import format_count
from jsbackup.times import parse_time
from jsbackup.transforms.subjects import contains, is_literal, is_pattern, overlaps

__all__ = ["mapping_problems"]

_INT32, _INT64 = 1 << 31, 1 << 63
_NUMBER = re.compile(r"[+-]?[0-9]+", re.ASCII)
_BLANK = f"[{BLANKS}]"
# In this order; the server looks for them anywhere between the braces.
_FUNCTIONS: Mapping[str, re.Pattern[str]] = {
    name: re.compile(rf"\{{\{{{_BLANK}*{word}{_BLANK}*\((.*)\){_BLANK}*\}}\}}")
    for name, word in {
        "wildcard": "[wW]ildcard",
        "partition": "[pP]artition",
        "splitfromleft": "[sS]plit[fF]rom[lL]eft",
        "splitfromright": "[sS]plit[fF]rom[rR]ight",
        "slicefromleft": "[sS]lice[fF]rom[lL]eft",
        "slicefromright": "[sS]lice[fF]rom[rR]ight",
        "right": "[rR]ight",
        "left": "[lL]eft",
        "split": "[sS]plit",
        "random": "[rR]andom",
    }.items()
}
_ANYWHERE = ("partition", "random")  # which need no wildcard in the source


def is_server_subject(text: str) -> bool:
    """Return whether servers take it for a subject, with or without wildcards (`IsValidSubject`)."""
    return not has_blank(text) and _is_tokens(text)


def mapping_problem(source: str, destination: str, version: Version, *, lenient: bool = False) -> str | None:
    """Return why servers of this version cannot map what matches `source` to `destination`; None if they can. An empty
    source is `>`, an empty destination changes nothing. `lenient`: as servers treat what is republished.
    """
    source = source or ">"
    if not destination:
        return None
    if not _is_tokens(destination) or (not lenient and _has_blank_token(destination)):
        return "the destination is not a valid subject"
    if not _is_tokens(source):
        return "the source is not a valid subject"
    sources, tokens = source.split("."), destination.split(".")
    if "*" in tokens:
        return "the destination has a wildcard *; $1 stands for the first * of the source"
    if (sources[-1] == ">") != (tokens[-1] == ">"):
        return "source and destination must both end with >, or neither"
    wildcards = sources.count("*")
    may_need_none = version >= (2, 12)
    lacks_wildcards = not wildcards and (sources[-1] != ">" or not may_need_none)
    for token in tokens:
        function, problem = _read_token(token, version, lenient=lenient)
        if problem or function is None:
            pass
        elif lacks_wildcards and not (function.name in _ANYWHERE and may_need_none):
            problem = "the source has no wildcard *"
        elif not lacks_wildcards and any(index > wildcards for index in function.wildcards):
            problem = f"the source has {format_count(wildcards, 'wildcard')} *"
        if problem:
            return f"{token} in the destination: {problem}"
    return None


@dataclass(frozen=True, slots=True)
class _Function:
    """A token that is made from the wildcards with these numbers. Servers accept 0 and less."""

    name: str
    wildcards: Sequence[int]


def _is_tokens(text: str) -> bool:
    tokens = text.split(".")
    return "" not in tokens and ">" not in tokens[:-1]


def _is_function(token: str) -> bool:
    return len(token) > 4 and token.startswith("{{") and token.endswith("}}")


def _has_blank_token(destination: str) -> bool:
    return any(has_blank(token) for token in destination.split(".") if not _is_function(token))


def _read_token(token: str, version: Version, *, lenient: bool) -> tuple[_Function | None, str]:
    """Return the function that a token of a destination is, if it is one, and what is wrong with it, or ""."""
    if token.startswith("$") and (number := _number(token[1:])) is not None:
        return _Function("wildcard", [number]), ""
    if not _is_function(token):
        return None, ""
    found = ((name, pattern.search(token)) for name, pattern in _FUNCTIONS.items())
    name, match = next(((name, match) for name, match in found if match), ("", None))
    if match is None or (name == "random" and version < (2, 12)):
        return None, "there is no such function"
    if name in ("left", "right") and not lenient and version < (2, 15):
        return None, f"there is no function {name} here before nats-server 2.15"
    arguments = re.split(f",{_BLANK}*", match[1])
    if name == "split":
        number = _number(arguments[0].strip(" "))
        if len(arguments) != 2 or number is None or " " in arguments[1]:
            return None, "it takes the number of a wildcard, and a delimiter"
        return _Function(name, [number]), ""
    given = [number for argument in arguments if (number := _number(argument.strip(" "))) is not None]
    if len(given) < len(arguments) or not _takes(name, given, version):
        return None, "its arguments are not such as it takes"
    return _Function(name, given[1:] if name in _ANYWHERE else given[:1]), ""


def _takes(name: str, given: Sequence[int], version: Version) -> bool:
    if name == "wildcard":
        return len(given) == 1
    if name not in _ANYWHERE:
        most = _INT32 if version >= (2, 11) else _INT64
        return len(given) == 2 and -most <= given[1] < most
    most = _INT32 if version >= (2, 12) else _INT64
    if name == "random":
        return len(given) == 1 and given[0] < most
    return len(given) >= (1 if version >= (2, 12) else 2) and given[0] < most


def _number(text: str) -> int | None:
    number = int(text) if _NUMBER.fullmatch(text) and len(text) < 30 else None
    return number if number is not None and -_INT64 <= number < _INT64 else None


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
