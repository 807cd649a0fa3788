"""Repositories that Spark reads: streams of given messages, plain or encrypted, in a folder or in S3."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from jsbackup.model import S3Settings
from jsbackup.pipeline.session.repository_ref import RepositoryRef, place_of
from jsbackup.repository.crypto import age
from jsbackup.repository.crypto.new_keys import make_new_keys
from jsbackup.repository.crypto.signing import encode_writer_key
from jsbackup.repository.manifest import BackupResult, Manifest, Source
from jsbackup.repository.objects import SEGMENT_BYTES
from jsbackup.repository.repository import Repository
from tests.harness import backups
from tests.harness.backups import CREATED, FIRST, store_opaque, store_stream
from tests.harness.batches import Message


@dataclass(frozen=True, slots=True)
class Kept:
    """A repository with one backup. `place` names the key that reads; `writer_key` is a file with that for writing."""

    place: RepositoryRef
    repository: Repository
    manifest: Manifest
    writer_key: Path | None = None

    @property
    def line(self) -> list[str]:
        """The options that name it on a command line."""
        keys = [word for name, value in self.place.keys for word in (f"--{name.replace('_', '-')}", value)]
        return ["-r", self.place.location, *keys]


@contextmanager
def segments_of(size_bytes: int) -> Iterator[None]:
    """Repositories made meanwhile have larger segments: Spark takes longer to open a file than to read what is in it,
    and a stream of few messages has dozens.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(backups, "SEGMENT_BYTES", size_bytes)
        yield


def keep(
    folder: Path,
    streams: Mapping[str, Sequence[Message]],
    *,
    encrypted: bool = False,
    s3: S3Settings | None = None,
    location: str = "",
    opaque: bool = False,
    segment_bytes: int = SEGMENT_BYTES,
) -> Kept:
    """Make a repository in `folder`, or at `location` with its keys there. `segment_bytes` is its size of segments."""
    folder.mkdir(exist_ok=True)
    keys: dict[str, object] = {}
    new_keys = None
    if encrypted:
        reader = age.random_identity()
        assert reader.recipient is not None and reader.text is not None
        new_keys = make_new_keys("00ff", [reader.recipient], None, os.urandom)
        (folder / "identity").write_text(reader.text)
        keys["identity"] = folder / "identity"
    place = place_of(location or str(folder / "repo"), s3 or S3Settings(), keys)
    repository = Repository.create(
        place.store(),
        repository_id="00ff",
        created=CREATED,
        tool="jsbackup tests",
        new_keys=new_keys,
        segment_bytes=segment_bytes,
    )
    stored = [store_stream(repository.objects, name, messages) for name, messages in sorted(streams.items())]
    if opaque:
        stored.append(store_opaque(repository.store, "VERBATIM", b"x" * 3000))
    manifest = Manifest(FIRST, CREATED, "jsbackup tests", Source("2.15.1"), BackupResult.COMPLETE, tuple(stored))
    repository.commit(manifest)
    writer_key = None
    if new_keys is not None:
        writer_key = folder / "writer.key"
        writer_key.write_text(encode_writer_key(new_keys.writer_key))
    return Kept(place, repository, manifest, writer_key)
