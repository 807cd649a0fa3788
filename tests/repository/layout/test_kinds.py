from __future__ import annotations

from jsbackup.repository import layout
from jsbackup.repository.layout import LeaseKey, ObjectKind

DIGEST = "0123456789abcdef" * 4


def test_kinds_are_known_by_the_key() -> None:
    folder = "segments/a-00000000"
    kinds = {
        "jsbackup.json": ObjectKind.DESCRIPTOR,
        layout.segment_key(folder, 1, 2, DIGEST): ObjectKind.SEGMENT,
        layout.stored_keys(layout.segment_key(folder, 1, 2, DIGEST), DIGEST)[0]: ObjectKind.SEGMENT,
        layout.pending_key(folder, DIGEST): ObjectKind.PENDING,
        layout.opaque_key(folder, DIGEST): ObjectKind.OPAQUE,
        layout.manifest_key("20261121T014500Z-1a2b3c"): ObjectKind.MANIFEST,
        layout.catalog_key(7): ObjectKind.CATALOG,
        layout.catalog_key(7) + ".age": ObjectKind.CATALOG,
        layout.witness_key("20261121T014500Z-1a2b3c"): ObjectKind.WITNESS,
        layout.witness_key("20261121T014500Z-1a2b3c") + ".age": ObjectKind.FOREIGN,
        layout.hold_key("20261121T014500Z-1a2b3c"): ObjectKind.HOLD,
        layout.hold_key("20261121T014500Z-1a2b3c") + ".age": ObjectKind.HOLD,
        layout.lease_key(LeaseKey("00112233445566ff", 1, exclusive=False, duration_seconds=300)): ObjectKind.LEASE,
        layout.mark_key("1a2b"): ObjectKind.MARKS,
        layout.verified_key("1a2b"): ObjectKind.VERIFIED,
        layout.verified_key("1a2b") + ".age": ObjectKind.VERIFIED,
        layout.outcome_key("drill", 1_795_225_500_000_000_000, b"abc"): ObjectKind.CHECK,
        layout.outcome_key("verify", 0, b"abc") + ".age": ObjectKind.CHECK,
        layout.probe_key("1a2b"): ObjectKind.PROBE,
        layout.manifest_key("20261121T014500Z-1a2b3c") + ".age": ObjectKind.MANIFEST,
        layout.writer_key(DIGEST): ObjectKind.WRITER,
        layout.readers_key(7): ObjectKind.READERS,
        layout.identity_key("age1" + "q" * 58, "00ff", DIGEST): ObjectKind.IDENTITY,
        layout.identity_key("ssh-ed25519-0123456789abcdef", "00ff", DIGEST): ObjectKind.IDENTITY,
        layout.identity_key("passphrase-00ff00", "00ff", DIGEST): ObjectKind.IDENTITY,
    }
    foreign = [
        "jsbackup.json.bak",
        "jsbackup.json.age",
        "keys/repository.key",
        "keys/writer-x.json",
        f"keys/writer-{DIGEST}.json.age",
        "keys/age1/x-00000000-00000000.age",
        "keys/age1-00000000.age",
        "keys/readers-7.json",
        "keys/readers-0000000007.json.age",
        "backups/notes.txt",
        "backups/20261121T014500Z-1a2b3c.json.bak",
        "backups/20261121T014500Z-1a2b3c",
        "backups/a/20261121T014500Z-1a2b3c.json",
        "20261121T014500Z-1a2b3c",
        f"{folder}/pending-{DIGEST}.zst",
        f"segments/%61-00000000/pending-{DIGEST}.parquet",
        f"{folder}/opaque-{DIGEST}.zst.tmp",
        "catalog/7.json",
        "holds/notes.json",
        "holds/20261121T014500Z-1a2b3c.age",
        "locks/a/b.json",
        "locks/1a2b.json",
        "locks/00112233445566ff-00000001-mine-300.json",
        "locks/00112233445566ff-00000001-shared-0300.json",
        "pruning/.json",
        "probe/",
        "photos/cat.jpg",
    ]
    assert {key: layout.kind_of(key) for key in kinds} == kinds
    assert {layout.kind_of(key) for key in foreign} == {ObjectKind.FOREIGN}
