"""What a bucket and an object store in a backup share: a stream with a prefix in its name, and who finds it."""

from __future__ import annotations

from typing import ClassVar, Self

from jsbackup.look.stream import find_stream, with_messages
from jsbackup.repository.manifest import Manifest, StreamBackup
from jsbackup.repository.objects import Objects

__all__ = ["StoredBucket"]


class StoredBucket:
    """The bucket of `stream`, whose messages can be read. Names of such streams begin with `prefix`."""

    prefix: ClassVar[str]

    def __init__(self, objects: Objects, manifest: Manifest, stream: StreamBackup) -> None:
        self.manifest = manifest
        self.stream = stream
        self.objects = objects

    @classmethod
    def find(cls, objects: Objects, manifest: Manifest, name: str) -> Self:
        """Return the bucket; `name` may also be that of its stream.

        Raises:
            UsageError: the backup has none, or only its configuration.
            UnsupportedError: it is in an archive format that is not known here.
        """
        names = {stream.name for stream in manifest.streams}
        if name in names and name.startswith(cls.prefix) and cls.prefix + name not in names:
            name = name.removeprefix(cls.prefix)
        return cls(objects, manifest, with_messages(manifest, find_stream(manifest, cls.prefix + name)))

    @property
    def name(self) -> str:
        return self.stream.name.removeprefix(self.prefix)
