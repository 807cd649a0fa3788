from __future__ import annotations

import hashlib
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jsbackup.errors import FormatError, UsageError
from jsbackup.repository import layout
from jsbackup.repository.layout import LeaseKey, ObjectKind, SegmentKey, StreamFolder
from jsbackup.stores.base import MAX_KEY_BYTES, check_key

DIGEST = "0123456789abcdef" * 4
names = st.text(min_size=1, max_size=300)


def test_keys_are_what_the_design_says() -> None:
    folder = layout.stream_folder("ORDERS", "1a2b3c4d")
    assert folder == "segments/ORDERS-1a2b3c4d"
    key = layout.segment_key(folder, 1, 1234, DIGEST)
    assert key == f"segments/ORDERS-1a2b3c4d/00000000000000000001-00000000000000001234-{DIGEST}.parquet"
    assert layout.replacement_keys(key, "deadbeef" * 8)[0] == key.removesuffix(".parquet") + ".deadbeef.parquet"
    for first in (key, f"{key}.age", layout.pending_key(folder, DIGEST), layout.opaque_key(folder, DIGEST, ".age")):
        assert layout.replaced_key(layout.replacement_keys(first, "deadbeef" * 8)[0]) == first
        assert layout.replaced_key(first) == first
    assert layout.pending_key(folder, DIGEST) == f"segments/ORDERS-1a2b3c4d/pending-{DIGEST}.parquet"
    assert layout.opaque_key(folder, DIGEST) == f"segments/ORDERS-1a2b3c4d/opaque-{DIGEST}.zst"
    assert layout.manifest_key("20261121T014500Z-1a2b3c") == "backups/20261121T014500Z-1a2b3c.json"
    lease = LeaseKey("00112233445566ff", 7, exclusive=True, duration_seconds=300)
    assert layout.lease_key(lease) == "locks/00112233445566ff-00000007-exclusive-300.json"
    assert layout.mark_key("1a2b") == "pruning/1a2b.json"
    assert layout.DESCRIPTOR == "jsbackup.json"


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("a_B-9", "a_B-9"),
        ("größe", "gr%C3%B6%C3%9Fe"),
        ("a.b", "a%2Eb"),
        ("..", "%2E%2E"),
        ("a/b\\c", "a%2Fb%5Cc"),
        ("100%", "100%25"),
        (" \0\n", "%20%00%0A"),
        ("😀", "%F0%9F%98%80"),
    ],
)
def test_names_are_percent_encoded(name: str, encoded: str) -> None:
    assert layout.stream_folder(name, "00000000") == f"segments/{encoded}-00000000"


@given(names, st.integers(0, (1 << 32) - 1))
def test_every_name_gives_a_valid_folder_and_a_short_one_comes_back(name: str, number: int) -> None:
    folder = layout.stream_folder(name, f"{number:08x}")
    longest = layout.replacement_keys(layout.segment_key(folder, (1 << 64) - 1, (1 << 64) - 1, DIGEST), DIGEST)[0]
    assert check_key(longest) == longest
    assert len(longest) <= MAX_KEY_BYTES
    parsed = layout.parse_stream_folder(folder)
    assert parsed.incarnation == f"{number:08x}"
    encoded = sum(
        1 if c.isascii() and (c.isalnum() or c in "_-") else 3 * len(c.encode("utf-8", "surrogatepass")) for c in name
    )
    assert parsed.name == (name if encoded <= 200 else None)


@given(st.text("aé😀", min_size=60, max_size=300), st.text("aé😀", min_size=60, max_size=300))
def test_different_names_have_different_folders(one: str, other: str) -> None:
    folders = layout.stream_folder(one, "00000000"), layout.stream_folder(other, "00000000")
    assert (folders[0] == folders[1]) == (one == other)


def test_a_long_name_is_cut_at_a_character_and_told_apart_by_a_hash() -> None:
    name = "é" * 255
    folder = layout.stream_folder(name, "00000000")
    cut = "%C3%A9" * (160 // 6)
    assert folder == f"segments/{cut}.{hashlib.sha256(name.encode()).hexdigest()[:16]}-00000000"
    assert layout.parse_stream_folder(folder) == StreamFolder(None, "00000000")
    assert layout.stream_folder("x" * 200, "00000000") == f"segments/{'x' * 200}-00000000"
    assert layout.stream_folder("x" * 201, "00000000").startswith(f"segments/{'x' * 160}.")


@pytest.mark.parametrize(
    "folder",
    [
        "",
        "segments/",
        "segments/a",
        "segments/-00000000",
        "segments/a-0000000",
        "segments/a-0000000G",
        "segments/a-00000000/",
        "segments/a-00000000\n",
        "segments/a/b-00000000",
        "segments/a%2-00000000",
        "segments/a%zz-00000000",
        "segments/%61-00000000",  # spells a character that needs no spelling
        "segments/%c3%a9-00000000",  # lower case
        "segments/%C3-00000000",  # half a character
        "segments/a.b-00000000",
        f"segments/{'x' * 201}-00000000",
        f"segments/{'x' * 161}.0123456789abcdef-00000000",
        "backups/a-00000000",
    ],
)
def test_a_folder_that_nobody_would_make_is_refused(folder: str) -> None:
    with pytest.raises(FormatError):
        layout.parse_stream_folder(folder)


@pytest.mark.parametrize(("name", "incarnation"), [("", "00000000"), ("a", ""), ("a", "0000000g"), ("a", "00000000\n")])
def test_a_folder_takes_a_name_and_an_incarnation(name: str, incarnation: str) -> None:
    with pytest.raises(FormatError):
        layout.stream_folder(name, incarnation)


def test_segment_keys_come_back() -> None:
    key = layout.segment_key("segments/a-00000000", 5, 9, DIGEST)
    assert layout.parse_segment_key(key) == SegmentKey("segments/a-00000000", 5, 9, DIGEST)
    beside = layout.replacement_keys(key, "deadbeef" * 8)[0]
    assert layout.parse_segment_key(beside) == SegmentKey("segments/a-00000000", 5, 9, DIGEST, "deadbeef")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("00000000000000000005", "5"),
        ("00000000000000000005", "00000000000000000000"),
        ("00000000000000000005", "00000000000000000010"),
        ("00000000000000000009", "99999999999999999999"),
        ("00000000000000000009", "0000000000000000000٩"),
        (DIGEST, DIGEST.upper()),
        (DIGEST, DIGEST[1:]),
        (".parquet", ".PARQUET"),
        (".parquet", ".parquet.parquet"),
        (".parquet", ".parquet\n"),
        ("segments/a-", "segments/../a-"),
        ("segments/a-", "segments/%61-"),
    ],
)
def test_a_segment_key_that_nobody_would_make_is_refused(old: str, new: str) -> None:
    key = layout.segment_key("segments/a-00000000", 5, 9, DIGEST)
    with pytest.raises(FormatError):
        layout.parse_segment_key(key.replace(old, new))
    assert layout.kind_of(key.replace(old, new)) is ObjectKind.FOREIGN


@pytest.mark.parametrize(
    "make",
    [
        lambda: layout.segment_key("segments/a-00000000", 0, 9, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 9, 5, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", -1, 5, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 5, 1 << 64, DIGEST),
        lambda: layout.segment_key("segments/a-00000000", 5, 9, "x"),
        lambda: layout.segment_key("elsewhere", 5, 9, DIGEST),
        lambda: layout.manifest_key("../x"),
        lambda: layout.manifest_key("latest"),
        lambda: layout.lease_key(LeaseKey("1a2b", 1, exclusive=True, duration_seconds=300)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 10**8, exclusive=True, duration_seconds=300)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 1, exclusive=False, duration_seconds=0)),
        lambda: layout.lease_key(LeaseKey("00112233445566ff", 1, exclusive=False, duration_seconds=10**4)),
    ],
)
def test_no_key_is_made_of_wrong_parts(make: Callable[[], str]) -> None:
    with pytest.raises(FormatError):
        make()


def test_kinds_are_known_by_the_key() -> None:
    folder = "segments/a-00000000"
    kinds = {
        "jsbackup.json": ObjectKind.DESCRIPTOR,
        layout.segment_key(folder, 1, 2, DIGEST): ObjectKind.SEGMENT,
        layout.replacement_keys(layout.segment_key(folder, 1, 2, DIGEST), DIGEST)[0]: ObjectKind.SEGMENT,
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
        layout.identity_key("age1" + "q" * 58, "00ff"): ObjectKind.IDENTITY,
        layout.identity_key("ssh-ed25519-0123456789abcdef", "00ff"): ObjectKind.IDENTITY,
        layout.identity_key("passphrase-00ff00", "00ff"): ObjectKind.IDENTITY,
    }
    foreign = [
        "jsbackup.json.bak",
        "jsbackup.json.age",
        "keys/repository.key",
        "keys/writer-x.json",
        f"keys/writer-{DIGEST}.json.age",
        "keys/age1/x-00000000.age",
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


def test_leases_are_known_by_the_key_alone_and_their_generations_sort() -> None:
    leases = [LeaseKey("00112233445566ff", n, n % 2 == 0, 300) for n in (1, 2, 9, 10, 99, 100, 99_999_999)]
    keys = [layout.lease_key(lease) for lease in leases]
    assert keys == sorted(keys)
    assert [layout.parse_lease_key(key) for key in keys] == leases
    assert all(key.startswith(layout.lease_prefix(leases[0].id)) for key in keys)


# --- incarnations ---


def test_an_incarnation_depends_on_all_four_parts() -> None:
    base = ("cluster", "account", "name", "2026-11-21T01:45:00Z")
    assert layout.incarnation(*base) == hashlib.sha256(b"cluster\0account\0name\x001795225500000000000").hexdigest()[:8]
    others = [
        ("x", *base[1:]),
        (base[0], "x", *base[2:]),
        (*base[:2], "x", base[3]),
        (*base[:3], "2026-11-21T01:45:01Z"),
    ]
    assert len({layout.incarnation(*base), *(layout.incarnation(*other) for other in others)}) == 5


def test_an_incarnation_does_not_depend_on_how_the_time_is_written() -> None:
    times = ["2026-11-21T01:45:00Z", "2026-11-21T01:45:00.000000000Z", "2026-11-21T02:45:00+01:00"]
    assert len({layout.incarnation("c", "a", "n", time) for time in times}) == 1


def test_a_creation_time_that_is_none_is_refused() -> None:
    with pytest.raises(FormatError, match="creation time of stream n"):
        layout.incarnation("c", "a", "n", "yesterday")


# --- backup ids ---


def test_backup_ids_hold_the_time_and_sort_by_it() -> None:
    assert layout.backup_id(1795225500_999_999_999, b"\x1a\x2b\x3c") == "20261121T014500Z-1a2b3c"
    assert layout.backup_id(0, b"\0\0\0") == "19700101T000000Z-000000"
    ids = [layout.backup_id(second * 10**9, b"\xff\xff\xff") for second in range(0, 10**10, 10**8 + 7)]
    assert ids == sorted(ids)
    assert all(layout.is_backup_id(backup) for backup in ids)
    assert [layout.backup_id_of(layout.manifest_key(backup)) for backup in ids] == ids


@given(st.lists(st.binary(min_size=3, max_size=3), min_size=2))
def test_backups_of_the_same_second_have_ids_that_rise(randoms: list[bytes]) -> None:
    ids: list[str] = []
    for random in randoms:
        ids.append(layout.backup_id(1795225500 * 10**9, random, ids[-1] if ids else None))
    assert ids == sorted(set(ids))
    assert all(layout.is_backup_id(backup) for backup in ids)


def test_an_id_passes_no_later_backup_by() -> None:
    assert layout.backup_id(10**9, b"\0\0\1", "20301121T014500Z-ffffff") == "19700101T000001Z-000001"
    assert layout.backup_id(10**9, b"\0\0\1", "19700101T000001Z-ffffff") == "19700101T000002Z-000001"


BACKUPS = ["20261121T014500Z-1a2b3c", "20261121T014500Z-1b0000", "20261122T000000Z-000000", "20260101T000000Z-ffffff"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [("20261122", BACKUPS[2]), ("20261121T014500Z-1a", BACKUPS[0]), (BACKUPS[3], BACKUPS[3])],
)
def test_a_backup_is_named_by_a_unique_start(text: str, expected: str) -> None:
    assert layout.resolve_backup(text, BACKUPS) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("2025", "no backup starts with '2025'"),
        ("", "no backup"),
        ("2026", "4 backups"),
        ("20261121", "2 backups"),
        ("latest", "no backup"),  # what that means, `latest.py` says
    ],
)
def test_an_unclear_backup_is_a_usage_error(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        layout.resolve_backup(text, BACKUPS)


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("latset", "Did you mean latest?"),
        ("LAST", "Did you mean latest?"),
        ("newest", "Did you mean latest?"),
        ("20261121T014500Z-1a2b3d", "Did you mean 20261121T014500Z-1a2b3c?"),
        ("ORDERS", "A backup is named before streams: by its id, the start of it, or `latest`. See `jsbackup list`."),
    ],
)
def test_a_similar_backup_is_suggested(text: str, hint: str) -> None:
    with pytest.raises(UsageError) as raised:
        layout.resolve_backup(text, BACKUPS)
    assert raised.value.hint == hint


def test_where_there_is_no_backup_that_is_said() -> None:
    with pytest.raises(UsageError, match="the repository has no backup yet"):
        layout.resolve_backup("2026", [])
