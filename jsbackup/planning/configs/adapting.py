"""`--adapt`: leave out settings that the target's release does not know, if no stored message needs them, and store in
a file what it cannot restore into memory.

Newer clients set them without using them: `allow_msg_ttl` on every bucket, for example. Settings that only affect
publishing can always be left out. Others only matter for messages with a certain header: such a message stops the
restore (`Reshape`), because the target would keep it longer or treat it differently. Settings of mirrors and sources
for their origin's server are still refused, and so are all of consumers, which decide who gets which message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jsbackup.model import JsonObject
from jsbackup.planning.configs.features import V2_SINCE, Lacking, lacking_for_stream, version_text
from jsbackup.planning.model import RestoreOptions, Target
from jsbackup.planning.reshaping import Reshaped
from jsbackup.planning.rules import Finding, Rule
from jsbackup.repository.manifest import ArchiveFormat, StreamBackup
from jsbackup.shell import shell_word

__all__ = ["ADAPT", "adapt", "way_around"]

ADAPT = "--adapt"

# The header of messages that need a setting; "" if none does.
_NEEDED_BY: Mapping[str, str] = {
    "allow_msg_ttl": "Nats-TTL",
    "subject_delete_marker_ttl": "Nats-TTL",
    "allow_msg_counter": "Nats-Incr",
    "allow_msg_schedules": "Nats-Schedule",
    "allow_atomic": "",
    "allow_batched": "",
    "persist_mode": "",
}


def adapt(reshaped: Reshaped, entry: StreamBackup, target: Target, options: RestoreOptions) -> Reshaped:
    """Return the stream without settings that the target does not know, and with the headers that its messages must not
    have.
    """
    if not options.adapt or entry.archive_format is ArchiveFormat.OPAQUE:
        return reshaped
    if _needs_file(reshaped.config, entry, target) and "storage" not in options.fields:
        reason = f"storage is file: {version_text(target.version)} cannot restore a stream kept in memory"
        warnings = (*reshaped.warnings, Finding(entry.name, Rule.ADAPTED, reason))
        reshaped = replace(reshaped, config={**reshaped.config, "storage": "file"}, warnings=warnings)
    left_out = [one for one in lacking_for_stream(reshaped.config, target.version) if _can_go(one, entry, options)]
    if not left_out:
        return reshaped
    fields = {lacking.field for lacking in left_out}
    headers = sorted({_NEEDED_BY[name] for name in fields} - {""})
    return replace(
        reshaped,
        config={key: value for key, value in reshaped.config.items() if key not in fields},
        messages=replace(reshaped.messages, unwanted=tuple(headers)),
        warnings=(*reshaped.warnings, *(_finding(lacking, entry.name, target) for lacking in left_out)),
    )


def _needs_file(config: JsonObject, entry: StreamBackup, target: Target) -> bool:
    """Return whether the target cannot restore the stream because it is kept in memory."""
    is_sent = entry.archive_format is not ArchiveFormat.CONFIG
    return is_sent and config.get("storage") == "memory" and target.version[:2] < V2_SINCE


def _can_go(lacking: Lacking, entry: StreamBackup, options: RestoreOptions) -> bool:
    if lacking.field not in _NEEDED_BY or lacking.field in options.fields:
        return False
    # Every message of such a stream is a counter.
    return lacking.field != "allow_msg_counter" or not entry.captured.messages


def _finding(lacking: Lacking, name: str, target: Target) -> Finding:
    header = _NEEDED_BY[lacking.field]
    reason = f"{lacking.field} is left out: {version_text(target.version)} does not know it"
    return Finding(
        name, Rule.ADAPTED, f"{reason}; a message with the header {header} stops the restore" if header else reason
    )


def way_around(lacking: Lacking, name: str, options: RestoreOptions) -> str:
    """Return a sentence on what to do about a setting that the target does not know."""
    ways = []
    if lacking.field in _NEEDED_BY:
        adapting = "" if options.adapt else f" ({ADAPT} does where no message needs it)"
        ways.append(f"leave it out with --set {lacking.field}=null{adapting}")
    ways += [f"leave the stream out with --exclude {shell_word(name)}", "restore into a newer server"]
    text = f"{', '.join(ways[:-1])}, or {ways[-1]}."
    return text[0].upper() + text[1:]
