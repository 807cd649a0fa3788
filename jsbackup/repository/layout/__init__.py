"""The keys of a repository's objects. Only this package builds and parses them.

    jsbackup.json               the descriptor
    segments/<name>-<incarnation>/
        <first>-<last>-<digest>.<digits>.parquet     a segment
        pending-<sha256>.<digits>.parquet    a consumer's pending set, where it is large
        opaque-<sha256>.<digits>.zst         a piece of a snapshot that could not be decoded
        page-<sha256>.<digits>.json          a part of a long list of segments (`pages/`)
    streams/page-<sha256>.<digits>.json.zst  a part of a long list of streams (`stream_pages.py`)
    backups/<backup id>.json    a manifest
    catalog/<10 digits>.json    a catalog of the manifests, by its generation
    catalog/<backup id>.committed        witness that there is such a backup, until another one or a catalog names it;
                                says the SHA-256 of a manifest that is not signed, in hex
    holds/<backup id>.json      keeps `forget` from the backup, see `holds.py`
    locks/<id>-<generation>-<shared|exclusive>-<seconds>.json            a lease, see `leases.py`
    pruning/<id>.json           what `prune` found unused, and when, see `unused_objects.py`
    receipts/<id>-<generation>.json      what the run with this lease has stored so far, see `receipts.py`
    receipts/<verify|drill>-<time>-<6 digits>.json       what a verify or a drill came to, see `outcomes.py`
    verified/<id>.json          what was verified, and when, see `verified.py`; what is damaged in <id>-damaged.json
    keys/<whom>-<8 digits>.age  the identity that opens the repository, encrypted for one who may, see `keys.py`
    keys/<whom>-<8 digits>.json          says that there is such a key file, see `readers.py`
    keys/<whom>-<8 digits>-<sha256>.removed          says that this key file was removed, see `readers.py`
    keys/writer-<64 digits>.json         one who signs, by the public key, see `writers.py`
    probe/<id>                  left by an interrupted `init`; means nothing

`<first>`, `<last>`: sequences, 20 digits. `<digest>`: the segment digest; `<sha256>`: of an object's content; both hex.
`<digits>`: eight of the SHA-256 of the stored bytes (`stream_keys.py`). In an encrypted repository the digest, the
SHA-256, and a stream's name and incarnation are replaced by HMACs (`secret.py`), and the keys of these five kinds and
of all documents except leases and lists of unused objects end in `.age`. Signed documents have one more line
(`signing.py`); pages are not signed. `<backup id>`: the time it began and six random hex digits,
`20261121T014500Z-1a2b3c`; ids sort by time.

`<incarnation>` tells a recreated stream from its namesake: the first eight hex digits of SHA-256 over cluster, account,
name and creation time (decimal nanoseconds since the epoch), joined by NUL.

`<name>`: the stream's name, encoded (`names.py`).

`stream_keys.py` has those below `segments/` and `streams/`, `record_keys.py` the others, `kinds.py` tells which is
which, `backup_ids.py` has what names a backup.
"""

from __future__ import annotations

from jsbackup.repository.layout.backup_ids import LATEST, backup_id, begun_by, begun_ns, is_backup_id, resolve_backup
from jsbackup.repository.layout.kinds import ObjectKind, is_damage_record, kind_of
from jsbackup.repository.layout.record_keys import (
    BACKUPS,
    CATALOGS,
    CHECKS,
    DESCRIPTOR,
    HOLDS,
    KEYS,
    LOCKS,
    MARKS,
    PROBES,
    RECEIPTS,
    SEALED_SUFFIX,
    VERIFIED,
    WRITERS,
    LeaseKey,
    ReceiptKey,
    backup_id_of,
    catalog_generation_of,
    catalog_key,
    held_backup_of,
    hold_key,
    identity_key,
    lease_key,
    lease_prefix,
    manifest_key,
    mark_key,
    outcome_key,
    outcome_prefix,
    parse_lease_key,
    parse_receipt_key,
    parse_removed_reader_key,
    probe_key,
    reader_key,
    receipt_key,
    recorded_identity,
    removed_reader_key,
    verified_key,
    witness_key,
    witnessed_backup_of,
    writer_key,
)
from jsbackup.repository.layout.stream_keys import (
    SEGMENTS,
    STREAMS,
    SegmentKey,
    StreamFolder,
    content_key,
    incarnation,
    is_hidden_folder,
    opaque_key,
    page_key,
    parse_segment_key,
    parse_stream_folder,
    pending_key,
    segment_key,
    stored_digits,
    stored_keys,
    stream_folder,
    stream_page_key,
)

__all__ = [
    "BACKUPS",
    "CATALOGS",
    "CHECKS",
    "DESCRIPTOR",
    "HOLDS",
    "KEYS",
    "LATEST",
    "LOCKS",
    "MARKS",
    "PROBES",
    "RECEIPTS",
    "SEALED_SUFFIX",
    "SEGMENTS",
    "STREAMS",
    "VERIFIED",
    "WRITERS",
    "LeaseKey",
    "ObjectKind",
    "ReceiptKey",
    "SegmentKey",
    "StreamFolder",
    "backup_id",
    "backup_id_of",
    "begun_by",
    "begun_ns",
    "catalog_generation_of",
    "catalog_key",
    "content_key",
    "held_backup_of",
    "hold_key",
    "identity_key",
    "incarnation",
    "is_backup_id",
    "is_damage_record",
    "is_hidden_folder",
    "kind_of",
    "lease_key",
    "lease_prefix",
    "manifest_key",
    "mark_key",
    "opaque_key",
    "outcome_key",
    "outcome_prefix",
    "page_key",
    "parse_lease_key",
    "parse_receipt_key",
    "parse_removed_reader_key",
    "parse_segment_key",
    "parse_stream_folder",
    "pending_key",
    "probe_key",
    "reader_key",
    "receipt_key",
    "recorded_identity",
    "removed_reader_key",
    "resolve_backup",
    "segment_key",
    "stored_digits",
    "stored_keys",
    "stream_folder",
    "stream_page_key",
    "verified_key",
    "witness_key",
    "witnessed_backup_of",
    "writer_key",
]
