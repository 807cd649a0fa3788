"""The repository: opening, committing and finding backups.

The order of writing, and what it guarantees:

1. Segments and the other objects of streams, each whole, under names that their bytes decide; then the pages that
    list segments, each after those that it lists.
2. The manifest, last, create-only: putting it commits the backup. A reader sees a backup whole or not at all. Objects
    written after it (`catalog.py`) save reading or record that it existed; nothing depends on them.
3. Deletion is in reverse: the manifest first, then objects that no manifest names.

So a command that is killed anywhere leaves a valid repository: committed backups are complete, the one that was being
made is invisible, a repeated run reuses what is stored, and `prune` removes what no manifest names. Nothing is ever
overwritten. A missing, an unreadable and an invalid descriptor are three different errors, and none of them counts as
an empty location.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import asdict, replace
from functools import partial
from typing import TYPE_CHECKING

from jsbackup.errors import FormatError, IntegrityError, JsBackupError, ObjectNotFound, RepositoryNotFound, UsageError
from jsbackup.formats.compression import ZSTD, Compression
from jsbackup.repository import layout
from jsbackup.repository.catalog import contradicted
from jsbackup.repository.checks.ledger import read_damaged
from jsbackup.repository.crypto.access import NO_KEYS, Access, GivenKeys
from jsbackup.repository.descriptor import (
    Descriptor,
    decode_descriptor,
    fetch_descriptor,
    in_a_folder,
    put_descriptor,
    read_descriptor,
    refuse_occupied,
)
from jsbackup.repository.document import MAX_DOCUMENT_BYTES, Documents, decode_document
from jsbackup.repository.inventory import Inventory, note_backup, take_inventory, tend_catalog
from jsbackup.repository.manifest import Manifest, Source, StreamBackup
from jsbackup.repository.manifest_json import decode_manifest, encode_manifest
from jsbackup.repository.objects import SEGMENT_BYTES, Objects, SegmentRef
from jsbackup.repository.pages.segment_pages import SegmentPages
from jsbackup.repository.pages.stream_pages import StreamPages
from jsbackup.stores.base import Store
from jsbackup.stores.probe import probe_store

if TYPE_CHECKING:
    from jsbackup.repository.crypto.new_keys import NewKeys
    from jsbackup.repository.manifest_json import Needed
    from jsbackup.repository.read.latest import Choice, Wanted


__all__ = [
    "ManifestLinks",
    "Repository",
]


# --- manifest links ---
#
# How a manifest names the one before it: by id and SHA-256, so that neither can be removed or replaced unnoticed.


class ManifestLinks:
    """The links from manifests of one repository to those before them. `signed`: its documents are signed."""

    def __init__(self, documents: Documents, *, signed: bool) -> None:
        self._documents = documents
        self._signed = signed
        self._sha256: dict[str, str] = {}  # of manifests that were read or stored, by backup

    def note(self, backup: str, sha256: str) -> None:
        """Note the SHA-256 of a manifest that was read."""
        self._sha256[backup] = sha256

    def note_committed(self, backup: str, sha256: str) -> None:
        """Note the SHA-256 of the newest manifest: no earlier one is named again."""
        self._sha256 = {backup: sha256}

    def linked(self, manifest: Manifest, backups: Callable[[], list[str]]) -> Manifest:
        """Return the manifest with the SHA-256 of the one before it. `backups` returns all that there are, in order: a
        signed manifest names the newest that can be read.
        """
        if not self._signed:
            if manifest.previous is None:
                return manifest
            return replace(manifest, previous_sha256=self._sha256_of(manifest.previous))
        for previous in reversed([backup for backup in backups() if backup != manifest.id]):
            with suppress(ObjectNotFound, IntegrityError):  # forgotten just now, or damaged, which `verify` reports
                stored = self._documents.fetch(layout.manifest_key(previous), MAX_DOCUMENT_BYTES)
                return replace(manifest, previous=previous, previous_sha256=stored.sha256)
        return replace(manifest, previous=None, previous_sha256=None)

    def _sha256_of(self, backup: str) -> str | None:
        """Return the SHA-256 of a plain manifest as it is stored; None if it is damaged, forgotten, or not the one that
        its witness names: then naming it would hide that.
        """
        if backup not in self._sha256:
            with suppress(ObjectNotFound, IntegrityError):
                key = layout.manifest_key(backup)
                stored = self._documents.fetch(key, MAX_DOCUMENT_BYTES)
                decode_document(stored.data, f"manifest {key}")  # whose checksum may be wrong
                self._sha256[backup] = stored.sha256
        sha256 = self._sha256.get(backup)
        return sha256 if sha256 is None or not contradicted(self._documents, {backup: sha256}) else None


_log = logging.getLogger(__name__)


class Repository:
    """A store with a descriptor. `create` and `open` make one.

    `objects` are segments and other objects of streams, `documents` all JSON except leases. `secret` opens an encrypted
    repository; None without a key for it. `signers` may sign, None where nothing is signed; `signatory` is one of them,
    None without its key.
    """

    def __init__(self, store: Store, descriptor: Descriptor, access: Access | None = None) -> None:
        self._access = access = access or Access()
        self.store = store
        self.descriptor = descriptor
        self.documents = Documents(store, access.envelope)
        self.objects = Objects(
            store,
            access.sealing,
            damaged=partial(read_damaged, self.documents),
            segment_bytes=descriptor.segment_bytes,
            compression=descriptor.compression,
        )
        pages = Documents(store, access.page_envelope)
        self.pages = SegmentPages(pages, self.objects)
        self.stream_pages = StreamPages(pages, self.objects, self.pages, has_backup=self.has_backup)
        self._paged: Manifest | None = None  # the newest result of `paged`
        self._links = ManifestLinks(self.documents, signed=descriptor.authority is not None)
        self.secret = access.secret

    @classmethod
    def create(
        cls,
        store: Store,
        *,
        repository_id: str,
        created: str,
        tool: str,
        new_keys: NewKeys | None = None,
        segment_bytes: int = SEGMENT_BYTES,
        compression: Compression = ZSTD,
        making: Callable[[], None] = lambda: None,
    ) -> Repository:
        """Make a repository in an empty location and probe the store.

        `repository_id` is up to 64 random letters and digits, `created` RFC 3339, `tool` name and version. `new_keys`
        has the keys that encrypt and sign; without it the repository is plain. `segment_bytes` is the size of its
        segments, raw, within the limits of `objects.py`; `compression` is theirs. `making` is called before the
        descriptor is put: if anything fails before, there is no repository.

        Raises:
            UsageError: there is already a repository, or something else.
            UnsupportedError: the store lacks something that a repository needs.
        """
        refuse_occupied(store)
        probe = probe_store(store, layout.probe_key(repository_id))
        descriptor = Descriptor(
            repository_id,
            created,
            tool,
            segment_bytes=segment_bytes,
            compression=compression,
            extra={"store": asdict(probe)},
        )
        keys = NO_KEYS
        if new_keys is not None:
            from jsbackup.repository.crypto.new_keys import put_keys

            descriptor = replace(descriptor, authority=new_keys.authority.public, recipient=new_keys.recipient)
            keys = GivenKeys(writer=new_keys.writer_key)
            put_keys(store, descriptor, new_keys)
        making()
        put_descriptor(store, descriptor)
        return cls(store, descriptor, _opened_access(store, descriptor, keys))

    @classmethod
    def create_replica(
        cls, store: Store, source: Repository, *, probe_id: str, created: str, tool: str, keys: GivenKeys = NO_KEYS
    ) -> Repository:
        """Make a repository in an empty location with the identity of `source`: its id, keys, writers, segments' size.

        Objects sealed and signed in one are valid in the other. Key files of readers that are damaged are not copied.
        `probe_id` is random, the rest as in `create`; `keys` as in `open`.
        """
        refuse_occupied(store)
        probe = probe_store(store, layout.probe_key(probe_id))
        from jsbackup.repository.crypto.new_keys import bring_first_keys

        bring_first_keys(source.store, store, source.descriptor)
        extra = {**source.descriptor.extra, "store": asdict(probe)}
        descriptor = replace(source.descriptor, created=created, tool=tool, extra=extra)
        put_descriptor(store, descriptor)
        return cls(store, descriptor, _opened_access(store, descriptor, keys))

    @classmethod
    def open(cls, store: Store, keys: GivenKeys = NO_KEYS) -> Repository:
        """Open a repository. Reading without the needed key raises `KeyUnavailable` later.

        Raises:
            KeyUnavailable: a key was given, and does not fit.
            RepositoryNotFound: the location is empty, or holds something else.
            IntegrityError: the descriptor is damaged, missing although there are backups, or does not belong to the
                keys.
            UsageError: a key was given for a plain repository.
            UnsupportedError: it needs a newer tool.
            StoreError: the store does not answer.
        """
        descriptor = read_descriptor(store)
        return cls(store, descriptor, _opened_access(store, descriptor, keys))

    def commit(self, manifest: Manifest) -> None:
        """Make the backup visible. Everything it names must be stored before, except the pages, which are stored here.

        A manifest names the backup before it, with the SHA-256 of that manifest; a signed one names the newest
        existing backup.

        Raises:
            FormatError: the manifest could not be read back; nothing was written.
            IntegrityError: a page of an earlier backup, which this one shares in part, cannot be read.
            ObjectExists: there is a backup with this id.
            RepositoryNotFound: the repository is not there any more.
        """
        self.check_there()
        key = layout.manifest_key(manifest.id)
        manifest = self.paged(self._links.linked(manifest, self.backups))
        data = encode_manifest(manifest)
        if len(data) > MAX_DOCUMENT_BYTES:
            raise FormatError(f"manifest {manifest.id} would have {len(data)} bytes, more than {MAX_DOCUMENT_BYTES}")
        # Servers may put anything into a config: better to fail here than to have a backup that cannot be opened.
        if encode_manifest(decode_manifest(data, key, self.stream_pages)) != data:
            raise FormatError(f"manifest {manifest.id} would not read back as it was written")
        stored = self.documents.put(key, data)
        self._links.note_committed(manifest.id, stored.sha256)
        # What this manifest does not prove still needs its witness.
        proved = manifest.previous if manifest.previous_sha256 is not None else None
        note_backup(self.documents, manifest.id, proved, self.witness_of(stored.sha256))
        try:
            tend_catalog(self.documents)
        except JsBackupError as error:  # the backup is there; a catalog only makes reading faster
            _log.warning("the catalog of backups was not updated: %s", error.message)

    def paged(self, manifest: Manifest) -> Manifest:
        """Return the manifest as it is stored here: with pages of long lists of segments and streams, which are stored.

        Streams of an import stay in the manifest, as its selection follows from them. Raises IntegrityError,
        KeyUnavailable, StoreError.
        """
        before = self._paged
        if before is not None and before.streams is manifest.streams:
            return replace(manifest, stream_pages=before.stream_pages)
        streams = tuple(map(self._listing, manifest.streams))
        pages = self.stream_pages.store(streams) if manifest.selection is not None else ()
        self._paged = replace(manifest, streams=streams, stream_pages=pages)
        return self._paged

    def _listing(self, stream: StreamBackup) -> StreamBackup:
        segments = self.listed(stream.segments)
        return stream if segments is stream.segments else replace(stream, segments=segments)

    def check_there(self) -> None:
        """Raise RepositoryNotFound if the repository is gone, such as with a disk that was unmounted. Raises
        as `open`.
        """
        try:
            with in_a_folder():
                data = fetch_descriptor(self.store)
        except IntegrityError as error:  # what lies below the mount point, from another time
            raise RepositoryNotFound(error.message, hint=error.hint) from error
        descriptor = decode_descriptor(data)
        if descriptor.id != self.descriptor.id:
            hint = "Start the command again to use that one."
            raise RepositoryNotFound(f"another repository is at {self.store.location} now", hint=hint)

    def renewed(self) -> Repository:
        """Return the same repository, which keeps nothing of what was read before.

        Raises RepositoryNotFound, IntegrityError, StoreError.
        """
        self.check_there()
        return self.over(self.store)

    def over(self, store: Store) -> Repository:
        """Return the same repository in a store that has its objects, such as an overlay."""
        return Repository(store, self.descriptor, self._access)

    def has_backup(self, backup: str) -> bool:
        """Return whether the manifest of this id exists now. Raises RepositoryNotFound if the repository is gone, and
        StoreError.
        """
        try:
            with in_a_folder():
                self.documents.head(layout.manifest_key(backup))
        except ObjectNotFound:
            return False
        return True

    def look_for_damage(self) -> None:
        """Read again which objects were found damaged, so that none is named again. For commands that store for days.

        A page that is known here may be one of them.
        """
        self.objects.look_for_damage()
        self.pages.forget_damaged()
        self.stream_pages.forget_damaged()

    def listed(self, segments: Sequence[SegmentRef]) -> Sequence[SegmentRef]:
        """Return segments as a manifest lists them here. Pages are stored; raises as `SegmentPages.store`."""
        return self.pages.store(segments)

    def witness_of(self, sha256: str) -> bytes:
        """Return what the witness of a manifest with this SHA-256 says: nothing where signatures prove manifests."""
        return sha256.encode() if self.descriptor.authority is None else b""

    def backups(self) -> list[str]:
        """Return the ids of all backups, oldest first. Foreign objects among the manifests are skipped."""
        ids = (layout.backup_id_of(info.key) for info in self.documents.list(layout.BACKUPS))
        return [backup for backup in ids if backup is not None]

    def inventory(self, wanted: Collection[str] | None = None) -> Inventory:
        """Return a summary of each backup, or of those in `wanted`, without reading all manifests. See
        `take_inventory`.
        """
        return take_inventory(self.documents, wanted)

    def resolve(self, text: str) -> str:
        """Return the id that `text` means (`latest`, or the start of an id). Raises UsageError, IntegrityError,
        StoreError; a full id is not looked up.
        """
        if layout.is_backup_id(text):
            return text
        if text == layout.LATEST:
            return self.choose(text, in_part=True).manifest.id
        ids = self.backups()
        try:
            return layout.resolve_backup(text, ids)
        except UsageError as error:
            if text in self.newest_names():
                hint = (
                    f"{text} is a stream: write '{layout.LATEST} {text}', the backup before the stream; or only "
                    f"'{layout.LATEST}', where a command takes no stream."
                )
                raise error.with_hint(hint) from None
            raise

    def newest_names(self) -> list[str]:
        """Return the names of the streams of the newest backup, as far as it can be read: for suggestions."""
        try:
            newest = self.backups()[-1:]
            return [stream.name for backup in newest for stream in self.manifest(backup, in_part=True).streams]
        except JsBackupError:
            return []

    def find(self, text: str) -> Manifest:
        """Return the manifest of the backup that `text` means.

        Raises UsageError, IntegrityError, KeyUnavailable, UnsupportedError, StoreError.
        """
        return self.choose(text).manifest

    def choose(
        self,
        text: str,
        wanted: Wanted | None = None,
        connected: Source | None = None,
        *,
        in_part: bool = False,
        needed: Needed = (),
    ) -> Choice:
        """Return the backup that `text` means: an id, the start of one, or `latest`.

        `latest` depends on what is `wanted`, and on the source that the command is `connected` to (`latest.py`). The
        manifest is read `in_part` if so asked, and only for the streams that are `needed` if there are any
        (`read_needed`).

        Raises:
            UsageError: it does not mean exactly one backup.
            FormatError, UnsupportedError, KeyUnavailable, StoreError: as `manifest` and `choose_latest`.
        """
        from jsbackup.repository.manifest_json import read_needed
        from jsbackup.repository.read.latest import Choice, Wanted, choose_latest, with_damage  # backups need none

        if text == layout.LATEST:
            wanted = wanted or Wanted()
            choice = choose_latest(self, wanted, connected, in_part=in_part, needed=needed)
            return with_damage(self.objects, choice, wanted)
        return Choice(read_needed(self, self.resolve(text), needed, in_part=in_part))

    def manifest(
        self, backup: str, *, streams: bool = True, in_part: bool = False, names: Collection[str] | None = None
    ) -> Manifest:
        """Read a backup's manifest; without `streams` not the pages that list them, `in_part` those that are sound,
        with `names` those that can have streams of these names (`decode_manifest`).

        Raises:
            UsageError: there is no such backup.
            FormatError: the manifest is damaged.
            UnsupportedError: it needs a newer tool.
        """
        key = layout.manifest_key(backup)
        try:
            stored = self.documents.fetch(key, MAX_DOCUMENT_BYTES)
        except ObjectNotFound:
            raise UsageError(f"no backup {backup}", hint="See `jsbackup list` for those there are.") from None
        pages = self.stream_pages if streams else None
        manifest = decode_manifest(stored.data, key, pages, in_part=in_part, names=names)
        self._links.note(backup, stored.sha256)
        return manifest


def _opened_access(store: Store, descriptor: Descriptor, keys: GivenKeys) -> Access:
    """Return what the keys open. A plain repository imports no cryptography.

    Raises KeyUnavailable, IntegrityError, UsageError, StoreError.
    """
    if descriptor.authority is None and keys == NO_KEYS:
        return Access()
    from jsbackup.repository.crypto.opening import open_access

    return open_access(store, descriptor, keys)
