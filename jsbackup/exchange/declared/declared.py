"""What all declarations have in common: what is said of a written stream, and the collection of those that are read.

Names of resources in other tools have fewer characters than those in NATS, so two names may become the same. Then all
but one that fits unchanged get a part of their digest, so that a name does not depend on the order: another name would
mean another resource, and these tools delete a stream that is not declared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256

from jsbackup.errors import UsageError
from jsbackup.exchange.config_files import StreamConfigs, without_server_metadata
from jsbackup.exchange.declared.fields import Rounded
from jsbackup.exchange.folder import printable_name
from jsbackup.failure import Failure
from jsbackup.formats.archive.archive_items import asset_name_is_sound
from jsbackup.model import JsonObject

__all__ = [
    "Declarations",
    "DeclaredStream",
    "consumer_notes",
    "is_durable",
    "stream_notes",
    "unique_files",
    "unique_labels",
]

_FEW, _MANY = 8, 40


def unique_labels(names: Iterable[str], label: Callable[[str], str], most: int) -> dict[str, str]:
    """Return the label of each name, of at most `most` characters."""
    wanted = {name: label(name) for name in names}
    labels = _labels(wanted, most, _FEW)
    # Only somebody who wants it makes two digests begin alike.
    return labels if len(set(labels.values())) == len(labels) else _labels(wanted, most, _MANY)


def unique_files(labels: Iterable[str], most: int) -> dict[str, str]:
    """Return the name of each label's file: the same, but with a digest where another one differs only in case, since
    file systems of macOS and Windows would take one file for both.
    """
    plain = list(labels)
    files = _files(plain, most, _FEW)
    return files if len({file.lower() for file in files.values()}) == len(plain) else _files(plain, most, _MANY)


def _files(labels: Sequence[str], most: int, digits: int) -> dict[str, str]:
    alike = Counter(label.lower() for label in labels)
    return {one: one if alike[one.lower()] == 1 else _with_digest(one, one, most, digits) for one in labels}


def _labels(wanted: Mapping[str, str], most: int, digits: int) -> dict[str, str]:
    shared = Counter(wanted.values())
    return {
        name: plain
        if len(plain) <= most and (shared[plain] == 1 or plain == name)
        else _with_digest(plain, name, most, digits)
        for name, plain in wanted.items()
    }


def _with_digest(plain: str, name: str, most: int, digits: int) -> str:
    return f"{plain[: most - digits - 1]}-{sha256(name.encode()).hexdigest()[:digits]}"


@dataclass(frozen=True, slots=True)
class DeclaredStream:
    """A stream that was written as a resource of this `kind`. `notes` name what it lacks, or has rounded."""

    name: str
    kind: str
    notes: tuple[str, ...] = ()


def stream_notes(tool: str, lost: Mapping[str, str | Rounded]) -> list[str]:
    return [
        f"{tool} takes whole seconds only: {field} {reason.exact} is written as {reason.rounded}"
        if isinstance(reason, Rounded)
        else f"{tool} has no place for {field}{f': {reason}' if reason else ''}"
        for field, reason in lost.items()
    ]


def consumer_notes(tool: str, name: str, lost: Mapping[str, str | Rounded]) -> list[str]:
    return [f"consumer {name}: {note}" for note in stream_notes(tool, lost)]


def is_durable(name: str, config: JsonObject) -> bool:
    """Return whether the consumer is durable; both tools make only such ones."""
    return config.get("durable_name") == name


class Declarations:
    """The streams and consumers of several files. `failures` are resources that are of NATS but cannot be imported."""

    def __init__(self) -> None:
        self.failures: list[Failure] = []
        self._streams: dict[str, JsonObject] = {}
        self._consumers: list[tuple[str, str, JsonObject]] = []

    def add_stream(self, where: str, config: JsonObject) -> None:
        """Add a stream's config. Raises `UsageError` if it has no sound name, or is there already."""
        name = _sound(where, config.get("name"))
        if name in self._streams:
            raise UsageError(f"{where}: there are two configurations of stream {name}")
        self._streams[name] = without_server_metadata(config)

    def add_consumer(self, where: str, stream: object, config: JsonObject) -> None:
        """Add a consumer's config, whose name is its `durable_name`. Raises `UsageError` if it has no sound name."""
        name = _sound(where, config.get("durable_name"))
        self._consumers.append((where, _sound(f"{where}: stream", stream), {**config, "name": name}))

    def streams(self) -> list[StreamConfigs]:
        """Return all in order of names. Raises `UsageError` if a consumer's stream is missing, or one is there
        twice.
        """
        consumers: dict[str, dict[str, JsonObject]] = {name: {} for name in self._streams}
        for where, stream, config in self._consumers:
            name = config["name"]
            if stream not in consumers:
                raise UsageError(f"{where} is of stream {stream}, which has no configuration")
            if name in consumers[stream]:
                raise UsageError(f"{where}: there are two configurations of consumer {name} of stream {stream}")
            consumers[stream][name] = without_server_metadata(config)
        return [
            StreamConfigs(config, dict(sorted(consumers[name].items())))
            for name, config in sorted(self._streams.items())
        ]


def _sound(where: str, name: object) -> str:
    if not isinstance(name, str) or not name:
        raise UsageError(f"{where} has no name")
    if not asset_name_is_sound(name):
        raise UsageError(f"{where} has a name that NATS does not allow: {printable_name(name)[:80]}")
    return name
