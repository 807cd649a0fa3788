"""Check mirrors and sources of a plan against the streams that will be at the target when they begin to copy.

Like nats-server (`checkStreamCfg` in its stream.go, 2.10 to 2.14), and some problems that it does not check. Only the
server can see origins behind an `external` API prefix, in other accounts or domains.

Streams at the target that copy from restored or replaced streams, but are not restored themselves.

`transforms/copy_positions.py` explains what they know about the origin. Their messages cannot be changed by a restore,
so a plan reports in numbers what their server will do. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import IDENTITIES_SINCE
from jsbackup.planning.copies.copy_facts import key_of_info, sources_of
from jsbackup.planning.copies.creation_order import origin_names, upstreams_of
from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.read.segments import state_to_restore
from jsbackup.transforms.copy_positions import is_external, source_key
from jsbackup.transforms.subjects import overlaps

__all__ = ["about_origins", "against_origins", "configs_after"]


def about_left_copies(action: Action, brought: Collection[str], target: Target) -> Iterator[Finding]:
    """Yield warnings for one stream of a plan; `brought` are the names of all of them."""
    for name, copy in sorted(target.streams.items()):
        if name in brought or name in target.leftovers:
            continue
        mirror = copy.config.get("mirror")
        if isinstance(mirror, dict) and not is_external(mirror) and mirror.get("name") == action.name:
            yield from _about_mirror(action, copy, target)
        said = {key_of_info(source): source.seq for source in copy.sources}
        for source in sources_of(copy.config):
            if source["name"] == action.name and not is_external(source):
                yield from _about_source(action, name, said.get(source_key(source), 0), target)


def _about_mirror(action: Action, copy: StreamInfo, target: Target) -> Iterator[Finding]:
    end, its = state_to_restore(action.entry).last_seq, copy.state.last_seq
    name = copy.name
    if its > end:
        reason = f"stream {name} is its mirror and ends at sequence {its:,}, this one will end at {end:,}: "
        if target.version[:2] >= IDENTITIES_SINCE:
            reason += f"{name} copies nothing new until sequence {its:,} is passed"
        else:
            reason += f"{name} overwrites what it has with what comes"
        yield Finding(
            action.entry.name, Rule.COPIED_BY, reason, f"Restore {name} as well, or delete and create it again."
        )
    elif action.replaces:
        reason = f"stream {name} is its mirror, keeps what it has and continues after sequence {its:,}"
        yield Finding(action.entry.name, Rule.COPIED_BY, reason, f"Restore {name} as well to keep it identical.")


def _about_source(action: Action, name: str, reached: int, target: Target) -> Iterator[Finding]:
    entry, end = action.entry, state_to_restore(action.entry).last_seq
    live = target.streams.get(action.name)
    hint = f"Restore {name} as well, or delete and create it again."
    newer = target.version[:2] >= IDENTITIES_SINCE
    if live is None:
        if reached > end:
            reason = f"stream {name} has copied from it up to sequence {reached:,}, and this one will end at {end:,}"
            yield Finding(entry.name, Rule.COPIED_BY, reason, hint)
        else:
            reason = f"stream {name} waits to copy from it: the server tries again within two minutes"
            yield Finding(entry.name, Rule.COPIED_BY, reason)
        return
    if not action.replaces and not action.leftover:
        return
    keeps = action.wire is SendAs.V1 and target.clustered is False and not action.alters
    if newer and not (keeps and entry.created == live.created):
        messages = entry.captured.messages
        reason = (
            f"stream {name} copies from it, treats it as a different stream and copies all of it again: "
            f"{format_count(messages, 'message')} at most"
        )
    elif newer and reached > end:
        reason = (
            f"stream {name} has copied from it up to sequence {reached:,}, and this one will end at {end:,}: "
            f"{name} copies nothing new until sequence {reached:,} is passed"
        )
    else:
        where = f"after sequence {reached:,}" if reached else "where it is"
        reason = f"stream {name} copies from it, keeps what it has and continues {where}"
    yield Finding(entry.name, Rule.COPIED_BY, reason, hint)


Configs = Mapping[str, JsonObject]


def against_origins(actions: Sequence[Action], target: Target) -> Iterator[Finding]:
    """Yield refusals: what the server would refuse about mirrors and sources when the whole plan is executed."""
    configs = configs_after(actions, target)
    for action in actions:
        if circle := _circle(action.name, action.config, configs):
            yield Finding(
                action.entry.name,
                Rule.CYCLE,
                f"would copy in a circle: {' from '.join(circle)}",
                "Leave one of these streams out, or change its sources at the target.",
            )
        most = _size(action.config)
        for origin in sorted(origin_names(action.config) & configs.keys() - {action.name}):
            if 0 < most < (its := _size(configs[origin])):
                yield Finding(
                    action.entry.name,
                    Rule.ORIGIN_MESSAGE_SIZE,
                    f"takes messages of {most} bytes at most and copies from {origin}, which takes {its}",
                    "Lower max_msg_size of the origin at the target, or restore the origin as well.",
                )


def about_origins(action: Action, brought: Collection[str], configs: Configs, target: Target) -> Iterator[Finding]:
    """Yield warnings: missing origins, and copies of replaced streams.

    `brought` are the streams of the plan, `configs` are the streams of the target when the whole plan is executed.
    """
    name = action.entry.name
    upstreams = upstreams_of(action.config)
    if upstreams:
        yield Finding(name, Rule.COPIES_ON, "continues copying from its origins as soon as it is restored")
    if absent := sorted(origin_names(action.config) - configs.keys()):
        yield Finding(
            name,
            Rule.ORIGIN_ABSENT,
            f"copies from {', '.join(absent)}, neither at the target nor in this restore",
            "Restore what it copies from as well, or create it: the copy waits for it.",
        )
    for upstream in upstreams:
        if isinstance(external := upstream.get("external"), dict):
            yield Finding(
                name,
                Rule.ORIGIN_ELSEWHERE,
                f"copies from {upstream.get('name')} behind {external.get('api')}, which cannot be checked from here",
                "Make sure that the target reaches it under the same prefix.",
            )
    yield from about_left_copies(action, brought, target)


def configs_after(actions: Sequence[Action], target: Target) -> dict[str, JsonObject]:
    """Return configurations by name when the whole plan is executed."""
    return {name: stream.config for name, stream in target.streams.items()} | {a.name: a.config for a in actions}


def _circle(name: str, config: JsonObject, configs: Configs) -> list[str]:
    """Return the names along a circle through the stream, as the server finds it; empty if there is none."""
    paths = [[name]]
    visited = {name}
    while paths:
        path = paths.pop(0)
        at = configs.get(path[-1], config)
        for upstream in upstreams_of(at):
            origin = upstream.get("name")
            if upstream.get("external") or not isinstance(origin, str):
                continue
            if origin == name and _feeds(at, upstream):
                return [*path, origin]
            if origin not in visited and origin in configs:
                visited.add(origin)
                paths.append([*path, origin])
    return []


def _feeds(config: JsonObject, upstream: JsonObject) -> bool:
    """Return whether the server assumes that a stream copies on what it gets from its origin; filters may
    prevent that.
    """
    wanted = upstream.get("filter_subject")
    if not wanted or upstream is config.get("mirror"):
        return True
    return any(overlaps(subject, str(wanted)) for subject in config.get("subjects") or ())


def _size(config: JsonObject) -> int:
    size = config.get("max_msg_size")
    return size if isinstance(size, int) and not isinstance(size, bool) else -1
