"""What servers refuse about a configuration, as far as it is known before a restore.

As nats-server checks it (`checkStreamCfg` in its stream.go, `addConsumerWithAssignment` and `checkConsumerCfg` in its
consumer.go, 2.10 to 2.15). Of most settings only what `--set` has changed is checked: everything else was accepted by
the server that was backed up. What copies and maps subjects is always checked, and what is as that
server accepted it is a warning: should we be wrong, nothing keeps a stream from being restored. Not checked: limits in
the server's configuration file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, combinations, permutations

from jsbackup.errors import FormatError
from jsbackup.model import JsonObject
from jsbackup.names import BLANKS, has_blank, is_new_name
from jsbackup.planning.configs.features import Version, version_text
from jsbackup.planning.configs.overrides import about_unit
from jsbackup.planning.model import Action, RestoreOptions, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.planning.subjects import first_overlap
from jsbackup.readable import format_count
from jsbackup.repository.manifest import ArchiveFormat
from jsbackup.shell import shell_word
from jsbackup.times import ZERO_TIME, parse_time
from jsbackup.transforms.subjects import contains, is_literal, is_pattern, overlaps

__all__ = ["about_server_rules", "against_server_rules", "mapping_problems"]


# --- mapping rules ---
#
# What servers refuse about mirrors, sources, subject transforms and republishing.
#
# As nats-server checks it (`checkStreamCfg` in its stream.go, 2.10 to 2.15). All of it is checked, also what `--set`
# does not change: another server may have accepted it, new names and subjects may not fit together, and a declared
# configuration was never accepted by any. Circles of streams, and what depends on other streams, are checked by
# `copies/mirrors.py`.
#
# Whether a server can map one subject to another one: subject transforms, and what it republishes.
#
# As nats-server checks it (`ValidateMapping` in its sublist.go, `NewSubjectTransform` in its subject_transform.go, 2.10
# to 2.15). A destination has no wildcards: `$1` and `{{wildcard(1)}}` stand for the first `*` of the source. Other
# functions make a token of several, of a part of one, or of none.

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

_Problem = tuple[Sequence[str], str]  # the fields that take part, and the reason


def mapping_problems(name: str, config: JsonObject, version: Version) -> Iterator[_Problem]:
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
    pairs = ((one, other) for one, other in combinations(_transform_filters(transforms), 2) if overlaps(one, other))
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
        filters = _transform_filters(transforms) if checked else []
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


def _transform_filters(transforms: Sequence[JsonObject]) -> list[str]:
    return [_text(one, "src") for one in transforms]


def _overlapping(one: str, other: str) -> str:
    return f"transforms of {one or _EVERYTHING} and {other or _EVERYTHING}, which overlap"


def _of_republish(name: str, republish: JsonObject, config: JsonObject, version: Version) -> Iterator[_Problem]:
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


_SECOND_NS = 1_000_000_000
_LEAST_NS = _SECOND_NS // 10
_MOST_DESCRIPTION = 4096
_MOST_MSG_SIZE = (1 << 31) - 1
_MOST_METADATA = 128 << 10
_RESERVED: Mapping[str, str] = {"$JS.>": "$JS.EVENT.>", "$JSC.>": "", "$NRG.>": "", "$SYS.>": "$SYS.ACCOUNT.>"}
_NOT_ON_MIRRORS = (
    "subjects",
    "sources",
    "first_seq",
    "allow_msg_counter",
    "allow_atomic",
    "allow_batched",
    "allow_msg_schedules",
    "subject_delete_marker_ttl",
)
_NOT_ON_COUNTERS = ("allow_msg_ttl", "subject_delete_marker_ttl")  # a marker has a TTL
_WITHOUT = "Restore it with --consumers none, and create its consumers again."


def against_server_rules(action: Action, target: Target, options: RestoreOptions) -> Iterator[Finding]:
    """Yield refusals of what a server would refuse, or lose messages by."""
    changed = options.fields.keys()
    name, config = action.entry.name, action.config
    for fields, reason in _always_checked(action, target):
        if not _was_accepted(action, fields):
            hint = _put_right(fields, changed) if changed & set(fields) else _leave_out(fields[0], name)
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    for fields, reason in _of_schedules(config, target.version):
        hint = _put_right(fields, changed) if changed & set(fields) else _leave_out(fields[0], name)
        yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    rules = (_of_fields(config, options.unitless), _of_combinations(config), _of_subjects(config)) if changed else ()
    for fields, reason, hint in chain.from_iterable(rules):
        if changed & set(fields):
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint or _put_right(fields, changed))
    for field, reason, hint in _of_consumers(action):
        # No update can lower it there (`until_consumers`).
        if field in changed or (field == "max_consumers" and target.version < (2, 12)):
            yield Finding(name, Rule.SERVER_REFUSES, reason, hint)
    if "first_seq" in changed:
        yield from _against_first_seq(action, target)


def about_server_rules(action: Action, target: Target) -> Iterator[Finding]:
    """Yield warnings of what the target may refuse, although the server that was backed up had accepted it."""
    name = action.entry.name
    for fields, reason in _always_checked(action, target):
        if _was_accepted(action, fields):
            yield Finding(name, Rule.MAY_BE_REFUSED, reason, _leave_out(fields[0], name))


def _always_checked(action: Action, target: Target) -> Iterator[tuple[Sequence[str], str]]:
    yield from _of_numbers(action.config)
    yield from mapping_problems(action.name, action.config, target.version)


def _was_accepted(action: Action, fields: Sequence[str]) -> bool:
    """Return whether a server had a stream of this name with these fields. One that was imported was on none."""
    entry, config = action.entry, action.config
    same = action.name == entry.name and all(config.get(field) == entry.config.get(field) for field in fields)
    return same and entry.created != ZERO_TIME


_Found = tuple[Sequence[str], str, str]  # the fields that take part, the reason, a hint or ""


def _put_right(fields: Sequence[str], changed: Collection[str]) -> str:
    return f"Correct --set {next(field for field in fields if field in changed)}, or leave it out."


def _leave_out(field: str, name: str) -> str:
    return (
        f"Change it with --set {field}=…, leave it out with --set {field}=null, or leave the stream out with --exclude "
        f"{shell_word(name)}."
    )


def _of_numbers(config: JsonObject) -> Iterator[tuple[Sequence[str], str]]:
    """Yield numbers that do not fit into the server's types."""
    if (size := config.get("max_msg_size") or 0) > _MOST_MSG_SIZE:
        yield ("max_msg_size",), f"would have a max_msg_size of {size:,}; at most {_MOST_MSG_SIZE:,} is possible"
    if (config.get("first_seq") or 0) < 0:
        yield ("first_seq",), "would have a negative first_seq"


def _of_fields(config: JsonObject, unitless: Collection[str]) -> Iterator[_Found]:
    """Yield what single fields must not be."""
    for field in ("max_age", "duplicate_window"):
        value = config.get(field) or 0
        if value < 0:
            yield (field,), f"would have a negative {field}", ""
        elif 0 < value < _LEAST_NS:
            yield (
                (field,),
                f"would have a {field} of {_seconds(value)}; the least is 0.1 s",
                about_unit(field, value, unitless),
            )
    marker_ttl = config.get("subject_delete_marker_ttl") or 0
    if marker_ttl < 0:
        yield ("subject_delete_marker_ttl",), "would have a negative subject_delete_marker_ttl", ""
    elif 0 < marker_ttl < _SECOND_NS:
        reason = f"would have a subject_delete_marker_ttl of {_seconds(marker_ttl)}; the least is 1 s"
        yield ("subject_delete_marker_ttl",), reason, about_unit("subject_delete_marker_ttl", marker_ttl, unitless)
    if (length := len((config.get("description") or "").encode(errors="surrogatepass"))) > _MOST_DESCRIPTION:
        yield ("description",), f"would have a description of {length:,} bytes; at most 4,096 are allowed", ""
    size = sum(len(key.encode()) + len(str(value).encode()) for key, value in (config.get("metadata") or {}).items())
    if size > _MOST_METADATA:
        yield ("metadata",), f"would have metadata of {size:,} bytes; at most {_MOST_METADATA:,} are allowed", ""
    if (config.get("placement") or {}).get("preferred"):
        yield ("placement",), "would have a placement with a preferred server, which is not allowed", ""
    if (config.get("num_replicas") or 1) > 5 or (config.get("num_replicas") or 1) < 0:
        yield ("num_replicas",), f"would have {config['num_replicas']} replicas; 1 to 5 are possible", ""


def _of_combinations(config: JsonObject) -> Iterator[_Found]:
    """Yield which fields exclude or need each other."""
    discards_new = config.get("discard") == "new"
    if config.get("discard_new_per_subject"):
        if not discards_new:
            fields = ("discard_new_per_subject", "discard")
            yield fields, "would have discard_new_per_subject without discard new", "Add --set 'discard=\"new\"'."
        if (config.get("max_msgs_per_subject") or 0) <= 0:
            fields = ("discard_new_per_subject", "max_msgs_per_subject")
            yield fields, "would have discard_new_per_subject without max_msgs_per_subject", ""
    if config.get("deny_purge") and config.get("allow_rollup_hdrs"):
        yield ("deny_purge", "allow_rollup_hdrs"), "would have deny_purge and allow_rollup_hdrs, which needs purges", ""
    if config.get("mirror"):
        for field in _NOT_ON_MIRRORS:
            if config.get(field):
                leave_out = f"Add --set {field}=null, or leave the mirror out with --set mirror=null."
                yield ("mirror", field), f"would be a mirror with {field}, which a mirror must not have", leave_out
    if config.get("sources") and config.get("allow_msg_schedules"):
        yield (
            ("sources", "allow_msg_schedules"),
            "would have sources and allow_msg_schedules, which exclude each other",
            "",
        )
    if config.get("allow_msg_counter"):
        for field in _NOT_ON_COUNTERS:
            if config.get(field):
                reason = f"would have allow_msg_counter and {field}, which exclude each other"
                yield ("allow_msg_counter", field), reason, ""
        if discards_new:
            reason = "would have allow_msg_counter and discard new, which exclude each other"
            yield ("allow_msg_counter", "discard"), reason, ""
        if config.get("retention", "limits") != "limits":
            fields = ("allow_msg_counter", "retention")
            yield fields, "would have allow_msg_counter, which is for retention limits only", ""
    if config.get("persist_mode") == "async":
        if config.get("storage", "file") != "file":
            yield ("persist_mode", "storage"), "would have persist_mode async, which is for storage file only", ""
        if config.get("allow_atomic"):
            fields = ("persist_mode", "allow_atomic")
            yield fields, "would have persist_mode async and allow_atomic, which exclude each other", ""


def _of_schedules(config: JsonObject, version: Version) -> Iterator[tuple[Sequence[str], str]]:
    """Yield what servers refuse that an older one accepted. Measured: 2.12.8 takes both, 2.14.6 and 2.15.3 neither."""
    if not config.get("allow_msg_schedules") or version < (2, 14):
        return
    exclude = f"which {version_text(version)} does not allow"
    if config.get("discard") == "new":
        yield ("discard", "allow_msg_schedules"), f"would have discard new and allow_msg_schedules, {exclude}"
    if config.get("allow_msg_counter"):
        fields = ("allow_msg_schedules", "allow_msg_counter")
        yield fields, f"would have allow_msg_counter and allow_msg_schedules, {exclude}"


def _of_subjects(config: JsonObject) -> Iterator[_Found]:
    subjects = [one for one in config.get("subjects") or () if isinstance(one, str)]
    for number, subject in enumerate(subjects):
        if not is_pattern(subject):
            yield ("subjects",), f"would have {subject[:80]!r} among its subjects, which is none", ""
            continue
        later = [one for one in subjects[number + 1 :] if is_pattern(one)]
        if subject in later:
            yield ("subjects",), f"would have the subject {subject} twice", ""
        elif pair := first_overlap([subject], later):
            yield ("subjects",), f"would have the subject {subject}, which overlaps with its subject {pair[1]}", ""
        if not config.get("no_ack"):
            yield from _without_no_ack(subject)
        elif subject == _EVERYTHING and (config.get("num_replicas") or 1) != 1:
            yield ("subjects", "num_replicas"), "would have the subject >, which is for one replica only", ""


def _without_no_ack(subject: str) -> Iterator[_Found]:
    if subject == _EVERYTHING:
        yield ("subjects", "no_ack"), "would have the subject >, which needs no_ack", "Add --set no_ack=true."
        return
    for reserved, allowed in _RESERVED.items():
        if overlaps(subject, reserved) and not (allowed and contains(allowed, subject)):
            reason = f"its subject {subject} overlaps with {reserved} of the server, which needs no_ack"
            yield ("subjects", "no_ack"), reason, "Add --set no_ack=true."


def _of_consumers(action: Action) -> Iterator[tuple[str, str, str]]:
    """Yield what the stream would have against its consumers: the field, the reason and a hint."""
    config = action.config
    consumers = {
        one.consumer.name: one.consumer.config
        for one in action.consumers
        if not one.consumer.config.get("direct") and not one.consumer.config.get("sourcing")
    }
    if 0 < (most := config.get("max_consumers") or 0) < len(consumers):
        reason = f"has {format_count(len(consumers), 'consumer')}, and would have a max_consumers of {most}"
        yield "max_consumers", reason, "Restore it with --consumers none, or raise max_consumers."
    limits = config.get("consumer_limits") or {}
    for name, its in consumers.items():
        for field in ("inactive_threshold", "max_ack_pending"):
            limit, value = limits.get(field) or 0, its.get(field) or 0
            if 0 < limit < value:
                reason = f"consumer {name} has {field} {value}, and consumer_limits would allow {limit}"
                yield "consumer_limits", reason, f"Raise it, or: {_WITHOUT[0].lower()}{_WITHOUT[1:]}"
    if config.get("retention") != "workqueue":
        return
    for name, its in consumers.items():
        if its.get("ack_policy", "none") not in ("explicit", "flow_control"):
            yield "retention", f"consumer {name} has no explicit acks, which retention workqueue needs", _WITHOUT
        elif its.get("deliver_policy", "all") != "all":
            reason = f"consumer {name} does not deliver all messages, which retention workqueue needs"
            yield "retention", reason, _WITHOUT
    filters = {name: _filters(its) for name, its in consumers.items()}
    names = list(filters)
    for number, name in enumerate(names):
        for other in names[number + 1 :]:
            if first_overlap(filters[name], filters[other]):
                reason = f"consumers {name} and {other} would get the same messages, which retention workqueue forbids"
                yield "retention", reason, _WITHOUT
                return


def _filters(consumer: JsonObject) -> Sequence[str]:
    filters = consumer.get("filter_subjects") or [consumer.get("filter_subject") or _EVERYTHING]
    return [one for one in filters if isinstance(one, str)]


def _against_first_seq(action: Action, target: Target) -> Iterator[Finding]:
    """Refuse a first sequence above that of the first message: servers then purge what was restored.

    Up to 2.10.27, and 2.11.0 and 2.11.1, also the sequence of that message (`stream_config.py`).
    """
    entry, first_seq = action.entry, action.config.get("first_seq") or 0
    if entry.archive_format is ArchiveFormat.CONFIG:
        return
    first = entry.captured.first_seq if entry.captured.messages else entry.state.last_seq + 1
    buggy = target.version < (2, 10, 28) or (2, 11) <= target.version < (2, 11, 2)
    if first_seq > first or (buggy and first_seq == first and entry.captured.messages):
        reason = f"would lose all its messages by a first_seq of {first_seq:,}: its first one has sequence {first:,}"
        if not entry.captured.messages:
            reason = f"would have a first_seq of {first_seq:,}, and continues with sequence {first:,}"
        hint = "Leave first_seq out: restored messages keep their sequences."
        yield Finding(entry.name, Rule.FIRST_SEQ_EMPTIES, reason, hint)


def _seconds(value_ns: int) -> str:
    return f"{value_ns / _SECOND_NS:g} s"
