"""Streams at the target that copy from restored or replaced streams, but are not restored themselves.

`transforms/copy_positions.py` explains what they know about the origin. Their messages cannot be changed by a restore,
so a plan reports in numbers what their server will do. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from jsbackup.planning.configs.features import IDENTITIES_SINCE
from jsbackup.planning.copies.copy_facts import key_of_info, sources_of
from jsbackup.planning.model import Action, SendAs, Target
from jsbackup.planning.rules import Finding, Rule
from jsbackup.protocol.info import StreamInfo
from jsbackup.readable import format_count
from jsbackup.repository.read.archiving import state_to_restore
from jsbackup.transforms.copy_positions import is_external, source_key

__all__ = ["about_left_copies"]


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
    there = target.streams.get(action.name)
    hint = f"Restore {name} as well, or delete and create it again."
    newer = target.version[:2] >= IDENTITIES_SINCE
    if there is None:
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
    if newer and not (keeps and entry.created == there.created):
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
